//! The compiled plan that a device executes: the graph after its passes, and where each value lives.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use crate::{
    CacheId, CacheKind, CacheSpec, Graph, GraphError, Rows, ValueId, ValueLayout, ValueType, verify,
};

mod layout;
mod traffic;
mod views;

pub use traffic::PlainStorage;

/// Whether buffers whose lives do not overlap share memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reuse {
    /// They do.
    #[default]
    ByLiveness,
    /// Each value keeps its bytes until the end of the step (for debugging: every activation can be read afterwards).
    Never,
}

/// What a device decides before compilation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlanOptions {
    /// Bytes of one [`crate::ValueType::Model`] element: 4 on the CPU (then it is f32), 2 on a GPU.
    pub model_bytes: usize,
    /// Sharing of memory.
    pub reuse: Reuse,
}

impl PlanOptions {
    /// Options with buffer reuse.
    #[must_use]
    pub fn new(model_bytes: usize) -> Self {
        Self {
            model_bytes,
            reuse: Reuse::ByLiveness,
        }
    }
}

/// Where a value lives. With `rows` rows in its arena (1 for [`Rows::Broadcast`]), element 0 of row `r` stands
/// [`Placement::address`] bytes into the arena. The elements of one row are contiguous.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placement {
    /// Which arena, and what its rows count.
    pub arena: Rows,
    /// Bytes per row of the arena before this buffer; a multiple of 64.
    pub base: usize,
    /// Bytes from one row to the next.
    pub row_stride: usize,
    /// Bytes into the row.
    pub offset: usize,
}

impl Placement {
    /// Byte address of element 0 of `row` when the arena holds `rows` rows.
    #[must_use]
    pub fn address(&self, rows: usize, row: usize) -> usize {
        self.base * rows + row * self.row_stride + self.offset
    }
}

/// How a device treats a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Execution {
    /// Runs in every step.
    Run,
    /// Nothing to do: the outputs are the input's bytes.
    View,
    /// Depends on weights alone: runs once, after loading. Its outputs are in the broadcast arena and never overwritten.
    Once,
}

/// Caches of equal specs; they share block tables.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheGroup {
    /// The common spec.
    pub spec: CacheSpec,
    /// Members in declaration order: the layers of the group.
    pub caches: Vec<CacheId>,
}

impl CacheGroup {
    /// Bytes that one token position takes in one layer; 0 for recurrent state.
    #[must_use]
    pub fn layer_bytes_per_position(&self, model_bytes: usize) -> usize {
        let s = &self.spec;
        let values = match s.values {
            ValueLayout::Separate => s.v_dim as usize,
            ValueLayout::PrefixOfKey => 0,
        };
        match s.kind {
            CacheKind::Full | CacheKind::Window { .. } => {
                s.kv_heads as usize * (s.k_dim as usize + values) * model_bytes
            }
            CacheKind::Recurrent { .. } => 0,
        }
    }

    /// Bytes that one token position takes in all layers of the group; 0 for recurrent state.
    #[must_use]
    pub fn bytes_per_position(&self, model_bytes: usize) -> usize {
        self.layer_bytes_per_position(model_bytes) * self.caches.len()
    }

    /// Bytes that one sequence takes in all layers whatever its length; 0 for keys and values.
    #[must_use]
    pub fn bytes_per_sequence(&self) -> usize {
        match self.spec.kind {
            CacheKind::Recurrent { bytes } => bytes as usize * self.caches.len(),
            CacheKind::Full | CacheKind::Window { .. } => 0,
        }
    }
}

/// Where a cache stands: `groups[group].caches[layer]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheSlot {
    /// Index into [`Plan::groups`].
    pub group: usize,
    /// Index within the group.
    pub layer: usize,
}

/// A graph with a place for every value.
///
/// Nodes run in their order, or all those of token rows (and cache writes) first and those of output rows after them:
/// what is gathered is kept that long.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// The graph, passes applied.
    pub graph: Graph,
    /// One per [`ValueId`].
    pub placements: Vec<Placement>,
    /// One per node.
    pub execution: Vec<Execution>,
    /// Bytes of one [`crate::ValueType::Model`] element.
    pub model_bytes: usize,
    /// Bytes per row of the token arena; the arena of `T` tokens has `T * token_bytes` bytes.
    pub token_bytes: usize,
    /// Bytes per row of the output arena.
    pub output_bytes: usize,
    /// Bytes of the broadcast arena, which has one row.
    pub broadcast_bytes: usize,
    /// Caches of equal specs together, in order of first declaration.
    pub groups: Vec<CacheGroup>,
    /// One per [`CacheId`].
    pub cache_slots: Vec<CacheSlot>,
}

impl Plan {
    /// Places every value of a graph that has been through [`crate::optimize`].
    ///
    /// # Errors
    /// When [`verify`] refuses the graph, or `model_bytes` is neither 2 nor 4.
    pub fn compile(graph: Graph, options: &PlanOptions) -> Result<Self, GraphError> {
        if !matches!(options.model_bytes, 2 | 4) {
            return Err(GraphError::Parameter {
                at: "plan".to_owned(),
                name: "model_bytes",
                found: options.model_bytes.to_string(),
                expected: "2 or 4".to_owned(),
            });
        }
        verify(&graph)?;
        let views = views::find(&graph, options.model_bytes);
        let layout = layout::place(&graph, &views, options)?;
        let (groups, cache_slots) = group_caches(&graph);
        Ok(Self {
            execution: views.execution,
            placements: layout.placements,
            model_bytes: options.model_bytes,
            token_bytes: layout.token_bytes,
            output_bytes: layout.output_bytes,
            broadcast_bytes: layout.broadcast_bytes,
            groups,
            cache_slots,
            graph,
        })
    }

    /// Where a value lives.
    #[must_use]
    pub fn placement(&self, value: ValueId) -> &Placement {
        &self.placements[value.index()]
    }

    /// Whether the node at this index does nothing, since its outputs are its input's bytes.
    #[must_use]
    pub fn is_view(&self, node: usize) -> bool {
        self.execution[node] == Execution::View
    }

    /// Where a cache stands.
    #[must_use]
    pub fn cache_slot(&self, cache: CacheId) -> CacheSlot {
        self.cache_slots[cache.index()]
    }
}

/// Bytes of one element.
fn element_bytes(ty: ValueType, model_bytes: usize) -> usize {
    match ty {
        ValueType::Model => model_bytes,
        ValueType::F32 | ValueType::I32 => 4,
    }
}

pub(crate) fn group_caches(graph: &Graph) -> (Vec<CacheGroup>, Vec<CacheSlot>) {
    let mut groups: Vec<CacheGroup> = Vec::new();
    let mut by_spec: HashMap<CacheSpec, usize> = HashMap::new();
    let mut slots = Vec::with_capacity(graph.caches.len());
    for (i, &spec) in graph.caches.iter().enumerate() {
        let group = *by_spec.entry(spec).or_insert_with(|| {
            groups.push(CacheGroup {
                spec,
                caches: Vec::new(),
            });
            groups.len() - 1
        });
        let caches = &mut groups[group].caches;
        slots.push(CacheSlot {
            group,
            layer: caches.len(),
        });
        caches.push(CacheId(i as u32));
    }
    (groups, slots)
}

#[cfg(test)]
mod tests;
