//! Rope and attention.

use super::caches::{CacheText, heads_cache, kv_cache, latent_cache};
use super::context::{Arg, Context, Stored, list};
use crate::{
    Attention, CacheKind, CacheSpec, GraphError, LatentAttention, Op, Rope, RopeScaling, ValueInfo,
    ValueLayout, ValueType,
};

pub(super) fn infer(
    cx: &Context<'_>,
    op: &Op,
    inputs: &[&ValueInfo],
) -> Result<Vec<ValueInfo>, GraphError> {
    match op {
        Op::Rope(rope) => {
            let [x, positions] = cx.args(inputs, ["x", "positions"])?;
            check_rope(cx, x, positions, rope)?;
            Ok(vec![(*x).clone()])
        }
        Op::Attention(attention) if inputs.len() == 1 => {
            paged(cx, inputs, attention, heads_cache(cx, attention.cache)?)
        }
        Op::PagedAttention(attention) => {
            paged(cx, inputs, attention, kv_cache(cx, attention.cache)?)
        }
        Op::Attention(attention) => {
            let [q, k, v] = cx.args(inputs, ["q", "k", "v"])?;
            let spec = heads_cache(cx, attention.cache)?;
            check_written(cx, &[k, v], attention.cache, spec)?;
            cx.on_tokens(&[q, k, v])?;
            paged(cx, &inputs[..1], attention, spec)
        }
        Op::LatentAttention(attention) => latent(cx, inputs, attention),
        Op::RopeWrite { rope, cache } => {
            let [q, k, v, positions] = cx.args(inputs, ["q", "k", "v", "positions"])?;
            check_rope(cx, q, positions, rope)?;
            check_rope(cx, k, positions, rope)?;
            check_written(cx, &[k, v], *cache, heads_cache(cx, *cache)?)?;
            Ok(vec![(*q).clone()])
        }
        Op::WriteKv { cache } => {
            let [k, v] = cx.args(inputs, ["k", "v"])?;
            check_written(cx, &[k, v], *cache, kv_cache(cx, *cache)?)?;
            Ok(vec![])
        }
        _ => Ok(vec![]),
    }
}

fn check_rope(
    cx: &Context<'_>,
    x: Arg<'_>,
    positions: Arg<'_>,
    rope: &Rope,
) -> Result<(), GraphError> {
    cx.one_float_type(&[x])?;
    cx.has_type(positions, ValueType::I32)?;
    cx.on_tokens(&[x, positions])?;
    let axes = match positions.shape[..] {
        [] => 1,
        [n] => n,
        _ => return Err(cx.shape_error(positions.to_string(), "positions [tokens] or [tokens, 2]")),
    };
    let [_, d] = x.shape[..] else {
        return Err(cx.shape_error(x.to_string(), "x [tokens, heads, d]"));
    };
    if rope.axis >= axes {
        return Err(cx.parameter("axis", rope.axis, format!("below {axes}")));
    }
    let within = rope
        .start
        .checked_add(rope.rotary)
        .is_some_and(|end| end <= d);
    if rope.rotary == 0 || !rope.rotary.is_multiple_of(2) || !within {
        return Err(cx.parameter(
            "rotary",
            format!("{} from element {}", rope.rotary, rope.start),
            format!("an even number of elements within the {d} of a head"),
        ));
    }
    cx.positive("theta", rope.theta)?;
    check_scaling(cx, rope)
}

fn check_scaling(cx: &Context<'_>, rope: &Rope) -> Result<(), GraphError> {
    let context = |n: u32| {
        if n == 0 {
            Err(cx.parameter("original", n, "1 or more"))
        } else {
            Ok(())
        }
    };
    match &rope.scaling {
        RopeScaling::None => Ok(()),
        RopeScaling::Linear { factor } => cx.positive("factor", *factor),
        RopeScaling::Dynamic { factor, original } => {
            context(*original)?;
            cx.positive("factor", *factor)
        }
        RopeScaling::DynamicQwen { original } => context(*original),
        RopeScaling::Yarn {
            factor,
            original,
            beta_fast,
            beta_slow,
            attention_factor,
            truncate: _,
        } => {
            context(*original)?;
            cx.positive("factor", *factor)?;
            cx.positive("beta-fast", *beta_fast)?;
            cx.positive("beta-slow", *beta_slow)?;
            cx.positive("attention-factor", *attention_factor)
        }
        RopeScaling::Llama3 {
            factor,
            low,
            high,
            original,
        } => {
            context(*original)?;
            cx.positive("factor", *factor)?;
            cx.positive("low", *low)?;
            cx.positive("high", *high)?;
            if low >= high {
                return Err(cx.parameter("low", low, format!("less than high, {high}")));
            }
            Ok(())
        }
        RopeScaling::LongRope {
            short,
            long,
            original,
            attention_factor,
        } => {
            context(*original)?;
            cx.positive("attention-factor", *attention_factor)?;
            let n = (rope.rotary / 2) as usize;
            for (name, factors) in [("short", short), ("long", long)] {
                if factors.len() != n {
                    let found = format!("{} numbers", factors.len());
                    return Err(cx.parameter(name, found, format!("{n}, half of rotary")));
                }
                for &factor in factors {
                    cx.positive(name, factor)?;
                }
            }
            Ok(())
        }
        RopeScaling::Factors { weight } => {
            cx.weight_is("factors", *weight, &[rope.rotary / 2], Stored::Plain, &[])
        }
    }
}

