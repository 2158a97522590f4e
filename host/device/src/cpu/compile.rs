//! From a compiled plan to a list of instructions with all operands resolved and checked.

use std::sync::Arc;

use guesthouse_graph::{
    Attention, CacheId, CacheKind, Execution, Mask, Node, Op, Output, Plan, PositionScheme, Rope,
    RopeScaling, Rows, ValueId, ValueLayout, ValueType, WeightId,
};

use super::attention::PagedAttention;
use super::kv::{KvShape, RUN};
use super::ops::input::{Embedding, GatherOutputs, Positions, TokenIds, WeightValue};
use super::ops::linear::{Linear, LinearSegment};
use super::ops::norm::{Norm, NormKind};
use super::ops::pointwise::{
    Binary, GateInput, Gated, IntsToFloats, LogNScale, Map, Spread, Unary, Zip,
};
use super::ops::rope::{RopeApply, RopeTable, Rotation, WriteKv, frequencies};
use super::ops::shape::{Copy, RepeatHeads, Strided, SwapAxes};
use super::ops::{Instr, Place};
use super::weights::Loader;
use crate::error::{DeviceError, Result};

mod shapes;

/// A plan as instructions, in the three parts that run at different times.
pub(crate) struct Program {
    /// Fill the broadcast arena, once.
    pub once: Vec<Box<dyn Instr>>,
    /// Over all tokens of a step.
    pub tokens: Vec<Box<dyn Instr>>,
    /// Over the rows whose output is wanted, chunk by chunk.
    pub outputs: Vec<Box<dyn Instr>>,
    /// `rotary / 2` of each rope table.
    pub rope_halves: Vec<usize>,
    /// Shape of each cache, by id.
    pub caches: Vec<KvShape>,
    /// The logits.
    pub logits: Place,
}

/// A distinct rope: parameters, and the value its positions come from.
type RopeKey = (Rope, ValueId);

struct Compiler<'a, 'w> {
    plan: &'a Plan,
    loader: &'a mut Loader<'w>,
    block_size: usize,
    ropes: Vec<RopeKey>,
    program: Program,
}

/// Translates a plan, loading each weight as it is met.
pub(crate) fn compile(plan: &Plan, loader: &mut Loader<'_>, block_size: usize) -> Result<Program> {
    if plan.model_bytes != 4 {
        return Err(DeviceError::plan(format!(
            "model_bytes is {}, the CPU computes in f32 and needs 4",
            plan.model_bytes
        )));
    }
    let Output::Logits(logits) = plan.graph.output else {
        return Err(DeviceError::Unsupported {
            op: "embedding output".to_owned(),
            scope: "the graph".to_owned(),
            why: "the CPU does not pool embeddings yet; use a generating model".to_owned(),
        });
    };
    let mut compiler = Compiler {
        plan,
        loader,
        block_size,
        ropes: Vec::new(),
        program: Program {
            once: Vec::new(),
            tokens: Vec::new(),
            outputs: Vec::new(),
            rope_halves: Vec::new(),
            caches: Vec::new(),
            logits: Place {
                arena: Rows::Outputs,
                base: 0,
                stride: 0,
                offset: 0,
                width: 0,
            },
        },
    };
    // Before any weight is read: what cannot run must fail at once.
    for node in &plan.graph.nodes {
        compiler.supported(node)?;
    }
    compiler.check_order()?;
    compiler.caches()?;
    compiler.program.logits = compiler.place(logits)?;
    if compiler.program.logits.arena != Rows::Outputs {
        return Err(DeviceError::plan(
            "the logits do not come from gathered outputs",
        ));
    }
    for (index, node) in plan.graph.nodes.iter().enumerate() {
        if !plan.is_view(index) {
            compiler.node(index, node)?;
        }
    }
    Ok(compiler.program)
}

impl Compiler<'_, '_> {
    fn unsupported(&self, node: &Node, why: &str) -> DeviceError {
        let scope = self.plan.graph.scope(node.scope);
        DeviceError::Unsupported {
            op: op_name(&node.op),
            scope: if scope.is_empty() {
                "the graph".to_owned()
            } else {
                scope.to_owned()
            },
            why: why.to_owned(),
        }
    }

    fn supported(&self, node: &Node) -> Result<()> {
        const LATER: &str = "the CPU device does not run this operation yet; use another model";
        let attention = |a: &Attention| match a.mask {
            Mask::Causal => Ok(()),
            Mask::PrefixLm => Err(self.unsupported(
                node,
                "the CPU device has no prefix-LM masks yet; use another model",
            )),
        };
        match &node.op {
            Op::LatentAttention(_)
            | Op::Route(_)
            | Op::Experts(_)
            | Op::CausalConv { .. }
            | Op::DeltaRule { .. }
            | Op::Pool { .. }
            | Op::Positions(PositionScheme::Glm2d { .. }) => Err(self.unsupported(node, LATER)),
            Op::Attention(a) | Op::PagedAttention(a) => attention(a),
            _ => Ok(()),
        }
    }

