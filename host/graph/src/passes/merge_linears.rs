//! Linears over one input become one linear with a segment each: Q, K and V; gate and up. A gated activation reads the
//! merged gate and up directly.

use std::collections::HashMap;

use super::compact;
use super::index::Index;
use crate::{Gate, GateLayout, Graph, Node, Op, Segment, Sharding, ValueId, ValueInfo};

/// What becomes of a node; others stay.
enum Change {
    /// Its work is done elsewhere.
    Remove,
    /// Others stand in its place.
    Replace(Vec<Node>),
}

/// The rewrite: gate-up pairs with their activation first, then whatever linears still share an input.
pub(super) fn merge_linears(graph: &Graph) -> Graph {
    let mut values = graph.values.clone();
    let mut changes: HashMap<usize, Change> = HashMap::new();
    let index = Index::new(graph);
    for (i, node) in graph.nodes.iter().enumerate() {
        if let Op::Gated(gate) = node.op {
            merge_pair(graph, &index, (i, node, gate), &mut values, &mut changes);
        }
    }
    let mut groups: Vec<Vec<usize>> = Vec::new();
    let mut by_input: HashMap<(ValueId, Sharding), usize> = HashMap::new();
    for (i, node) in graph.nodes.iter().enumerate() {
        let (Some((x, sharding, _)), false) = (linear(node), changes.contains_key(&i)) else {
            continue;
        };
        if node.outputs[..] == [graph.output.value()] {
            continue;
        }
        let group = *by_input.entry((x, sharding)).or_insert_with(|| {
            groups.push(Vec::new());
            groups.len() - 1
        });
        groups[group].push(i);
    }
    for group in groups.iter().filter(|g| g.len() > 1) {
        merge_group(graph, group, &mut values, &mut changes);
    }
    let mut nodes = Vec::with_capacity(graph.nodes.len());
    for (i, node) in graph.nodes.iter().enumerate() {
        match changes.remove(&i) {
            None => nodes.push(node.clone()),
            Some(Change::Remove) => {}
            Some(Change::Replace(new)) => nodes.extend(new),
        }
    }
    compact(&Graph {
        nodes,
        values,
        ..graph.clone()
    })
}

fn linear(node: &Node) -> Option<(ValueId, Sharding, &[Segment])> {
    match (&node.op, &node.inputs[..]) {
        (Op::Linear { segments, sharding }, [x]) => Some((*x, *sharding, segments)),
        _ => None,
    }
}

/// `gated(split(y))` becomes `gated-merged(y)`, and `gated(linear(x), linear(x))`, each result used once, becomes `gated-merged(linear(x))`. The merged linear stands
/// where the second one stood.
fn merge_pair(
    graph: &Graph,
    index: &Index<'_>,
    (i, node, gate): (usize, &Node, Gate),
    values: &mut Vec<ValueInfo>,
    changes: &mut HashMap<usize, Change>,
) {
    let [gate_value, up_value] = node.inputs[..] else {
        return;
    };
    if let Some((split, joint)) = halves(graph, index, [gate_value, up_value]) {
        changes.insert(split, Change::Remove);
        changes.insert(i, Change::Replace(vec![gated_merged(node, gate, joint)]));
        return;
    }
    let found = [gate_value, up_value].map(|v| index.producer(v).filter(|_| index.used_once(v)));
    let [Some((g, gate_node)), Some((u, up_node))] = found else {
        return;
    };
    let (Some((x, sharding, first)), Some((x2, sharding2, second))) =
        (linear(gate_node), linear(up_node))
    else {
        return;
    };
    if (x, sharding) != (x2, sharding2) || changes.contains_key(&g) || changes.contains_key(&u) {
        return;
    }
    let parts = [gate_value, up_value];
    let merged = merged_value(graph, &parts, values);
    let linear = Node {
        op: Op::Linear {
            segments: [first, second].concat(),
            sharding,
        },
        inputs: vec![x],
        outputs: vec![merged],
        scope: gate_node.scope,
    };
    changes.insert(g.min(u), Change::Remove);
    changes.insert(g.max(u), Change::Replace(vec![linear]));
    changes.insert(i, Change::Replace(vec![gated_merged(node, gate, merged)]));
}

fn gated_merged(gated: &Node, gate: Gate, joint: ValueId) -> Node {
    Node {
        op: Op::GatedMerged {
            gate,
            layout: GateLayout::Halves,
        },
        inputs: vec![joint],
        ..gated.clone()
    }
}

/// The split that makes gate and up for nothing else, and what it splits: checkpoints that are merged already (Phi-3).
fn halves(graph: &Graph, index: &Index<'_>, parts: [ValueId; 2]) -> Option<(usize, ValueId)> {
    let (at, split) = index.producer(parts[0])?;
    let (Op::Split { axis: 0, .. }, &[joint]) = (&split.op, &split.inputs[..]) else {
        return None;
    };
    let alone = parts.iter().all(|v| index.used_once(*v));
    let flat = graph.value(joint).shape.len() == 1;
    (split.outputs == parts && alone && flat).then_some((at, joint))
}

/// The merged linear and a split into the old results stand where the first linear stood.
fn merge_group(
    graph: &Graph,
    group: &[usize],
    values: &mut Vec<ValueInfo>,
    changes: &mut HashMap<usize, Change>,
) {
    let nodes: Vec<&Node> = group.iter().map(|&i| &graph.nodes[i]).collect();
    let Some((x, sharding, _)) = nodes.first().and_then(|n| linear(n)) else {
        return;
    };
    let scope = nodes[0].scope;
    let segments = nodes
        .iter()
        .filter_map(|n| linear(n))
        .flat_map(|(_, _, segments)| segments.iter().copied())
        .collect();
    let parts: Vec<ValueId> = nodes.iter().flat_map(|n| n.outputs.clone()).collect();
    let sizes = parts.iter().map(|&v| graph.value(v).shape[0]).collect();
    let merged = merged_value(graph, &parts, values);
    let linear = Node {
        op: Op::Linear { segments, sharding },
        inputs: vec![x],
        outputs: vec![merged],
        scope,
    };
    let split = Node {
        op: Op::Split { axis: 0, sizes },
        inputs: vec![merged],
        outputs: parts,
        scope,
    };
    for &i in group {
        changes.insert(i, Change::Remove);
    }
    changes.insert(group[0], Change::Replace(vec![linear, split]));
}

/// A new value as wide as the parts together.
fn merged_value(graph: &Graph, parts: &[ValueId], values: &mut Vec<ValueInfo>) -> ValueId {
    let width = parts.iter().map(|&v| graph.value(v).shape[0]).sum();
    let id = ValueId(values.len() as u32);
    values.push(ValueInfo {
        shape: vec![width],
        ..graph.value(parts[0]).clone()
    });
    id
}
