//! `Qwen2ForCausalLM` (Qwen 1.5, 2, 2.5: biased Q, K and V) and `Qwen3ForCausalLM` (norms on Q and K).

use guesthouse_sdk::graph::{
    Activation, Bias, Dims, Model, ModelInfo, PositionScheme, Rope, RopeParams, Scope, Sharding,
    Value, activation, attention, builder, kv_cache, merge_heads, split_heads,
};
use guesthouse_sdk::{Config, Error};

const FULL: &str = "full_attention";
const SLIDING: &str = "sliding_attention";

struct Qwen;

impl Model for Qwen {
    const ARCHITECTURES: &'static [&'static str] = &["Qwen2ForCausalLM", "Qwen3ForCausalLM"];

    fn build(architecture: &str, config: &Config) -> Result<ModelInfo, Error> {
        let qwen3 = architecture == "Qwen3ForCausalLM";
        let mut dims = Dims::from_config(config)?;
        if qwen3 && config.get("head_dim").is_none() {
            dims.head_dim = 128;
        }
        if config.flag("use_mrope", false)? {
            return Err(config.wrong(
                "use_mrope",
                "false, since this guest has no positions in three dimensions",
            ));
        }
        let rope = Rope::from_config(config)?.params(dims.head_dim);
        let windows = windows(config, dims.layers)?;
        // Qwen 2 has no such field, and biases on Q, K and V always.
        let bias = Bias::from_config(config, "attention_bias")?;
        let layer = Layer {
            dims,
            act: activation(config, "hidden_act", "silu")?,
            qkv_bias: if qwen3 { bias } else { Bias::Required },
            o_bias: bias,
            qk_norm: qwen3,
        };

        let root = Scope::root("");
        let model = root.enter("model");
        let table = model.param("embed_tokens.weight", &[dims.vocab, dims.hidden]);
        let positions = builder::positions(&PositionScheme::Standard);
        let mut x = builder::embedding(table, builder::token_ids());
        for (i, window) in windows.into_iter().enumerate() {
            x = layer.build(
                &model.enter(format_args!("layers.{i}")),
                x,
                positions,
                &rope,
                window,
            );
        }
        let x = model.rms_norm("norm", builder::gather_outputs(x), dims.hidden, dims.eps);
        let tied = config.flag("tie_word_embeddings", false)?.then_some(table);
        builder::output_logits(dims.logits(x, tied, &root));
        Ok(dims.info(architecture))
    }
}

/// Each layer's window. Without `layer_types`, the layers from `max_window_layers` on have one.
fn windows(config: &Config, layers: u32) -> Result<Vec<Option<u32>>, Error> {
    let window = match config.flag("use_sliding_window", false)? {
        true if config.mentions("sliding_window") => config.opt_size("sliding_window")?,
        true => Some(4096),
        false => None,
    };
    let full_layers = config.u32_or("max_window_layers", 28)?;
    let types = config.layer_types(layers, &[FULL, SLIDING], |i| {
        if i < full_layers { FULL } else { SLIDING }.into()
    })?;
    Ok(types
        .iter()
        .map(|t| window.filter(|_| t == SLIDING))
        .collect())
}

/// Pre-norm attention and SwiGLU.
struct Layer {
    dims: Dims,
    act: Activation,
    qkv_bias: Bias,
    o_bias: Bias,
    qk_norm: bool,
}

impl Layer {
    fn build(
        &self,
        at: &Scope,
        x: Value,
        positions: Value,
        rope: &RopeParams,
        window: Option<u32>,
    ) -> Value {
        let d = &self.dims;
        let h = at.rms_norm("input_layernorm", x, d.hidden, d.eps);
        let h = self.attention(&at.enter("self_attn"), h, positions, rope, window);
        let x = builder::add(x, h);
        let h = at.rms_norm("post_attention_layernorm", x, d.hidden, d.eps);
        builder::add(
            x,
            at.enter("mlp")
                .gated_mlp(h, &self.dims, self.act, Bias::IfPresent),
        )
    }

    fn attention(
        &self,
        at: &Scope,
        x: Value,
        positions: Value,
        rope: &RopeParams,
        window: Option<u32>,
    ) -> Value {
        let d = &self.dims;
        let project = |name, heads| {
            let linear = at.linear_with(
                self.qkv_bias,
                name,
                heads * d.head_dim,
                d.hidden,
                Sharding::Column,
            );
            split_heads(linear.apply(x), heads, d.head_dim)
        };
        let (q, k, v) = (
            project("q_proj", d.heads),
            project("k_proj", d.kv_heads),
            project("v_proj", d.kv_heads),
        );
        let turn = |name, x| {
            let x = if self.qk_norm {
                at.rms_norm(name, x, d.head_dim, d.eps)
            } else {
                x
            };
            builder::rope(x, positions, rope)
        };
        let (q, k) = (turn("q_norm", q), turn("k_norm", k));
        let cache = kv_cache(d.kv_heads, d.head_dim, window);
        let o = builder::attention(q, k, v, cache, &attention(d.scale(), window));
        at.linear_with(self.o_bias, "o_proj", d.hidden, d.q(), Sharding::Row)
            .apply(merge_heads(o, d.q()))
    }
}

guesthouse_sdk::export_model!(Qwen);
