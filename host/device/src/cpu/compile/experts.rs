//! Routing and experts as instructions.

use std::sync::Arc;

use guesthouse_graph::{Experts, GateLayout, Node, Route};

use super::Compiler;
use crate::cpu::ops::Place;
use crate::cpu::ops::experts::{
    Combine, Down, ExpertMatrix, ExpertShape, GateUp, Gather, Sort, whole_panels,
};
use crate::cpu::ops::route::{Choice, Route as RouteInstr};
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
        let correction = match route.correction {
            Some(w) => Some(self.loader.vector(w)?),
            None => None,
        };
        if let Some(c) = &correction {
            self.fit(node, "correction", logits.width, c.len())?;
        }
        self.fit(node, "weights", route.top_k as usize, weights.width)?;
        self.fit(node, "ids", route.top_k as usize, ids.width)?;
        let choice = Choice {
            scores: route.scores,
            groups: route.groups,
            correction,
            renormalize: route.renormalize,
            scale: route.scale,
        };
        let instr = RouteInstr {
            choice,
            logits: *logits,
            weights: *weights,
            ids: *ids,
        };
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
        let shape = ExpertShape {
            count,
            top_k: ids.width,
            hidden,
            ffn,
        };
        // Row of the stored matrix for each row of the packed one.
        let up_rows: Vec<Option<usize>> = (0..2)
            .flat_map(|part| {
                (0..whole_panels(ffn)).map(move |r| {
                    (r < ffn).then_some(match experts.layout {
                        GateLayout::Halves => part * ffn + r,
                        GateLayout::Interleaved => 2 * r + part,
                    })
                })
            })
            .collect();
        let down_rows: Vec<Option<usize>> = (0..whole_panels(hidden))
            .map(|r| (r < hidden).then_some(r))
            .collect();
        let gate_up = ExpertMatrix {
            matrix: self.loader.stacked(experts.gate_up, &up_rows)?,
            bias: self.rows_of_bias(experts.gate_up_bias, count, &up_rows)?,
        };
        let down = ExpertMatrix {
            matrix: self.loader.stacked(experts.down, &down_rows)?,
            bias: self.rows_of_bias(experts.down_bias, count, &down_rows)?,
        };
        let gate = experts.gate;
        self.program.experts = self.program.experts.and(&shape);
        self.push(index, y.arena, Sort { shape, ids: *ids });
        self.push(index, y.arena, Gather { shape, x: *x });
        let weights_in = *weights;
        self.push(
            index,
            y.arena,
            GateUp {
                shape,
                weights: gate_up,
                gate,
            },
        );
        self.push(
            index,
            y.arena,
            Down {
                shape,
                weights: down,
            },
        );
        self.push(
            index,
            y.arena,
            Combine {
                shape,
                weights: weights_in,
                y: *y,
            },
        );
        Ok(())
    }

    /// A bias `[count, rows]` in the order of the packed matrices' rows, zero where those are padding.
    fn rows_of_bias(
        &mut self,
        bias: Option<guesthouse_graph::WeightId>,
        count: usize,
        rows: &[Option<usize>],
    ) -> Result<Option<Arc<[f32]>>> {
        let Some(bias) = bias else { return Ok(None) };
        let all = self.loader.vector(bias)?;
        let each = all.len() / count.max(1);
        let ordered = all
            .chunks_exact(each.max(1))
            .flat_map(|b| rows.iter().map(|r| r.and_then(|r| b.get(r)).copied()))
            .map(Option::unwrap_or_default);
        Ok(Some(ordered.collect()))
    }
}
