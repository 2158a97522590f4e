//! `GPTNeoXForCausalLM` (Pythia, Dolly, OpenAssistant): attention and MLP side by side under a norm each, or in sequence.

use guesthouse_sdk::graph::{
    Bias, Dims, Mlp, Model, ModelInfo, Qkv, Rope, RopeDefaults, Rotation, Scope, Sharding,
    SizeNames, Value, activation, attention, builder,
};
use guesthouse_sdk::{Config, Error};

const NAMES: SizeNames = SizeNames {
    hidden: &["hidden_size"],
    ffn: &["intermediate_size"],
    layers: &["num_hidden_layers"],
    heads: &["num_attention_heads"],
    max_position: &["max_position_embeddings"],
    eps: &["layer_norm_eps"],
};

struct NeoX;

impl Model for NeoX {
    const ARCHITECTURES: &'static [&'static str] = &["GPTNeoXForCausalLM"];

    fn build(architecture: &str, config: &Config) -> Result<ModelInfo, Error> {
        let dims = Dims::named(config, &NAMES)?;
        let layer = Layer {
            dims,
            rotation: Rope::from_config_or(config, older(config)?)?.rotation(dims.head_dim),
            bias: Bias::from_config_or(config, "attention_bias", Bias::Required)?,
            mlp: Mlp {
                up: "dense_h_to_4h",
                down: "dense_4h_to_h",
                act: activation(config, "hidden_act", "gelu")?,
                bias: Bias::Required,
            },
            residual: if config.flag("use_parallel_residual", true)? {
                Residual::Parallel
            } else {
                Residual::Sequential
            },
        };

        let model = Scope::root_with("embed_in.weight", &["gpt_neox", ""]);
        let table = model.param("embed_in.weight", &[dims.vocab, dims.hidden]);
        let mut x = builder::embedding(table, builder::token_ids());
        for i in 0..dims.layers {
            x = layer.build(&model.enter(format_args!("layers.{i}")), x);
        }
        let x = builder::gather_outputs(x);
        let x = model.layer_norm("final_layer_norm", x, dims.hidden, dims.eps);
        let logits = if config.flag("tie_word_embeddings", false)? {
            builder::linear(x, table, None, Sharding::Column)
        } else {
            let root = Scope::root("");
            let name = ["embed_out", "lm_head"]
                .into_iter()
                .find(|name| root.has(&format!("{name}.weight")))
                .unwrap_or("embed_out");
            root.linear(name, dims.vocab, dims.hidden, Sharding::Column)
                .apply(x)
        };
        builder::output_logits(logits);
        Ok(dims.info(architecture))
    }
}

/// The older form calls base and share by names of its own.
fn older(config: &Config) -> Result<RopeDefaults, Error> {
    let theta = config.opt_f64("rotary_emb_base")?.unwrap_or(10_000.0);
    let partial = config.opt_f64("rotary_pct")?.unwrap_or(0.25);
    if !(partial > 0.0 && partial <= 1.0) {
        return Err(config.wrong("rotary_pct", "a number above 0 and up to 1"));
    }
    Ok(RopeDefaults { theta, partial })
}

enum Residual {
    Parallel,
    Sequential,
}

struct Layer {
    dims: Dims,
    rotation: Rotation,
    bias: Bias,
    mlp: Mlp,
    residual: Residual,
}

impl Layer {
    fn build(&self, at: &Scope, x: Value) -> Value {
        let d = &self.dims;
        let norm = |name, x| at.layer_norm(name, x, d.hidden, d.eps);
        let mlp = |x| {
            let h = norm("post_attention_layernorm", x);
            self.mlp.apply(&at.enter("mlp"), h, d)
        };
        let h = norm("input_layernorm", x);
        let attended = self.attention(&at.enter("attention"), h);
        match self.residual {
            Residual::Parallel => builder::add(builder::add(mlp(x), attended), x),
            Residual::Sequential => {
                let x = builder::add(attended, x);
                builder::add(mlp(x), x)
            }
        }
    }

    fn attention(&self, at: &Scope, x: Value) -> Value {
        let d = &self.dims;
        let fused = at.linear_with(
            self.bias,
            "query_key_value",
            3 * d.hidden,
            d.hidden,
            Sharding::Column,
        );
        let o = Qkv::grouped(&fused, x, d)
            .rotate(&self.rotation)
            .attend(d, &attention(d.scale(), None));
        at.out("dense", o, d, self.bias)
    }
}

guesthouse_sdk::export_model!(NeoX);
