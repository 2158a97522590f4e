//! The operations. Notation: `x [a, b]` is a value with static dimensions `a, b` after the token dimension.

use crate::{CacheId, Sharding, ValueType, WeightId};
use serde::{Deserialize, Serialize};

/// Element-wise functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Activation {
    /// `x * sigmoid(x)`
    Silu,
    /// Exact GELU (erf).
    Gelu,
    /// GELU, tanh approximation.
    GeluTanh,
    /// `x * sigmoid(1.702 x)`
    QuickGelu,
    /// `max(x, 0)`
    Relu,
    /// `max(x, 0)²`
    Relu2,
    /// Logistic function.
    Sigmoid,
    /// Hyperbolic tangent.
    Tanh,
    /// `ln(1 + e^x)`
    Softplus,
    /// `e^x`
    Exp,
}

/// Where a norm's result is rounded to the model's dtype relative to the multiplication by its weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum NormRounding {
    /// Round the normalised value, then multiply (Llama).
    CastThenWeight,
    /// Multiply in f32, then round (Gemma).
    WeightThenCast,
}

/// Parameters of root-mean-square normalisation over the last dimension (Zhang and Sennrich 2019).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct RmsNorm {
    /// `[d]`, or `[heads, d]` for a weight per head; none multiplies by one.
    pub weight: Option<WeightId>,
    /// Added to the mean square.
    pub eps: f32,
    /// Added to the weight (1 for Gemma's unit offset).
    pub offset: f32,
    /// Rounding point.
    pub rounding: NormRounding,
}

/// Parameters of layer normalisation over the last dimension.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LayerNorm {
    /// `[d]` or `[heads, d]`.
    pub weight: Option<WeightId>,
    /// Like `weight`.
    pub bias: Option<WeightId>,
    /// Added to the variance.
    pub eps: f32,
}

/// How token positions become the numbers that rope and learned positions use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PositionScheme {
    /// 0, 1, 2, … → `[]`
    Standard,
    /// `offset + 0, 1, 2, …` → `[]` (OPT's learned positions).
    Offset(i32),
    /// GLM's two dimensions, position and block position → `[2]` (ChatGLM-6B's `get_position_ids`): `(p, 0)` before the
    /// prompt's first `bos`, `(place of the mask, 1, 2, …)` from it on. In a prompt without `bos` the block begins after it;
    /// without a mask its last token takes that place.
    Glm2d {
        /// Token whose first place the block refers to where there is no `gmask`.
        mask: u32,
        /// Token whose first place the block refers to.
        gmask: u32,
        /// Token at which the block begins.
        bos: u32,
    },
}

/// How pairs of elements rotate together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum RopeStyle {
    /// Element `i` with `i + rotary/2`.
    Neox,
    /// Element `2i` with `2i + 1`.
    Interleaved,
}

/// Context extension of rotary embeddings.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum RopeScaling {
    /// Plain.
    None,
    /// Positions divided by `factor`.
    Linear {
        /// Stretch.
        factor: f32,
    },
    /// NTK base that grows with the length; at position p it uses `max(prompt_len, p + 1)`.
    Dynamic {
        /// Stretch.
        factor: f32,
        /// Context of training.
        original: u32,
    },
    /// Qwen 1's NTK: `2^ceil(log2(len / original) + 1) - 1`, at least 1.
    DynamicQwen {
        /// Context of training.
        original: u32,
    },
    /// `YaRN` (Peng et al. 2023).
    Yarn {
        /// Stretch.
        factor: f32,
        /// Context of training.
        original: u32,
        /// Rotations above which frequencies stay.
        beta_fast: f32,
        /// Rotations below which frequencies are divided.
        beta_slow: f32,
        /// Multiplies cos and sin.
        attention_factor: f32,
        /// Whether ramp bounds are rounded to whole dimensions.
        truncate: bool,
    },
    /// Llama 3.1's piecewise scaling.
    Llama3 {
        /// Stretch.
        factor: f32,
        /// Low-frequency bound.
        low: f32,
        /// High-frequency bound.
        high: f32,
        /// Context of training.
        original: u32,
    },
    /// Phi-3's per-dimension factors; the long list applies once the sequence exceeds `original`.
    LongRope {
        /// Divisors of frequencies, `[rotary/2]`.
        short: Vec<f32>,
        /// Likewise.
        long: Vec<f32>,
        /// Context of training.
        original: u32,
        /// Multiplies cos and sin.
        attention_factor: f32,
    },
    /// Frequencies divided element-wise by a checkpoint tensor, `[rotary/2]` (GGUF's `rope_freqs`).
    Factors {
        /// Divisors.
        weight: WeightId,
    },
}

