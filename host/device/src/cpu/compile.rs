//! From a compiled plan to a list of instructions with all operands resolved and checked.

use guesthouse_graph::{CacheId, CacheKind, Execution, Node, Op, Plan, Rope, Rows, ValueId};

use super::kv::{CacheShape, KvShape, RUN};
use super::ops::experts::ExpertNeed;
use super::ops::{Instr, Place};
use super::weights::Loader;
use crate::error::{DeviceError, Result};
use crate::lower::{self, op_name};

mod attend;
mod experts;
mod nodes;
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
    pub caches: Vec<CacheShape>,
    /// Memory that a row's experts need.
    pub experts: ExpertNeed,
    /// The logits, or the vector of an embedding model.
    pub logits: Place,
    /// What the logits head reads; of rows of tokens or of outputs.
    pub hidden: Option<Place>,
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
            experts: ExpertNeed::default(),
            logits: Place {
                arena: Rows::Outputs,
                base: 0,
                stride: 0,
                offset: 0,
                width: 0,
            },
            hidden: None,
        },
    };
    // Before any weight is read: what cannot run must fail at once.
    for node in &plan.graph.nodes {
        compiler.supported(node)?;
    }
    compiler.check_order()?;
    compiler.caches()?;
    compiler.program.logits = compiler.place(plan.graph.output.value())?;
    if compiler.program.logits.arena != Rows::Outputs {
        return Err(DeviceError::plan(
            "the output does not come from gathered or pooled rows",
        ));
    }
    if let Some(value) = plan.graph.head_input() {
        let place = compiler.place(value)?;
        compiler.program.hidden = (place.arena != Rows::Broadcast).then_some(place);
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
        lower::unsupported(&self.plan.graph, node, why)
    }

    fn supported(&self, node: &Node) -> Result<()> {
        match &node.op {
            Op::LatentAttention(_) => Err(self.unsupported(node, lower::LATENT)),
            _ => Ok(()),
        }
    }

    /// Output rows are computed after all token rows, so nothing that a gather reads may be overwritten later on.
    fn check_order(&self) -> Result<()> {
        let plan = self.plan;
        for (at, node) in plan.graph.nodes.iter().enumerate() {
            if !matches!(node.op, Op::GatherOutputs | Op::Pool { .. }) {
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
            let group = self.plan.cache_slot(CacheId(id as u32)).group;
            if let CacheKind::Recurrent { bytes } = spec.kind {
                let floats = (bytes as usize).div_ceil(4);
                self.program
                    .caches
                    .push(CacheShape::State { group, floats });
                continue;
            }
            if spec.kv_heads == 0 {
                return Err(DeviceError::Unsupported {
                    op: format!("cache {id}"),
                    scope: "the graph".to_owned(),
                    why: "it keeps nothing; use another model".to_owned(),
                });
            }
            self.program.caches.push(CacheShape::Heads(KvShape {
                group,
                heads: spec.kv_heads as usize,
                k_dim: spec.k_dim as usize,
                v_dim: spec.v_dim as usize,
                values: spec.values,
                block_size: self.block_size,
            }));
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
        lower::fit(&self.plan.graph, node, what, (expected, found))
    }
}

fn last(dims: &[usize]) -> usize {
    dims.last().copied().unwrap_or(1)
}
