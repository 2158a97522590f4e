//! Ops with a state of fixed size per sequence.

use super::caches::state_cache;
use super::context::{Arg, Context, Stored, list};
use crate::{GraphError, Op, ValueInfo, ValueType};

pub(super) fn infer(
    cx: &Context<'_>,
    op: &Op,
    inputs: &[&ValueInfo],
) -> Result<Vec<ValueInfo>, GraphError> {
    match *op {
        Op::CausalConv {
            weight,
            bias,
            cache,
            activation: _,
        } => {
            let [x] = cx.args(inputs, ["x"])?;
            cx.on_tokens(&[x])?;
            cx.one_float_type(&[x])?;
            let shape = &cx.weight(weight)?.shape;
            let (c, width) = match (&x.shape[..], &shape[..]) {
                ([c], [c2, width]) if c == c2 && *width >= 2 => (*c, *width),
                _ => {
                    let found = format!("{x} with {}", cx.weight_text("weight", weight));
                    return Err(cx.shape_error(found, "x [tokens, c] and weight [c, width >= 2]"));
                }
            };
            cx.stored("weight", weight, Stored::Plain)?;
            if let Some(bias) = bias {
                cx.weight_is("bias", bias, &[c], Stored::Plain, &[x])?;
            }
            state_cache(cx, cache, &[width - 1, c])?;
            Ok(vec![(*x).clone()])
        }
        Op::DeltaRule { cache, scale } => {
            let args = cx.args(inputs, ["q", "k", "v", "g", "beta"])?;
            cx.finite("scale", scale)?;
            delta(cx, args, cache)
        }
        _ => Ok(vec![]),
    }
}

fn delta(
    cx: &Context<'_>,
    args: [Arg<'_>; 5],
    cache: crate::CacheId,
) -> Result<Vec<ValueInfo>, GraphError> {
    let [q, k, v, g, beta] = args;
    cx.on_tokens(&args)?;
    cx.one_float_type(&[q, k, v])?;
    cx.has_type(g, ValueType::F32)?;
    cx.has_type(beta, ValueType::F32)?;
    let expected = "q, k [tokens, heads, k], v [tokens, heads, v], g, beta [tokens, heads]";
    let ([heads, key], [heads_v, value]) = (&q.shape[..], &v.shape[..]) else {
        return Err(cx.shape_error(list(&args), expected));
    };
    let fits = q.shape == k.shape
        && heads == heads_v
        && g.shape[..] == [*heads]
        && beta.shape[..] == [*heads];
    if !fits {
        return Err(cx.shape_error(list(&args), expected));
    }
    state_cache(cx, cache, &[*heads, *key, *value])?;
    Ok(vec![(*v).clone()])
}
