//! `CohereForCausalLM` (Command R) and `Cohere2ForCausalLM` (Command R7B: windows with rope, and whole layers without):
//! one layer norm before attention and MLP, which run side by side; interleaved rope; scaled logits.

use guesthouse_sdk::graph::{
    Activation, Bias, Dims, Model, ModelInfo, Qkv, Rope, RopeDefaults, Rotation, Scope, Value,
    activation, attention, builder,
};
use guesthouse_sdk::{Config, Error};

const FULL: &str = "full_attention";
const SLIDING: &str = "sliding_attention";

struct Cohere;

impl Model for Cohere {
    const ARCHITECTURES: &'static [&'static str] = &["CohereForCausalLM", "Cohere2ForCausalLM"];

    fn build(architecture: &str, config: &Config) -> Result<ModelInfo, Error> {
        let second = architecture == "Cohere2ForCausalLM";
        let dims = Dims {
            eps: config.f32_or("layer_norm_eps", 1e-5)?,
            ..Dims::from_config(config)?
        };
        let usual = RopeDefaults {
            theta: if second { 10_000.0 } else { 500_000.0 },
            ..RopeDefaults::default()
        };
        let rotation = Rope::from_config_or(config, usual)?.interleaved(dims.head_dim);
        let layer = Layer {
            dims,
            act: activation(config, "hidden_act", "silu")?,
            bias: Bias::from_config(config, "attention_bias")?,
            qk_norm: !second && config.flag("use_qk_norm", false)?,
        };
        let windows = if second {
            windows(config, dims.layers)?
        } else {
            vec![None; dims.layers as usize]
        };

        let root = Scope::root("");
        let model = root.enter("model");
        let table = model.param("embed_tokens.weight", &[dims.vocab, dims.hidden]);
        let mut x = builder::embedding(table, builder::token_ids());
        for (i, window) in windows.into_iter().enumerate() {
            let at = model.enter(format_args!("layers.{i}"));
            // The second generation's whole layers know no positions.
            let rotation = (!second || window.is_some()).then_some(&rotation);
            x = layer.build(&at, x, rotation, window);
        }
        let x = model.layer_norm("norm", builder::gather_outputs(x), dims.hidden, dims.eps);
        let tied = config.flag("tie_word_embeddings", true)?.then_some(table);
        let logits = dims.logits(x, tied, &root);
        let by = config.f32_or("logit_scale", 0.0625)?;
        builder::output_logits(builder::scale(logits, by));
        Ok(dims.info(architecture))
    }
}

/// Each layer's window.
fn windows(config: &Config, layers: u32) -> Result<Vec<Option<u32>>, Error> {
    let window = if config.mentions("sliding_window") {
        config.opt_size("sliding_window")?
    } else {
        Some(4096)
    };
    let pattern = config.opt_size("sliding_window_pattern")?.unwrap_or(4);
    let types = config.layer_types(layers, &[FULL, SLIDING], |i| {
        let full = (i + 1).is_multiple_of(pattern);
        if full { FULL } else { SLIDING }.into()
    })?;
    Ok(types
        .iter()
        .map(|t| window.filter(|_| t == SLIDING))
        .collect())
}

struct Layer {
    dims: Dims,
    act: Activation,
    bias: Bias,
    qk_norm: bool,
}

impl Layer {
    fn build(
        &self,
        at: &Scope,
        x: Value,
        rotation: Option<&Rotation>,
        window: Option<u32>,
    ) -> Value {
        let d = &self.dims;
        let h = at.layer_norm("input_layernorm", x, d.hidden, d.eps);
        let attended = self.attention(&at.enter("self_attn"), h, rotation, window);
        let mlp = at.enter("mlp").gated_mlp(h, d, self.act, Bias::IfPresent);
        builder::add(builder::add(x, attended), mlp)
    }

    fn attention(
        &self,
        at: &Scope,
        x: Value,
        rotation: Option<&Rotation>,
        window: Option<u32>,
    ) -> Value {
        let d = &self.dims;
        let mut qkv = Qkv::project(at, x, d, self.bias);
        if self.qk_norm {
            // One weight per element of all heads.
            let norm = |name: &str, x, heads| {
                let weight = at.param(&format!("{name}.weight"), &[heads, d.head_dim]);
                builder::layer_norm(x, Some(weight), None, d.eps)
            };
            qkv = Qkv {
                q: norm("q_norm", qkv.q, d.heads),
                k: norm("k_norm", qkv.k, d.kv_heads),
                ..qkv
            };
        }
        if let Some(rotation) = rotation {
            qkv = qkv.rotate(rotation);
        }
        let o = qkv.attend(d, &attention(d.scale(), window));
        at.out("o_proj", o, d, self.bias)
    }
}

guesthouse_sdk::export_model!(Cohere);
