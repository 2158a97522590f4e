//! Names of ops, as the guest interface spells them.

use crate::Op;

impl Op {
    /// The op's name in `wit/graph/builder.wit`; ops that passes make are named alike.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::TokenIds => "token-ids",
            Self::Positions(_) => "positions",
            Self::Embedding { .. } => "embedding",
            Self::WeightValue { .. } => "weight-value",
            Self::Linear { .. } => "linear",
            Self::RmsNorm(_) => "rms-norm",
            Self::LayerNorm(_) => "layer-norm",
            Self::L2Norm { .. } => "l2-norm",
            Self::Rope(_) => "rope",
            Self::Attention(_) => "attention",
            Self::LatentAttention(_) => "latent-attention",
            Self::Activation(_) => "activate",
            Self::Gated(_) => "gated",
            Self::Add => "add",
            Self::Mul => "mul",
            Self::Scale { .. } => "scale",
            Self::Clamp { .. } => "clamp",
            Self::SoftCap { .. } => "soft-cap",
            Self::LogNScale { .. } => "log-n-scale",
            Self::Cast { .. } => "cast",
            Self::Split { .. } => "split",
            Self::Slice { .. } => "slice",
            Self::Concat { .. } => "concat",
            Self::Reshape { .. } => "reshape",
            Self::SwapAxes => "swap-axes",
            Self::RepeatHeads { .. } => "repeat-heads",
            Self::Route(_) => "route",
            Self::Experts(_) => "experts",
            Self::CausalConv { .. } => "causal-conv",
            Self::DeltaRule { .. } => "delta-rule",
            Self::GatherOutputs => "gather-outputs",
            Self::Pool { .. } => "pool",
            Self::AddRmsNorm(_) => "add-rms-norm",
            Self::AddLayerNorm(_) => "add-layer-norm",
            Self::GatedMerged { .. } => "gated-merged",
            Self::RopeWrite { .. } => "rope-write",
            Self::WriteKv { .. } => "write-kv",
            Self::PagedAttention(_) => "paged-attention",
            Self::HeadLinear { .. } => "head-linear",
        }
    }
}
