//! One instruction per operation.

use std::collections::HashMap;
use std::sync::Arc;

use guesthouse_graph::{Node, Op, Pooling, PositionScheme, Rows, ValueId, ValueType, WeightId};

use super::Compiler;
use crate::cuda::driver::Buffer;
use crate::cuda::ops::Place;
use crate::cuda::ops::input::{CopyIds, Embedding, GlmPositions, Ints, WeightValue};
use crate::cuda::ops::norm::{Norm, NormKind, NormSpec, NormWeights};
use crate::cuda::ops::pointwise::{Binary, GateInput, Gated, LogNScale, Map, Spread, Unary, Zip};
use crate::cuda::ops::quant::QuantEmbedding;
use crate::cuda::ops::recurrent::{CausalConv, ConvSpec, DeltaRule, DeltaSpec};
use crate::cuda::ops::shape::{Copy, GatherOutputs, MeanOutputs, Strided, SwapAxes};
use crate::cuda::weights::{Matrix, VectorType};
use crate::error::{DeviceError, Result};
use crate::lower::op_name;

mod experts;
mod gated;
mod head_norm;
mod rope;

pub(crate) use rope::Ropes;

/// A norm's parameters besides its operands.
struct NormParams {
    kind: NormKind,
    eps: f32,
    weight: Option<WeightId>,
    bias: Option<WeightId>,
}

/// Values of integers that are read where the step's description has them.
pub(crate) type Aliases = HashMap<ValueId, Ints>;