/// Rotary position embedding (Su et al. 2021) over the last dimension of `x [heads, d]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rope {
    /// Leading elements of each head that rotate.
    pub rotary: u32,
    /// Base of the frequencies.
    pub theta: f32,
    /// Pairing.
    pub style: RopeStyle,
    /// Context extension.
    pub scaling: RopeScaling,
    /// Which column of a two-dimensional position to use; 0 for one-dimensional ones.
    pub axis: u32,
    /// First rotated element of each head (ChatGLM-6B rotates halves by different axes).
    pub start: u32,
}

/// Which earlier positions a query sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Mask {
    /// Itself and everything before it.
    Causal,
    /// The prompt sees itself whole; generated tokens are causal.
    PrefixLm,
    /// The prompt's tokens before its first `marker` see each other; the marker and what follows are causal. The whole
    /// prompt where it has no marker.
    PrefixBefore {
        /// Token id.
        marker: u32,
    },
}

/// Parameters of paged attention.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Attention {
    /// Keys and values of the layer; layers may share one.
    pub cache: CacheId,
    /// Multiplies `q·k`.
    pub scale: f32,
    /// Visibility.
    pub mask: Mask,
    /// Positions a query sees, itself included; none is all.
    pub window: Option<u32>,
    /// `cap * tanh(score / cap)` on scaled scores.
    pub softcap: Option<f32>,
    /// `[heads]` slopes; `slope * (key position - query position)` is added to scaled scores (Press et al. 2021).
    pub alibi: Option<WeightId>,
    /// `[heads]` logits of a key that takes weight and gives nothing (gpt-oss).
    pub sinks: Option<WeightId>,
}

/// Parameters of multi-head latent attention (DeepSeek-V2): the cache holds `latent ++ k_rope`, one head.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LatentAttention {
    /// `kv_heads` 1, `k_dim` rank + rope, values the first `rank` of the key.
    pub cache: CacheId,
    /// `[heads * (nope + v), rank]`: expands a latent to keys and values.
    pub kv_b: WeightId,
    /// Elements of a query head without rope.
    pub nope: u32,
    /// Elements of a value head.
    pub v_dim: u32,
    /// Multiplies scores.
    pub scale: f32,
}

/// How expert scores are chosen and weighted.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Route {
    /// Experts per token.
    pub top_k: u32,
    /// Function from logits to scores.
    pub scores: RouteScores,
    /// Experts in groups, of which only the best are considered.
    pub groups: Option<RouteGroups>,
    /// `[experts]`, added to scores for choosing only (DeepSeek-V3).
    pub correction: Option<WeightId>,
    /// Divide the chosen scores by their sum.
    pub renormalize: bool,
    /// Multiplies the result.
    pub scale: f32,
}

/// Function from router logits to scores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RouteScores {
    /// Softmax over all experts, then choose.
    Softmax,
    /// Choose, then softmax over the chosen (gpt-oss, Mixtral's equal).
    SoftmaxOfChosen,
    /// Logistic function.
    Sigmoid,
}

/// Group-limited routing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RouteGroups {
    /// Groups of equal size.
    pub count: u32,
    /// Groups kept.
    pub top: u32,
    /// Best experts whose scores sum to a group's score (1 DeepSeek-V2, 2 DeepSeek-V3).
    pub sum_of: u32,
}

