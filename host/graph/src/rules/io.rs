//! Inputs and outputs of a graph.

use super::context::{Context, Stored};
use crate::{GraphError, Op, PositionScheme, Rows, ValueInfo, ValueType};

pub(super) fn infer(
    cx: &Context<'_>,
    op: &Op,
    inputs: &[&ValueInfo],
) -> Result<Vec<ValueInfo>, GraphError> {
    let (rows, shape, ty) = match op {
        Op::TokenIds => {
            let [] = cx.args(inputs, [])?;
            (Rows::Tokens, vec![], ValueType::I32)
        }
        Op::Positions(scheme) => {
            let [] = cx.args(inputs, [])?;
            let shape = match scheme {
                PositionScheme::Standard | PositionScheme::Offset(_) => vec![],
                PositionScheme::Glm2d { .. } => vec![2],
            };
            (Rows::Tokens, shape, ValueType::I32)
        }
        Op::WeightValue { weight } => {
            let [] = cx.args(inputs, [])?;
            cx.stored("weight", *weight, Stored::Plain)?;
            let shape = cx.weight(*weight)?.shape.clone();
            (Rows::Broadcast, shape, ValueType::Model)
        }
        _ => {
            let [x] = cx.args(inputs, ["x"])?;
            cx.on_tokens(&[x])?;
            if let Op::Pool { .. } = op {
                cx.one_float_type(&[x])?;
                if x.shape.len() != 1 {
                    return Err(cx.shape_error(x.to_string(), "x [tokens, d]"));
                }
            }
            (Rows::Outputs, x.shape.clone(), x.ty)
        }
    };
    Ok(vec![ValueInfo { rows, shape, ty }])
}