impl Compiler<'_, '_> {
    #[allow(clippy::too_many_lines)] // One arm per operation.
    pub(super) fn node(&mut self, index: usize, node: &Node) -> Result<()> {
        let places = |values: &[ValueId]| -> Result<Vec<Place>> {
            values.iter().map(|&v| self.place(v)).collect()
        };
        let (ins, outs) = (places(&node.inputs)?, places(&node.outputs)?);
        let expect = |n_in: usize, n_out: usize| {
            if ins.len() == n_in && outs.len() == n_out {
                Ok(())
            } else {
                Err(DeviceError::plan(format!(
                    "{} has {} inputs and {} outputs",
                    op_name(&node.op),
                    ins.len(),
                    outs.len()
                )))
            }
        };
        let dtype = self.loader.dtype;
        let gpu = Arc::clone(&self.loader.gpu);
        match &node.op {
            Op::TokenIds => {
                expect(0, 1)?;
                self.ids(index, node.outputs[0], Ints::Tokens, 0, outs[0])?;
            }
            Op::Positions(scheme) => {
                expect(0, 1)?;
                let offset = match scheme {
                    PositionScheme::Standard => 0,
                    PositionScheme::Offset(n) => *n,
                    PositionScheme::Glm2d { .. } => {
                        self.fit(node, "positions", 2, outs[0].width)?;
                        let instr = GlmPositions::new(&gpu, outs[0])?;
                        self.push(index, outs[0].arena, instr);
                        return Ok(());
                    }
                };
                self.ids(index, node.outputs[0], Ints::Positions, offset, outs[0])?;
            }
            Op::Embedding { table } => {
                expect(1, 1)?;
                let ids = self.ints(node.inputs[0])?;
                let (matrix, y) = (self.loader.matrix(*table)?, outs[0]);
                let (n, k) = matrix.shape();
                self.fit(node, "table columns", y.width, k as usize)?;
                if n == 0 {
                    return Err(DeviceError::plan("an embedding table has no rows"));
                }
                match matrix {
                    Matrix::Dense(table) => {
                        let instr = Embedding::new(&gpu, dtype, table, ids, y)?;
                        self.push(index, y.arena, instr);
                    }
                    Matrix::Quant(table) => {
                        let instr = QuantEmbedding::new(&gpu, dtype, table, ids, y)?;
                        self.push(index, y.arena, instr);
                    }
                }
            }
            Op::WeightValue { weight } => {
                expect(0, 1)?;
                self.fit(node, "weight", outs[0].width, self.loader.len(*weight))?;
                let weight = self.loader.vector(*weight, VectorType::F32)?;
                let instr = WeightValue::new(&gpu, dtype, weight, outs[0])?;
                self.push(index, outs[0].arena, instr);
            }
            Op::Linear { segments, .. } => {
                expect(1, 1)?;
                if !self.is_done_by_gate(node)? {
                    self.linear(index, node, segments, (ins[0], outs[0]))?;
                }
            }
            Op::RmsNorm(_) if self.is_done_by_rotation(index)? => {}
            Op::RmsNorm(n) | Op::AddRmsNorm(n) => {
                let params = NormParams {
                    kind: NormKind::Rms {
                        offset: n.offset,
                        rounding: n.rounding,
                    },
                    eps: n.eps,
                    weight: n.weight,
                    bias: None,
                };
                self.norm(index, node, &ins, &outs, &params)?;
            }
            Op::LayerNorm(n) | Op::AddLayerNorm(n) => {
                let params = NormParams {
                    kind: NormKind::Layer,
                    eps: n.eps,
                    weight: n.weight,
                    bias: n.bias,
                };
                self.norm(index, node, &ins, &outs, &params)?;
            }
            Op::L2Norm { eps } => {
                let params = NormParams {
                    kind: NormKind::L2,
                    eps: *eps,
                    weight: None,
                    bias: None,
                };
                self.norm(index, node, &ins, &outs, &params)?;
            }
            Op::Rope(rope) => {
                expect(2, 1)?;
                self.fit(node, "result", ins[0].width, outs[0].width)?;
                let d = self.last(node.inputs[0]);
                self.rotate(
                    index,
                    node,
                    rope,
                    (ins[0], outs[0], d),
                    node.inputs[1],
                    None,
                )?;
            }
            Op::RopeWrite { rope, cache } => {
                expect(4, 1)?;
                self.fit(node, "result", ins[0].width, outs[0].width)?;
                let d = self.cache(*cache)?.k_dim as usize;
                let write = Some((*cache, ins[1], ins[2]));
                self.rotate(
                    index,
                    node,
                    rope,
                    (ins[0], outs[0], d),
                    node.inputs[3],
                    write,
                )?;
            }
            Op::WriteKv { cache } => {
                expect(2, 0)?;
                self.write_kv(index, node, *cache, (ins[0], ins[1]))?;
            }
            Op::Attention(a) => {
                if ins.len() == 3 {
                    self.write_kv(index, node, a.cache, (ins[1], ins[2]))?;
                } else {
                    expect(1, 1)?;
                }
                self.attention(index, node, a, (ins[0], outs[0]))?;
            }
            Op::PagedAttention(a) => {
                expect(1, 1)?;
                self.attention(index, node, a, (ins[0], outs[0]))?;
            }
            Op::Activation(a) => self.map(index, node, Unary::Activation(*a), &ins, &outs)?,
            Op::Scale { by } => self.map(index, node, Unary::Scale(*by), &ins, &outs)?,
            Op::Clamp { min, max } => {
                self.map(index, node, Unary::Clamp(*min, *max), &ins, &outs)?;
            }
            Op::SoftCap { cap } => self.map(index, node, Unary::SoftCap(*cap), &ins, &outs)?,
            Op::Reshape { .. } => self.map(index, node, Unary::Copy, &ins, &outs)?,
            Op::Cast { to } => {
                let from = self.plan.graph.value(node.inputs[0]).ty;
                if *to == ValueType::I32 && from != ValueType::I32 {
                    let why = "floats are not cast to integers; keep the value as it is";
                    return Err(self.unsupported(node, why));
                }
                self.map(index, node, Unary::Copy, &ins, &outs)?;
            }
            Op::Gated(gate) => {
                expect(2, 1)?;
                self.fit(node, "gate", outs[0].width, ins[0].width)?;
                self.fit(node, "up", outs[0].width, ins[1].width)?;
                let input = GateInput::Pair(ins[0], ins[1]);
                let instr = Gated::new(&gpu, dtype, *gate, input, outs[0])?;
                self.push(index, outs[0].arena, instr);
            }
            Op::GatedMerged { gate, layout } => {
                expect(1, 1)?;
                self.fit(node, "gate and up", 2 * outs[0].width, ins[0].width)?;
                if !self.gated_linear(index, node)? {
                    let input = GateInput::Merged(ins[0], *layout);
                    let instr = Gated::new(&gpu, dtype, *gate, input, outs[0])?;
                    self.push(index, outs[0].arena, instr);
                }
            }
            Op::Add | Op::Mul => {
                expect(2, 1)?;
                let function = match node.op {
                    Op::Add => Binary::Add,
                    _ => Binary::Mul,
                };
                self.fit(node, "result", ins[0].width, outs[0].width)?;
                let spread = Spread::new(&self.dims(node.inputs[0]), &self.dims(node.inputs[1]));
                let spread = spread.ok_or_else(|| {
                    self.unsupported(node, "the operands' shapes do not broadcast")
                })?;
                let values = (ins[0], ins[1], outs[0]);
                let instr = Zip::new(&gpu, dtype, function, values, spread)?;
                self.push(index, outs[0].arena, instr);
            }
            Op::LogNScale { train_len } => {
                expect(2, 1)?;
                self.fit(node, "result", ins[0].width, outs[0].width)?;
                let positions = self.ints(node.inputs[1])?;
                let values = (ins[0], positions, outs[0]);
                let instr = LogNScale::new(&gpu, dtype, *train_len, values)?;
                self.push(index, outs[0].arena, instr);
            }
            Op::Split { axis, sizes } => {
                expect(1, sizes.len())?;
                let dims = self.dims(node.inputs[0]);
                let mut start = 0;
                let mut parts = Vec::new();
                for (&size, &y) in sizes.iter().zip(&outs) {
                    let strided = Strided::take(&dims, *axis as usize, start, size as usize)
                        .ok_or_else(|| self.unsupported(node, "the parts do not fit the axis"))?;
                    self.fit(node, "part", y.width, strided.outer * strided.len)?;
                    parts.push((ins[0], y, strided));
                    start += size as usize;
                }
                self.push(index, ins[0].arena, Copy::new(&gpu, "split", parts)?);
            }
            Op::Slice { axis, start, len } => {
                expect(1, 1)?;
                let dims = self.dims(node.inputs[0]);
                let strided = Strided::take(&dims, *axis as usize, *start as usize, *len as usize)
                    .ok_or_else(|| self.unsupported(node, "the slice does not fit the axis"))?;
                self.fit(node, "result", outs[0].width, strided.outer * strided.len)?;
                let parts = vec![(ins[0], outs[0], strided)];
                self.push(index, outs[0].arena, Copy::new(&gpu, "slice", parts)?);
            }
            Op::Concat { axis } => {
                expect(ins.len(), 1)?;
                let dims = self.dims(node.outputs[0]);
                let mut start = 0;
                let mut parts = Vec::new();
                for (&v, &x) in node.inputs.iter().zip(&ins) {
                    let size = self.dims(v).get(*axis as usize).copied().unwrap_or(0);
                    let strided = Strided::take(&dims, *axis as usize, start, size)
                        .ok_or_else(|| self.unsupported(node, "the parts do not fit the axis"))?;
                    self.fit(node, "part", x.width, strided.outer * strided.len)?;
                    parts.push((x, outs[0], strided.reversed()));
                    start += size;
                }
                self.push(index, outs[0].arena, Copy::new(&gpu, "concat", parts)?);
            }
            Op::SwapAxes => {
                expect(1, 1)?;
                let [a, b] = self.dims(node.inputs[0])[..] else {
                    let why = "only values of two dimensions can be swapped";
                    return Err(self.unsupported(node, why));
                };
                self.fit(node, "result", a * b, outs[0].width)?;
                let instr = SwapAxes::new(&gpu, (a, b), ins[0], outs[0])?;
                self.push(index, outs[0].arena, instr);
            }
            Op::RepeatHeads { times } => {
                expect(1, 1)?;
                let (d, times) = (self.last(node.inputs[0]), *times as usize);
                self.fit(node, "result", ins[0].width * times, outs[0].width)?;
                let instr = Copy::repeat(&gpu, ins[0], outs[0], d, times)?;
                self.push(index, outs[0].arena, instr);
            }
            Op::HeadLinear { weight } => {
                expect(1, 1)?;
                self.head_linear(index, node, *weight, (ins[0], outs[0]))?;
            }
            Op::Pool {
                pooling: Pooling::Mean,
            } => {
                expect(1, 1)?;
                self.fit(node, "result", ins[0].width, outs[0].width)?;
                let instr = MeanOutputs::new(&gpu, dtype, ins[0], outs[0])?;
                self.push(index, Rows::Outputs, instr);
            }
            Op::GatherOutputs
            | Op::Pool {
                pooling: Pooling::Last,
            } => {
                expect(1, 1)?;
                self.fit(node, "result", ins[0].width, outs[0].width)?;
                let instr = GatherOutputs::new(&gpu, ins[0], outs[0])?;
                self.push(index, Rows::Outputs, instr);
            }
            Op::CausalConv {
                weight,
                bias,
                cache,
                activation,
            } => {
                expect(1, 1)?;
                let c = outs[0].width;
                self.fit(node, "result", c, ins[0].width)?;
                let taps = self.loader.len(*weight) / c.max(1);
                self.fit(node, "weight", taps * c, self.loader.len(*weight))?;
                if let Some(bias) = bias {
                    self.fit(node, "bias", c, self.loader.len(*bias))?;
                }
                let load = |w: WeightId, this: &mut Self| this.loader.vector(w, VectorType::F32);
                let spec = ConvSpec {
                    weight: load(*weight, self)?,
                    bias: bias.map(|b| load(b, self)).transpose()?,
                    activation: *activation,
                    state: self.state(node, *cache, taps.saturating_sub(1) * c)?,
                    taps,
                    x: ins[0],
                    y: outs[0],
                };
                let instr = CausalConv::new(&gpu, dtype, spec)?;
                self.push(index, outs[0].arena, instr);
            }
            Op::DeltaRule { cache, scale } => {
                expect(5, 1)?;
                let heads = ins[3].width;
                let (k, v) = (self.last(node.inputs[0]), self.last(node.inputs[2]));
                for (what, expected, found) in [
                    ("queries", heads * k, ins[0].width),
                    ("keys", heads * k, ins[1].width),
                    ("values", heads * v, ins[2].width),
                    ("beta", heads, ins[4].width),
                    ("result", heads * v, outs[0].width),
                ] {
                    self.fit(node, what, expected, found)?;
                }
                let spec = DeltaSpec {
                    scale: *scale,
                    state: self.state(node, *cache, heads * k * v)?,
                    heads,
                    dims: (k, v),
                    inputs: [ins[0], ins[1], ins[2], ins[3], ins[4]],
                    y: outs[0],
                };
                let Some(instr) = DeltaRule::new(&gpu, dtype, spec)? else {
                    let why = "the CUDA device takes keys of up to 512 elements; use --device cpu";
                    return Err(self.unsupported(node, why));
                };
                self.push(index, outs[0].arena, instr);
            }
            Op::Route(route) => self.route(index, node, route, (&ins, &outs))?,
            Op::Experts(experts) => self.experts(index, node, experts, (&ins, &outs))?,
            Op::LatentAttention(_) => {
                self.supported(node)?;
            }
        }
        Ok(())
    }

