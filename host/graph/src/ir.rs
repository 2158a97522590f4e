//! The graph itself: values, nodes, weight expressions, caches, outputs.

use crate::{CacheId, Op, ScopeId, ValueId, WeightId};
use guesthouse_weights::Scheme;
use serde::{Deserialize, Serialize};

/// Element type of an activation. The device decides what [`ValueType::Model`] is: the checkpoint's
/// 16-bit type on a GPU, f32 on the CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ValueType {
    /// The model's own dtype.
    Model,
    /// Always 32-bit float (router scores, recurrent gates, logits).
    F32,
    /// 32-bit integer (token ids, positions, expert ids).
    I32,
}

/// What the leading, ragged dimension of a value counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Rows {
    /// One row per token of the step.
    Tokens,
    /// One row per position whose output is wanted; made by [`Op::GatherOutputs`] alone.
    Outputs,
    /// A single row that stands for every token (a weight used as a value).
    Broadcast,
}

/// Shape and type of one value: `[rows, shape…]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ValueInfo {
    /// Meaning of the leading dimension.
    pub rows: Rows,
    /// Static dimensions after it; empty for one number per row.
    pub shape: Vec<u32>,
    /// Element type.
    pub ty: ValueType,
}

impl ValueInfo {
    /// Elements per row.
    #[must_use]
    pub fn width(&self) -> usize {
        self.shape.iter().map(|&d| d as usize).product()
    }
}

/// One operation. `inputs` and `outputs` follow the order that [`Op`] documents.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Node {
    /// What is computed, with its static parameters.
    pub op: Op,
    /// Values read.
    pub inputs: Vec<ValueId>,
    /// Values defined here and nowhere else.
    pub outputs: Vec<ValueId>,
    /// Where the guest said this belongs.
    pub scope: ScopeId,
}

/// How a tensor-parallel rank holds a linear's weight `[out, in]` (Megatron's names).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Sharding {
    /// Every rank holds all of it.
    Replicated,
    /// Split along `out`; the result is split as well.
    Column,
    /// Split along `in`; the results are summed over ranks.
    Row,
}

/// A weight as the guest describes it, evaluated once at load.
///
/// Row operations (`Rows`, `SelectRows`, `ConcatRows`) are lossless on row-blocked quantized schemes. All others
/// need plain storage or an explicit [`WeightExpr::Dequantize`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum WeightExpr {
    /// A checkpoint tensor.
    Param {
        /// Its Hugging Face name.
        name: String,
    },
    /// Numbers the guest computed (ALiBi slopes, rope factors), f32.
    Constant {
        /// Row-major data.
        data: Vec<f32>,
    },
    /// Rows `start..start + len` of the first dimension.
    Rows {
        /// Source.
        of: WeightId,
        /// First row.
        start: u32,
        /// Row count.
        len: u32,
    },
    /// Row `index[i]` of the source becomes row `i`.
    SelectRows {
        /// Source.
        of: WeightId,
        /// Source row of each result row.
        index: Vec<u32>,
    },
    /// Sources stacked along the first dimension.
    ConcatRows {
        /// Sources, equal in all other dimensions.
        of: Vec<WeightId>,
    },
    /// The last two dimensions swapped.
    Transpose {
        /// Source.
        of: WeightId,
    },
    /// Same elements, other dimensions.
    Reshape {
        /// Source.
        of: WeightId,
    },
    /// Every element times `by`.
    Scale {
        /// Source.
        of: WeightId,
        /// Factor.
        by: f32,
    },
    /// Each row divided by its L2 norm (Baichuan's NormHead).
    NormalizeRows {
        /// Source.
        of: WeightId,
        /// Added to the norm.
        eps: f32,
    },
    /// To plain f32, whatever the source's scheme.
    Dequantize {
        /// Source.
        of: WeightId,
    },
}

/// A weight expression with what the verifier worked out about it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Weight {
    /// How to compute it.
    pub expr: WeightExpr,
    /// Result shape.
    pub shape: Vec<u32>,
    /// Result storage.
    pub scheme: Scheme,
}

