//! `Phi3ForCausalLM` (Phi 3, 3.5, 4, 4-mini): a Llama with fused linears, a window in every layer, and longrope.

use guesthouse_sdk::graph::{
    Activation, Bias, Dims, Model, ModelInfo, Qkv, Rope, Rotation, Scope, Sharding, Value,
    activation, attention, builder,
};
use guesthouse_sdk::{Config, Error};

struct Phi3;

impl Model for Phi3 {
    const ARCHITECTURES: &'static [&'static str] = &["Phi3ForCausalLM"];

    fn build(architecture: &str, config: &Config) -> Result<ModelInfo, Error> {
        let dims = Dims {
            eps: config.f32_or("rms_norm_eps", 1e-5)?,
            ..Dims::from_config(config)?
        };
        let rotation = Rope::from_config(config)?.rotation(dims.head_dim);
        let layer = Layer {
            dims,
            act: activation(config, "hidden_act", "silu")?,
            window: config.opt_size("sliding_window")?,
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

/// Pre-norm attention and SwiGLU.
struct Layer {
    dims: Dims,
    act: Activation,
    window: Option<u32>,
}

impl Layer {
    fn build(&self, at: &Scope, x: Value, rotation: &Rotation) -> Value {
        let d = &self.dims;
        let h = at.rms_norm("input_layernorm", x, d.hidden, d.eps);
        let x = builder::add(x, self.attention(&at.enter("self_attn"), h, rotation));
        let h = at.rms_norm("post_attention_layernorm", x, d.hidden, d.eps);
        builder::add(x, at.enter("mlp").fused_gated_mlp(h, d, self.act))
    }

    fn attention(&self, at: &Scope, x: Value, rotation: &Rotation) -> Value {
        let d = &self.dims;
        let fused = at.linear("qkv_proj", d.q() + 2 * d.kv(), d.hidden, Sharding::Column);
        let o = Qkv::fused(&fused, x, d)
            .rotate(rotation)
            .attend(d, &attention(d.scale(), self.window));
        at.out("o_proj", o, d, Bias::IfPresent)
    }
}

guesthouse_sdk::export_model!(Phi3);
