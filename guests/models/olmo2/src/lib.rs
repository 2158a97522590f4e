//! `Olmo2ForCausalLM`: norms after attention and MLP instead of before, and over all heads of Q and of K at once.

use guesthouse_sdk::graph::{
    Activation, Bias, Dims, Model, ModelInfo, Qkv, Rope, Rotation, Scope, Value, activation,
    attention, builder,
};
use guesthouse_sdk::{Config, Error};

struct Olmo2;

impl Model for Olmo2 {
    const ARCHITECTURES: &'static [&'static str] = &["Olmo2ForCausalLM"];

    fn build(architecture: &str, config: &Config) -> Result<ModelInfo, Error> {
        let dims = Dims {
            eps: config.f32_or("rms_norm_eps", 1e-5)?,
            ..Dims::from_config(config)?
        };
        let rotation = Rope::from_config(config)?.rotation(dims.head_dim);
        let layer = Layer {
            dims,
            act: activation(config, "hidden_act", "silu")?,
            bias: Bias::from_config(config, "attention_bias")?,
        };

        let root = Scope::root("");
        let model = root.enter("model");
        let table = model.param("embed_tokens.weight", &[dims.vocab, dims.hidden]);
        let mut x = builder::embedding(table, builder::token_ids());
        for i in 0..dims.layers {
            x = layer.build(&model.enter(format_args!("layers.{i}")), x, &rotation);
        }
        let x = model.rms_norm_f32("norm", builder::gather_outputs(x), dims.hidden, dims.eps);
        let tied = config.flag("tie_word_embeddings", false)?.then_some(table);
        builder::output_logits(dims.logits(x, tied, &root));
        Ok(dims.info(architecture))
    }
}

struct Layer {
    dims: Dims,
    act: Activation,
    bias: Bias,
}

impl Layer {
    fn build(&self, at: &Scope, x: Value, rotation: &Rotation) -> Value {
        let d = &self.dims;
        let norm = |name, x| at.rms_norm_f32(name, x, d.hidden, d.eps);
        let h = self.attention(&at.enter("self_attn"), x, rotation);
        let x = builder::add(x, norm("post_attention_layernorm", h));
        let h = at.enter("mlp").gated_mlp(x, d, self.act, Bias::IfPresent);
        builder::add(x, norm("post_feedforward_layernorm", h))
    }

    fn attention(&self, at: &Scope, x: Value, rotation: &Rotation) -> Value {
        let d = &self.dims;
        let [q, k, v] = Qkv::flat(at, x, d, self.bias);
        let q = at.rms_norm_f32("q_norm", q, d.q(), d.eps);
        let k = at.rms_norm_f32("k_norm", k, d.kv(), d.eps);
        let o = Qkv::split(q, k, v, d)
            .rotate(rotation)
            .attend(d, &attention(d.scale(), None));
        at.out("o_proj", o, d, self.bias)
    }
}

guesthouse_sdk::export_model!(Olmo2);
