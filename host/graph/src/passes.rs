//! Rewrites of a graph, each a function from IR to IR. Guests never know of them.
//!
//! Every pass takes a graph that verifies and gives one that verifies and computes the same numbers: fusions keep the
//! points where results are rounded to the model's type.

mod add_norm;
mod compact;
mod gather;
mod index;
mod latent;
mod merge_linears;
mod rope_write;
mod unrounded;

pub(crate) use compact::compact;
pub(crate) use gather::gather;

use crate::{Graph, GraphError, verify};

/// Whether a rewrite is applied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Switch {
    /// Applied.
    #[default]
    On,
    /// Left out.
    Off,
}

/// Which rewrites [`optimize`] applies; all by default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PassOptions {
    /// Absorb the up-projections of latent attention, so that it attends over the latents themselves. Devices execute the
    /// result and need this pass.
    pub latent: Switch,
    /// Run on the rows whose output is wanted as early as possible.
    pub gather: Switch,
    /// Merge linears over one input, and gate-up pairs with their activation.
    pub merge_linears: Switch,
    /// Fuse residual additions with the norm that follows.
    pub add_norm: Switch,
    /// Linears read what was only widened for them. Devices whose model type is narrower than f32 need this pass.
    pub unrounded: Switch,
    /// Rotate, write to the cache and attend in that order, as ops of their own. Devices execute
    /// [`crate::Op::PagedAttention`] and need this pass.
    pub rope_write: Switch,
}

impl PassOptions {
    /// Only what devices cannot do without.
    #[must_use]
    pub fn minimal() -> Self {
        Self {
            latent: Switch::On,
            gather: Switch::Off,
            merge_linears: Switch::Off,
            add_norm: Switch::Off,
            unrounded: Switch::On,
            rope_write: Switch::On,
        }
    }
}

type Pass = fn(&Graph) -> Graph;

/// Runs the passes, then removes what does not reach the output. Value, weight and cache ids change.
///
/// # Errors
/// When [`verify`] refuses the graph, or (a fault of a pass) the result.
#[allow(clippy::needless_pass_by_value)] // the old graph's ids mean nothing afterwards
pub fn optimize(graph: Graph, options: &PassOptions) -> Result<Graph, GraphError> {
    verify(&graph)?;
    let passes: [(Switch, Pass); 6] = [
        (options.latent, latent::latent),
        (options.gather, gather),
        (options.merge_linears, merge_linears::merge_linears),
        (options.add_norm, add_norm::add_norm),
        (options.unrounded, unrounded::unrounded),
        (options.rope_write, rope_write::rope_write),
    ];
    let mut graph = compact(&graph);
    for (switch, pass) in passes {
        if switch == Switch::On {
            graph = pass(&graph);
            if cfg!(debug_assertions) {
                verify(&graph)?;
            }
        }
    }
    verify(&graph)?;
    Ok(graph)
}

#[cfg(test)]
mod tests;
