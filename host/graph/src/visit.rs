//! The ids that an op holds.

use crate::{CacheId, Op, RopeScaling, WeightId, rules};

impl Op {
    /// Every weight the op reads, in the order of its fields.
    #[must_use]
    pub fn weights(&self) -> Vec<WeightId> {
        let mut op = self.clone();
        let mut weights = Vec::new();
        op.map_weights(&mut |w| {
            weights.push(w);
            w
        });
        weights
    }

    /// The cache the op reads or writes.
    #[must_use]
    pub fn cache(&self) -> Option<CacheId> {
        rules::cache_access(self, usize::MAX).map(|access| access.cache)
    }

    /// Replaces every weight id.
    pub(crate) fn map_weights(&mut self, f: &mut dyn FnMut(WeightId) -> WeightId) {
        let mut ids: Vec<&mut WeightId> = Vec::new();
        match self {
            Self::Embedding { table } => ids.push(table),
            Self::WeightValue { weight } | Self::HeadLinear { weight } => ids.push(weight),
            Self::Linear { segments, .. } => {
                for s in segments {
                    ids.push(&mut s.weight);
                    ids.extend(&mut s.bias);
                }
            }
            Self::RmsNorm(n) | Self::AddRmsNorm(n) => ids.extend(&mut n.weight),
            Self::LayerNorm(n) | Self::AddLayerNorm(n) => {
                ids.extend(&mut n.weight);
                ids.extend(&mut n.bias);
            }
            Self::Rope(rope) | Self::RopeWrite { rope, .. } => {
                if let RopeScaling::Factors { weight } = &mut rope.scaling {
                    ids.push(weight);
                }
            }
            Self::Attention(a) | Self::PagedAttention(a) => {
                ids.extend(&mut a.alibi);
                ids.extend(&mut a.sinks);
            }
            Self::LatentAttention(a) => ids.push(&mut a.kv_b),
            Self::Route(r) => ids.extend(&mut r.correction),
            Self::Experts(e) => {
                ids.push(&mut e.gate_up);
                ids.extend(&mut e.gate_up_bias);
                ids.push(&mut e.down);
                ids.extend(&mut e.down_bias);
            }
            Self::CausalConv { weight, bias, .. } => {
                ids.push(weight);
                ids.extend(bias);
            }
            Self::TokenIds
            | Self::Positions(_)
            | Self::L2Norm { .. }
            | Self::Activation(_)
            | Self::Gated(_)
            | Self::Add
            | Self::Mul
            | Self::Scale { .. }
            | Self::Clamp { .. }
            | Self::SoftCap { .. }
            | Self::LogNScale { .. }
            | Self::Cast { .. }
            | Self::Split { .. }
            | Self::Slice { .. }
            | Self::Concat { .. }
            | Self::Reshape { .. }
            | Self::SwapAxes
            | Self::RepeatHeads { .. }
            | Self::DeltaRule { .. }
            | Self::GatherOutputs
            | Self::Pool { .. }
            | Self::GatedMerged { .. }
            | Self::WriteKv { .. } => {}
        }
        for id in ids {
            *id = f(*id);
        }
    }

    /// Replaces the cache id.
    pub(crate) fn map_cache(&mut self, f: &mut dyn FnMut(CacheId) -> CacheId) {
        match self {
            Self::Attention(a) | Self::PagedAttention(a) => a.cache = f(a.cache),
            Self::LatentAttention(a) => a.cache = f(a.cache),
            Self::RopeWrite { cache, .. }
            | Self::WriteKv { cache }
            | Self::CausalConv { cache, .. }
            | Self::DeltaRule { cache, .. } => *cache = f(*cache),
            _ => {}
        }
    }
}
