//! Bytes that a step must read, whatever the kernels: the floor of its time on a machine bound by memory.

use std::collections::BTreeSet;

use guesthouse_weights::Scheme;

use super::Plan;
use crate::{CacheKind, Op, WeightExpr, WeightId};

/// How a device holds plain weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlainStorage {
    /// As the checkpoint does.
    AsStored,
    /// In the model's own type, of [`Plan::model_bytes`] per element.
    AsModel,
}

impl Plan {
    /// Bytes of weights that a step of one token reads. Of an embedding table that is a row, so tables count only where
    /// something else reads them whole. Experts count in full: an upper bound.
    #[must_use]
    pub fn weight_bytes_per_step(&self, storage: PlainStorage) -> u64 {
        let mut whole: BTreeSet<WeightId> = BTreeSet::new();
        let mut rows = 0;
        for node in &self.graph.nodes {
            match &node.op {
                Op::Embedding { table } => {
                    let weight = self.graph.weight(*table);
                    rows += weight.shape.last().map_or(0, |&d| u64::from(d))
                        * self.element_bits(weight.scheme, storage)
                        / 8;
                }
                op => whole.extend(op.weights()),
            }
        }
        let bytes = |id: &WeightId| {
            let weight = self.graph.weight(*id);
            let elements: u64 = weight.shape.iter().map(|&d| u64::from(d)).product();
            let bits = match weight.expr {
                WeightExpr::Constant { .. } => 32,
                _ => self.element_bits(weight.scheme, storage),
            };
            elements * bits / 8
        };
        rows + whole.iter().map(bytes).sum::<u64>()
    }

    /// Bytes of cached keys and values that a decode step reads for one sequence of `len` positions, and of recurrent
    /// state.
    #[must_use]
    pub fn cache_bytes_per_step(&self, len: u64) -> u64 {
        let group = |g: &super::CacheGroup| {
            let seen = match g.spec.kind {
                CacheKind::Window { window } => len.min(u64::from(window)),
                CacheKind::Full | CacheKind::Recurrent { .. } => len,
            };
            seen * g.bytes_per_position(self.model_bytes) as u64 + g.bytes_per_sequence() as u64
        };
        self.groups.iter().map(group).sum()
    }

    fn element_bits(&self, scheme: Scheme, storage: PlainStorage) -> u64 {
        match (scheme, storage) {
            (Scheme::Plain(_), PlainStorage::AsModel) => 8 * self.model_bytes as u64,
            _ => {
                let (len, bytes) = scheme.unit();
                (8 * bytes / len) as u64
            }
        }
    }
}

#[cfg(test)]
mod tests;
