//! Embeddings, linears and norms.

use super::context::{Arg, Context, Stored, list};
use crate::{GraphError, LayerNorm, Op, RmsNorm, Segment, ValueInfo, ValueType, WeightId};

pub(super) fn infer(
    cx: &Context<'_>,
    op: &Op,
    inputs: &[&ValueInfo],
) -> Result<Vec<ValueInfo>, GraphError> {
    match op {
        Op::Embedding { table } => {
            let [ids] = cx.args(inputs, ["ids"])?;
            cx.has_type(ids, ValueType::I32)?;
            cx.on_tokens(&[ids])?;
            let shape = &cx.weight(*table)?.shape;
            let ([_, d], []) = (&shape[..], &ids.shape[..]) else {
                let found = format!("{ids} with {}", cx.weight_text("table", *table));
                return Err(cx.shape_error(found, "ids [tokens] and table [n, d]"));
            };
            cx.stored("table", *table, Stored::Any)?;
            Ok(vec![ValueInfo {
                rows: ids.rows,
                shape: vec![*d],
                ty: ValueType::Model,
            }])
        }
        Op::Linear { segments, .. } => {
            let [x] = cx.args(inputs, ["x"])?;
            linear(cx, x, segments)
        }
        Op::RmsNorm(norm) => {
            let [x] = cx.args(inputs, ["x"])?;
            check_rms(cx, x, norm)?;
            Ok(vec![(*x).clone()])
        }
        Op::LayerNorm(norm) => {
            let [x] = cx.args(inputs, ["x"])?;
            check_layer(cx, x, norm)?;
            Ok(vec![(*x).clone()])
        }
        Op::AddRmsNorm(norm) => {
            let x = residual_pair(cx, inputs)?;
            check_rms(cx, x, norm)?;
            Ok(vec![(*x).clone(), (*x).clone()])
        }
        Op::AddLayerNorm(norm) => {
            let x = residual_pair(cx, inputs)?;
            check_layer(cx, x, norm)?;
            Ok(vec![(*x).clone(), (*x).clone()])
        }
        Op::L2Norm { eps } => {
            let [x] = cx.args(inputs, ["x"])?;
            cx.not_negative("eps", *eps)?;
            last_dim(cx, x)?;
            Ok(vec![(*x).clone()])
        }
        Op::HeadLinear { weight } => {
            let [x] = cx.args(inputs, ["x"])?;
            head_linear(cx, x, *weight)
        }
        _ => Ok(vec![]),
    }
}

fn linear(
    cx: &Context<'_>,
    x: Arg<'_>,
    segments: &[Segment],
) -> Result<Vec<ValueInfo>, GraphError> {
    cx.one_float_type(&[x])?;
    if segments.is_empty() {
        return Err(cx.parameter("segments", "empty", "at least one weight"));
    }
    let mut total = 0;
    for segment in segments {
        let shape = &cx.weight(segment.weight)?.shape;
        let out = match (&x.shape[..], &shape[..]) {
            ([a], [out, b]) if a == b => *out,
            _ => {
                let found = format!("{x} with {}", cx.weight_text("weight", segment.weight));
                return Err(cx.shape_error(found, "x [tokens, in] and weight [out, in]"));
            }
        };
        cx.stored("weight", segment.weight, Stored::Any)?;
        if let Some(bias) = segment.bias {
            cx.weight_is("bias", bias, &[out], Stored::Plain, &[x])?;
        }
        total = cx.plus(total, out)?;
    }
    Ok(vec![ValueInfo {
        rows: x.rows,
        shape: vec![total],
        ty: x.ty,
    }])
}

fn head_linear(
    cx: &Context<'_>,
    x: Arg<'_>,
    weight: WeightId,
) -> Result<Vec<ValueInfo>, GraphError> {
    cx.has_type(x, ValueType::Model)?;
    cx.stored("weight", weight, Stored::Plain)?;
    match (&x.shape[..], &cx.weight(weight)?.shape[..]) {
        ([heads, d], [count, out, inp]) if heads == count && d >= inp => Ok(vec![ValueInfo {
            rows: x.rows,
            shape: vec![*heads, cx.plus(*out, d - inp)?],
            ty: x.ty,
        }]),
        _ => Err(cx.shape_error(
            format!("{x} with {}", cx.weight_text("weight", weight)),
            "x [tokens, heads, in or more] and weight [heads, out, in]",
        )),
    }
}

fn residual_pair<'v>(cx: &Context<'_>, inputs: &[&'v ValueInfo]) -> Result<Arg<'v>, GraphError> {
    let [x, residual] = cx.args(inputs, ["x", "residual"])?;
    cx.one_rows(&[x, residual])?;
    cx.one_float_type(&[x, residual])?;
    if x.shape != residual.shape {
        return Err(cx.shape_error(list(&[x, residual]), "equal shapes"));
    }
    Ok(x)
}

fn last_dim(cx: &Context<'_>, x: Arg<'_>) -> Result<u32, GraphError> {
    cx.one_float_type(&[x])?;
    x.shape
        .last()
        .copied()
        .ok_or_else(|| cx.shape_error(x.to_string(), "x [tokens, …, d]"))
}

fn check_rms(cx: &Context<'_>, x: Arg<'_>, norm: &RmsNorm) -> Result<(), GraphError> {
    cx.not_negative("eps", norm.eps)?;
    cx.finite("offset", norm.offset)?;
    norm_weight(cx, "weight", x, norm.weight)
}

fn check_layer(cx: &Context<'_>, x: Arg<'_>, norm: &LayerNorm) -> Result<(), GraphError> {
    cx.not_negative("eps", norm.eps)?;
    norm_weight(cx, "weight", x, norm.weight)?;
    norm_weight(cx, "bias", x, norm.bias)
}

/// `[d]`, or `[heads, d]` for x of that shape.
fn norm_weight(
    cx: &Context<'_>,
    role: &str,
    x: Arg<'_>,
    weight: Option<WeightId>,
) -> Result<(), GraphError> {
    let d = last_dim(cx, x)?;
    let Some(weight) = weight else { return Ok(()) };
    if x.shape.len() == 2 && cx.weight(weight)?.shape == x.shape {
        return cx.stored(role, weight, Stored::Plain);
    }
    cx.weight_is(role, weight, &[d], Stored::Plain, &[x])
}
