//! A slow reference: a graph over one sequence, in f64, one number at a time. It shares no code with the device.

#![allow(dead_code)] // Each test binary uses a part.

mod experts;
mod ops;
mod rope;

use std::sync::Arc;

use guesthouse_graph::{Graph, WeightExpr, WeightId};
use guesthouse_weights::{WeightSource, dequantize};

/// A row per token.
pub type Rows = Vec<Vec<f64>>;

/// Runs a graph (as a builder made it, without passes) over one sequence; the output's rows, one per token.
pub fn run(
    graph: &Graph,
    source: &Arc<dyn WeightSource>,
    tokens: &[u32],
    prompt_len: usize,
) -> Rows {
    let mut oracle = Oracle {
        graph,
        source: Arc::clone(source),
        tokens,
        prompt_len,
        values: vec![Vec::new(); graph.values.len()],
        caches: vec![(Vec::new(), Vec::new()); graph.caches.len()],
    };
    for node in &graph.nodes {
        let outputs = oracle.node(node);
        for (v, rows) in node.outputs.iter().zip(outputs) {
            oracle.values[v.index()] = rows;
        }
    }
    oracle.values[graph.output.value().index()].clone()
}

struct Oracle<'a> {
    graph: &'a Graph,
    source: Arc<dyn WeightSource>,
    tokens: &'a [u32],
    /// Length of the prompt, for ropes that depend on it.
    prompt_len: usize,
    values: Vec<Rows>,
    /// Keys and values per cache.
    caches: Vec<(Rows, Rows)>,
}

impl Oracle<'_> {
    /// A weight's elements.
    fn weight(&self, id: WeightId) -> Vec<f64> {
        match &self.graph.weight(id).expr {
            WeightExpr::Param { name } => {
                let info = self.source.info(name).unwrap();
                let mut out = vec![0f32; info.elements().unwrap()];
                dequantize(info.scheme, &self.source.read(name).unwrap(), &mut out).unwrap();
                out.into_iter().map(f64::from).collect()
            }
            WeightExpr::Constant { data } => data.iter().map(|&x| f64::from(x)).collect(),
            other => panic!("the reference has no {other:?}"),
        }
    }

    fn shape(&self, v: guesthouse_graph::ValueId) -> Vec<usize> {
        self.graph
            .value(v)
            .shape
            .iter()
            .map(|&d| d as usize)
            .collect()
    }
}
