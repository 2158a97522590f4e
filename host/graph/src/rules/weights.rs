//! Rules of load-time weight expressions.

use guesthouse_weights::{DType, Scheme};

use super::context::{Context, Stored};
use super::elements;
use crate::{GraphError, Weight, WeightExpr, WeightId};

/// Whether numbers of this type may take part in a forward pass.
pub(super) fn is_float(dtype: DType) -> bool {
    dtype.is_float()
}

/// The weights an expression reads.
pub(crate) fn sources(expr: &WeightExpr) -> &[WeightId] {
    match expr {
        WeightExpr::Param { .. } | WeightExpr::Constant { .. } => &[],
        WeightExpr::Rows { of, .. }
        | WeightExpr::SelectRows { of, .. }
        | WeightExpr::Transpose { of }
        | WeightExpr::Reshape { of }
        | WeightExpr::Scale { of, .. }
        | WeightExpr::NormalizeRows { of, .. }
        | WeightExpr::Dequantize { of } => std::slice::from_ref(of),
        WeightExpr::ConcatRows { of } => of,
    }
}

/// Like [`sources`], to renumber them.
pub(crate) fn sources_mut(expr: &mut WeightExpr) -> &mut [WeightId] {
    match expr {
        WeightExpr::Param { .. } | WeightExpr::Constant { .. } => &mut [],
        WeightExpr::Rows { of, .. }
        | WeightExpr::SelectRows { of, .. }
        | WeightExpr::Transpose { of }
        | WeightExpr::Reshape { of }
        | WeightExpr::Scale { of, .. }
        | WeightExpr::NormalizeRows { of, .. }
        | WeightExpr::Dequantize { of } => std::slice::from_mut(of),
        WeightExpr::ConcatRows { of } => of,
    }
}

/// "'model.norm.weight'", or "(rows 0..4 of 'model.norm.weight')". Follows a few expressions, not all.
pub(crate) fn weight_name(weights: &[Weight], id: WeightId) -> String {
    const DEPTH: usize = 3;
    name_within(weights, id, DEPTH)
}

fn name_within(weights: &[Weight], id: WeightId, depth: usize) -> String {
    let Some(weight) = weights.get(id.index()) else {
        return id.to_string();
    };
    let inner = |of: WeightId| {
        if depth == 0 || of >= id {
            of.to_string()
        } else {
            name_within(weights, of, depth - 1)
        }
    };
    match &weight.expr {
        WeightExpr::Param { name } => format!("'{name}'"),
        WeightExpr::Constant { .. } => "(constant)".to_owned(),
        WeightExpr::Rows { of, start, len } => {
            let end = u64::from(*start) + u64::from(*len);
            format!("(rows {start}..{end} of {})", inner(*of))
        }
        WeightExpr::SelectRows { of, .. } => format!("(selected rows of {})", inner(*of)),
        WeightExpr::ConcatRows { of } => match of[..] {
            [] => "(nothing)".to_owned(),
            [one] => inner(one),
            [first, ..] => format!("({} and {} more)", inner(first), of.len() - 1),
        },
        WeightExpr::Transpose { of } => format!("(transposed {})", inner(*of)),
        WeightExpr::Reshape { of } => format!("(reshaped {})", inner(*of)),
        WeightExpr::Scale { of, by } => format!("({by} * {})", inner(*of)),
        WeightExpr::NormalizeRows { of, .. } => format!("(normalized {})", inner(*of)),
        WeightExpr::Dequantize { of } => format!("(dequantized {})", inner(*of)),
    }
}

/// Invariants of any weight, whatever its expression.
pub(crate) fn check_weight(cx: &Context<'_>, weight: &Weight) -> Result<(), GraphError> {
    let shape = &weight.shape;
    if shape.contains(&0) {
        return Err(cx.shape_error(format!("a weight of {shape:?}"), "dimensions above zero"));
    }
    let Some(n) = elements(shape) else {
        return Err(cx.shape_error(format!("a weight of {shape:?}"), "fewer elements"));
    };
    let cols = shape.last().copied().unwrap_or(1) as usize;
    if weight.scheme.row_bytes(cols).is_none() {
        return Err(cx.shape_error(
            format!("a weight of {shape:?} stored as {}", weight.scheme),
            "rows of whole blocks",
        ));
    }
    if let WeightExpr::Constant { data } = &weight.expr
        && data.len() != n
    {
        return Err(cx.shape_error(
            format!("{} numbers for a constant of {shape:?}", data.len()),
            format!("{n} numbers"),
        ));
    }
    Ok(())
}