/// What a cache keeps per sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum CacheKind {
    /// Keys and values of every position.
    Full,
    /// Keys and values of the last `window` positions, the current one included.
    Window {
        /// Positions kept.
        window: u32,
    },
    /// A fixed-size state that each token updates.
    Recurrent {
        /// Bytes per sequence.
        bytes: u32,
    },
}

/// Where the values of a KV cache live.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ValueLayout {
    /// In a part of their own, `v_dim` wide.
    Separate,
    /// They are the first `v_dim` elements of the key (MLA's latent cache).
    PrefixOfKey,
}

/// Whether tensor-parallel ranks split a cache's heads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum CacheSharding {
    /// Heads are divided over ranks.
    Heads,
    /// Every rank holds all of it.
    Replicated,
}

/// A cache as the guest declares it. Caches with equal specs form one group and share block tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct CacheSpec {
    /// What is kept.
    pub kind: CacheKind,
    /// Key/value heads; 0 for recurrent state.
    pub kv_heads: u32,
    /// Elements per key head.
    pub k_dim: u32,
    /// Elements per value head.
    pub v_dim: u32,
    /// Where values live.
    pub values: ValueLayout,
    /// Tensor-parallel placement.
    pub sharding: CacheSharding,
}

/// What the graph is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Output {
    /// Next-token scores, `[outputs, vocab]`.
    Logits(ValueId),
    /// One vector per sequence, `[outputs, hidden]` (embedding models).
    Embedding(ValueId),
}

impl Output {
    /// The value that leaves the graph.
    #[must_use]
    pub fn value(self) -> ValueId {
        match self {
            Self::Logits(v) | Self::Embedding(v) => v,
        }
    }
}

/// Facts about the model that the engine needs and no op states.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelInfo {
    /// The `architectures` entry that was built.
    pub architecture: String,
    /// Size of the logits row.
    pub vocab_size: u32,
    /// Longest context the model was made for, tokens.
    pub max_position: u32,
}

/// A whole model as SSA in execution order: each value is defined by exactly one earlier node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Graph {
    /// Facts stated by the guest.
    pub info: ModelInfo,
    /// Nodes in execution order.
    pub nodes: Vec<Node>,
    /// Shape and type of each [`ValueId`].
    pub values: Vec<ValueInfo>,
    /// Each [`WeightId`].
    pub weights: Vec<Weight>,
    /// Each [`CacheId`], one per layer that keeps state.
    pub caches: Vec<CacheSpec>,
    /// Each [`ScopeId`]; index 0 is the empty scope.
    pub scopes: Vec<String>,
    /// What leaves the graph.
    pub output: Output,
}

impl Graph {
    /// Info of a value.
    #[must_use]
    pub fn value(&self, id: ValueId) -> &ValueInfo {
        &self.values[id.index()]
    }

    /// A weight and its shape.
    #[must_use]
    pub fn weight(&self, id: WeightId) -> &Weight {
        &self.weights[id.index()]
    }

    /// Spec of a cache.
    #[must_use]
    pub fn cache(&self, id: CacheId) -> &CacheSpec {
        &self.caches[id.index()]
    }

    /// What the logits head reads, the last hidden state: the input of the linear whose result becomes the logits. `None`
    /// for embeddings, and where the logits are made otherwise.
    #[must_use]
    pub fn head_input(&self) -> Option<ValueId> {
        let Output::Logits(mut value) = self.output else {
            return None;
        };
        for node in self.nodes.iter().rev() {
            if !node.outputs.contains(&value) {
                continue;
            }
            match node.op {
                Op::Linear { .. } => return node.inputs.first().copied(),
                Op::GatherOutputs
                | Op::Scale { .. }
                | Op::Clamp { .. }
                | Op::SoftCap { .. }
                | Op::Cast { .. }
                | Op::Slice { .. }
                | Op::Reshape { .. } => value = *node.inputs.first()?,
                _ => return None,
            }
        }
        None
    }

    /// Name of a scope.
    #[must_use]
    pub fn scope(&self, id: ScopeId) -> &str {
        &self.scopes[id.index()]
    }
}