/// Gated activation: `act(gate) * up`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum Gate {
    /// `act(gate) * up`
    Plain(Activation),
    /// gpt-oss: gate clamped above, up on both sides by `limit`; `gate * sigmoid(alpha gate) * (up + 1)`.
    Clamped {
        /// Factor in the sigmoid.
        alpha: f32,
        /// Bound.
        limit: f32,
    },
}

/// Where gate and up rows stand in a merged matrix or vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum GateLayout {
    /// All gate rows, then all up rows.
    Halves,
    /// gate 0, up 0, gate 1, up 1, …
    Interleaved,
}

/// A layer of expert MLPs, of which each row uses those it was routed to.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Experts {
    /// `[experts, 2 * ffn, hidden]`
    pub gate_up: WeightId,
    /// `[experts, 2 * ffn]`
    pub gate_up_bias: Option<WeightId>,
    /// `[experts, hidden, ffn]`
    pub down: WeightId,
    /// `[experts, hidden]`
    pub down_bias: Option<WeightId>,
    /// Order of rows in `gate_up`.
    pub layout: GateLayout,
    /// Activation between the two.
    pub gate: Gate,
}

/// One row block of a linear, with a storage scheme of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Segment {
    /// `[out, in]`
    pub weight: WeightId,
    /// `[out]`
    pub bias: Option<WeightId>,
}

/// Pooling of an embedding model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Pooling {
    /// The last token's row.
    Last,
    /// Mean over the sequence.
    Mean,
}