    /// Static dimensions of a value.
    fn dims(&self, value: ValueId) -> Vec<usize> {
        let shape = &self.plan.graph.value(value).shape;
        shape.iter().map(|&d| d as usize).collect()
    }

    /// The last static dimension; 1 where there is none.
    fn last(&self, value: ValueId) -> usize {
        self.dims(value).last().copied().unwrap_or(1)
    }

    /// Integers that operations look up: a value, or the step's own.
    fn ints(&self, value: ValueId) -> Result<Ints> {
        match self.ropes.aliases.get(&value) {
            Some(ints) => Ok(*ints),
            None => Ok(Ints::Value(self.place(value)?)),
        }
    }

    /// Token ids or positions. Nothing is copied where all that read them take them from the step's description.
    fn ids(
        &mut self,
        index: usize,
        value: ValueId,
        from: Ints,
        offset: i32,
        y: Place,
    ) -> Result<()> {
        let reads_in_place = |node: &Node| match &node.op {
            Op::Embedding { .. } => true,
            Op::Rope(_) | Op::LogNScale { .. } => node.inputs.first() != Some(&value),
            Op::RopeWrite { .. } => node.inputs.get(3) == Some(&value),
            _ => false,
        };
        let mut readers = self
            .plan
            .graph
            .nodes
            .iter()
            .filter(|n| n.inputs.contains(&value));
        if offset == 0 && readers.all(reads_in_place) {
            self.ropes.aliases.insert(value, from);
            return Ok(());
        }
        let instr = CopyIds::new(&self.loader.gpu, from, offset, y)?;
        self.push(index, y.arena, instr);
        Ok(())
    }

