//! Ops that look at other tokens or choose experts.

use super::{CausalConv, DeltaInputs, GraphBuilder};
use crate::{
    Attention, CacheId, Experts, GraphError, LatentAttention, Op, Rope, RopeScaling, Route, ValueId,
};

impl GraphBuilder {
    /// Rotary position embedding of `x [heads, d]`.
    ///
    /// # Errors
    /// When shapes or parameters do not fit.
    pub fn rope(
        &mut self,
        x: ValueId,
        positions: ValueId,
        rope: Rope,
    ) -> Result<ValueId, GraphError> {
        if let RopeScaling::LongRope { short, long, .. } = &rope.scaling {
            self.charge_constants("rope", short.len().saturating_add(long.len()))?;
        }
        self.push_one(Op::Rope(rope), &[x, positions])
    }

    /// `q [heads, k_dim]`, `k [kv_heads, k_dim]`, `v [kv_heads, v_dim]` → `[heads, v_dim]`; writes k and v to the cache.
    ///
    /// # Errors
    /// When operands, parameters and cache do not fit, or the cache has been written already.
    pub fn attention(
        &mut self,
        q: ValueId,
        k: ValueId,
        v: ValueId,
        attention: Attention,
    ) -> Result<ValueId, GraphError> {
        self.push_one(Op::Attention(attention), &[q, k, v])
    }

    /// Attention over a cache that an earlier layer wrote.
    ///
    /// # Errors
    /// Like [`Self::attention`], or when nothing has written the cache.
    pub fn attention_shared(
        &mut self,
        q: ValueId,
        attention: Attention,
    ) -> Result<ValueId, GraphError> {
        self.push_one(Op::Attention(attention), &[q])
    }

    /// Multi-head latent attention: `q [heads, nope + rope]`, `latent [rank]`, `k_rope [rope]` → `[heads, v_dim]`.
    ///
    /// # Errors
    /// When operands, parameters and cache do not fit.
    pub fn latent_attention(
        &mut self,
        q: ValueId,
        latent: ValueId,
        k_rope: ValueId,
        attention: LatentAttention,
    ) -> Result<ValueId, GraphError> {
        self.push_one(Op::LatentAttention(attention), &[q, latent, k_rope])
    }

    /// `logits [experts]` → (weights `[top_k]` f32, expert ids `[top_k]` i32).
    ///
    /// # Errors
    /// When a parameter is out of range.
    pub fn route(
        &mut self,
        logits: ValueId,
        route: Route,
    ) -> Result<(ValueId, ValueId), GraphError> {
        let ids = self.push(Op::Route(route), &[logits])?;
        match ids[..] {
            [weights, experts] => Ok((weights, experts)),
            _ => Err(GraphError::Malformed {
                at: self.at("route"),
                found: format!("{} outputs", ids.len()),
                expected: "two outputs".to_owned(),
            }),
        }
    }

    /// Each row through the experts it was routed to, summed by weight.
    ///
    /// # Errors
    /// When shapes do not fit.
    pub fn experts(
        &mut self,
        x: ValueId,
        weights: ValueId,
        ids: ValueId,
        experts: Experts,
    ) -> Result<ValueId, GraphError> {
        self.push_one(Op::Experts(experts), &[x, weights, ids])
    }

    /// Depthwise causal convolution over the sequence, `x [c]`. The cache keeps `width - 1` inputs as f32:
    /// `c * (width - 1) * 4` bytes.
    ///
    /// # Errors
    /// When shapes or the cache's size do not fit.
    pub fn causal_conv(&mut self, x: ValueId, conv: CausalConv) -> Result<ValueId, GraphError> {
        let CausalConv {
            weight,
            bias,
            cache,
            activation,
        } = conv;
        let op = Op::CausalConv {
            weight,
            bias,
            cache,
            activation,
        };
        self.push_one(op, &[x])
    }

    /// Gated delta rule → `[heads, v]`. The cache keeps `[heads, k, v]` f32: `heads * k * v * 4` bytes.
    ///
    /// # Errors
    /// When shapes, types or the cache's size do not fit.
    pub fn delta_rule(
        &mut self,
        inputs: DeltaInputs,
        cache: CacheId,
        scale: f32,
    ) -> Result<ValueId, GraphError> {
        let DeltaInputs { q, k, v, g, beta } = inputs;
        self.push_one(Op::DeltaRule { cache, scale }, &[q, k, v, g, beta])
    }

    /// An op newer than the interface, by name. This host knows none.
    ///
    /// # Errors
    /// [`GraphError::UnknownOp`].
    pub fn custom(&mut self, op: &str, _inputs: &[ValueId]) -> Result<Vec<ValueId>, GraphError> {
        Err(GraphError::UnknownOp {
            at: self.at("custom"),
            op: op.chars().take(64).collect(),
        })
    }

    /// Whether [`Self::custom`] knows an op.
    #[must_use]
    pub fn has_custom(&self, _op: &str) -> bool {
        false
    }
}
