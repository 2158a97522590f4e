//! Places buffers in arenas; those whose lives do not overlap share memory.
//!
//! All sizes are bytes per row of an arena, so that one layout serves any number of rows: a buffer of `size` at `base`
//! takes bytes `base * rows .. (base + size) * rows`.

use super::views::Views;
use super::{Placement, PlanOptions, Reuse, element_bytes};
use crate::{Graph, GraphError, Node, Op, Rows, ValueId};

/// Buffers begin at multiples of this many bytes.
const ALIGN: usize = 64;

/// Bound on the search for places, in buffers looked at: about a second. A model of 2,000 ops needs some 300,000.
const MAX_WORK: usize = 8_000_000;

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
    let ends = last_uses(graph, views);
    let row_bytes = |v: ValueId| {
        let info = graph.value(v);
        info.width()
            .checked_mul(element_bytes(info.ty, options.model_bytes))
            .ok_or_else(too_large)
    };
    let mut buffers: [Vec<Buffer>; 3] = Default::default();
    for (start, node) in graph.nodes.iter().enumerate() {
        for &value in &node.outputs {
            if views.owners[value.index()].value == value {
                buffers[arena(graph.value(value).rows)].push(Buffer {
                    value,
                    size: row_bytes(value)?
                        .checked_next_multiple_of(ALIGN)
                        .ok_or_else(too_large)?,
                    start,
                    end: ends[value.index()].unwrap_or(graph.nodes.len()),
                });
            }
        }
    }
    let mut bases = vec![0usize; graph.values.len()];
    let mut tops = [0usize; 3];
    for rows in [Rows::Tokens, Rows::Outputs, Rows::Broadcast] {
        // What is computed once is never overwritten.
        let work = match (options.reuse, rows) {
            (Reuse::Never, _) | (_, Rows::Broadcast) => 0,
            (Reuse::ByLiveness, _) => MAX_WORK,
        };
        let buffers = std::mem::take(&mut buffers[arena(rows)]);
        tops[arena(rows)] = pack(buffers, work, &mut bases).ok_or_else(too_large)?;
    }
    let placements = views.owners.iter().map(|owner| {
        Ok(Placement {
            arena: graph.value(owner.value).rows,
            base: bases[owner.value.index()],
            row_stride: row_bytes(owner.value)?,
            offset: owner.offset,
        })
    });
    let [token_bytes, output_bytes, broadcast_bytes] = tops;
    Ok(Layout {
        placements: placements.collect::<Result<_, GraphError>>()?,
        token_bytes,
        output_bytes,
        broadcast_bytes,
    })
}

fn arena(rows: Rows) -> usize {
    match rows {
        Rows::Tokens => 0,
        Rows::Outputs => 1,
        Rows::Broadcast => 2,
    }
}

fn too_large() -> GraphError {
    GraphError::Limit {
        at: "plan".to_owned(),
        what: "the memory of one token".to_owned(),
        max: usize::MAX as u64,
    }
}

/// By value that owns bytes: the node after which nothing reads them; `None` for the graph's output and what its head
/// reads, which stay, and for views. What is gathered stays until the last token row has been computed, so that a device may compute all token
/// rows first and output rows afterwards; what a merged linear reads stays until its gate.
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
    // A device may compute a merged linear and its gate as one, from what the linear reads.
    for (i, node) in graph.nodes.iter().enumerate() {
        let (Op::GatedMerged { .. }, [merged]) = (&node.op, &node.inputs[..]) else {
            continue;
        };
        let linear = graph.nodes[..i]
            .iter()
            .rev()
            .find(|n| n.outputs.contains(merged));
        for v in linear.map_or(&[][..], |n| &n.inputs) {
            let end = &mut ends[views.owners[v.index()].value.index()];
            *end = (*end).max(Some(i));
        }
    }
    for stays in graph.head_input().into_iter().chain([graph.output.value()]) {
        ends[views.owners[stays.index()].value.index()] = None;
    }
    ends
}

/// Bytes that a value owns while nodes `start..=end` run.
#[derive(Clone, Copy)]
struct Buffer {
    value: ValueId,
    size: usize,
    start: usize,
    end: usize,
}

/// Buffers that have a place, listed under every span of nodes during which they live.
struct Placed {
    spans: Vec<Vec<(Buffer, usize)>>,
}

impl Placed {
    /// Nodes in one span.
    const SPAN: usize = 64;

    fn spans(buffer: &Buffer) -> std::ops::RangeInclusive<usize> {
        buffer.start / Self::SPAN..=buffer.end / Self::SPAN
    }

    /// Places that live at the same time, as `(base, end)` in ascending order.
    fn conflicts(&self, buffer: &Buffer) -> Vec<(usize, usize)> {
        let mut found: Vec<(usize, usize)> = self.spans[Self::spans(buffer)]
            .iter()
            .flatten()
            .filter(|(other, _)| other.start <= buffer.end && buffer.start <= other.end)
            .map(|(other, base)| (*base, base + other.size))
            .collect();
        found.sort_unstable();
        found
    }

    fn insert(&mut self, buffer: Buffer, base: usize) {
        for span in &mut self.spans[Self::spans(&buffer)] {
            span.push((buffer, base));
        }
    }

    /// What looking for a place costs.
    fn work(&self, buffer: &Buffer) -> usize {
        let spans = &self.spans[Self::spans(buffer)];
        spans.iter().map(|span| 1 + span.len()).sum()
    }
}

/// The largest first, each at the lowest base where nothing that lives at the same time stands. Once `work` is used up
/// (graphs that no model needs), the rest get memory of their own. Writes bases; returns the bytes in all.
fn pack(mut buffers: Vec<Buffer>, work: usize, bases: &mut [usize]) -> Option<usize> {
    buffers.sort_by_key(|b| (std::cmp::Reverse(b.size), b.start));
    let last = buffers.iter().map(|b| b.end).max().unwrap_or(0);
    let mut placed = Placed {
        spans: vec![Vec::new(); last / Placed::SPAN + 1],
    };
    let mut left = work;
    let mut top = 0usize;
    let mut alone = Vec::new();
    for buffer in buffers {
        match left.checked_sub(placed.work(&buffer)) {
            Some(rest) => left = rest,
            None => {
                left = 0;
                alone.push(buffer);
                continue;
            }
        }
        let mut base = 0usize;
        for (from, to) in placed.conflicts(&buffer) {
            if base + buffer.size <= from {
                break;
            }
            base = base.max(to);
        }
        bases[buffer.value.index()] = base;
        top = top.max(base.checked_add(buffer.size)?);
        placed.insert(buffer, base);
    }
    for buffer in alone {
        bases[buffer.value.index()] = top;
        top = top.checked_add(buffer.size)?;
    }
    Some(top)
}