/// k and v fit the cache they are written to.
fn check_written(
    cx: &Context<'_>,
    kv: &[Arg<'_>; 2],
    cache: crate::CacheId,
    spec: &CacheSpec,
) -> Result<(), GraphError> {
    let k_dim = match spec.values {
        ValueLayout::Separate => spec.k_dim,
        ValueLayout::PrefixOfKey => spec.k_dim - spec.v_dim,
    };
    cx.on_tokens(kv)?;
    let [k, v] = *kv;
    cx.has_type(k, ValueType::Model)?;
    cx.has_type(v, ValueType::Model)?;
    if k.shape != [spec.kv_heads, k_dim] || v.shape != [spec.kv_heads, spec.v_dim] {
        return Err(cx.cache_error(
            format!("{} with {}", list(kv), CacheText(cache, spec)),
            format!(
                "k [tokens, {h}, {k_dim}] and v [tokens, {h}, {}]",
                spec.v_dim,
                h = spec.kv_heads
            ),
        ));
    }
    Ok(())
}

fn paged(
    cx: &Context<'_>,
    inputs: &[&ValueInfo],
    attention: &Attention,
    spec: &CacheSpec,
) -> Result<Vec<ValueInfo>, GraphError> {
    let [q] = cx.args(inputs, ["q"])?;
    cx.on_tokens(&[q])?;
    cx.has_type(q, ValueType::Model)?;
    let heads = match q.shape[..] {
        [heads, d] if d == spec.k_dim && heads.is_multiple_of(spec.kv_heads) => heads,
        _ => {
            return Err(cx.cache_error(
                format!("{q} with {}", CacheText(attention.cache, spec)),
                format!(
                    "q [tokens, heads, {}], heads a multiple of {}",
                    spec.k_dim, spec.kv_heads
                ),
            ));
        }
    };
    cx.finite("scale", attention.scale)?;
    if let Some(cap) = attention.softcap {
        cx.positive("softcap", cap)?;
    }
    if attention.window == Some(0) {
        return Err(cx.parameter("window", 0, "1 or more"));
    }
    if let CacheKind::Window { window } = spec.kind
        && attention.window.is_none_or(|w| w > window)
    {
        let found = attention
            .window
            .map_or_else(|| "none".to_owned(), |w| w.to_string());
        return Err(cx.parameter(
            "window",
            found,
            format!(
                "at most the {window} positions that {} keeps",
                attention.cache
            ),
        ));
    }
    for (role, weight) in [("alibi", attention.alibi), ("sinks", attention.sinks)] {
        if let Some(weight) = weight {
            cx.weight_is(role, weight, &[heads], Stored::Plain, &[q])?;
        }
    }
    Ok(vec![ValueInfo {
        rows: q.rows,
        shape: vec![heads, spec.v_dim],
        ty: q.ty,
    }])
}

fn latent(
    cx: &Context<'_>,
    inputs: &[&ValueInfo],
    attention: &LatentAttention,
) -> Result<Vec<ValueInfo>, GraphError> {
    let args = cx.args(inputs, ["q", "latent", "k-rope"])?;
    let [q, latent, k_rope] = args;
    cx.on_tokens(&args)?;
    for arg in args {
        cx.has_type(arg, ValueType::Model)?;
    }
    cx.finite("scale", attention.scale)?;
    let LatentAttention {
        cache, nope, v_dim, ..
    } = *attention;
    if v_dim == 0 {
        return Err(cx.parameter("v-dim", v_dim, "1 or more"));
    }
    let ([heads, d], [rank], [rope]) = (&q.shape[..], &latent.shape[..], &k_rope.shape[..]) else {
        return Err(cx.shape_error(
            list(&args),
            "q [tokens, heads, nope + rope], latent [tokens, rank], k-rope [tokens, rope]",
        ));
    };
    if *d != cx.plus(nope, *rope)? {
        return Err(cx.shape_error(
            list(&args),
            format!("q heads of nope + rope = {nope} + {rope} elements"),
        ));
    }
    let rows = cx.times(*heads, cx.plus(nope, v_dim)?)?;
    cx.weight_is("kv-b", attention.kv_b, &[rows, *rank], Stored::Any, &args)?;
    latent_cache(cx, cache, *rank, cx.plus(*rank, *rope)?)?;
    Ok(vec![ValueInfo {
        rows: q.rows,
        shape: vec![*heads, v_dim],
        ty: q.ty,
    }])
}
