//! From a compiled plan to a list of instructions with all operands resolved and checked.

use guesthouse_graph::{
    Attention, CacheId, CacheKind, Execution, Node, Op, Plan, Rows, Segment, ValueId, ValueLayout,
    ValueType, WeightId,
};

use super::driver::Buffer;
use super::ops::attention::{Attend, AttentionSpec};
use super::ops::head_linear::{HeadLinear, HeadShape};
use super::ops::linear::Linear;
use super::ops::recurrent::StateSpec;
use super::ops::{Instr, Limits, Place, Planners};
use super::options::Numerics;
use super::weights::{Loader, VectorType};
use crate::error::{DeviceError, Result};
use crate::lower;
use std::sync::Arc;

mod nodes;

/// A plan as instructions, in the three parts that run at different times.
pub(crate) struct Program {
    /// Fill the broadcast arena, once.
    pub once: Vec<Box<dyn Instr>>,
    /// Over all tokens of a step.
    pub tokens: Vec<Box<dyn Instr>>,
    /// Over the rows whose output is wanted, chunk by chunk.
    pub outputs: Vec<Box<dyn Instr>>,
    /// Shape of each cache, by id.
    pub caches: Vec<CacheShape>,
    /// Plans of attention.
    pub planners: Planners,
    /// Memory that instructions share, bytes.
    pub scratch: usize,
    /// The logits, or the vector of an embedding model.
    pub logits: Place,
    /// What the logits head reads; of rows of tokens or of outputs.
    pub hidden: Option<Place>,
    /// Vectors that instructions refer to by address.
    pub held: Vec<Arc<Buffer>>,
}

/// One layer's keys and values, or its recurrent state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CacheShape {
    /// Index into [`Plan::groups`].
    pub group: usize,
    pub heads: u32,
    pub k_dim: u32,
    pub v_dim: u32,
    pub values: ValueLayout,
    /// Floats of a state; 0 where keys and values are kept.
    pub state: u32,
}

impl CacheShape {
    /// Bytes of one block: of its keys, or its state, and of its values that are no part of keys. `element` is the size of a
    /// key's.
    pub(crate) fn block_bytes(&self, block_size: u32, element: usize) -> [usize; 2] {
        if self.state > 0 {
            return [4 * self.state_stride(), 0];
        }
        let values = match self.values {
            ValueLayout::Separate => self.v_dim,
            ValueLayout::PrefixOfKey => 0,
        };
        [self.k_dim, values]
            .map(|dim| self.heads as usize * dim as usize * block_size as usize * element)
    }

    /// Floats from state to state: whole units of 16 bytes.
    pub(crate) fn state_stride(&self) -> usize {
        (self.state as usize).next_multiple_of(4)
    }
}

pub(crate) struct Compiler<'a, 'w> {
    pub plan: &'a Plan,
    pub loader: &'a mut Loader<'w>,
    pub limits: Limits,
    pub numerics: Numerics,
    pub program: Program,
    pub matmul: Arc<super::matmul::Matmul>,
    /// Ropes with a table already, see `compile/nodes.rs`.
    pub ropes: nodes::Ropes,
}

/// What a program is compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    pub limits: Limits,
    pub numerics: Numerics,
}

