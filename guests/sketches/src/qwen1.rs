//! Qwen, the first of its name.

use crate::{Sizes, part, plain};
use guesthouse_sdk::graph::{
    Activation, Gate, PositionScheme, RopeParams, RopeScaling, RopeStyle, Scope, Sharding, Value,
    attention, builder, kv_cache, merge_heads, split_heads,
};
use guesthouse_sdk::{Config, Error};

struct Dims {
    hidden: u32,
    heads: u32,
    head_dim: u32,
    ffn: u32,
    eps: f32,
    /// Context of training, if scores grow beyond it.
    log_n: Option<u32>,
    rope: RopeParams,
}

pub(crate) fn build(config: &Config) -> Result<Sizes, Error> {
    let (vocab, hidden) = (config.size("vocab_size")?, config.size("hidden_size")?);
    let heads = config.size("num_attention_heads")?;
    let (trained, head_dim) = (
        config.size("seq_length")?,
        config.opt_size("kv_channels")?.unwrap_or(hidden / heads),
    );
    let ntk = config.flag("use_dynamic_ntk", true)?;
    let d = Dims {
        hidden,
        heads,
        head_dim,
        // The config counts gate and up together.
        ffn: config.size("intermediate_size")? / 2,
        eps: config.f32_or("layer_norm_epsilon", 1e-6)?,
        log_n: config.flag("use_logn_attn", true)?.then_some(trained),
        rope: RopeParams {
            start: 0,
            rotary: (f64::from(head_dim) * config.opt_f64("rotary_pct")?.unwrap_or(1.0)) as u32,
            theta: config.f32_or("rotary_emb_base", 10_000.0)?,
            style: RopeStyle::Neox,
            scaling: if ntk {
                RopeScaling::DynamicQwen(trained)
            } else {
                RopeScaling::None
            },
            axis: 0,
        },
    };

    let root = Scope::root("");
    let model = root.enter("transformer");
    let positions = builder::positions(&PositionScheme::Standard);
    let mut x = builder::embedding(
        model.param("wte.weight", &[vocab, hidden]),
        builder::token_ids(),
    );
    for i in 0..config.size("num_hidden_layers")? {
        let at = model.enter(format_args!("h.{i}"));
        let h = at.rms_norm("ln_1", x, hidden, d.eps);
        x = builder::add(x, attend(&at.enter("attn"), h, positions, &d));
        let h = at.rms_norm("ln_2", x, hidden, d.eps);
        let at = at.enter("mlp");
        let up = |name| plain(&at, name, d.ffn, hidden, Sharding::Column).apply(h);
        let h = builder::gated(up("w2"), up("w1"), Gate::Plain(Activation::Silu));
        x = builder::add(
            x,
            plain(&at, "c_proj", hidden, d.ffn, Sharding::Row).apply(h),
        );
    }
    let x = model.rms_norm("ln_f", builder::gather_outputs(x), hidden, d.eps);
    builder::output_logits(plain(&root, "lm_head", vocab, hidden, Sharding::Column).apply(x));
    Ok((vocab, config.size("max_position_embeddings")?))
}

fn attend(at: &Scope, x: Value, positions: Value, d: &Dims) -> Value {
    let width = d.heads * d.head_dim;
    let fused = at.biased("c_attn", 3 * width, d.hidden, Sharding::Column);
    let project = |i| split_heads(part(&fused, i * width, width).apply(x), d.heads, d.head_dim);
    let (q, k, v) = (project(0), project(1), project(2));
    let (q, k) = (
        builder::rope(q, positions, &d.rope),
        builder::rope(k, positions, &d.rope),
    );
    let q = d
        .log_n
        .map_or(q, |trained| builder::log_n_scale(q, positions, trained));
    let scale = f64::from(d.head_dim).sqrt().recip() as f32;
    let o = builder::attention(
        q,
        k,
        v,
        kv_cache(d.heads, d.head_dim, None),
        &attention(scale, None),
    );
    plain(at, "c_proj", d.hidden, width, Sharding::Row).apply(merge_heads(o, width))
}
