//! `StableLmForCausalLM`: layer norms, partial rope; in some sizes biased Q, K and V, a norm per head of Q and K, attention
//! and MLP side by side.

use guesthouse_sdk::graph::{
    Activation, Bias, Dims, Model, ModelInfo, Qkv, Rope, RopeDefaults, Rotation, Scope, Value,
    activation, attention, builder,
};
use guesthouse_sdk::{Config, Error};

struct StableLm;

impl Model for StableLm {
    const ARCHITECTURES: &'static [&'static str] = &["StableLmForCausalLM"];

    fn build(architecture: &str, config: &Config) -> Result<ModelInfo, Error> {
        let dims = Dims {
            eps: config.f32_or("layer_norm_eps", 1e-5)?,
            ..Dims::from_config(config)?
        };
        let quarter = RopeDefaults {
            partial: 0.25,
            ..RopeDefaults::default()
        };
        let rotation = Rope::from_config_or(config, quarter)?.rotation(dims.head_dim);
        let layer = Layer {
            dims,
            act: activation(config, "hidden_act", "silu")?,
            qkv_bias: Bias::from_config(config, "use_qkv_bias")?,
            qk_norm: config.flag("qk_layernorm", false)?,
            parallel: config.flag("use_parallel_residual", false)?,
        };

        let root = Scope::root("");
        let model = root.enter("model");
        let table = model.param("embed_tokens.weight", &[dims.vocab, dims.hidden]);
        let mut x = builder::embedding(table, builder::token_ids());
        for i in 0..dims.layers {
            x = layer.build(&model.enter(format_args!("layers.{i}")), x, &rotation);
        }
        let x = model.layer_norm("norm", builder::gather_outputs(x), dims.hidden, dims.eps);
        let tied = config.flag("tie_word_embeddings", false)?.then_some(table);
        builder::output_logits(dims.logits(x, tied, &root));
        Ok(dims.info(architecture))
    }
}

struct Layer {
    dims: Dims,
    act: Activation,
    qkv_bias: Bias,
    qk_norm: bool,
    parallel: bool,
}

impl Layer {
    fn build(&self, at: &Scope, x: Value, rotation: &Rotation) -> Value {
        let d = &self.dims;
        let mlp = |h| at.enter("mlp").gated_mlp(h, d, self.act, Bias::IfPresent);
        let h = at.layer_norm("input_layernorm", x, d.hidden, d.eps);
        let attended = builder::add(x, self.attention(&at.enter("self_attn"), h, rotation));
        if self.parallel {
            return builder::add(attended, mlp(h));
        }
        let h = at.layer_norm("post_attention_layernorm", attended, d.hidden, d.eps);
        builder::add(attended, mlp(h))
    }

    fn attention(&self, at: &Scope, x: Value, rotation: &Rotation) -> Value {
        let d = &self.dims;
        let mut qkv = Qkv::project(at, x, d, self.qkv_bias);
        if self.qk_norm {
            qkv = Qkv {
                q: self.norm(&at.enter("q_layernorm"), qkv.q, d.heads),
                k: self.norm(&at.enter("k_layernorm"), qkv.k, d.kv_heads),
                ..qkv
            };
        }
        let o = qkv.rotate(rotation).attend(d, &attention(d.scale(), None));
        at.out("o_proj", o, d, Bias::IfPresent)
    }

    /// `x [heads, d]` by one weight per head, stored apart, or in GGUF files together.
    fn norm(&self, at: &Scope, x: Value, heads: u32) -> Value {
        let d = self.dims.head_dim;
        let each = |i| at.param(&format!("norms.{i}.weight"), &[d]);
        let weight = if at.has("weight") {
            at.param("weight", &[heads, d])
        } else {
            let all = builder::concat_rows(&(0..heads).map(each).collect::<Vec<_>>());
            builder::reshape_weight(all, &[heads, d])
        };
        builder::layer_norm(x, Some(weight), None, self.dims.eps)
    }
}

guesthouse_sdk::export_model!(StableLm);
