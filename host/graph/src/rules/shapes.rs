//! Ops that move elements.

use super::context::{Arg, Context, list};
use super::elements;
use crate::{GraphError, Op, ValueInfo};

pub(super) fn infer(
    cx: &Context<'_>,
    op: &Op,
    inputs: &[&ValueInfo],
) -> Result<Vec<ValueInfo>, GraphError> {
    match op {
        Op::Concat { axis } => {
            let parts = Context::args_named(inputs, "x");
            return concat(cx, &parts, *axis).map(|info| vec![info]);
        }
        Op::Split { axis, sizes } => {
            let [x] = cx.args(inputs, ["x"])?;
            return split(cx, x, *axis, sizes);
        }
        _ => {}
    }
    let [x] = cx.args(inputs, ["x"])?;
    let shape = match op {
        Op::Slice { axis, start, len } => {
            let dim = axis_len(cx, x, *axis)?;
            if *len == 0 || start.checked_add(*len).is_none_or(|end| end > dim) {
                let end = u64::from(*start) + u64::from(*len);
                return Err(cx.shape_error(
                    format!("{x}, {start}..{end} of axis {axis}"),
                    format!("at least one element, within 0..{dim}"),
                ));
            }
            with_axis(x, *axis, *len)
        }
        Op::Reshape { shape } => {
            if shape.contains(&0) || elements(shape).is_none_or(|n| n != x.width()) {
                return Err(cx.shape_error(format!("{x} to {shape:?}"), "as many elements"));
            }
            shape.clone()
        }
        Op::RepeatHeads { times } => {
            let [heads, d] = two(cx, x)?;
            if *times == 0 {
                return Err(cx.parameter("times", times, "1 or more"));
            }
            vec![cx.times(heads, *times)?, d]
        }
        _ => {
            let [a, b] = two(cx, x)?;
            vec![b, a]
        }
    };
    Ok(vec![ValueInfo {
        rows: x.rows,
        shape,
        ty: x.ty,
    }])
}

fn two(cx: &Context<'_>, x: Arg<'_>) -> Result<[u32; 2], GraphError> {
    match x.shape[..] {
        [a, b] => Ok([a, b]),
        _ => Err(cx.shape_error(x.to_string(), "two dimensions after the rows")),
    }
}

fn axis_len(cx: &Context<'_>, x: Arg<'_>, axis: u32) -> Result<u32, GraphError> {
    x.shape.get(axis as usize).copied().ok_or_else(|| {
        let rank = x.shape.len();
        cx.parameter("axis", axis, format!("below {rank}, the dimensions of {x}"))
    })
}

fn with_axis(x: Arg<'_>, axis: u32, len: u32) -> Vec<u32> {
    let mut shape = x.shape.clone();
    if let Some(d) = shape.get_mut(axis as usize) {
        *d = len;
    }
    shape
}

fn split(
    cx: &Context<'_>,
    x: Arg<'_>,
    axis: u32,
    sizes: &[u32],
) -> Result<Vec<ValueInfo>, GraphError> {
    let dim = axis_len(cx, x, axis)?;
    let sum: u64 = sizes.iter().map(|&s| u64::from(s)).sum();
    if sum != u64::from(dim) || sizes.contains(&0) {
        const SHOWN: usize = 8;
        let more = if sizes.len() > SHOWN { ", …" } else { "" };
        let shown: Vec<String> = sizes.iter().take(SHOWN).map(u32::to_string).collect();
        return Err(cx.shape_error(
            format!("{x} by [{}{more}] along axis {axis}", shown.join(", ")),
            format!("sizes above zero that add up to {dim}"),
        ));
    }
    let part = |&len: &u32| ValueInfo {
        rows: x.rows,
        shape: with_axis(x, axis, len),
        ty: x.ty,
    };
    Ok(sizes.iter().map(part).collect())
}

fn concat(cx: &Context<'_>, parts: &[Arg<'_>], axis: u32) -> Result<ValueInfo, GraphError> {
    let Some(&first) = parts.first() else {
        return Err(cx.parameter("xs", "empty", "at least one value"));
    };
    cx.one_rows(parts)?;
    let mut total = axis_len(cx, first, axis)?;
    for &part in parts.iter().skip(1) {
        let len = axis_len(cx, part, axis)?;
        if part.ty != first.ty {
            cx.has_type(part, first.ty)?;
        }
        if with_axis(part, axis, 1) != with_axis(first, axis, 1) {
            return Err(cx.shape_error(
                list(&[first, part]),
                format!("equal dimensions but for axis {axis}"),
            ));
        }
        total = cx.plus(total, len)?;
    }
    Ok(ValueInfo {
        rows: first.rows,
        shape: with_axis(first, axis, total),
        ty: first.ty,
    })
}