/// Shape and scheme of an expression over other weights. `reshape` is the new shape of a [`WeightExpr::Reshape`].
pub(crate) fn infer_weight(
    cx: &Context<'_>,
    expr: &WeightExpr,
    reshape: Option<&[u32]>,
) -> Result<(Vec<u32>, Scheme), GraphError> {
    match expr {
        WeightExpr::Param { .. } | WeightExpr::Constant { .. } => Err(GraphError::Malformed {
            at: cx.at(),
            found: "a stored tensor".to_owned(),
            expected: "an expression over weights".to_owned(),
        }),
        WeightExpr::Rows { of, start, len } => {
            let (source, rows) = row_source(cx, *of)?;
            if *len == 0 || start.checked_add(*len).is_none_or(|end| end > rows) {
                let end = u64::from(*start) + u64::from(*len);
                return Err(cx.shape_error(
                    format!("rows {start}..{end} of {}", cx.weight_text("weight", *of)),
                    format!("at least one row, within 0..{rows}"),
                ));
            }
            Ok((with_rows(&source.shape, *len), source.scheme))
        }
        WeightExpr::SelectRows { of, index } => {
            let (source, rows) = row_source(cx, *of)?;
            let Ok(len) = u32::try_from(index.len()) else {
                return Err(cx.parameter("index", index.len(), "fewer rows"));
            };
            if len == 0 {
                return Err(cx.parameter("index", "empty", "at least one row"));
            }
            if let Some((i, row)) = index.iter().enumerate().find(|&(_, &row)| row >= rows) {
                return Err(cx.shape_error(
                    format!("index[{i}] = {row} into {}", cx.weight_text("weight", *of)),
                    format!("rows below {rows}"),
                ));
            }
            Ok((with_rows(&source.shape, len), source.scheme))
        }
        WeightExpr::ConcatRows { of } => concat(cx, of),
        WeightExpr::Transpose { of } => {
            let source = plain(cx, *of)?;
            let mut shape = source.shape.clone();
            let n = shape.len();
            if n < 2 {
                return Err(cx.shape_error(cx.weight_text("weight", *of), "two dimensions or more"));
            }
            shape.swap(n - 2, n - 1);
            Ok((shape, source.scheme))
        }
        WeightExpr::Reshape { of } => {
            let source = cx.weight(*of)?;
            let shape = reshape.unwrap_or(&source.shape);
            if elements(shape).is_none() || elements(shape) != elements(&source.shape) {
                return Err(cx.shape_error(
                    format!("{} to {shape:?}", cx.weight_text("weight", *of)),
                    "as many elements",
                ));
            }
            if source.scheme.is_row_blocked() && shape.last() != source.shape.last() {
                cx.stored("weight", *of, Stored::Plain)?;
            }
            Ok((shape.to_vec(), source.scheme))
        }
        WeightExpr::Scale { of, by } => {
            cx.finite("by", *by)?;
            let source = plain(cx, *of)?;
            Ok((source.shape.clone(), source.scheme))
        }
        WeightExpr::NormalizeRows { of, eps } => {
            cx.not_negative("eps", *eps)?;
            let source = plain(cx, *of)?;
            Ok((source.shape.clone(), source.scheme))
        }
        WeightExpr::Dequantize { of } => {
            let source = cx.weight(*of)?;
            cx.stored("weight", *of, Stored::Any)?;
            Ok((source.shape.clone(), Scheme::Plain(DType::F32)))
        }
    }
}

/// A plain weight.
fn plain<'a>(cx: &Context<'a>, of: WeightId) -> Result<&'a Weight, GraphError> {
    let source = cx.weight(of)?;
    cx.stored("weight", of, Stored::Plain)?;
    Ok(source)
}

/// A weight whose rows can be moved, and their number: the blocks of a quantized vector are not rows.
fn row_source<'a>(cx: &Context<'a>, of: WeightId) -> Result<(&'a Weight, u32), GraphError> {
    let source = cx.weight(of)?;
    let Some(&rows) = source.shape.first() else {
        return Err(cx.shape_error(cx.weight_text("weight", of), "one dimension or more"));
    };
    if source.shape.len() == 1 && source.scheme.is_row_blocked() {
        cx.stored("weight", of, Stored::Plain)?;
    }
    Ok((source, rows))
}

fn with_rows(shape: &[u32], rows: u32) -> Vec<u32> {
    let mut shape = shape.to_vec();
    if let Some(first) = shape.first_mut() {
        *first = rows;
    }
    shape
}

fn concat(cx: &Context<'_>, of: &[WeightId]) -> Result<(Vec<u32>, Scheme), GraphError> {
    let Some(&first_id) = of.first() else {
        return Err(cx.parameter("of", "empty", "at least one weight"));
    };
    let (first, mut rows) = row_source(cx, first_id)?;
    for &id in of.iter().skip(1) {
        let (other, more) = row_source(cx, id)?;
        if other.shape.get(1..) != first.shape.get(1..) {
            return Err(cx.shape_error(
                format!(
                    "{}, {}",
                    cx.weight_text("weight", first_id),
                    cx.weight_text("weight", id)
                ),
                "equal dimensions after the first",
            ));
        }
        if other.scheme != first.scheme {
            return Err(GraphError::Scheme {
                at: cx.at(),
                weight: cx.weight_text("weight", id),
                scheme: other.scheme.to_string(),
                expected: format!(
                    "{} like {}; apply dequantize to both, or use two linears (they are merged with a scheme each)",
                    first.scheme,
                    cx.weight_text("weight", first_id)
                ),
            });
        }
        rows = cx.plus(rows, more)?;
    }
    Ok((with_rows(&first.shape, rows), first.scheme))
}
