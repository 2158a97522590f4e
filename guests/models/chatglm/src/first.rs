//! ChatGLM-6B: the context sees itself whole, positions have two dimensions, residuals are those of `DeepNorm`.

use guesthouse_sdk::graph::{
    Activation, AttentionParams, Bias, Dims, Mask, PositionScheme, Qkv, RopeParams, RopeScaling,
    RopeStyle, Rotation, Scope, Sharding, Value, attention, builder,
};
use guesthouse_sdk::{Config, Error};
use serde_json::json;

/// Weight of the residual stream (Wang et al. 2022) and attention of a layer.
struct Layer {
    dims: Dims,
    alpha: f32,
    scores: AttentionParams,
    /// The first half of each head turns by position, the second by place in the block.
    turns: [Rotation; 2],
}

pub(crate) fn build(config: &Config) -> Result<Dims, Error> {
    config.only("position_encoding_2d", &[json!(true)])?;
    let mut dims = super::sizes(config)?;
    dims.vocab = config.size("vocab_size")?;
    dims.ffn = config.opt_size("inner_hidden_size")?.unwrap_or(dims.ffn);
    dims.max_position = config.opt_size("max_sequence_length")?.unwrap_or(2048);
    let half = dims.head_dim / 2;
    if !dims.head_dim.is_multiple_of(4) {
        return Err(config.wrong("hidden_size", "heads of a multiple of 4 elements"));
    }
    let bos = config.u32("bos_token_id")?;
    let marks = (
        config.u32("mask_token_id")?,
        config.u32("gmask_token_id")?,
        bos,
    );

    let root = Scope::root("");
    let model = root.enter("transformer");
    let positions = builder::positions(&PositionScheme::Glm2d(marks));
    let layer = Layer {
        dims,
        alpha: (2.0 * f64::from(dims.layers)).sqrt() as f32,
        scores: AttentionParams {
            mask: Mask::PrefixBefore(bos),
            ..attention(dims.scale(), None)
        },
        turns: [0, 1].map(|axis| Rotation {
            positions,
            params: RopeParams {
                start: axis * half,
                rotary: half,
                theta: 10_000.0,
                style: RopeStyle::Neox,
                scaling: RopeScaling::None,
                axis,
            },
        }),
    };
    let table = model.param("word_embeddings.weight", &[dims.vocab, dims.hidden]);
    let mut x = builder::embedding(table, builder::token_ids());
    for i in 0..dims.layers {
        x = layer.build(&model.enter(format_args!("layers.{i}")), x);
    }
    let x = model.layer_norm(
        "final_layernorm",
        builder::gather_outputs(x),
        dims.hidden,
        dims.eps,
    );
    builder::output_logits(dims.logits(x, None, &root));
    Ok(dims)
}

impl Layer {
    /// Residuals start from what was normed.
    fn build(&self, at: &Scope, x: Value) -> Value {
        let d = &self.dims;
        let add = |x, y| builder::add(builder::scale(x, self.alpha), y);
        let x = at.layer_norm("input_layernorm", x, d.hidden, d.eps);
        let x = add(x, self.attention(&at.enter("attention"), x));
        let x = at.layer_norm("post_attention_layernorm", x, d.hidden, d.eps);
        add(x, self.mlp(&at.enter("mlp"), x))
    }

    fn attention(&self, at: &Scope, x: Value) -> Value {
        let d = &self.dims;
        let fused = at.biased("query_key_value", 3 * d.hidden, d.hidden, Sharding::Column);
        let qkv = Qkv::grouped(&fused, x, d);
        let o = self.turns.iter().fold(qkv, |qkv, turn| qkv.rotate(turn));
        at.out("dense", o.attend(d, &self.scores), d, Bias::Required)
    }

    fn mlp(&self, at: &Scope, x: Value) -> Value {
        let Dims { hidden, ffn, .. } = self.dims;
        let h = at
            .biased("dense_h_to_4h", ffn, hidden, Sharding::Column)
            .apply(x);
        let h = builder::activate(h, Activation::GeluTanh);
        at.biased("dense_4h_to_h", hidden, ffn, Sharding::Row)
            .apply(h)
    }
}
