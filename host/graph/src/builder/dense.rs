//! Embeddings, linears, norms.

use super::GraphBuilder;
use crate::{
    GraphError, LayerNorm, Op, PositionScheme, RmsNorm, Segment, Sharding, ValueId, WeightId,
};

impl GraphBuilder {
    /// Token ids of the step, `[]` i32.
    ///
    /// # Errors
    /// [`GraphError::Limit`].
    pub fn token_ids(&mut self) -> Result<ValueId, GraphError> {
        self.push_one(Op::TokenIds, &[])
    }

    /// Positions of the step's tokens, `[]` or `[2]`, i32.
    ///
    /// # Errors
    /// [`GraphError::Limit`].
    pub fn positions(&mut self, scheme: PositionScheme) -> Result<ValueId, GraphError> {
        self.push_one(Op::Positions(scheme), &[])
    }

    /// A plain weight as a value that is the same for every token.
    ///
    /// # Errors
    /// [`GraphError::Scheme`] when it is quantized.
    pub fn weight_value(&mut self, weight: WeightId) -> Result<ValueId, GraphError> {
        let value = self.push_one(Op::WeightValue { weight }, &[])?;
        self.weight_values.insert(value, weight);
        Ok(value)
    }

    /// A row of `table [n, d]` per id.
    ///
    /// # Errors
    /// When table or ids have another shape or type.
    pub fn embedding(&mut self, table: WeightId, ids: ValueId) -> Result<ValueId, GraphError> {
        self.push_one(Op::Embedding { table }, &[ids])
    }

    /// `x Wᵀ + b`: `x [in]`, `w [out, in]`, `bias [out]` → `[out]`.
    ///
    /// # Errors
    /// When shapes do not fit.
    pub fn linear(
        &mut self,
        x: ValueId,
        weight: WeightId,
        bias: Option<WeightId>,
        sharding: Sharding,
    ) -> Result<ValueId, GraphError> {
        let segments = vec![Segment { weight, bias }];
        self.push_one(Op::Linear { segments, sharding }, &[x])
    }

    /// Root-mean-square normalisation over the last dimension.
    ///
    /// # Errors
    /// When the weight's shape is neither `[d]` nor that of x.
    pub fn rms_norm(&mut self, x: ValueId, norm: RmsNorm) -> Result<ValueId, GraphError> {
        self.push_one(Op::RmsNorm(norm), &[x])
    }

    /// Layer normalisation over the last dimension.
    ///
    /// # Errors
    /// When the shape of weight or bias is neither `[d]` nor that of x.
    pub fn layer_norm(&mut self, x: ValueId, norm: LayerNorm) -> Result<ValueId, GraphError> {
        self.push_one(Op::LayerNorm(norm), &[x])
    }

    /// `x / sqrt(Σx² + eps)` over the last dimension.
    ///
    /// # Errors
    /// When x has no dimension.
    pub fn l2_norm(&mut self, x: ValueId, eps: f32) -> Result<ValueId, GraphError> {
        self.push_one(Op::L2Norm { eps }, &[x])
    }
}
