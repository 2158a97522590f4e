//! Mixtures of experts.

use super::Scope;
use super::builder::{
    self, Activation, ExpertsParams, Gate, GateLayout, RouteParams, RouteScores, Sharding, Value,
};

/// Sizes of a layer of experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertDims {
    /// Experts.
    pub count: u32,
    /// Width of the residual stream.
    pub hidden: u32,
    /// Width of one expert.
    pub ffn: u32,
}

/// What a checkpoint with a tensor per expert calls the three matrices of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertNames {
    /// `[ffn, hidden]`, to be activated.
    pub gate: &'static str,
    /// `[ffn, hidden]`
    pub up: &'static str,
    /// `[hidden, ffn]`
    pub down: &'static str,
}

impl ExpertNames {
    /// Llama's names, which nearly all families use.
    pub const LLAMA: Self = Self {
        gate: "gate_proj",
        up: "up_proj",
        down: "down_proj",
    };
    /// Mixtral's.
    pub const MIXTRAL: Self = Self {
        gate: "w1",
        up: "w3",
        down: "w2",
    };
}

/// Gated experts without biases, in either layout: one matrix per expert, `experts.{e}.{name}.weight`, as checkpoints are
/// published; or `experts.gate_up_proj [count, 2 · ffn, hidden]`, gate before up, and `experts.down_proj [count, hidden, ffn]`,
/// as transformers 5 holds them.
pub fn stacked_experts(
    at: &Scope,
    names: &ExpertNames,
    dims: ExpertDims,
    act: Activation,
) -> ExpertsParams {
    let ExpertDims { count, hidden, ffn } = dims;
    let at = at.enter("experts");
    let (gate_up, down) = if at.has("gate_up_proj") {
        (
            at.param("gate_up_proj", &[count, 2 * ffn, hidden]),
            at.param("down_proj", &[count, hidden, ffn]),
        )
    } else {
        let each =
            |e: u32, name: &str, shape: [u32; 2]| at.param(&format!("{e}.{name}.weight"), &shape);
        let up: Vec<_> = (0..count)
            .flat_map(|e| [names.gate, names.up].map(|name| each(e, name, [ffn, hidden])))
            .collect();
        let down: Vec<_> = (0..count)
            .map(|e| each(e, names.down, [hidden, ffn]))
            .collect();
        (
            builder::reshape_weight(builder::concat_rows(&up), &[count, 2 * ffn, hidden]),
            builder::reshape_weight(builder::concat_rows(&down), &[count, hidden, ffn]),
        )
    };
    ExpertsParams {
        gate_up,
        gate_up_bias: None,
        down,
        down_bias: None,
        layout: GateLayout::Halves,
        gate: Gate::Plain(act),
        ext: vec![],
    }
}

/// The best `top_k` of `scores`, without groups, correction, renormalising or a factor.
pub fn route_params(top_k: u32, scores: RouteScores) -> RouteParams {
    RouteParams {
        top_k,
        scores,
        groups: None,
        correction: None,
        renormalize: false,
        scale: 1.0,
        ext: vec![],
    }
}

/// A router `gate.weight [count, hidden]` and its experts, for `x [hidden]`.
pub fn mixture(
    at: &Scope,
    x: Value,
    dims: ExpertDims,
    route: &RouteParams,
    experts: &ExpertsParams,
) -> Value {
    let router = at.linear("gate", dims.count, dims.hidden, Sharding::Replicated);
    let (weights, ids) = builder::route(router.apply(x), route);
    builder::experts(x, weights, ids, experts)
}
