//! Places buffers in arenas; those whose lives do not overlap share memory.
//!
//! All sizes are bytes per row of an arena, so that one layout serves any number of rows: a buffer of `size` at `base`
//! takes bytes `base * rows .. (base + size) * rows`.

use std::collections::BTreeMap;

use super::views::Views;
use super::{Placement, PlanOptions, Reuse, element_bytes};
use crate::{Graph, GraphError, Node, Op, Rows, ValueId};

/// Buffers begin at multiples of this many bytes.
const ALIGN: usize = 64;

pub(super) struct Layout {
    pub(super) placements: Vec<Placement>,
    pub(super) token_bytes: usize,
    pub(super) output_bytes: usize,
    pub(super) broadcast_bytes: usize,
}

pub(super) fn place(
    graph: &Graph,
    views: &Views,
    options: &PlanOptions,
) -> Result<Layout, GraphError> {
    let mut arenas = Arenas::default();
    let mut bases = vec![0usize; graph.values.len()];
    let ends = last_uses(graph, views);
    let mut dying: Vec<Vec<ValueId>> = vec![Vec::new(); graph.nodes.len()];
    for (v, end) in ends.iter().enumerate() {
        if let Some(node) = end {
            dying[*node].push(ValueId(v as u32));
        }
    }
    let bytes = |v: ValueId| {
        let info = graph.value(v);
        let row = info
            .width()
            .checked_mul(element_bytes(info.ty, options.model_bytes));
        (row, row.and_then(|n| n.checked_next_multiple_of(ALIGN)))
    };
    for (i, node) in graph.nodes.iter().enumerate() {
        for &v in &node.outputs {
            if views.owners[v.index()].value == v {
                let base = bytes(v).1.and_then(|size| arenas.of(graph, v).take(size));
                bases[v.index()] = base.ok_or_else(too_large)?;
            }
        }
        for &v in &dying[i] {
            let shared = options.reuse == Reuse::ByLiveness;
            if let (true, Some(size)) =
                (shared && graph.value(v).rows != Rows::Broadcast, bytes(v).1)
            {
                arenas.of(graph, v).give(bases[v.index()], size);
            }
        }
    }
    let placements = views.owners.iter().map(|owner| {
        Ok(Placement {
            arena: graph.value(owner.value).rows,
            base: bases[owner.value.index()],
            row_stride: bytes(owner.value).0.ok_or_else(too_large)?,
            offset: owner.offset,
        })
    });
    Ok(Layout {
        placements: placements.collect::<Result<_, GraphError>>()?,
        token_bytes: arenas.tokens.top,
        output_bytes: arenas.outputs.top,
        broadcast_bytes: arenas.broadcast.top,
    })
}

fn too_large() -> GraphError {
    GraphError::Limit {
        at: "plan".to_owned(),
        what: "the memory of one token".to_owned(),
        max: usize::MAX as u64,
    }
}

/// By value that owns bytes: the node after which nothing reads them; `None` for the graph's output, which stays, and
/// for views. What is gathered stays until the last token row has been computed, so that a device may compute all token
/// rows first and output rows afterwards.
fn last_uses(graph: &Graph, views: &Views) -> Vec<Option<usize>> {
    let mut ends = vec![None; graph.values.len()];
    for (i, node) in graph.nodes.iter().enumerate() {
        for v in node.outputs.iter().chain(&node.inputs) {
            ends[views.owners[v.index()].value.index()] = Some(i);
        }
    }
    let per_token = |node: &Node| {
        let rows = |v: &ValueId| graph.value(*v).rows;
        node.outputs.iter().all(|v| rows(v) != Rows::Outputs)
    };
    if let Some(last) = graph.nodes.iter().rposition(per_token) {
        for node in &graph.nodes {
            if let (Op::GatherOutputs | Op::Pool { .. }, [x]) = (&node.op, &node.inputs[..]) {
                let end = &mut ends[views.owners[x.index()].value.index()];
                *end = (*end).max(Some(last));
            }
        }
    }
    let output = views.owners[graph.output.value().index()].value;
    ends[output.index()] = None;
    ends
}

#[derive(Default)]
struct Arenas {
    tokens: Arena,
    outputs: Arena,
    broadcast: Arena,
}

impl Arenas {
    fn of(&mut self, graph: &Graph, v: ValueId) -> &mut Arena {
        match graph.value(v).rows {
            Rows::Tokens => &mut self.tokens,
            Rows::Outputs => &mut self.outputs,
            Rows::Broadcast => &mut self.broadcast,
        }
    }
}

/// Best fit: the smallest gap that is large enough, the lowest of equals.
#[derive(Default)]
struct Arena {
    /// Gaps below `top`, size by base; neighbours are always joined.
    gaps: BTreeMap<usize, usize>,
    top: usize,
}

impl Arena {
    fn take(&mut self, size: usize) -> Option<usize> {
        let best = self
            .gaps
            .iter()
            .filter(|&(_, &gap)| gap >= size)
            .min_by_key(|&(&base, &gap)| (gap, base))
            .map(|(&base, &gap)| (base, gap));
        if let Some((base, gap)) = best {
            self.gaps.remove(&base);
            if gap > size {
                self.gaps.insert(base + size, gap - size);
            }
            return Some(base);
        }
        let base = match self.gaps.last_key_value() {
            Some((&base, &gap)) if base + gap == self.top => base,
            _ => self.top,
        };
        self.top = base.checked_add(size)?;
        self.gaps.remove(&base);
        Some(base)
    }

    fn give(&mut self, base: usize, size: usize) {
        let (mut base, mut size) = (base, size);
        if let Some((&before, &gap)) = self.gaps.range(..base).next_back()
            && before + gap == base
        {
            base = before;
            size += gap;
        }
        if let Some(gap) = self.gaps.remove(&(base + size)) {
            size += gap;
        }
        self.gaps.insert(base, size);
    }
}
