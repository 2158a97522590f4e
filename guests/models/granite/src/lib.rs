//! Llamas with multipliers: `GraniteForCausalLM` and `MiniCPMForCausalLM`.

use guesthouse_sdk::graph::{
    Activation, Bias, Dims, Model, ModelInfo, Qkv, Rope, Rotation, Scope, Value, activation,
    attention, builder,
};
use guesthouse_sdk::{Config, Error};
use serde_json::{Value as Json, json};

/// What values are multiplied by.
struct Multipliers {
    embedding: f32,
    /// What attention and MLP add.
    residual: f32,
    /// Attention scores, instead of the root of a head's width.
    scores: f32,
    logits: f32,
}

impl Multipliers {
    fn granite(config: &Config) -> Result<Self, Error> {
        let or_1 = |key| config.f32_or(key, 1.0);
        let divisor = config.opt_f64("logits_scaling")?.unwrap_or(1.0);
        if divisor == 0.0 {
            return Err(config.wrong("logits_scaling", "a number other than 0"));
        }
        Ok(Self {
            embedding: or_1("embedding_multiplier")?,
            residual: or_1("residual_multiplier")?,
            scores: or_1("attention_multiplier")?,
            logits: divisor.recip() as f32,
        })
    }

    fn minicpm(config: &Config, dims: &Dims) -> Result<Self, Error> {
        config.only("num_experts", &[json!(0)])?;
        config.only("sparse_config", &[Json::Null])?;
        let depth = config.opt_f64("scale_depth")?.unwrap_or(1.0);
        let base = config.opt_size("dim_model_base")?.unwrap_or(1);
        Ok(Self {
            embedding: config.f32_or("scale_emb", 1.0)?,
            residual: (depth / f64::from(dims.layers).sqrt()) as f32,
            scores: dims.scale(),
            logits: (f64::from(base) / f64::from(dims.hidden)) as f32,
        })
    }
}

struct Granite;

impl Model for Granite {
    const ARCHITECTURES: &'static [&'static str] = &["GraniteForCausalLM", "MiniCPMForCausalLM"];

    fn build(architecture: &str, config: &Config) -> Result<ModelInfo, Error> {
        let minicpm = architecture == "MiniCPMForCausalLM";
        let mut dims = Dims::from_config(config)?;
        let by = if minicpm {
            Multipliers::minicpm(config, &dims)?
        } else {
            Multipliers::granite(config)?
        };
        let rope = Rope::from_config(config)?;
        dims.max_position = rope.max_position(dims.max_position);
        let rotation = rope.rotation(dims.head_dim);
        let (embedding, logits) = (by.embedding, by.logits);
        let layer = Layer {
            dims,
            by,
            act: activation(config, "hidden_act", "silu")?,
            attention_bias: Bias::from_config(config, "attention_bias")?,
            mlp_bias: Bias::from_config(config, "mlp_bias")?,
        };

        let root = Scope::root("");
        let model = root.enter("model");
        let table = model.param("embed_tokens.weight", &[dims.vocab, dims.hidden]);
        let x = builder::embedding(table, builder::token_ids());
        let mut x = builder::scale(x, embedding);
        for i in 0..dims.layers {
            x = layer.build(&model.enter(format_args!("layers.{i}")), x, &rotation);
        }
        let x = model.rms_norm("norm", builder::gather_outputs(x), dims.hidden, dims.eps);
        let tied = config
            .flag("tie_word_embeddings", minicpm)?
            .then_some(table);
        // MiniCPM divides what goes into the head and Granite what comes out, which is the same but for rounding.
        builder::output_logits(if minicpm {
            dims.logits(builder::scale(x, logits), tied, &root)
        } else {
            builder::scale(dims.logits(x, tied, &root), logits)
        });
        Ok(dims.info(architecture))
    }
}

/// Pre-norm attention and SwiGLU.
struct Layer {
    dims: Dims,
    by: Multipliers,
    act: Activation,
    attention_bias: Bias,
    mlp_bias: Bias,
}

impl Layer {
    fn build(&self, at: &Scope, x: Value, rotation: &Rotation) -> Value {
        let d = &self.dims;
        let add = |x, h| builder::add(x, builder::scale(h, self.by.residual));
        let h = at.rms_norm("input_layernorm", x, d.hidden, d.eps);
        let x = add(x, self.attention(&at.enter("self_attn"), h, rotation));
        let h = at.rms_norm("post_attention_layernorm", x, d.hidden, d.eps);
        add(x, at.enter("mlp").gated_mlp(h, d, self.act, self.mlp_bias))
    }

    fn attention(&self, at: &Scope, x: Value, rotation: &Rotation) -> Value {
        let (d, bias) = (&self.dims, self.attention_bias);
        let o = Qkv::project(at, x, d, bias)
            .rotate(rotation)
            .attend(d, &attention(self.by.scores, None));
        at.out("o_proj", o, d, bias)
    }
}

guesthouse_sdk::export_model!(Granite);
