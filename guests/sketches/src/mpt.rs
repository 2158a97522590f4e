//! MPT.

use crate::{Sizes, alibi, part, plain};
use guesthouse_sdk::graph::{
    Activation, AttentionParams, Scope, Sharding, Value, attention, builder, kv_cache, merge_heads,
    split_heads,
};
use guesthouse_sdk::{Config, Error};

struct Dims {
    hidden: u32,
    heads: u32,
    head_dim: u32,
    eps: f32,
    clip: Option<f32>,
    qk_norm: bool,
    alibi_max: Option<f64>,
    scale: f32,
}

pub(crate) fn build(config: &Config) -> Result<Sizes, Error> {
    let (vocab, hidden) = (config.size("vocab_size")?, config.size("d_model")?);
    let heads = config.size("n_heads")?;
    let inner = config
        .object("attn_config")?
        .unwrap_or(Config::parse("{}")?);
    let head_dim = hidden / heads;
    let d = Dims {
        hidden,
        heads,
        head_dim,
        eps: config.f32_or("layer_norm_epsilon", 1e-5)?,
        clip: inner.opt_f32("clip_qkv")?,
        qk_norm: inner.flag("qk_ln", false)?,
        alibi_max: if inner.flag("alibi", true)? {
            Some(inner.opt_f64("alibi_bias_max")?.unwrap_or(8.0))
        } else {
            None
        },
        scale: match inner.opt_f32("softmax_scale")? {
            Some(s) => s,
            None => f64::from(head_dim).sqrt().recip() as f32,
        },
    };
    if inner.flag("prefix_lm", false)? {
        return Err(inner.wrong(
            "prefix_lm",
            "false, since this guest implements nothing else",
        ));
    }
    let ffn = hidden * config.opt_size("expansion_ratio")?.unwrap_or(4);

    let model = Scope::root("transformer");
    let table = model.param("wte.weight", &[vocab, hidden]);
    let mut x = builder::embedding(table, builder::token_ids());
    let norm = |at: &Scope, name: &str, x| {
        builder::layer_norm(x, Some(at.param(name, &[hidden])), None, d.eps)
    };
    for i in 0..config.size("n_layers")? {
        let at = model.enter(format_args!("blocks.{i}"));
        x = builder::add(
            x,
            attend(&at.enter("attn"), norm(&at, "norm_1.weight", x), &d),
        );
        let h = norm(&at, "norm_2.weight", x);
        let at = at.enter("ffn");
        let h = builder::activate(
            plain(&at, "up_proj", ffn, hidden, Sharding::Column).apply(h),
            Activation::Gelu,
        );
        x = builder::add(
            x,
            plain(&at, "down_proj", hidden, ffn, Sharding::Row).apply(h),
        );
    }
    let x = norm(&model, "norm_f.weight", builder::gather_outputs(x));
    let mut logits = builder::linear(x, table, None, Sharding::Column);
    match config.get("logit_scale") {
        None => {}
        Some(v) if v.as_str() == Some("inv_sqrt_d_model") => {
            logits = builder::scale(logits, f64::from(hidden).sqrt().recip() as f32);
        }
        Some(_) => logits = builder::scale(logits, config.f32("logit_scale")?),
    }
    builder::output_logits(logits);
    Ok((vocab, config.size("max_seq_len")?))
}

fn attend(at: &Scope, x: Value, d: &Dims) -> Value {
    let fused = plain(at, "Wqkv", 3 * d.hidden, d.hidden, Sharding::Column);
    let project = |i: u32| {
        let x = part(&fused, i * d.hidden, d.hidden).apply(x);
        d.clip.map_or(x, |c| builder::clamp(x, -c, c))
    };
    // Over all heads at once.
    let norm = |name: &str, x| {
        if d.qk_norm {
            builder::layer_norm(x, Some(at.param(name, &[d.hidden])), None, d.eps)
        } else {
            x
        }
    };
    let q = split_heads(norm("q_ln.weight", project(0)), d.heads, d.head_dim);
    let k = split_heads(norm("k_ln.weight", project(1)), d.heads, d.head_dim);
    let v = split_heads(project(2), d.heads, d.head_dim);
    let alibi = d.alibi_max.map(|max| alibi::mpt(d.heads, max));
    let params = AttentionParams {
        alibi,
        ..attention(d.scale, None)
    };
    let o = builder::attention(q, k, v, kv_cache(d.heads, d.head_dim, None), &params);
    plain(at, "out_proj", d.hidden, d.hidden, Sharding::Row).apply(merge_heads(o, d.hidden))
}