    /// Output rows are computed after all token rows, so nothing that a gather reads may be overwritten later on.
    fn check_order(&self) -> Result<()> {
        let plan = self.plan;
        for (at, node) in plan.graph.nodes.iter().enumerate() {
            if !matches!(node.op, Op::GatherOutputs) {
                continue;
            }
            let source = plan.placement(node.inputs[0]);
            for (index, later) in plan.graph.nodes.iter().enumerate().skip(at + 1) {
                for &v in later.outputs.iter().filter(|_| !plan.is_view(index)) {
                    let p = plan.placement(v);
                    let apart = p.base + p.row_stride <= source.base
                        || source.base + source.row_stride <= p.base;
                    if p.arena == Rows::Tokens && !apart {
                        return Err(DeviceError::plan(format!(
                            "{} overwrites {} after its outputs were gathered",
                            op_name(&later.op),
                            node.inputs[0]
                        )));
                    }
                }
            }
        }
        Ok(())
    }

    fn caches(&mut self) -> Result<()> {
        for (id, spec) in self.plan.graph.caches.iter().enumerate() {
            let separate = spec.values == ValueLayout::Separate;
            if matches!(spec.kind, CacheKind::Recurrent { .. }) || !separate || spec.kv_heads == 0 {
                return Err(DeviceError::Unsupported {
                    op: format!("cache {id}"),
                    scope: "the graph".to_owned(),
                    why: "the CPU keeps keys and values apart and no recurrent state yet; use another model".to_owned(),
                });
            }
            self.program.caches.push(KvShape {
                group: self.plan.cache_slot(CacheId(id as u32)).group,
                heads: spec.kv_heads as usize,
                k_dim: spec.k_dim as usize,
                v_dim: spec.v_dim as usize,
                block_size: self.block_size,
            });
        }
        debug_assert!(self.block_size.is_multiple_of(RUN));
        Ok(())
    }

    /// A value's place in elements, checked to lie within its arena for any number of rows.
    fn place(&self, value: ValueId) -> Result<Place> {
        let (p, info) = (self.plan.placement(value), self.plan.graph.value(value));
        let width = info.width();
        let arena_bytes = match p.arena {
            Rows::Tokens => self.plan.token_bytes,
            Rows::Outputs => self.plan.output_bytes,
            Rows::Broadcast => self.plan.broadcast_bytes,
        };
        let inside = p.offset + 4 * width <= p.row_stride && p.base + p.row_stride <= arena_bytes;
        let aligned = [p.base, p.row_stride, p.offset]
            .iter()
            .all(|x| x.is_multiple_of(4));
        if !inside || !aligned {
            return Err(DeviceError::plan(format!(
                "{value} of {width} elements does not fit its place {p:?} of {arena_bytes} bytes"
            )));
        }
        Ok(Place {
            arena: p.arena,
            base: p.base / 4,
            stride: p.row_stride / 4,
            offset: p.offset / 4,
            width,
        })
    }

    fn push(&mut self, index: usize, y: Rows, instr: impl Instr + 'static) {
        let list = match (self.plan.execution[index], y) {
            (Execution::Once, _) => &mut self.program.once,
            (_, Rows::Outputs) => &mut self.program.outputs,
            _ => &mut self.program.tokens,
        };
        list.push(Box::new(instr));
    }

    fn fit(&self, node: &Node, what: &str, expected: usize, found: usize) -> Result<()> {
        if expected == found {
            return Ok(());
        }
        let scope = self.plan.graph.scope(node.scope);
        Err(DeviceError::plan(format!(
            "{} in {scope}: {what}: expected {expected} elements, found {found}",
            op_name(&node.op)
        )))
    }

