//! A linear over a value that was only widened to f32 reads the value itself: its sums are the same, and its result stays
//! f32. Devices then multiply in the model's type (router scores).

use super::compact;
use super::index::Index;
use crate::{Graph, Op, ValueType};

/// The rewrite.
pub(super) fn unrounded(graph: &Graph) -> Graph {
    let index = Index::new(graph);
    let mut nodes = graph.nodes.clone();
    for node in &mut nodes {
        let (Op::Linear { segments, .. }, &[x]) = (&node.op, &node.inputs[..]) else {
            continue;
        };
        let plain = segments.iter().all(|s| s.bias.is_none());
        let Some((_, cast)) = index.producer(x).filter(|_| plain) else {
            continue;
        };
        if let (Op::Cast { to: ValueType::F32 }, &[narrow]) = (&cast.op, &cast.inputs[..])
            && graph.value(narrow).ty == ValueType::Model
        {
            node.inputs = vec![narrow];
        }
    }
    compact(&Graph {
        nodes,
        ..graph.clone()
    })
}
