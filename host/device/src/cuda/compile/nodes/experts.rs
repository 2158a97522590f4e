//! Routing and experts as instructions.

use std::sync::Arc;

use guesthouse_graph::{Experts, Node, Route, Rows};

use super::Compiler;
use crate::cuda::ops::Place;
use crate::cuda::ops::experts::{Experts as ExpertsInstr, ExpertsSpec, down_rows, gate_up_rows};
use crate::cuda::ops::route::{MAX_EXPERTS, Route as RouteInstr};
use crate::cuda::weights::VectorType;
use crate::error::{DeviceError, Result};

impl Compiler<'_, '_> {
    pub(super) fn route(
        &mut self,
        index: usize,
        node: &Node,
        route: &Route,
        (ins, outs): (&[Place], &[Place]),
    ) -> Result<()> {
        let ([logits], [weights, ids]) = (ins, outs) else {
            return Err(DeviceError::plan("route has one input and two outputs"));
        };
        if logits.width > MAX_EXPERTS {
            return Err(self.unsupported(
                node,
                "the GPU chooses from at most 1024 experts; use --device cpu",
            ));
        }
        self.fit(node, "weights", route.top_k as usize, weights.width)?;
        self.fit(node, "ids", route.top_k as usize, ids.width)?;
        let correction = match route.correction {
            Some(w) => {
                self.fit(node, "correction", logits.width, self.loader.len(w))?;
                Some(self.loader.vector(w, VectorType::F32)?)
            }
            None => None,
        };
        let gpu = Arc::clone(&self.loader.gpu);
        let operands = (*logits, *weights, *ids);
        let instr = RouteInstr::new(&gpu, self.loader.dtype, route, correction, operands)?;
        self.push(index, ids.arena, instr);
        Ok(())
    }

    pub(super) fn experts(
        &mut self,
        index: usize,
        node: &Node,
        experts: &Experts,
        (ins, outs): (&[Place], &[Place]),
    ) -> Result<()> {
        let ([x, weights, ids], [y]) = (ins, outs) else {
            return Err(DeviceError::plan("experts has three inputs and one output"));
        };
        let dims = |w| -> Vec<usize> {
            let shape = &self.plan.graph.weight(w).shape;
            shape.iter().map(|&d| d as usize).collect()
        };
        let (&[count, rows, hidden], &[_, _, ffn]) =
            (&dims(experts.gate_up)[..], &dims(experts.down)[..])
        else {
            return Err(DeviceError::plan("experts have matrices"));
        };
        self.fit(node, "x", hidden, x.width)?;
        self.fit(node, "result", hidden, y.width)?;
        self.fit(node, "gate and up", 2 * ffn, rows)?;
        self.fit(node, "weights", ids.width, weights.width)?;
        if count > MAX_EXPERTS {
            return Err(self.unsupported(
                node,
                "the GPU sorts by at most 1024 experts; use --device cpu",
            ));
        }
        if x.element != self.loader.dtype.bytes() {
            return Err(self.unsupported(
                node,
                "experts read values of the model's type on the GPU; cast them first",
            ));
        }
        let spec = ExpertsSpec {
            experts: count,
            gate: experts.gate,
            gate_up: self.loader.experts(
                experts.gate_up,
                experts.gate_up_bias,
                &gate_up_rows(ffn, experts.layout),
            )?,
            down: self
                .loader
                .experts(experts.down, experts.down_bias, &down_rows(hidden))?,
            x: *x,
            weights: *weights,
            ids: *ids,
            y: *y,
        };
        let gpu = Arc::clone(&self.loader.gpu);
        let instr = ExpertsInstr::new(&gpu, self.loader.dtype, spec)?;
        let most = match y.arena {
            Rows::Tokens => self.limits.tokens,
            Rows::Outputs => self.limits.outputs,
            Rows::Broadcast => 1,
        };
        self.scratch(instr.scratch(most));
        self.push(index, y.arena, instr);
        Ok(())
    }
}
