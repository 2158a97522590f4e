//! `GlmForCausalLM` (GLM-4-9B, GLM-Edge) and `Glm4ForCausalLM` (GLM-4-0414: norms after attention and MLP too): biased Q, K
//! and V, interleaved rope over half of each head, gate and up in one linear.

use guesthouse_sdk::graph::{
    Activation, Bias, Dims, Model, ModelInfo, Qkv, Rope, RopeDefaults, Rotation, Scope, Value,
    activation, attention, builder,
};
use guesthouse_sdk::{Config, Error};

struct Glm4;

impl Model for Glm4 {
    const ARCHITECTURES: &'static [&'static str] = &["GlmForCausalLM", "Glm4ForCausalLM"];

    fn build(architecture: &str, config: &Config) -> Result<ModelInfo, Error> {
        let dims = Dims {
            head_dim: config.opt_size("head_dim")?.unwrap_or(128),
            kv_heads: config.opt_size("num_key_value_heads")?.unwrap_or(2),
            eps: config.f32_or("rms_norm_eps", 1.5625e-7)?,
            ..Dims::from_config(config)?
        }
        .checked(config)?;
        let half = RopeDefaults {
            partial: 0.5,
            ..RopeDefaults::default()
        };
        let rotation = Rope::from_config_or(config, half)?.interleaved(dims.head_dim);
        let layer = Layer {
            dims,
            act: activation(config, "hidden_act", "silu")?,
            qkv_bias: if config.flag("attention_bias", true)? {
                Bias::Required
            } else {
                Bias::IfPresent
            },
            sandwich: architecture == "Glm4ForCausalLM",
        };

        let root = Scope::root("");
        let model = root.enter("model");
        let table = model.param("embed_tokens.weight", &[dims.vocab, dims.hidden]);
        let mut x = builder::embedding(table, builder::token_ids());
        for i in 0..dims.layers {
            x = layer.build(&model.enter(format_args!("layers.{i}")), x, &rotation);
        }
        let x = model.rms_norm("norm", builder::gather_outputs(x), dims.hidden, dims.eps);
        let tied = config.flag("tie_word_embeddings", false)?.then_some(table);
        builder::output_logits(dims.logits(x, tied, &root));
        Ok(dims.info(architecture))
    }
}

struct Layer {
    dims: Dims,
    act: Activation,
    qkv_bias: Bias,
    /// Norms after attention and MLP.
    sandwich: bool,
}

impl Layer {
    fn build(&self, at: &Scope, x: Value, rotation: &Rotation) -> Value {
        let d = &self.dims;
        let norm = |name, x| at.rms_norm(name, x, d.hidden, d.eps);
        let after = |name, x| if self.sandwich { norm(name, x) } else { x };
        let h = norm("input_layernorm", x);
        let h = self.attention(&at.enter("self_attn"), h, rotation);
        let x = builder::add(x, after("post_self_attn_layernorm", h));
        let h = norm("post_attention_layernorm", x);
        let h = at.enter("mlp").fused_gated_mlp(h, d, self.act);
        builder::add(x, after("post_mlp_layernorm", h))
    }

    fn attention(&self, at: &Scope, x: Value, rotation: &Rotation) -> Value {
        let d = &self.dims;
        let o = Qkv::project(at, x, d, self.qkv_bias)
            .rotate(rotation)
            .attend(d, &attention(d.scale(), None));
        at.out("o_proj", o, d, Bias::IfPresent)
    }
}

guesthouse_sdk::export_model!(Glm4);