/// An operation and its static parameters. Inputs and outputs are listed as `(inputs) → (outputs)`.
///
/// The last group is made by passes only; a guest cannot write them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[allow(clippy::large_enum_variant)]
pub enum Op {
    /// `() → (ids [])` token ids of the step, i32.
    TokenIds,
    /// `() → (p [])` or `[2]`, i32.
    Positions(PositionScheme),
    /// `(ids []) → (x [d])`, a row of `table [n, d]` per id.
    Embedding {
        /// `[n, d]`
        table: WeightId,
    },
    /// `() → (x shape)` the weight as a value, the same for every row; of the model's type, or f32 where the value table
    /// says so (then it is read unrounded).
    WeightValue {
        /// Any plain weight.
        weight: WeightId,
    },
    /// `(x [in]) → (y [Σ out])`: `y = x Wᵀ + b`, segments side by side. One segment before fusion. The result is of x's
    /// type, or f32 where the value table says so (then sums leave unrounded).
    Linear {
        /// Row blocks in output order.
        segments: Vec<Segment>,
        /// Tensor-parallel split.
        sharding: Sharding,
    },
    /// `(x […, d]) → (y […, d])`
    RmsNorm(RmsNorm),
    /// `(x […, d]) → (y […, d])`
    LayerNorm(LayerNorm),
    /// `(x […, d]) → (y […, d])` divided by `sqrt(Σx² + eps)`.
    L2Norm {
        /// Added to the sum of squares.
        eps: f32,
    },
    /// `(x [heads, d], positions) → (y [heads, d])`
    Rope(Rope),
    /// `(q [heads, k_dim], k [kv_heads, k_dim], v [kv_heads, v_dim]) → (o [heads, v_dim])`; without k and v the
    /// cache was written by an earlier layer.
    Attention(Attention),
    /// `(q [heads, nope + rope], latent [rank], k_rope [rope]) → (o [heads, v_dim])`
    LatentAttention(LatentAttention),
    /// `(x) → (y)` element-wise.
    Activation(Activation),
    /// `(gate, up) → (y)`, equal shapes.
    Gated(Gate),
    /// `(a, b) → (a + b)`; b may have dimensions of 1 where a has more, or be a broadcast row.
    Add,
    /// `(a, b) → (a * b)`, like `Add`.
    Mul,
    /// `(x) → (by * x)`
    Scale {
        /// Factor.
        by: f32,
    },
    /// `(x) → (y)` limited to `[min, max]`.
    Clamp {
        /// Lower bound.
        min: f32,
        /// Upper bound.
        max: f32,
    },
    /// `(x) → (cap * tanh(x / cap))`
    SoftCap {
        /// Bound.
        cap: f32,
    },
    /// `(x, positions) → (x * max(1, ln(position + 1) / ln(train_len)))` (Qwen 1).
    LogNScale {
        /// Context of training.
        train_len: u32,
    },
    /// `(x) → (y)` of another element type.
    Cast {
        /// Target.
        to: ValueType,
    },
    /// `(x) → (parts…)` along a static axis.
    Split {
        /// Static axis, 0 is the first after the token dimension.
        axis: u32,
        /// Lengths; they add up to the axis.
        sizes: Vec<u32>,
    },
    /// `(x) → (y)`: `start..start + len` of a static axis.
    Slice {
        /// Static axis.
        axis: u32,
        /// First element.
        start: u32,
        /// Count.
        len: u32,
    },
    /// `(parts…) → (y)` along a static axis.
    Concat {
        /// Static axis.
        axis: u32,
    },
    /// `(x) → (y)` same elements, other static dimensions.
    Reshape {
        /// New static dimensions.
        shape: Vec<u32>,
    },
    /// `(x [a, b]) → (y [b, a])`: swaps two static dimensions.
    SwapAxes,
    /// `(x [heads, d]) → (y [heads * times, d])`, each head `times` times in a row.
    RepeatHeads {
        /// Copies.
        times: u32,
    },
    /// `(logits [experts]) → (weights [top_k] f32, ids [top_k] i32)`
    Route(Route),
    /// `(x [hidden], weights [top_k], ids [top_k]) → (y [hidden])`
    Experts(Experts),
    /// `(x [c]) → (y [c])`: depthwise causal convolution over the sequence, `weight [c, width]`.
    CausalConv {
        /// `[c, width]`
        weight: WeightId,
        /// `[c]`
        bias: Option<WeightId>,
        /// Recurrent: the last `width - 1` inputs, f32 `[width - 1, c]`, oldest first.
        cache: CacheId,
        /// Applied to the result.
        activation: Option<Activation>,
    },
    /// `(q [heads, k], k [heads, k], v [heads, v], g [heads] f32, beta [heads] f32) → (o [heads, v])`: gated
    /// delta rule (Yang et al. 2024): `S ← e^g S; S ← S + k ⊗ beta (v − Sᵀk); o = Sᵀ q`.
    DeltaRule {
        /// Recurrent: `S [heads, k, v]`, f32.
        cache: CacheId,
        /// Multiplies q.
        scale: f32,
    },
    /// `(x […]) → (y […])`, rows whose output is wanted.
    GatherOutputs,
    /// `(x [d]) → (y [d])`, one row per sequence.
    Pool {
        /// Which rows count.
        pooling: Pooling,
    },

    /// `(x, residual) → (x + residual, norm(x + residual))`
    AddRmsNorm(RmsNorm),
    /// `(x, residual) → (x + residual, norm(x + residual))`
    AddLayerNorm(LayerNorm),
    /// `(gate_up [2f]) → (y [f])` of a merged linear.
    GatedMerged {
        /// Activation.
        gate: Gate,
        /// Order of elements.
        layout: GateLayout,
    },
    /// `(q, k, v, positions) → (q')`: rotates q and k, writes k and v to the cache.
    RopeWrite {
        /// Rotation of both.
        rope: Rope,
        /// Written.
        cache: CacheId,
    },
    /// `(k, v) → ()`: writes to the cache without rotation. Where values are the prefix of keys, k is what follows them:
    /// `[kv_heads, k_dim - v_dim]`.
    WriteKv {
        /// Written.
        cache: CacheId,
    },
    /// `(q [heads, k_dim]) → (o [heads, v_dim])` over the cache alone.
    PagedAttention(Attention),
    /// `(x [heads, in + rest]) → (y [heads, out + rest])`: of each head the first `in` elements times a matrix of its own,
    /// `y = x Wᵀ`, and the rest as it is.
    HeadLinear {
        /// `[heads, out, in]`, plain.
        weight: WeightId,
    },
}
