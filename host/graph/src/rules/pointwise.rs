//! Element-wise ops.

use super::context::{Arg, Context, list};
use crate::{Gate, GraphError, Op, Rows, ValueInfo, ValueType};

pub(super) fn infer(
    cx: &Context<'_>,
    op: &Op,
    inputs: &[&ValueInfo],
) -> Result<Vec<ValueInfo>, GraphError> {
    let result = match op {
        Op::Add | Op::Mul => {
            let [a, b] = cx.args(inputs, ["a", "b"])?;
            broadcast(cx, a, b)?
        }
        Op::Gated(gate) => {
            let [g, up] = cx.args(inputs, ["gate", "up"])?;
            check_gate(cx, gate)?;
            cx.one_rows(&[g, up])?;
            cx.one_float_type(&[g, up])?;
            if g.shape != up.shape {
                return Err(cx.shape_error(list(&[g, up]), "equal shapes"));
            }
            (*g).clone()
        }
        Op::GatedMerged { gate, layout: _ } => {
            let [x] = cx.args(inputs, ["gate_up"])?;
            check_gate(cx, gate)?;
            cx.one_float_type(&[x])?;
            match x.shape[..] {
                [n] if n.is_multiple_of(2) => ValueInfo {
                    shape: vec![n / 2],
                    ..(*x).clone()
                },
                _ => return Err(cx.shape_error(x.to_string(), "gate_up [tokens, 2 * ffn]")),
            }
        }
        Op::LogNScale { train_len } => {
            let [x, positions] = cx.args(inputs, ["x", "positions"])?;
            if *train_len < 2 {
                return Err(cx.parameter("train-len", train_len, "2 or more"));
            }
            cx.one_float_type(&[x])?;
            cx.has_type(positions, ValueType::I32)?;
            cx.on_tokens(&[x, positions])?;
            if !positions.shape.is_empty() {
                return Err(cx.shape_error(positions.to_string(), "positions [tokens]"));
            }
            (*x).clone()
        }
        Op::Cast { to } => {
            let [x] = cx.args(inputs, ["x"])?;
            if *to == ValueType::I32 && x.ty != ValueType::I32 {
                return Err(cx.parameter("to", to, "a floating-point type"));
            }
            ValueInfo {
                ty: *to,
                ..(*x).clone()
            }
        }
        _ => {
            let [x] = cx.args(inputs, ["x"])?;
            check_unary(cx, op)?;
            cx.one_float_type(&[x])?;
            (*x).clone()
        }
    };
    Ok(vec![result])
}

fn check_unary(cx: &Context<'_>, op: &Op) -> Result<(), GraphError> {
    match *op {
        Op::Scale { by } => cx.finite("by", by),
        Op::SoftCap { cap } => cx.positive("cap", cap),
        Op::Clamp { min, max } if min <= max => Ok(()),
        Op::Clamp { min, max } => {
            Err(cx.parameter("min", format!("{min} with max {max}"), "min <= max"))
        }
        _ => Ok(()),
    }
}

pub(super) fn check_gate(cx: &Context<'_>, gate: &Gate) -> Result<(), GraphError> {
    match *gate {
        Gate::Plain(_) => Ok(()),
        Gate::Clamped { alpha, limit } => {
            cx.finite("alpha", alpha)?;
            cx.positive("limit", limit)
        }
    }
}

/// b has a's dimensions or 1, and a's rows or a broadcast row.
fn broadcast(cx: &Context<'_>, a: Arg<'_>, b: Arg<'_>) -> Result<ValueInfo, GraphError> {
    cx.one_float_type(&[a, b])?;
    if b.rows != Rows::Broadcast {
        cx.one_rows(&[a, b])?;
    }
    let fits = a.shape.len() == b.shape.len()
        && a.shape.iter().zip(&b.shape).all(|(x, y)| x == y || *y == 1);
    if !fits {
        return Err(cx.shape_error(
            list(&[a, b]),
            "as many dimensions in b as in a, each equal or 1",
        ));
    }
    Ok((*a).clone())
}
