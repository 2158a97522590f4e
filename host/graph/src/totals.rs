//! How big a model is.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use crate::plan::group_caches;
use crate::{CacheKind, Graph, WeightExpr};

/// Sums over a whole graph.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Totals {
    /// Elements of the checkpoint tensors that the graph names, each tensor once.
    pub parameters: u64,
    /// How many tensors that are.
    pub tensors: usize,
    /// Their bytes as stored.
    pub bytes: u64,
    /// Bytes of keys and values of one position, all layers, in numbers of 16 bits.
    pub kv_bytes_per_token: u64,
    /// The part of these that is kept for the last positions of a window alone.
    pub window_bytes_per_token: u64,
    /// Bytes of recurrent state of one sequence.
    pub state_bytes_per_sequence: u64,
}

impl Totals {
    /// Adds up a graph, before or after its passes.
    #[must_use]
    pub fn of(graph: &Graph) -> Self {
        let params: BTreeMap<&str, _> = graph
            .weights
            .iter()
            .filter_map(|weight| match &weight.expr {
                WeightExpr::Param { name } => Some((name.as_str(), weight)),
                _ => None,
            })
            .collect();
        let mut totals = Self {
            tensors: params.len(),
            ..Self::default()
        };
        for weight in params.values() {
            let elements: u64 = weight.shape.iter().map(|&d| u64::from(d)).product();
            let (len, bytes) = weight.scheme.unit();
            totals.parameters += elements;
            totals.bytes += elements / len as u64 * bytes as u64;
        }
        for group in group_caches(graph).0 {
            let bytes = group.bytes_per_position(2) as u64;
            totals.kv_bytes_per_token += bytes;
            if matches!(group.spec.kind, CacheKind::Window { .. }) {
                totals.window_bytes_per_token += bytes;
            }
            totals.state_bytes_per_sequence += group.bytes_per_sequence() as u64;
        }
        totals
    }
}

impl fmt::Display for Totals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} parameters in {} tensors, {} bytes as stored; {} bytes of keys and values a token at 16 bits",
            self.parameters, self.tensors, self.bytes, self.kv_bytes_per_token
        )?;
        if self.window_bytes_per_token > 0 {
            write!(
                f,
                ", {} of them within a window",
                self.window_bytes_per_token
            )?;
        }
        if self.state_bytes_per_sequence > 0 {
            write!(
                f,
                "; {} bytes of state a sequence",
                self.state_bytes_per_sequence
            )?;
        }
        Ok(())
    }
}