/// Translates a plan, loading each weight as it is met.
///
/// # Errors
/// When an operation has no kernel, or a weight does not fit.
pub(crate) fn compile(
    plan: &Plan,
    loader: &mut Loader<'_>,
    matmul: &Arc<super::matmul::Matmul>,
    target: Target,
) -> Result<Program> {
    let bytes = loader.dtype.bytes();
    if plan.model_bytes != bytes {
        return Err(DeviceError::plan(format!(
            "model_bytes is {}, {} needs {bytes}",
            plan.model_bytes,
            loader.dtype.name()
        )));
    }
    let mut compiler = Compiler {
        plan,
        loader,
        limits: target.limits,
        numerics: target.numerics,
        matmul: Arc::clone(matmul),
        ropes: nodes::Ropes::default(),
        program: Program {
            once: Vec::new(),
            tokens: Vec::new(),
            outputs: Vec::new(),
            caches: Vec::new(),
            planners: Planners::default(),
            scratch: 0,
            logits: Place {
                arena: Rows::Outputs,
                base: 0,
                stride: 0,
                offset: 0,
                width: 0,
                ty: ValueType::Model,
                element: bytes,
            },
            hidden: None,
            held: Vec::new(),
        },
    };
    // Before any weight is read: what cannot run must fail at once.
    for node in &plan.graph.nodes {
        compiler.supported(node)?;
    }
    compiler.caches()?;
    compiler.program.logits = compiler.place(plan.graph.output.value())?;
    if let Some(value) = plan.graph.head_input() {
        let place = compiler.place(value)?;
        compiler.program.hidden = (place.arena != Rows::Broadcast).then_some(place);
    }
    if compiler.program.logits.arena != Rows::Outputs {
        return Err(DeviceError::plan(
            "the output does not come from gathered or pooled rows",
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
    pub(super) fn unsupported(&self, node: &Node, why: &str) -> DeviceError {
        lower::unsupported(&self.plan.graph, node, why)
    }

    fn supported(&self, node: &Node) -> Result<()> {
        match &node.op {
            Op::LatentAttention(_) => Err(self.unsupported(node, lower::LATENT)),
            _ => Ok(()),
        }
    }

    fn caches(&mut self) -> Result<()> {
        for (id, spec) in self.plan.graph.caches.iter().enumerate() {
            let group = self.plan.cache_slot(CacheId(id as u32)).group;
            if let CacheKind::Recurrent { bytes } = spec.kind {
                self.program.caches.push(CacheShape {
                    group,
                    heads: 0,
                    k_dim: 0,
                    v_dim: 0,
                    values: ValueLayout::Separate,
                    state: bytes.div_ceil(4),
                });
                continue;
            }
            if spec.kv_heads == 0 {
                return Err(DeviceError::Unsupported {
                    op: format!("cache {id}"),
                    scope: "the graph".to_owned(),
                    why: "it keeps nothing; use another model".to_owned(),
                });
            }
            self.program.caches.push(CacheShape {
                group,
                heads: spec.kv_heads,
                k_dim: spec.k_dim,
                v_dim: spec.v_dim,
                values: spec.values,
                state: 0,
            });
        }
        Ok(())
    }

    pub(super) fn cache(&self, cache: CacheId) -> Result<CacheShape> {
        match self.program.caches.get(cache.index()) {
            Some(shape) if shape.state == 0 => Ok(*shape),
            Some(_) => Err(DeviceError::plan(format!(
                "{cache} holds a state where keys and values are needed"
            ))),
            None => Err(DeviceError::plan(format!("{cache} does not exist"))),
        }
    }

    /// Where the state of `floats` floats that a recurrent op updates is kept.
    pub(super) fn state(&self, node: &Node, cache: CacheId, floats: usize) -> Result<StateSpec> {
        match self.program.caches.get(cache.index()) {
            Some(shape) if shape.state > 0 => {
                self.fit(node, "state", floats, shape.state as usize)?;
                Ok(StateSpec {
                    cache: cache.index(),
                    stride: shape.state_stride(),
                })
            }
            _ => Err(DeviceError::plan(format!("{cache} holds no state"))),
        }
    }

    /// A value's place, checked to lie within its arena for any number of rows.
    pub(super) fn place(&self, value: ValueId) -> Result<Place> {
        let (p, info) = (self.plan.placement(value), self.plan.graph.value(value));
        let width = info.width();
        let element = match info.ty {
            ValueType::Model => self.plan.model_bytes,
            ValueType::F32 | ValueType::I32 => 4,
        };
        let arena_bytes = match p.arena {
            Rows::Tokens => self.plan.token_bytes,
            Rows::Outputs => self.plan.output_bytes,
            Rows::Broadcast => self.plan.broadcast_bytes,
        };
        let inside =
            p.offset + element * width <= p.row_stride && p.base + p.row_stride <= arena_bytes;
        let aligned = [p.base, p.row_stride, p.offset]
            .iter()
            .all(|x| x.is_multiple_of(element));
        if !inside || !aligned {
            return Err(DeviceError::plan(format!(
                "{value} of {width} elements does not fit its place {p:?} of {arena_bytes} bytes"
            )));
        }
        Ok(Place {
            arena: p.arena,
            base: p.base,
            stride: p.row_stride,
            offset: p.offset,
            width,
            ty: info.ty,
            element,
        })
    }

    /// Adds an instruction whose result has these rows.
    pub(super) fn push(&mut self, index: usize, y: Rows, instr: impl Instr + 'static) {
        let list = match (self.plan.execution[index], y) {
            (Execution::Once, _) => &mut self.program.once,
            (_, Rows::Outputs) => &mut self.program.outputs,
            _ => &mut self.program.tokens,
        };
        list.push(Box::new(instr));
    }

    /// Asks for memory that an instruction may use while it runs.
    pub(super) fn scratch(&mut self, bytes: usize) {
        self.program.scratch = self.program.scratch.max(bytes);
    }

    pub(super) fn fit(&self, node: &Node, what: &str, expected: usize, found: usize) -> Result<()> {
        lower::fit(&self.plan.graph, node, what, (expected, found))
    }

    pub(super) fn linear(
        &mut self,
        index: usize,
        node: &Node,
        segments: &[Segment],
        (x, y): (Place, Place),
    ) -> Result<()> {
        let parts = self.loader.linear(segments)?;
        let mut columns = 0;
        for part in &parts {
            let (n, k) = part.matrix.shape();
            self.fit(node, "weight columns", x.width, k as usize)?;
            columns += n as usize;
        }
        self.fit(node, "result", y.width, columns)?;
        let linear = Linear::new(
            &self.loader.gpu,
            &self.matmul,
            self.loader.dtype,
            &parts,
            x,
            y,
        )?;
        let rows = match y.arena {
            Rows::Tokens => self.limits.tokens,
            Rows::Outputs => self.limits.outputs,
            Rows::Broadcast => 1,
        };
        self.scratch(linear.scratch(rows));
        self.push(index, y.arena, linear);
        Ok(())
    }

    /// A matrix per head.
    pub(super) fn head_linear(
        &mut self,
        index: usize,
        node: &Node,
        weight: WeightId,
        (x, y): (Place, Place),
    ) -> Result<()> {
        let [heads, out, inp] = self.plan.graph.weight(weight).shape[..] else {
            return Err(DeviceError::plan(
                "a linear of heads whose weight is no stack of matrices",
            ));
        };
        let d = x.width as u32 / heads.max(1);
        self.fit(node, "heads", (heads * d.max(inp)) as usize, x.width)?;
        let shape = HeadShape {
            heads,
            inp,
            out,
            rest: d - inp,
        };
        self.fit(node, "result", (heads * (out + d - inp)) as usize, y.width)?;
        let weight = self.loader.vector(weight, VectorType::Model)?;
        let (gpu, dtype) = (&self.loader.gpu, self.loader.dtype);
        let instr = HeadLinear::new(gpu, dtype, shape, weight, (x, y))?;
        self.push(index, y.arena, instr);
        Ok(())
    }

    pub(super) fn attention(
        &mut self,
        index: usize,
        node: &Node,
        a: &Attention,
        (q, y): (Place, Place),
    ) -> Result<()> {
        let shape = self.cache(a.cache)?;
        let k_dim = shape.k_dim as usize;
        let heads = q.width / k_dim.max(1);
        self.fit(node, "query", heads * k_dim, q.width)?;
        self.fit(node, "result", heads * shape.v_dim as usize, y.width)?;
        if heads == 0 || !heads.is_multiple_of(shape.heads as usize) {
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
        let alibi = self.per_head(node, a.alibi, heads)?;
        let sinks = self.per_head(node, a.sinks, heads)?;
        let spec = AttentionSpec {
            cache: a.cache.index(),
            heads: heads as u32,
            kv_heads: shape.heads,
            k_dim: shape.k_dim,
            v_dim: shape.v_dim,
            values: shape.values,
            scale: a.scale,
            mask: a.mask,
            window: a.window,
            softcap: a.softcap,
            alibi,
            sinks,
            q,
            y,
            dtype: self.loader.dtype,
            block_size: self.limits.block_size,
            numerics: self.numerics,
        };
        let attend = Attend::new(
            &self.loader.gpu,
            &spec,
            &self.limits,
            &mut self.program.planners,
        )?;
        self.scratch(attend.scratch());
        self.push(index, y.arena, attend);
        Ok(())
    }

    /// Address of one f32 per head.
    fn per_head(
        &mut self,
        node: &Node,
        weight: Option<WeightId>,
        heads: usize,
    ) -> Result<Option<u64>> {
        let Some(weight) = weight else {
            return Ok(None);
        };
        self.fit(node, "one number per head", heads, self.loader.len(weight))?;
        let vector = self.loader.vector(weight, VectorType::F32)?;
        let address = vector.address();
        self.program.held.push(vector);
        Ok(Some(address))
    }
}
