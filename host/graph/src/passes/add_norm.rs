//! A residual addition and the norm of its sum become one op. The sum is rounded before the norm, as without fusion.

use super::compact;
use super::index::Index;
use crate::{Graph, Node, Op, ValueId};

/// The rewrite: the fused op stands where the addition stood; the first norm of each sum is taken.
pub(super) fn add_norm(graph: &Graph) -> Graph {
    let index = Index::new(graph);
    let mut removed = vec![false; graph.nodes.len()];
    let mut nodes = Vec::with_capacity(graph.nodes.len());
    for (i, node) in graph.nodes.iter().enumerate() {
        if removed[i] {
            continue;
        }
        match fuse(graph, &index, node) {
            Some((norm, fused)) => {
                removed[norm] = true;
                nodes.push(fused);
            }
            None => nodes.push(node.clone()),
        }
    }
    compact(&Graph {
        nodes,
        ..graph.clone()
    })
}

fn fuse(graph: &Graph, index: &Index<'_>, add: &Node) -> Option<(usize, Node)> {
    let (Op::Add, &[a, b], &[sum]) = (&add.op, &add.inputs[..], &add.outputs[..]) else {
        return None;
    };
    let alike = |v: ValueId| {
        let (x, s) = (graph.value(v), graph.value(sum));
        x.shape == s.shape && x.rows == s.rows
    };
    if !alike(a) || !alike(b) {
        return None;
    }
    let (at, op, normed) = index.readers(sum).iter().find_map(|&i| {
        let reader = &graph.nodes[i];
        let op = match reader.op {
            Op::RmsNorm(norm) => Op::AddRmsNorm(norm),
            Op::LayerNorm(norm) => Op::AddLayerNorm(norm),
            _ => return None,
        };
        Some((i, op, *reader.outputs.first()?))
    })?;
    let fused = Node {
        op,
        inputs: vec![a, b],
        outputs: vec![sum, normed],
        scope: graph.nodes[at].scope,
    };
    Some((at, fused))
}
