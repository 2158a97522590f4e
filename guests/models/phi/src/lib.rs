//! `PhiForCausalLM` (Phi 1, 1.5, 2): one layer norm before attention and MLP, which run side by side; partial rope.

use guesthouse_sdk::graph::{
    Activation, Bias, Dims, Linear, Model, ModelInfo, Qkv, Rope, RopeDefaults, Rotation, Scope,
    Sharding, Value, activation, attention, builder,
};
use guesthouse_sdk::{Config, Error};

struct Phi;

impl Model for Phi {
    const ARCHITECTURES: &'static [&'static str] = &["PhiForCausalLM"];

    fn build(architecture: &str, config: &Config) -> Result<ModelInfo, Error> {
        let dims = Dims {
            eps: config.f32_or("layer_norm_eps", 1e-5)?,
            ..Dims::from_config(config)?
        };
        let half = RopeDefaults {
            partial: 0.5,
            ..RopeDefaults::default()
        };
        let rotation = Rope::from_config_or(config, half)?.rotation(dims.head_dim);
        let layer = Layer {
            dims,
            act: activation(config, "hidden_act", "gelu_new")?,
            qk_norm: config.flag("qk_layernorm", false)?,
        };

        let root = Scope::root("");
        let model = root.enter("model");
        let table = model.param("embed_tokens.weight", &[dims.vocab, dims.hidden]);
        let mut x = builder::embedding(table, builder::token_ids());
        for i in 0..dims.layers {
            x = layer.build(&model.enter(format_args!("layers.{i}")), x, &rotation);
        }
        let x = builder::gather_outputs(x);
        let x = model.layer_norm("final_layernorm", x, dims.hidden, dims.eps);
        // A tied head has a bias of its own all the same.
        let head = if config.flag("tie_word_embeddings", false)? {
            Linear {
                weight: table,
                bias: Some(root.param("lm_head.bias", &[dims.vocab])),
                sharding: Sharding::Column,
            }
        } else {
            root.biased("lm_head", dims.vocab, dims.hidden, Sharding::Column)
        };
        builder::output_logits(head.apply(x));
        Ok(dims.info(architecture))
    }
}

struct Layer {
    dims: Dims,
    act: Activation,
    qk_norm: bool,
}

impl Layer {
    fn build(&self, at: &Scope, x: Value, rotation: &Rotation) -> Value {
        let d = &self.dims;
        let h = at.layer_norm("input_layernorm", x, d.hidden, d.eps);
        let attended = self.attention(&at.enter("self_attn"), h, rotation);
        let mlp = at.enter("mlp");
        let h = mlp
            .biased("fc1", d.ffn, d.hidden, Sharding::Column)
            .apply(h);
        let h = mlp
            .biased("fc2", d.hidden, d.ffn, Sharding::Row)
            .apply(builder::activate(h, self.act));
        builder::add(builder::add(attended, h), x)
    }

    fn attention(&self, at: &Scope, x: Value, rotation: &Rotation) -> Value {
        let d = &self.dims;
        let mut qkv = Qkv::project(at, x, d, Bias::Required);
        if self.qk_norm {
            qkv = Qkv {
                q: at.layer_norm("q_layernorm", qkv.q, d.head_dim, d.eps),
                k: at.layer_norm("k_layernorm", qkv.k, d.head_dim, d.eps),
                ..qkv
            };
        }
        let o = qkv.rotate(rotation).attend(d, &attention(d.scale(), None));
        at.out("dense", o, d, Bias::Required)
    }
}

guesthouse_sdk::export_model!(Phi);
