//! Ops that move elements.

use super::GraphBuilder;
use crate::{GraphError, Op, ValueId};

impl GraphBuilder {
    /// Parts along a static axis (0 is the first after tokens); sizes add up to it.
    ///
    /// # Errors
    /// When they do not.
    pub fn split(
        &mut self,
        x: ValueId,
        axis: u32,
        sizes: &[u32],
    ) -> Result<Vec<ValueId>, GraphError> {
        let room = self.limits.max_values - self.values.len().min(self.limits.max_values);
        if sizes.len() > room {
            let what = "the number of values".to_owned();
            return Err(self.limit("split", what, self.limits.max_values));
        }
        let sizes = sizes.to_vec();
        self.push(Op::Split { axis, sizes }, &[x])
    }

    /// `start..start + len` of a static axis.
    ///
    /// # Errors
    /// When out of range.
    pub fn slice(
        &mut self,
        x: ValueId,
        axis: u32,
        start: u32,
        len: u32,
    ) -> Result<ValueId, GraphError> {
        self.push_one(Op::Slice { axis, start, len }, &[x])
    }

    /// Parts joined along a static axis.
    ///
    /// # Errors
    /// When other dimensions or types differ.
    pub fn concat(&mut self, xs: &[ValueId], axis: u32) -> Result<ValueId, GraphError> {
        self.push_one(Op::Concat { axis }, xs)
    }

    /// Same elements, other static dimensions.
    ///
    /// # Errors
    /// When the number of elements differs.
    pub fn reshape(&mut self, x: ValueId, shape: &[u32]) -> Result<ValueId, GraphError> {
        let max = self.limits.max_rank;
        if shape.len() > max {
            let what = format!("a shape of {} dimensions", shape.len());
            return Err(self.limit("reshape", what, max));
        }
        let shape = shape.to_vec();
        self.push_one(Op::Reshape { shape }, &[x])
    }

    /// `[a, b]` → `[b, a]`
    ///
    /// # Errors
    /// When x has not two dimensions.
    pub fn swap_axes(&mut self, x: ValueId) -> Result<ValueId, GraphError> {
        self.push_one(Op::SwapAxes, &[x])
    }

    /// `[heads, d]` → `[heads * times, d]`, copies adjacent.
    ///
    /// # Errors
    /// When x has not two dimensions or `times` is 0.
    pub fn repeat_heads(&mut self, x: ValueId, times: u32) -> Result<ValueId, GraphError> {
        self.push_one(Op::RepeatHeads { times }, &[x])
    }
}