    fn map(
        &mut self,
        index: usize,
        node: &Node,
        function: Unary,
        ins: &[Place],
        outs: &[Place],
    ) -> Result<()> {
        let (&[x], &[y]) = (ins, outs) else {
            return Err(DeviceError::plan(format!(
                "{} has {} inputs",
                op_name(&node.op),
                ins.len()
            )));
        };
        self.fit(node, "result", x.width, y.width)?;
        let instr = Map::new(&self.loader.gpu, self.loader.dtype, function, x, y)?;
        self.push(index, y.arena, instr);
        Ok(())
    }

    /// The type in which all of some weights are stored without loss.
    fn vector_type(&self, weights: &[Option<WeightId>]) -> VectorType {
        let stored = |w: &WeightId| self.plan.graph.weight(*w).scheme.plain();
        let model = |w: &WeightId| stored(w).is_some_and(|d| self.loader.dtype.stores(d));
        if weights.iter().flatten().all(model) {
            VectorType::Model
        } else {
            VectorType::F32
        }
    }

    /// Norms with one input, or with a residual and a second output.
    fn norm(
        &mut self,
        index: usize,
        node: &Node,
        ins: &[Place],
        outs: &[Place],
        params: &NormParams,
    ) -> Result<()> {
        let (x, residual, y) = match (ins, outs) {
            (&[x], &[y]) => (x, None, y),
            (&[x, r], &[s, y]) => {
                self.fit(node, "residual", x.width, r.width)?;
                self.fit(node, "sum", x.width, s.width)?;
                (x, Some((r, s)), y)
            }
            _ => {
                return Err(DeviceError::plan(format!(
                    "{} has {} inputs",
                    op_name(&node.op),
                    ins.len()
                )));
            }
        };
        self.fit(node, "result", x.width, y.width)?;
        let d = self.last(node.inputs[0]);
        if d == 0 {
            return Err(self.unsupported(node, "the last dimension is empty"));
        }
        let both = [params.weight, params.bias];
        let weight_type = self.vector_type(&both);
        let mut lengths = Vec::new();
        for weight in both.into_iter().flatten() {
            let len = self.loader.len(weight);
            if len != d && len != x.width {
                self.fit(node, "weight", d, len)?;
            }
            lengths.push(len);
        }
        let per_vector = x.width != d && lengths.contains(&x.width);
        let load = |weight: Option<WeightId>, this: &mut Self| -> Result<Option<Arc<Buffer>>> {
            let Some(weight) = weight else {
                return Ok(None);
            };
            if per_vector && this.loader.len(weight) == d {
                let why = "a weight per head with a bias for all heads";
                return Err(this.unsupported(node, why));
            }
            this.loader.vector(weight, weight_type).map(Some)
        };
        let weights = NormWeights {
            weight: load(params.weight, self)?,
            bias: load(params.bias, self)?,
            per_vector,
        };
        let spec = NormSpec {
            kind: params.kind,
            eps: params.eps,
            d,
            weights,
            weight_type,
            x,
            residual,
            y,
            dtype: self.loader.dtype,
        };
        let instr = Norm::new(&self.loader.gpu, spec)?;
        self.push(index, y.arena, instr);
        Ok(())
    }
}
