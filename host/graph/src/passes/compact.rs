//! Dead code elimination: what does not reach the output goes, and ids become dense again.

use crate::rules::{self, AccessKind};
use crate::{CacheId, Graph, Output, ValueId, WeightId};

/// Keeps nodes whose results, or whose cache writes, reach the output; then the values, weights and caches they name,
/// renumbered in their old order (values in order of definition).
pub(crate) fn compact(graph: &Graph) -> Graph {
    let live = live_nodes(graph);
    let mut values = Renumber::new(graph.values.len());
    let mut caches = Renumber::new(graph.caches.len());
    let mut weight_live = vec![false; graph.weights.len()];
    for (node, _) in graph.nodes.iter().zip(&live).filter(|(_, live)| **live) {
        for v in &node.outputs {
            values.keep(v.index());
        }
        for w in node.op.weights() {
            weight_live[w.index()] = true;
        }
    }
    let mut cache_live = vec![false; graph.caches.len()];
    for (node, _) in graph.nodes.iter().zip(&live).filter(|(_, live)| **live) {
        if let Some(cache) = node.op.cache() {
            cache_live[cache.index()] = true;
        }
    }
    (0..graph.caches.len())
        .filter(|&i| cache_live[i])
        .for_each(|i| caches.keep(i));
    // Sources stand before what reads them.
    for (i, weight) in graph.weights.iter().enumerate().rev() {
        if weight_live[i] {
            for of in rules::sources(&weight.expr) {
                weight_live[of.index()] = true;
            }
        }
    }
    let mut weights = Renumber::new(graph.weights.len());
    (0..graph.weights.len())
        .filter(|&i| weight_live[i])
        .for_each(|i| weights.keep(i));
    renumber(
        graph,
        &live,
        &Tables {
            values,
            weights,
            caches,
        },
    )
}

fn live_nodes(graph: &Graph) -> Vec<bool> {
    let mut value_live = vec![false; graph.values.len()];
    let mut cache_read = vec![false; graph.caches.len()];
    value_live[graph.output.value().index()] = true;
    let mut live = vec![false; graph.nodes.len()];
    for (i, node) in graph.nodes.iter().enumerate().rev() {
        let access = rules::cache_access(&node.op, node.inputs.len());
        let written_for_a_reader =
            access.is_some_and(|a| a.kind == AccessKind::Write && cache_read[a.cache.index()]);
        live[i] = written_for_a_reader || node.outputs.iter().any(|v| value_live[v.index()]);
        if live[i] {
            for v in &node.inputs {
                value_live[v.index()] = true;
            }
            if let Some(a) = access {
                cache_read[a.cache.index()] |= a.kind == AccessKind::Read;
            }
        }
    }
    live
}

/// New indices of the entries that stay, in the order in which they were kept.
struct Renumber {
    new: Vec<Option<u32>>,
    old: Vec<usize>,
}

impl Renumber {
    fn new(len: usize) -> Self {
        Self {
            new: vec![None; len],
            old: Vec::new(),
        }
    }

    fn keep(&mut self, old: usize) {
        if self.new[old].is_none() {
            self.new[old] = Some(self.old.len() as u32);
            self.old.push(old);
        }
    }

    /// Entries that went are read by nothing that stays; they map to themselves.
    fn get(&self, old: u32) -> u32 {
        self.new[old as usize].unwrap_or(old)
    }

    fn table<T: Clone>(&self, from: &[T]) -> Vec<T> {
        self.old.iter().map(|&i| from[i].clone()).collect()
    }
}

struct Tables {
    values: Renumber,
    weights: Renumber,
    caches: Renumber,
}

fn renumber(graph: &Graph, live: &[bool], tables: &Tables) -> Graph {
    let value = |v: ValueId| ValueId(tables.values.get(v.0));
    let mut nodes = Vec::new();
    for (node, _) in graph.nodes.iter().zip(live).filter(|(_, live)| **live) {
        let mut node = node.clone();
        node.inputs.iter_mut().for_each(|v| *v = value(*v));
        node.outputs.iter_mut().for_each(|v| *v = value(*v));
        node.op
            .map_weights(&mut |w| WeightId(tables.weights.get(w.0)));
        node.op.map_cache(&mut |c| CacheId(tables.caches.get(c.0)));
        nodes.push(node);
    }
    let mut weights = tables.weights.table(&graph.weights);
    for weight in &mut weights {
        for of in rules::sources_mut(&mut weight.expr) {
            *of = WeightId(tables.weights.get(of.0));
        }
    }
    Graph {
        info: graph.info.clone(),
        nodes,
        values: tables.values.table(&graph.values),
        weights,
        caches: tables.caches.table(&graph.caches),
        scopes: graph.scopes.clone(),
        output: match graph.output {
            Output::Logits(v) => Output::Logits(value(v)),
            Output::Embedding(v) => Output::Embedding(value(v)),
        },
    }
}