    #[allow(clippy::too_many_lines)] // One arm per operation.
    fn node(&mut self, index: usize, node: &Node) -> Result<()> {
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
                let offset = match scheme {
                    PositionScheme::Offset(n) => *n,
                    _ => 0,
                };
                self.push(index, Rows::Tokens, Positions { y: outs[0], offset });
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
                self.norm(index, node, &ins, &outs, (kind, n.eps, weight, None))?;
            }
            Op::LayerNorm(n) | Op::AddLayerNorm(n) => {
                let weight = n.weight.map(|w| self.loader.vector(w)).transpose()?;
                let bias = n.bias.map(|w| self.loader.vector(w)).transpose()?;
                self.norm(
                    index,
                    node,
                    &ins,
                    &outs,
                    (NormKind::Layer, n.eps, weight, bias),
                )?;
            }
            Op::L2Norm { eps } => {
                self.norm(index, node, &ins, &outs, (NormKind::L2, *eps, None, None))?
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
                self.map(index, node, Unary::Clamp(*min, *max), &ins, &outs)?
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
            Op::GatherOutputs => {
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
            Op::LatentAttention(_)
            | Op::Route(_)
            | Op::Experts(_)
            | Op::CausalConv { .. }
            | Op::DeltaRule { .. }
            | Op::Pool { .. } => {
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
        (kind, eps, weight, bias): (NormKind, f32, Option<Arc<[f32]>>, Option<Arc<[f32]>>),
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

    fn cache(&self, cache: CacheId) -> Result<KvShape> {
        let shape = self.program.caches.get(cache.index()).copied();
        shape.ok_or_else(|| DeviceError::plan(format!("{cache} does not exist")))
    }

    /// The rope's table, made by an instruction before its first use.
    fn rotation(&mut self, index: usize, rope: &Rope, positions: ValueId) -> Result<Rotation> {
        let half = rope.rotary as usize / 2;
        // What follows does not change the table.
        let key = (
            Rope {
                style: guesthouse_graph::RopeStyle::Neox,
                start: 0,
                ..rope.clone()
            },
            positions,
        );
        let table = match self.ropes.iter().position(|k| *k == key) {
            Some(table) => table,
            None => {
                let factors = match &rope.scaling {
                    RopeScaling::Factors { weight } => Some(self.loader.vector(*weight)?),
                    _ => None,
                };
                let lists = match &rope.scaling {
                    RopeScaling::LongRope { short, long, .. } => vec![short.len(), long.len()],
                    _ => factors.iter().map(|f| f.len()).collect(),
                };
                let place = self.place(positions)?;
                if lists.iter().any(|&n| n != half)
                    || rope.axis as usize >= place.width
                    || rope.rotary % 2 != 0
                {
                    return Err(DeviceError::plan(format!(
                        "rope of {} elements: {lists:?} factors where {half} are needed, axis {} of {} positions",
                        rope.rotary, rope.axis, place.width
                    )));
                }
                let (frequencies, factor) = frequencies(rope, factors.as_deref());
                let table = self.ropes.len();
                let axis = rope.axis as usize;
                let instr = RopeTable {
                    table,
                    frequencies,
                    factor,
                    half,
                    positions: place,
                    axis,
                };
                self.push(index, Rows::Tokens, instr);
                self.ropes.push(key);
                self.program.rope_halves.push(half);
                table
            }
        };
        Ok(Rotation {
            table,
            half,
            start: rope.start as usize,
            style: rope.style,
        })
    }

    fn fit_rotation(&self, node: &Node, rope: &Rope, d: usize) -> Result<()> {
        if (rope.start + rope.rotary) as usize > d {
            self.fit(
                node,
                "rotated elements",
                d,
                (rope.start + rope.rotary) as usize,
            )?;
        }
        Ok(())
    }

    fn write_kv(
        &mut self,
        index: usize,
        node: &Node,
        cache: CacheId,
        rotation: Option<Rotation>,
        (k, v): (Place, Place),
    ) -> Result<()> {
        let shape = self.cache(cache)?;
        self.fit(node, "keys", shape.heads * shape.k_dim, k.width)?;
        self.fit(node, "values", shape.heads * shape.v_dim, v.width)?;
        self.push(
            index,
            Rows::Tokens,
            WriteKv {
                rotation,
                cache: cache.index(),
                k,
                v,
            },
        );
        Ok(())
    }

    fn attention(
        &mut self,
        index: usize,
        node: &Node,
        a: &Attention,
        q: Place,
        y: Place,
    ) -> Result<()> {
        let shape = self.cache(a.cache)?;
        let heads = q.width / shape.k_dim;
        self.fit(node, "queries", heads * shape.k_dim, q.width)?;
        self.fit(node, "result", heads * shape.v_dim, y.width)?;
        if heads == 0 || heads % shape.heads != 0 {
            return Err(DeviceError::plan(format!(
                "{heads} query heads do not divide among {} key heads",
                shape.heads
            )));
        }
        let spec = self.plan.graph.cache(a.cache);
        if let CacheKind::Window { window } = spec.kind
            && a.window.is_none_or(|w| w > window)
        {
            return Err(DeviceError::plan(format!(
                "attention sees {:?} positions of a cache that keeps {window}",
                a.window
            )));
        }
        let per_head = |weight: Option<WeightId>, this: &mut Self| -> Result<Option<Arc<[f32]>>> {
            let Some(weight) = weight else {
                return Ok(None);
            };
            let vector = this.loader.vector(weight)?;
            this.fit(node, "one number per head", heads, vector.len())?;
            Ok(Some(vector))
        };
        let alibi = per_head(a.alibi, self)?;
        let sinks = per_head(a.sinks, self)?;
        let instr = PagedAttention {
            cache: a.cache.index(),
            shape,
            heads,
            scale: a.scale,
            window: a.window,
            softcap: a.softcap,
            alibi,
            sinks,
            q,
            y,
        };
        self.push(index, y.arena, instr);
        Ok(())
    }
}

fn last(dims: &[usize]) -> usize {
    dims.last().copied().unwrap_or(1)
}

/// An operation's name without its parameters.
fn op_name(op: &Op) -> String {
    let text = format!("{op:?}");
    text.split([' ', '(', '{'])
        .next()
        .unwrap_or_default()
        .to_owned()
}
