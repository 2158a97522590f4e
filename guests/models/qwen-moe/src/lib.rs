//! `Qwen2MoeForCausalLM` (Qwen1.5-MoE, Qwen2-57B-A14B: a shared expert behind a gate) and `Qwen3MoeForCausalLM` (norms on
//! Q and K). Some layers may have a plain MLP.

use guesthouse_sdk::graph::{
    Activation, Bias, Dims, ExpertDims, ExpertNames, Model, ModelInfo, Qkv, Rope, Rotation,
    RouteParams, RouteScores, Scope, Sharding, Value, activation, attention, builder, mixture,
    route_params, stacked_experts,
};
use guesthouse_sdk::{Config, Error};

const FULL: &str = "full_attention";
const SLIDING: &str = "sliding_attention";

struct QwenMoe;

impl Model for QwenMoe {
    const ARCHITECTURES: &'static [&'static str] = &["Qwen2MoeForCausalLM", "Qwen3MoeForCausalLM"];

    fn build(architecture: &str, config: &Config) -> Result<ModelInfo, Error> {
        let qwen3 = architecture == "Qwen3MoeForCausalLM";
        let dims = Dims::from_config(config)?;
        let rotation = Rope::from_config(config)?.rotation(dims.head_dim);
        let windows = windows(config, dims.layers, qwen3)?;
        let biased = match config.get("qkv_bias") {
            None if qwen3 => Bias::from_config(config, "attention_bias")?,
            None => Bias::Required,
            Some(_) => Bias::from_config(config, "qkv_bias")?,
        };
        let shared = if qwen3 {
            None
        } else {
            Some(config.size("shared_expert_intermediate_size")?)
        };
        let layer = Layer {
            dims,
            act: activation(config, "hidden_act", "silu")?,
            qkv_bias: biased,
            qk_norm: qwen3,
            // Configs call it so whatever the library calls it.
            experts: ExpertDims {
                count: config
                    .opt_size("num_experts")?
                    .map_or_else(|| config.size("num_local_experts"), Ok)?,
                hidden: dims.hidden,
                ffn: config.size("moe_intermediate_size")?,
            },
            route: RouteParams {
                renormalize: config.flag("norm_topk_prob", false)?,
                ..route_params(config.size("num_experts_per_tok")?, RouteScores::Softmax)
            },
            shared,
        };
        let sparse = sparse_layers(config, dims.layers)?;

        let root = Scope::root("");
        let model = root.enter("model");
        let table = model.param("embed_tokens.weight", &[dims.vocab, dims.hidden]);
        let mut x = builder::embedding(table, builder::token_ids());
        for (i, (window, sparse)) in windows.into_iter().zip(sparse).enumerate() {
            let at = model.enter(format_args!("layers.{i}"));
            let h = at.rms_norm("input_layernorm", x, dims.hidden, dims.eps);
            x = builder::add(
                x,
                layer.attention(&at.enter("self_attn"), h, &rotation, window),
            );
            let h = at.rms_norm("post_attention_layernorm", x, dims.hidden, dims.eps);
            let at = at.enter("mlp");
            let h = if sparse {
                layer.mixture(&at, h)
            } else {
                at.gated_mlp(h, &dims, layer.act, Bias::IfPresent)
            };
            x = builder::add(x, h);
        }
        let x = model.rms_norm("norm", builder::gather_outputs(x), dims.hidden, dims.eps);
        let tied = config.flag("tie_word_embeddings", false)?.then_some(table);
        builder::output_logits(dims.logits(x, tied, &root));
        Ok(dims.info(architecture))
    }
}

/// Each layer's window. Qwen 3's is that of all layers; without `layer_types`, Qwen 2's alternates from layer 0 on among the
/// first `max_window_layers`.
fn windows(config: &Config, layers: u32, qwen3: bool) -> Result<Vec<Option<u32>>, Error> {
    let window = match config.flag("use_sliding_window", false)? {
        true if config.mentions("sliding_window") => config.opt_size("sliding_window")?,
        true => Some(4096),
        false => None,
    };
    let most = config.u32_or("max_window_layers", 28)?;
    let types = config.layer_types(layers, &[FULL, SLIDING], |i| {
        let slides = qwen3 || (i % 2 == 0 && i < most);
        if slides { SLIDING } else { FULL }.into()
    })?;
    Ok(types
        .iter()
        .map(|t| window.filter(|_| t == SLIDING))
        .collect())
}

/// Which layers have experts: every `decoder_sparse_step`-th that `mlp_only_layers` does not name.
fn sparse_layers(config: &Config, layers: u32) -> Result<Vec<bool>, Error> {
    let step = config.opt_size("decoder_sparse_step")?.unwrap_or(1);
    let plain = match config.get("mlp_only_layers") {
        None => vec![],
        Some(list) => list
            .as_array()
            .and_then(|a| a.iter().map(|v| v.as_u64()).collect::<Option<Vec<_>>>())
            .ok_or_else(|| config.wrong("mlp_only_layers", "a list of layers' numbers"))?,
    };
    Ok((0..layers)
        .map(|i| (i + 1) % step == 0 && !plain.contains(&u64::from(i)))
        .collect())
}

/// Pre-norm attention, then experts or an MLP.
struct Layer {
    dims: Dims,
    act: Activation,
    qkv_bias: Bias,
    qk_norm: bool,
    experts: ExpertDims,
    route: RouteParams,
    /// Width of the expert that every token takes.
    shared: Option<u32>,
}

impl Layer {
    fn attention(&self, at: &Scope, x: Value, rotation: &Rotation, window: Option<u32>) -> Value {
        let d = &self.dims;
        let mut qkv = Qkv::project(at, x, d, self.qkv_bias);
        if self.qk_norm {
            qkv = qkv.norm(|name, x| at.rms_norm(name, x, d.head_dim, d.eps));
        }
        let o = qkv
            .rotate(rotation)
            .attend(d, &attention(d.scale(), window));
        let bias = if self.qk_norm {
            self.qkv_bias
        } else {
            Bias::IfPresent
        };
        at.out("o_proj", o, d, bias)
    }

    fn mixture(&self, at: &Scope, x: Value) -> Value {
        let d = &self.dims;
        let stored = stacked_experts(at, &ExpertNames::LLAMA, self.experts, self.act);
        let y = mixture(at, x, self.experts, &self.route, &stored);
        let Some(ffn) = self.shared else { return y };
        let always = Dims { ffn, ..*d };
        let shared = at
            .enter("shared_expert")
            .gated_mlp(x, &always, self.act, Bias::IfPresent);
        let gate = at
            .linear("shared_expert_gate", 1, d.hidden, Sharding::Replicated)
            .apply(x);
        let gate = builder::activate(gate, Activation::Sigmoid);
        builder::add(y, builder::mul(shared, gate))
    }
}

guesthouse_sdk::export_model!(QwenMoe);
