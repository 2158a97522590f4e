//! Baichuan and Baichuan 2, 13B.

use crate::{Sizes, part, plain, swiglu};
use guesthouse_sdk::graph::{
    AttentionParams, Scope, Sharding, Value, alibi, attention, builder, kv_cache, merge_heads,
    split_heads,
};
use guesthouse_sdk::{Config, Error};

/// Baichuan 2 has this vocabulary and a head with rows of unit length.
const NORM_HEAD_VOCAB: u32 = 125_696;

pub(crate) fn build(config: &Config) -> Result<Sizes, Error> {
    let (vocab, hidden) = (config.size("vocab_size")?, config.size("hidden_size")?);
    let (heads, eps) = (
        config.size("num_attention_heads")?,
        config.f32_or("rms_norm_eps", 1e-6)?,
    );
    let ffn = config.size("intermediate_size")?;
    if hidden == 4096 {
        return Err(config.wrong(
            "hidden_size",
            "5120, since the 7B models rotate and this guest implements the 13B ones",
        ));
    }

    let root = Scope::root("");
    let model = root.enter("model");
    let mut x = builder::embedding(
        model.param("embed_tokens.weight", &[vocab, hidden]),
        builder::token_ids(),
    );
    for i in 0..config.size("num_hidden_layers")? {
        let at = model.enter(format_args!("layers.{i}"));
        let h = at.rms_norm("input_layernorm", x, hidden, eps);
        x = builder::add(x, attend(&at.enter("self_attn"), h, hidden, heads));
        let h = at.rms_norm("post_attention_layernorm", x, hidden, eps);
        x = builder::add(x, swiglu(&at.enter("mlp"), h, hidden, ffn));
    }
    let x = model.rms_norm("norm", builder::gather_outputs(x), hidden, eps);
    let mut head = plain(&root, "lm_head", vocab, hidden, Sharding::Column);
    if vocab == NORM_HEAD_VOCAB {
        head.weight = builder::normalize_rows(head.weight, 1e-12);
    }
    builder::output_logits(head.apply(x));
    Ok((vocab, config.size("model_max_length")?))
}

fn attend(at: &Scope, x: Value, hidden: u32, heads: u32) -> Value {
    let head_dim = hidden / heads;
    let fused = plain(at, "W_pack", 3 * hidden, hidden, Sharding::Column);
    let project = |i| split_heads(part(&fused, i * hidden, hidden).apply(x), heads, head_dim);
    let (q, k, v) = (project(0), project(1), project(2));
    let scale = f64::from(head_dim).sqrt().recip() as f32;
    let params = AttentionParams {
        alibi: Some(alibi(heads, 8.0)),
        ..attention(scale, None)
    };
    let o = builder::attention(q, k, v, kv_cache(heads, head_dim, None), &params);
    plain(at, "o_proj", hidden, hidden, Sharding::Row).apply(merge_heads(o, hidden))
}
