//! Element-wise ops.

use super::GraphBuilder;
use crate::{Activation, Gate, GraphError, Op, Rows, ValueId, ValueType};

impl GraphBuilder {
    /// An element-wise function.
    ///
    /// # Errors
    /// When x is an integer.
    pub fn activate(&mut self, x: ValueId, kind: Activation) -> Result<ValueId, GraphError> {
        self.push_one(Op::Activation(kind), &[x])
    }

    /// Gated activation of equal shapes.
    ///
    /// # Errors
    /// When shapes or types differ.
    pub fn gated(&mut self, gate: ValueId, up: ValueId, kind: Gate) -> Result<ValueId, GraphError> {
        self.push_one(Op::Gated(kind), &[gate, up])
    }

    /// `a + b`; b may have dimensions of 1 where a has more, or be a weight's value.
    ///
    /// # Errors
    /// When shapes or types do not fit.
    pub fn add(&mut self, a: ValueId, b: ValueId) -> Result<ValueId, GraphError> {
        let (a, b) = self.broadcast_last(a, b);
        self.push_one(Op::Add, &[a, b])
    }

    /// `a * b`, like [`Self::add`].
    ///
    /// # Errors
    /// When shapes or types do not fit.
    pub fn mul(&mut self, a: ValueId, b: ValueId) -> Result<ValueId, GraphError> {
        let (a, b) = self.broadcast_last(a, b);
        self.push_one(Op::Mul, &[a, b])
    }

    /// `by * x`
    ///
    /// # Errors
    /// When `by` is not finite.
    pub fn scale(&mut self, x: ValueId, by: f32) -> Result<ValueId, GraphError> {
        self.push_one(Op::Scale { by }, &[x])
    }

    /// x limited to `[min, max]`.
    ///
    /// # Errors
    /// When `min > max` or one is not a number.
    pub fn clamp(&mut self, x: ValueId, min: f32, max: f32) -> Result<ValueId, GraphError> {
        self.push_one(Op::Clamp { min, max }, &[x])
    }

    /// `cap * tanh(x / cap)`
    ///
    /// # Errors
    /// When `cap` is not positive.
    pub fn soft_cap(&mut self, x: ValueId, cap: f32) -> Result<ValueId, GraphError> {
        self.push_one(Op::SoftCap { cap }, &[x])
    }

    /// `x * max(1, ln(position + 1) / ln(train_len))`
    ///
    /// # Errors
    /// When `train_len < 2` or positions are not one per token.
    pub fn log_n_scale(
        &mut self,
        x: ValueId,
        positions: ValueId,
        train_len: u32,
    ) -> Result<ValueId, GraphError> {
        self.push_one(Op::LogNScale { train_len }, &[x, positions])
    }

    /// x with another element type. The f32 form of a weight's value is read from the weight itself, unrounded.
    ///
    /// # Errors
    /// When a float would become an integer.
    pub fn cast(&mut self, x: ValueId, to: ValueType) -> Result<ValueId, GraphError> {
        let weight = match self.weight_values.get(&x) {
            Some(weight) if to == ValueType::F32 => *weight,
            _ => return self.push_one(Op::Cast { to }, &[x]),
        };
        let exact = self.weight_value(weight)?;
        if let Some(info) = self.values.get_mut(exact.index()) {
            info.ty = ValueType::F32;
        }
        Ok(exact)
    }

    /// Both ops commute exactly, so a broadcast row may stand on either side.
    fn broadcast_last(&self, a: ValueId, b: ValueId) -> (ValueId, ValueId) {
        let broadcast = |v: ValueId| {
            self.values
                .get(v.index())
                .is_some_and(|info| info.rows == Rows::Broadcast)
        };
        if broadcast(a) && !broadcast(b) {
            (b, a)
        } else {
            (a, b)
        }
    }
}
