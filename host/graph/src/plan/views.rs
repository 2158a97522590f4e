//! Which ops only look at their input in another way.

use super::{Execution, element_bytes};
use crate::{Graph, Node, Op, Rows, ValueId, ValueInfo};

/// How nodes are executed, and whose bytes each value uses.
pub(super) struct Views {
    pub(super) execution: Vec<Execution>,
    /// By value: the value that owns its bytes, and where in that value's rows it begins.
    pub(super) owners: Vec<Owner>,
}

/// A part of another value's rows, or the whole of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Owner {
    pub(super) value: ValueId,
    /// Bytes into the owner's row.
    pub(super) offset: usize,
}

pub(super) fn find(graph: &Graph, model_bytes: usize) -> Views {
    let mut owners: Vec<Owner> = (0..graph.values.len() as u32)
        .map(|v| Owner {
            value: ValueId(v),
            offset: 0,
        })
        .collect();
    let execution = graph
        .nodes
        .iter()
        .map(|node| {
            if let (&[x], Some(starts)) = (&node.inputs[..], starts(graph, node, model_bytes)) {
                let of = owners[x.index()];
                for (v, start) in node.outputs.iter().zip(starts) {
                    owners[v.index()] = Owner {
                        value: of.value,
                        offset: of.offset + start,
                    };
                }
                Execution::View
            } else if !node.outputs.is_empty()
                && node
                    .outputs
                    .iter()
                    .all(|v| graph.value(*v).rows == Rows::Broadcast)
            {
                Execution::Once
            } else {
                Execution::Run
            }
        })
        .collect();
    Views { execution, owners }
}

/// Where each output begins in the input's row, bytes; `None` when elements have to move.
fn starts(graph: &Graph, node: &Node, model_bytes: usize) -> Option<Vec<usize>> {
    let x = graph.value(*node.inputs.first()?);
    let bytes = element_bytes(x.ty, model_bytes);
    match &node.op {
        Op::Reshape { .. } => Some(vec![0]),
        Op::Split { axis, sizes } => {
            let step = outermost_step(x, *axis)? * bytes;
            let mut start = 0;
            let starts = sizes.iter().map(|&len| {
                let this = start;
                start += len as usize * step;
                this
            });
            Some(starts.collect())
        }
        Op::Slice {
            axis,
            start,
            len: _,
        } => Some(vec![outermost_step(x, *axis)? * *start as usize * bytes]),
        Op::SwapAxes if x.shape.contains(&1) => Some(vec![0]),
        Op::RepeatHeads { times: 1 } => Some(vec![0]),
        Op::Concat { .. } if node.inputs.len() == 1 => Some(vec![0]),
        // f32 and a model type of 4 bytes are the same thing.
        Op::Cast { to } if *to == x.ty => Some(vec![0]),
        Op::Cast { to } => {
            let i32s = [*to, x.ty].contains(&crate::ValueType::I32);
            (!i32s && element_bytes(*to, model_bytes) == bytes).then(|| vec![0])
        }
        _ => None,
    }
}

/// Elements between neighbours along `axis`, when all dimensions before it are 1 so that parts are contiguous.
fn outermost_step(x: &ValueInfo, axis: u32) -> Option<usize> {
    let axis = axis as usize;
    let (before, rest) = x.shape.split_at_checked(axis)?;
    if before.iter().any(|&d| d != 1) {
        return None;
    }
    Some(rest.iter().skip(1).map(|&d| d as usize).product())
}
