//! Latent attention becomes attention over the latents themselves (DeepSeek-V2, section 2.1.2): a head's keys are
//! `latent W_ukᵀ`, so that `q · key = (q W_uk) · latent`, and its output is `(Σ weight · latent) W_uvᵀ`. All heads then share
//! one key head, and nothing is ever expanded.

use guesthouse_weights::{DType, Scheme};

use super::compact;
use crate::{
    Attention, Graph, LatentAttention, Mask, Node, Op, Rows, ScopeId, ValueId, ValueInfo, Weight,
    WeightExpr, WeightId,
};

/// The rewrite.
pub(super) fn latent(graph: &Graph) -> Graph {
    let mut rewrite = Rewrite {
        out: Graph {
            nodes: Vec::with_capacity(graph.nodes.len()),
            ..graph.clone()
        },
        scope: ScopeId(0),
    };
    for node in &graph.nodes {
        match (&node.op, &node.inputs[..], &node.outputs[..]) {
            (Op::LatentAttention(attention), &[q, latent, k_rope], &[y]) => {
                rewrite.scope = node.scope;
                rewrite.attention(attention, [q, latent, k_rope], y);
            }
            _ => rewrite.out.nodes.push(node.clone()),
        }
    }
    compact(&rewrite.out)
}

struct Rewrite {
    out: Graph,
    /// Of the node being replaced.
    scope: ScopeId,
}

impl Rewrite {
    fn attention(&mut self, a: &LatentAttention, inputs: [ValueId; 3], y: ValueId) {
        let [q, latent, k_rope] = inputs;
        let width = |graph: &Graph, v: ValueId| graph.value(v).width() as u32;
        let (rank, rope) = (width(&self.out, latent), width(&self.out, k_rope));
        let heads = self.out.value(q).shape[0];
        let (absorb, expand) = self.up_projections(a, heads, rank);

        let query = self.value(vec![heads, rank + rope]);
        self.push(Op::HeadLinear { weight: absorb }, &[q], &[query]);
        let key = self.one_head(k_rope, rope);
        let value = self.one_head(latent, rank);
        self.push(Op::WriteKv { cache: a.cache }, &[key, value], &[]);
        let sums = self.value(vec![heads, rank]);
        let attention = Attention {
            cache: a.cache,
            scale: a.scale,
            mask: Mask::Causal,
            window: None,
            softcap: None,
            alibi: None,
            sinks: None,
        };
        self.push(Op::PagedAttention(attention), &[query], &[sums]);
        self.push(Op::HeadLinear { weight: expand }, &[sums], &[y]);
    }

    /// `[heads, rank, nope]` and `[heads, v_dim, rank]` from `kv_b [heads * (nope + v_dim), rank]`.
    fn up_projections(
        &mut self,
        a: &LatentAttention,
        heads: u32,
        rank: u32,
    ) -> (WeightId, WeightId) {
        let kv_b = self.out.weight(a.kv_b);
        let plain = match kv_b.scheme {
            Scheme::Plain(_) => a.kv_b,
            _ => {
                let shape = kv_b.shape.clone();
                self.weight(
                    WeightExpr::Dequantize { of: a.kv_b },
                    shape,
                    Scheme::Plain(DType::F32),
                )
            }
        };
        let scheme = self.out.weight(plain).scheme;
        let mut part = |start: u32, len: u32| {
            let rows = (0..heads).flat_map(|h| {
                let first = h * (a.nope + a.v_dim) + start;
                first..first + len
            });
            let select = WeightExpr::SelectRows {
                of: plain,
                index: rows.collect(),
            };
            let of = self.weight(select, vec![heads * len, rank], scheme);
            self.weight(WeightExpr::Reshape { of }, vec![heads, len, rank], scheme)
        };
        let (keys, expand) = (part(0, a.nope), part(a.nope, a.v_dim));
        let transpose = WeightExpr::Transpose { of: keys };
        let absorb = self.weight(transpose, vec![heads, rank, a.nope], scheme);
        (absorb, expand)
    }

    fn weight(&mut self, expr: WeightExpr, shape: Vec<u32>, scheme: Scheme) -> WeightId {
        self.out.weights.push(Weight {
            expr,
            shape,
            scheme,
        });
        WeightId(self.out.weights.len() as u32 - 1)
    }

    /// `x [d]` as `[1, d]`.
    fn one_head(&mut self, x: ValueId, d: u32) -> ValueId {
        let y = self.value(vec![1, d]);
        self.push(Op::Reshape { shape: vec![1, d] }, &[x], &[y]);
        y
    }

    fn value(&mut self, shape: Vec<u32>) -> ValueId {
        self.out.values.push(ValueInfo {
            rows: Rows::Tokens,
            shape,
            ty: crate::ValueType::Model,
        });
        ValueId(self.out.values.len() as u32 - 1)
    }

    fn push(&mut self, op: Op, inputs: &[ValueId], outputs: &[ValueId]) {
        self.out.nodes.push(Node {
            op,
            inputs: inputs.to_vec(),
            outputs: outputs.to_vec(),
            scope: self.scope,
        });
    }
}
