//! Attention becomes two ops: write keys and values to the cache (rotating queries and keys on the way where both are
//! rotated alike), then attend over the cache.

use super::compact;
use super::index::Index;
use crate::{Graph, Node, Op, Rope, ValueId};

/// The rewrite.
pub(super) fn rope_write(graph: &Graph) -> Graph {
    let index = Index::new(graph);
    let mut values = graph.values.clone();
    let mut nodes = Vec::with_capacity(graph.nodes.len());
    for node in &graph.nodes {
        let Op::Attention(attention) = node.op else {
            nodes.push(node.clone());
            continue;
        };
        let q = match node.inputs[..] {
            [q] => q,
            [q, k, v] => match rotated_alike(&index, q, k) {
                Some((q_in, k_in, positions, rope)) => {
                    let turned = ValueId(values.len() as u32);
                    values.push(graph.value(q).clone());
                    nodes.push(Node {
                        op: Op::RopeWrite {
                            rope: rope.clone(),
                            cache: attention.cache,
                        },
                        inputs: vec![q_in, k_in, v, positions],
                        outputs: vec![turned],
                        scope: node.scope,
                    });
                    turned
                }
                None => {
                    nodes.push(Node {
                        op: Op::WriteKv {
                            cache: attention.cache,
                        },
                        inputs: vec![k, v],
                        outputs: vec![],
                        scope: node.scope,
                    });
                    q
                }
            },
            _ => {
                nodes.push(node.clone());
                continue;
            }
        };
        nodes.push(Node {
            op: Op::PagedAttention(attention),
            inputs: vec![q],
            ..node.clone()
        });
    }
    compact(&Graph {
        nodes,
        values,
        ..graph.clone()
    })
}

/// What q and k were before the same rotation by the same positions.
fn rotated_alike<'g>(
    index: &Index<'g>,
    q: ValueId,
    k: ValueId,
) -> Option<(ValueId, ValueId, ValueId, &'g Rope)> {
    let rotation = |v: ValueId| {
        let (_, node) = index.producer(v)?;
        match (&node.op, &node.inputs[..]) {
            (Op::Rope(rope), &[x, positions]) => Some((x, positions, rope)),
            _ => None,
        }
    };
    let (q_in, q_positions, q_rope) = rotation(q)?;
    let (k_in, k_positions, k_rope) = rotation(k)?;
    (q_positions == k_positions && q_rope == k_rope).then_some((q_in, k_in, q_positions, q_rope))
}
