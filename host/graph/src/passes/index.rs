//! Who defines and who uses each value.

use crate::{Graph, Node, ValueId};

pub(super) struct Index<'g> {
    graph: &'g Graph,
    /// Node index by value.
    made_by: Vec<Option<usize>>,
    /// Uses by nodes, and one by the graph's output.
    uses: Vec<u32>,
    /// Node indices that read a value, in order.
    readers: Vec<Vec<usize>>,
}

impl<'g> Index<'g> {
    pub(super) fn new(graph: &'g Graph) -> Self {
        let n = graph.values.len();
        let mut index = Self {
            graph,
            made_by: vec![None; n],
            uses: vec![0; n],
            readers: vec![Vec::new(); n],
        };
        for (i, node) in graph.nodes.iter().enumerate() {
            for v in &node.outputs {
                index.made_by[v.index()] = Some(i);
            }
            for v in &node.inputs {
                index.uses[v.index()] += 1;
                index.readers[v.index()].push(i);
            }
        }
        index.uses[graph.output.value().index()] += 1;
        index
    }

    pub(super) fn producer(&self, value: ValueId) -> Option<(usize, &'g Node)> {
        let i = self.made_by[value.index()]?;
        Some((i, &self.graph.nodes[i]))
    }

    pub(super) fn used_once(&self, value: ValueId) -> bool {
        self.uses[value.index()] == 1
    }

    pub(super) fn readers(&self, value: ValueId) -> &[usize] {
        &self.readers[value.index()]
    }
}
