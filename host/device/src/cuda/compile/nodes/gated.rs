//! Merged gate-up linears that are computed together with the activation behind them: one launch less per layer, and gate
//! and up never reach memory.

use guesthouse_graph::{GateLayout, Node, Op, Plan, Segment, ValueType};

use super::Compiler;
use crate::cuda::ops::Place;
use crate::cuda::ops::gated_linear::GatedLinear;
use crate::cuda::ops::own::Gating;
use crate::cuda::ops::pointwise::{GateInput, Gated};
use crate::cuda::options::CudaDtype;
use crate::error::Result;

/// A linear and its gate.
struct Pair<'p> {
    linear: &'p Node,
    segments: &'p [Segment; 2],
    gating: Gating,
}

impl<'a> Compiler<'a, '_> {
    /// Whether a later gate computes this linear.
    pub(super) fn is_done_by_gate(&self, linear: &Node) -> Result<bool> {
        let [merged] = linear.outputs[..] else {
            return Ok(false);
        };
        let nodes = &self.plan.graph.nodes;
        let gate = nodes.iter().find(|n| n.inputs.contains(&merged));
        Ok(match gate {
            Some(gate) => self.pair(gate)?.is_some(),
            None => false,
        })
    }

    /// Adds a gate with its linear as one; false where they are computed apart.
    pub(super) fn gated_linear(&mut self, index: usize, gate: &Node) -> Result<bool> {
        let Some(pair) = self.pair(gate)? else {
            return Ok(false);
        };
        let (x, y) = (
            self.place(pair.linear.inputs[0])?,
            self.place(gate.outputs[0])?,
        );
        let (gating, segments) = (pair.gating, pair.segments);
        let (weight, bias) = self.loader.gated(segments, Gating::BLOCK)?;
        self.fit(gate, "weight columns", x.width, weight.k as usize)?;
        self.fit(gate, "result", 2 * y.width, weight.n as usize)?;
        let merged = self.place(gate.inputs[0])?;
        let Op::GatedMerged { gate: function, .. } = gate.op else {
            return Ok(false);
        };
        let apart = Gated::new(
            &self.loader.gpu,
            self.loader.dtype,
            function,
            GateInput::Blocks(merged),
            y,
        )?;
        let instr = GatedLinear {
            matmul: std::sync::Arc::clone(&self.matmul),
            dtype: self.loader.dtype,
            gating,
            weight,
            bias,
            x,
            y,
            merged,
            apart,
            numerics: self.numerics,
        };
        self.push(index, y.arena, instr);
        Ok(true)
    }

    /// The linear that a gate reads and nothing else does, where one of our kernels computes both.
    fn pair(&self, gate: &Node) -> Result<Option<Pair<'a>>> {
        let plan: &'a Plan = self.plan;
        let graph = &plan.graph;
        let Op::GatedMerged {
            gate: function,
            layout: GateLayout::Halves,
        } = &gate.op
        else {
            return Ok(None);
        };
        let Some(gating) = Gating::of(*function) else {
            return Ok(None);
        };
        let hopper = self.loader.gpu.properties.is_hopper();
        let &[merged] = &gate.inputs[..] else {
            return Ok(None);
        };
        let readers = graph.nodes.iter().filter(|n| n.inputs.contains(&merged));
        if !hopper
            || self.loader.dtype == CudaDtype::F32
            || readers.count() != 1
            || graph.output.value() == merged
        {
            return Ok(None);
        }
        let linear = graph.nodes.iter().find(|n| n.outputs.contains(&merged));
        let Some((linear, Op::Linear { segments, .. })) = linear.map(|n| (n, &n.op)) else {
            return Ok(None);
        };
        let Some(segments): Option<&[Segment; 2]> = segments.as_slice().try_into().ok() else {
            return Ok(None);
        };
        let fits = |s: &Segment| {
            let weight = graph.weight(s.weight);
            weight.scheme.plain().is_some()
                && matches!(weight.shape[..], [n, k] if n % Gating::BLOCK as u32 == 0 && k % 8 == 0)
        };
        let shapes = segments.each_ref().map(|s| &graph.weight(s.weight).shape);
        let (x, y) = (self.place(linear.inputs[0])?, self.place(gate.outputs[0])?);
        let possible = segments.iter().all(fits)
            && shapes[0] == shapes[1]
            && x.ty == ValueType::Model
            && y.ty == ValueType::Model
            && [x, y, self.place(merged)?].iter().all(Place::is_aligned);
        Ok(possible.then_some(Pair {
            linear,
            segments,
            gating,
        }))
    }
}
