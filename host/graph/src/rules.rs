//! What each op takes and gives, by family. The builder applies these rules to each op as it is added, the verifier to
//! a whole graph.

mod attention;
mod caches;
mod context;
mod dense;
mod experts;
mod io;
mod pointwise;
mod recurrent;
mod shapes;
mod weights;

pub(crate) use caches::{AccessKind, cache_access, check_access, check_cache};
pub(crate) use context::Context;
pub(crate) use weights::{check_weight, infer_weight, sources, sources_mut, weight_name};

use crate::{GraphError, Op, ValueInfo};

/// Product of dimensions; `None` on overflow.
pub(crate) fn elements(shape: &[u32]) -> Option<usize> {
    shape
        .iter()
        .try_fold(1usize, |n, &d| n.checked_mul(d as usize))
}

/// Shapes and types of an op's outputs, or why its inputs, weights or cache do not fit.
pub(crate) fn infer(
    cx: &Context<'_>,
    op: &Op,
    inputs: &[&ValueInfo],
) -> Result<Vec<ValueInfo>, GraphError> {
    match op {
        Op::TokenIds
        | Op::Positions(_)
        | Op::WeightValue { .. }
        | Op::GatherOutputs
        | Op::Pool { .. } => io::infer(cx, op, inputs),
        Op::Embedding { .. }
        | Op::Linear { .. }
        | Op::RmsNorm(_)
        | Op::LayerNorm(_)
        | Op::L2Norm { .. }
        | Op::HeadLinear { .. }
        | Op::AddRmsNorm(_)
        | Op::AddLayerNorm(_) => dense::infer(cx, op, inputs),
        Op::Rope(_)
        | Op::Attention(_)
        | Op::LatentAttention(_)
        | Op::RopeWrite { .. }
        | Op::WriteKv { .. }
        | Op::PagedAttention(_) => attention::infer(cx, op, inputs),
        Op::Activation(_)
        | Op::Gated(_)
        | Op::GatedMerged { .. }
        | Op::Add
        | Op::Mul
        | Op::Scale { .. }
        | Op::Clamp { .. }
        | Op::SoftCap { .. }
        | Op::LogNScale { .. }
        | Op::Cast { .. } => pointwise::infer(cx, op, inputs),
        Op::Split { .. }
        | Op::Slice { .. }
        | Op::Concat { .. }
        | Op::Reshape { .. }
        | Op::SwapAxes
        | Op::RepeatHeads { .. } => shapes::infer(cx, op, inputs),
        Op::Route(_) | Op::Experts(_) => experts::infer(cx, op, inputs),
        Op::CausalConv { .. } | Op::DeltaRule { .. } => recurrent::infer(cx, op, inputs),
    }
}
