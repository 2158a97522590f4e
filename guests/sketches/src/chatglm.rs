//! ChatGLM-6B, the first of its name.

use crate::{Sizes, plain};
use guesthouse_sdk::graph::{
    Activation, AttentionParams, Mask, PositionScheme, RopeParams, RopeScaling, RopeStyle, Scope,
    Sharding, Value, attention, builder, kv_cache, merge_heads, split_heads,
};
use guesthouse_sdk::{Config, Error};

struct Dims {
    hidden: u32,
    heads: u32,
    head_dim: u32,
    ffn: u32,
    eps: f32,
    /// DeepNorm's weight of the residual (Wang et al. 2022).
    alpha: f32,
}

pub(crate) fn build(config: &Config) -> Result<Sizes, Error> {
    let (vocab, hidden) = (config.size("vocab_size")?, config.size("hidden_size")?);
    let (heads, layers) = (
        config.size("num_attention_heads")?,
        config.size("num_layers")?,
    );
    if !config.flag("position_encoding_2d", true)? {
        return Err(config.wrong(
            "position_encoding_2d",
            "true, since this guest implements nothing else",
        ));
    }
    let d = Dims {
        hidden,
        heads,
        head_dim: hidden / heads,
        ffn: config.opt_size("inner_hidden_size")?.unwrap_or(4 * hidden),
        eps: config.f32_or("layernorm_epsilon", 1e-5)?,
        alpha: (2.0 * f64::from(layers)).sqrt() as f32,
    };
    // The model looks for gmask first and falls back to mask.
    let marks = (
        config.u32("gmask_token_id")?,
        config.u32("mask_token_id")?,
        config.u32("bos_token_id")?,
    );

    let root = Scope::root("");
    let model = root.enter("transformer");
    let positions = builder::positions(&PositionScheme::Glm2d(marks));
    let mut x = builder::embedding(
        model.param("word_embeddings.weight", &[vocab, hidden]),
        builder::token_ids(),
    );
    for i in 0..layers {
        let at = model.enter(format_args!("layers.{i}"));
        let h = at.layer_norm("input_layernorm", x, hidden, d.eps);
        let y = attend(&at.enter("attention"), h, positions, &d);
        let h = at.layer_norm(
            "post_attention_layernorm",
            builder::add(builder::scale(h, d.alpha), y),
            hidden,
            d.eps,
        );
        x = builder::add(builder::scale(h, d.alpha), mlp(&at.enter("mlp"), h, &d));
    }
    let x = model.layer_norm("final_layernorm", builder::gather_outputs(x), hidden, d.eps);
    builder::output_logits(plain(&root, "lm_head", vocab, hidden, Sharding::Column).apply(x));
    Ok((vocab, config.size("max_sequence_length")?))
}

fn attend(at: &Scope, x: Value, positions: Value, d: &Dims) -> Value {
    // Each head's q, k and v stand together.
    let qkv = at
        .biased("query_key_value", 3 * d.hidden, d.hidden, Sharding::Column)
        .apply(x);
    let qkv = builder::split(
        split_heads(qkv, d.heads, 3 * d.head_dim),
        1,
        &[d.head_dim; 3],
    );
    let half = d.head_dim / 2;
    // First half by position, second half by place in the block.
    let turn = |x| {
        (0..2).fold(x, |x, axis| {
            let params = RopeParams {
                start: axis * half,
                rotary: half,
                theta: 10_000.0,
                style: RopeStyle::Neox,
                scaling: RopeScaling::None,
                axis,
            };
            builder::rope(x, positions, &params)
        })
    };
    let (q, k) = (turn(qkv[0]), turn(qkv[1]));
    let scale = f64::from(d.head_dim).sqrt().recip() as f32;
    let params = AttentionParams {
        mask: Mask::PrefixLm,
        ..attention(scale, None)
    };
    let o = builder::attention(q, k, qkv[2], kv_cache(d.heads, d.head_dim, None), &params);
    at.biased("dense", d.hidden, d.hidden, Sharding::Row)
        .apply(merge_heads(o, d.hidden))
}

fn mlp(at: &Scope, x: Value, d: &Dims) -> Value {
    let h = at
        .biased("dense_h_to_4h", d.ffn, d.hidden, Sharding::Column)
        .apply(x);
    let h = builder::activate(h, Activation::GeluTanh);
    at.biased("dense_4h_to_h", d.hidden, d.ffn, Sharding::Row)
        .apply(h)
}
