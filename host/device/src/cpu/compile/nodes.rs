//! One instruction per operation.

use std::sync::Arc;

use guesthouse_graph::{Node, Op, Pooling, PositionScheme, Rows, ValueId, ValueType};

use super::{Compiler, last, shapes};
use crate::cpu::ops::Place;
use crate::cpu::ops::input::{
    Embedding, GatherOutputs, GlmPositions, MeanOutputs, Positions, TokenIds, WeightValue,
};
use crate::cpu::ops::linear::{Linear, LinearSegment};
use crate::cpu::ops::norm::{Norm, NormKind};
use crate::cpu::ops::pointwise::{
    Binary, GateInput, Gated, IntsToFloats, LogNScale, Map, Spread, Unary, Zip,
};
use crate::cpu::ops::recurrent::{CausalConv, DeltaRule, transposed};
use crate::cpu::ops::rope::RopeApply;
use crate::cpu::ops::shape::{Copy, RepeatHeads, Strided, SwapAxes};
use crate::error::{DeviceError, Result};
use crate::lower::op_name;

/// What a norm has besides its operands.
struct NormParams {
    kind: NormKind,
    eps: f32,
    weight: Option<Arc<[f32]>>,
    bias: Option<Arc<[f32]>>,
}

impl Compiler<'_, '_> {
    #[allow(clippy::too_many_lines)] // One arm per operation.
    pub(super) fn node(&mut self, index: usize, node: &Node) -> Result<()> {
        let ins: Vec<Place> = node
            .inputs
            .iter()
            .map(|&v| self.place(v))
            .collect::<Result<_>>()?;
        let outs: Vec<Place> = node
            .outputs
            .iter()
            .map(|&v| self.place(v))
            .collect::<Result<_>>()?;
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
        let shape = |v: ValueId| shapes::dims(&self.plan.graph, v);
        match &node.op {
            Op::TokenIds => {
                expect(0, 1)?;
                self.push(index, Rows::Tokens, TokenIds { y: outs[0] });
            }
            Op::Positions(scheme) => {
                expect(0, 1)?;
                let y = outs[0];
                let offset = match scheme {
                    PositionScheme::Standard => 0,
                    PositionScheme::Offset(n) => *n,
                    PositionScheme::Glm2d { .. } => {
                        self.fit(node, "positions", 2, y.width)?;
                        self.push(index, Rows::Tokens, GlmPositions { y });
                        return Ok(());
                    }
                };
                self.push(index, Rows::Tokens, Positions { y, offset });
            }
            Op::Embedding { table } => {
                expect(1, 1)?;
                let table = self.loader.matrix(*table)?;
                self.fit(node, "table columns", outs[0].width, table.cols())?;
                if table.rows() == 0 {
                    return Err(DeviceError::plan("an embedding table has no rows"));
                }
                self.push(
                    index,
                    outs[0].arena,
                    Embedding {
                        table,
                        ids: ins[0],
                        y: outs[0],
                    },
                );
            }
            Op::WeightValue { weight } => {
                expect(0, 1)?;
                let data = self.loader.vector(*weight)?;
                self.fit(node, "weight", outs[0].width, data.len())?;
                self.push(index, outs[0].arena, WeightValue { data, y: outs[0] });
            }
            Op::Linear { segments, .. } => {
                expect(1, 1)?;
                let mut column = 0;
                let mut list = Vec::new();
                for s in segments {
                    let matrix = self.loader.matrix(s.weight)?;
                    self.fit(node, "weight columns", ins[0].width, matrix.cols())?;
                    let bias = s.bias.map(|b| self.loader.vector(b)).transpose()?;
                    if let Some(b) = &bias {
                        self.fit(node, "bias", matrix.rows(), b.len())?;
                    }
                    let rows = matrix.rows();
                    list.push(LinearSegment {
                        matrix,
                        bias,
                        column,
                    });
                    column += rows;
                }
                self.fit(node, "result", outs[0].width, column)?;
                self.push(
                    index,
                    outs[0].arena,
                    Linear {
                        segments: list,
                        x: ins[0],
                        y: outs[0],
                    },
                );
            }
            Op::RmsNorm(n) | Op::AddRmsNorm(n) => {
                let weight = n.weight.map(|w| self.loader.vector(w)).transpose()?;
                let kind = NormKind::Rms { offset: n.offset };
                self.norm(
                    index,
                    node,
                    &ins,
                    &outs,
                    NormParams {
                        kind,
                        eps: n.eps,
                        weight,
                        bias: None,
                    },
                )?;
            }
            Op::LayerNorm(n) | Op::AddLayerNorm(n) => {
                let weight = n.weight.map(|w| self.loader.vector(w)).transpose()?;
                let bias = n.bias.map(|w| self.loader.vector(w)).transpose()?;
                self.norm(
                    index,
                    node,
                    &ins,
                    &outs,
                    NormParams {
                        kind: NormKind::Layer,
                        eps: n.eps,
                        weight,
                        bias,
                    },
                )?;
            }
            Op::L2Norm { eps } => {
                self.norm(
                    index,
                    node,
                    &ins,
                    &outs,
                    NormParams {
                        kind: NormKind::L2,
                        eps: *eps,
                        weight: None,
                        bias: None,
                    },
                )?;
            }
            Op::Rope(rope) => {
                expect(2, 1)?;
                let rotation = self.rotation(index, rope, node.inputs[1])?;
                let d = last(&shape(node.inputs[0]));
                self.fit_rotation(node, rope, d)?;
                self.fit(node, "result", ins[0].width, outs[0].width)?;
                self.push(
                    index,
                    outs[0].arena,
                    RopeApply {
                        rotation,
                        d,
                        x: ins[0],
                        y: outs[0],
                    },
                );
            }
            Op::RopeWrite { rope, cache } => {
                expect(4, 1)?;
                let rotation = self.rotation(index, rope, node.inputs[3])?;
                let kv = self.cache(*cache)?;
                self.fit_rotation(node, rope, kv.k_dim)?;
                self.fit(node, "result", ins[0].width, outs[0].width)?;
                self.push(
                    index,
                    outs[0].arena,
                    RopeApply {
                        rotation,
                        d: kv.k_dim,
                        x: ins[0],
                        y: outs[0],
                    },
                );
                self.write_kv(index, node, *cache, Some(rotation), (ins[1], ins[2]))?;
            }
            Op::WriteKv { cache } => {
                expect(2, 0)?;
                self.write_kv(index, node, *cache, None, (ins[0], ins[1]))?;
            }
            Op::Attention(a) => {
                if ins.len() == 3 {
                    self.write_kv(index, node, a.cache, None, (ins[1], ins[2]))?;
                }
                self.attention(index, node, a, ins[0], outs[0])?;
            }
            Op::PagedAttention(a) => {
                expect(1, 1)?;
                self.attention(index, node, a, ins[0], outs[0])?;
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
                match (from == ValueType::I32, *to == ValueType::I32) {
                    (true, false) => {
                        expect(1, 1)?;
                        self.fit(node, "result", ins[0].width, outs[0].width)?;
                        self.push(
                            index,
                            outs[0].arena,
                            IntsToFloats {
                                x: ins[0],
                                y: outs[0],
                            },
                        );
                    }
                    (false, true) => {
                        return Err(self.unsupported(
                            node,
                            "floats are not cast to integers; keep the value as it is",
                        ));
                    }
                    _ => self.map(index, node, Unary::Copy, &ins, &outs)?,
                }
            }
            Op::Gated(gate) => {
                expect(2, 1)?;
                self.fit(node, "gate", outs[0].width, ins[0].width)?;
                self.fit(node, "up", outs[0].width, ins[1].width)?;
                let input = GateInput::Pair(ins[0], ins[1]);
                self.push(
                    index,
                    outs[0].arena,
                    Gated {
                        gate: *gate,
                        input,
                        y: outs[0],
                    },
                );
            }
            Op::GatedMerged { gate, layout } => {
                expect(1, 1)?;
                self.fit(node, "gate and up", 2 * outs[0].width, ins[0].width)?;
                let input = GateInput::Merged(ins[0], *layout);
                self.push(
                    index,
                    outs[0].arena,
                    Gated {
                        gate: *gate,
                        input,
                        y: outs[0],
                    },
                );
            }
            Op::Add | Op::Mul => {
                expect(2, 1)?;
                let function = if matches!(node.op, Op::Add) {
                    Binary::Add
                } else {
                    Binary::Mul
                };
                self.fit(node, "result", ins[0].width, outs[0].width)?;
                let spread = shapes::spread(&shape(node.inputs[0]), &shape(node.inputs[1]))
                    .ok_or_else(|| {
                        self.unsupported(node, "the operands' shapes do not broadcast")
                    })?;
                debug_assert!(!matches!(spread, Spread::Same) || ins[0].width == ins[1].width);
                self.push(
                    index,
                    outs[0].arena,
                    Zip {
                        function,
                        a: ins[0],
                        b: ins[1],
                        spread,
                        y: outs[0],
                    },
                );
            }
            Op::LogNScale { train_len } => {
                expect(2, 1)?;
                self.fit(node, "result", ins[0].width, outs[0].width)?;
                let (x, positions, y) = (ins[0], ins[1], outs[0]);
                self.push(
                    index,
                    y.arena,
                    LogNScale {
                        train_len: *train_len as f32,
                        x,
                        positions,
                        y,
                    },
                );
            }
            Op::Split { axis, sizes } => {
                expect(1, sizes.len())?;
                let x = shape(node.inputs[0]);
                let mut start = 0;
                let mut parts = Vec::new();
                for (&size, &y) in sizes.iter().zip(&outs) {
                    let strided = shapes::take(&x, *axis as usize, start, size as usize);
                    let strided = strided
                        .ok_or_else(|| self.unsupported(node, "the parts do not fit the axis"))?;
                    self.fit(node, "part", y.width, strided.outer * strided.len)?;
                    parts.push((ins[0], y, strided));
                    start += size as usize;
                }
                self.push(index, ins[0].arena, Copy { parts });
            }
            Op::Slice { axis, start, len } => {
                expect(1, 1)?;
                let x = shape(node.inputs[0]);
                let strided = shapes::take(&x, *axis as usize, *start as usize, *len as usize)
                    .ok_or_else(|| self.unsupported(node, "the slice does not fit the axis"))?;
                self.fit(node, "result", outs[0].width, strided.outer * strided.len)?;
                self.push(
                    index,
                    outs[0].arena,
                    Copy {
                        parts: vec![(ins[0], outs[0], strided)],
                    },
                );
            }
            Op::Concat { axis } => {
                expect(ins.len(), 1)?;
                let y = shape(node.outputs[0]);
                let mut start = 0;
                let mut parts = Vec::new();
                for (&v, &x) in node.inputs.iter().zip(&ins) {
                    let size = shape(v).get(*axis as usize).copied().unwrap_or(0);
                    let strided = shapes::take(&y, *axis as usize, start, size)
                        .ok_or_else(|| self.unsupported(node, "the parts do not fit the axis"))?;
                    self.fit(node, "part", x.width, strided.outer * strided.len)?;
                    let strided = Strided {
                        from: strided.to,
                        to: strided.from,
                        ..strided
                    };
                    parts.push((x, outs[0], strided));
                    start += size;
                }
                self.push(index, outs[0].arena, Copy { parts });
            }
            Op::SwapAxes => {
                expect(1, 1)?;
                let [a, b] = shape(node.inputs[0])[..] else {
                    return Err(
                        self.unsupported(node, "only values of two dimensions can be swapped")
                    );
                };
                self.fit(node, "result", a * b, outs[0].width)?;
                self.push(
                    index,
                    outs[0].arena,
                    SwapAxes {
                        a,
                        b,
                        x: ins[0],
                        y: outs[0],
                    },
                );
            }
            Op::RepeatHeads { times } => {
                expect(1, 1)?;
                let (d, times) = (last(&shape(node.inputs[0])), *times as usize);
                self.fit(node, "result", ins[0].width * times, outs[0].width)?;
                self.push(
                    index,
                    outs[0].arena,
                    RepeatHeads {
                        d,
                        times,
                        x: ins[0],
                        y: outs[0],
                    },
                );
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
                let (x, y) = (ins[0], outs[0]);
                self.push(index, Rows::Outputs, MeanOutputs { x, y });
            }
            Op::GatherOutputs
            | Op::Pool {
                pooling: Pooling::Last,
            } => {
                expect(1, 1)?;
                self.fit(node, "result", ins[0].width, outs[0].width)?;
                self.push(
                    index,
                    Rows::Outputs,
                    GatherOutputs {
                        x: ins[0],
                        y: outs[0],
                    },
                );
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
                let weight = self.loader.vector(*weight)?;
                let width = weight.len() / c.max(1);
                if width < 2 {
                    return Err(self.unsupported(node, "a kernel of one position needs no state"));
                }
                self.fit(node, "weight", width * c, weight.len())?;
                let bias = bias.map(|b| self.loader.vector(b)).transpose()?;
                if let Some(b) = &bias {
                    self.fit(node, "bias", c, b.len())?;
                }
                let conv = CausalConv {
                    weight: transposed(&weight, c),
                    bias,
                    activation: *activation,
                    state: self.state(node, *cache, (width - 1) * c)?,
                    width,
                    x: ins[0],
                    y: outs[0],
                };
                self.push(index, outs[0].arena, conv);
            }
            Op::DeltaRule { cache, scale } => {
                expect(5, 1)?;
                let heads = ins[3].width;
                let (k, v) = (last(&shape(node.inputs[0])), last(&shape(node.inputs[2])));
                for (what, expected, found) in [
                    ("queries", heads * k, ins[0].width),
                    ("keys", heads * k, ins[1].width),
                    ("values", heads * v, ins[2].width),
                    ("beta", heads, ins[4].width),
                    ("result", heads * v, outs[0].width),
                ] {
                    self.fit(node, what, expected, found)?;
                }
                let rule = DeltaRule {
                    scale: *scale,
                    state: self.state(node, *cache, heads * k * v)?,
                    heads,
                    dims: (k, v),
                    inputs: [ins[0], ins[1], ins[2], ins[3], ins[4]],
                    y: outs[0],
                };
                self.push(index, outs[0].arena, rule);
            }
            Op::Route(route) => self.route(index, node, route, (&ins, &outs))?,
            Op::Experts(experts) => self.experts(index, node, experts, (&ins, &outs))?,
            Op::LatentAttention(_) => {
                self.supported(node)?;
            }
        }
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
        self.push(index, y.arena, Map { function, x, y });
        Ok(())
    }

    /// Norms with one input, or with a residual and a second output.
    fn norm(
        &mut self,
        index: usize,
        node: &Node,
        ins: &[Place],
        outs: &[Place],
        params: NormParams,
    ) -> Result<()> {
        let NormParams {
            kind,
            eps,
            weight,
            bias,
        } = params;
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
        let d = last(&shapes::dims(&self.plan.graph, node.inputs[0]));
        for part in [&weight, &bias].into_iter().flatten() {
            if part.len() != d && part.len() != x.width {
                self.fit(node, "weight", d, part.len())?;
            }
        }
        if d == 0 {
            return Err(self.unsupported(node, "the last dimension is empty"));
        }
        self.push(
            index,
            y.arena,
            Norm {
                kind,
                d,
                eps,
                weight,
                bias,
                x,
                residual,
                y,
            },
        );
        Ok(())
    }
}
