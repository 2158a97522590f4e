//! Attention of grouped query heads, step by step: project, norm, rotate, attend.

use super::builder::{self, AttentionParams, RopeParams, Sharding, Value};
use super::{Bias, Dims, Linear, Scope, kv_cache, merge_heads, split_heads};

/// Queries, keys and values of one layer: `q [heads, d]`, `k` and `v [kv_heads, d]`.
///
/// ```no_run
/// # #[cfg(feature = "graph")] mod guest {
/// use guesthouse_sdk::graph::{Bias, Dims, Qkv, Rotation, Scope, Value, attention};
///
/// fn self_attention(at: &Scope, x: Value, d: &Dims, rotation: &Rotation) -> Value {
///     let o = Qkv::project(at, x, d, Bias::IfPresent)
///         .norm(|name, x| at.rms_norm(name, x, d.head_dim, d.eps))
///         .rotate(rotation)
///         .attend(d, &attention(d.scale(), None));
///     at.out("o_proj", o, d, Bias::IfPresent)
/// }
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
#[must_use = "attention is built by attend"]
pub struct Qkv {
    /// Queries.
    pub q: Value,
    /// Keys.
    pub k: Value,
    /// Values.
    pub v: Value,
}

impl Qkv {
    /// By the linears `q_proj`, `k_proj` and `v_proj` of `x [hidden]`.
    pub fn project(at: &Scope, x: Value, d: &Dims, bias: Bias) -> Self {
        let [q, k, v] = Self::flat(at, x, d, bias);
        Self::split(q, k, v, d)
    }

    /// The same before heads are told apart, `[q, kv, kv]` elements, for models that norm over all heads at once.
    pub fn flat(at: &Scope, x: Value, d: &Dims, bias: Bias) -> [Value; 3] {
        [("q_proj", d.q()), ("k_proj", d.kv()), ("v_proj", d.kv())].map(|(name, out)| {
            at.linear_with(bias, name, out, d.hidden, Sharding::Column)
                .apply(x)
        })
    }

    /// Heads out of `q [heads · d]`, `k` and `v [kv_heads · d]`.
    pub fn split(q: Value, k: Value, v: Value, d: &Dims) -> Self {
        Self {
            q: split_heads(q, d.heads, d.head_dim),
            k: split_heads(k, d.kv_heads, d.head_dim),
            v: split_heads(v, d.kv_heads, d.head_dim),
        }
    }

    /// By one linear whose rows are all queries, then all keys, then all values.
    pub fn fused(linear: &Linear, x: Value, d: &Dims) -> Self {
        let part = |start, len| linear.rows(start, len).apply(x);
        Self::split(
            part(0, d.q()),
            part(d.q(), d.kv()),
            part(d.q() + d.kv(), d.kv()),
            d,
        )
    }

    /// By one linear whose rows stand by key head: its query heads, the key, the value.
    pub fn grouped(linear: &Linear, x: Value, d: &Dims) -> Self {
        let queries = d.heads / d.kv_heads;
        let part = |start, heads| {
            let row = |group| {
                let first = (group * (queries + 2) + start) * d.head_dim;
                first..first + heads * d.head_dim
            };
            let index: Vec<u32> = (0..d.kv_heads).flat_map(row).collect();
            linear.select_rows(&index).apply(x)
        };
        Self::split(part(0, queries), part(queries, 1), part(queries + 1, 1), d)
    }

    /// Queries and keys through `norm`, which is told `q_norm` and `k_norm`.
    pub fn norm(self, norm: impl Fn(&str, Value) -> Value) -> Self {
        Self {
            q: norm("q_norm", self.q),
            k: norm("k_norm", self.k),
            ..self
        }
    }

    /// Queries and keys by their positions.
    pub fn rotate(self, by: &Rotation) -> Self {
        Self {
            q: by.apply(self.q),
            k: by.apply(self.k),
            ..self
        }
    }

    /// Attention over a cache of its own, with the window of `params`: `[heads · d]`.
    pub fn attend(self, d: &Dims, params: &AttentionParams) -> Value {
        let cache = kv_cache(d.kv_heads, d.head_dim, params.window);
        let o = builder::attention(self.q, self.k, self.v, cache, params);
        merge_heads(o, d.q())
    }
}

/// Rope at the positions of a batch.
#[derive(Clone, Debug)]
pub struct Rotation {
    /// From [`builder::positions`].
    pub positions: Value,
    /// Frequencies and pairing.
    pub params: RopeParams,
}

impl Rotation {
    /// `x [heads, d]` → same
    pub fn apply(&self, x: Value) -> Value {
        builder::rope(x, self.positions, &self.params)
    }
}
