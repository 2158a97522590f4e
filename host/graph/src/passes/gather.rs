//! Moves the choice of output rows up, so that whatever works row by row and serves the output alone runs on those rows.
//!
//! In a decoder that is the head, the final norm, and the last layer from its attention's output on.

use super::compact;
use crate::{Graph, Node, Op, Output, Rows, ValueId, ValueInfo};

/// Which rows of a value are read.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Need {
    Nothing,
    Outputs,
    Tokens,
}

/// The rewrite.
pub(crate) fn gather(graph: &Graph) -> Graph {
    let narrow = narrow_nodes(graph);
    let mut rewrite = Rewrite {
        out: Graph {
            nodes: Vec::with_capacity(graph.nodes.len()),
            ..graph.clone()
        },
        gathered: vec![None; graph.values.len()],
        alias: (0..graph.values.len() as u32).map(ValueId).collect(),
    };
    for (node, narrow) in graph.nodes.iter().zip(narrow) {
        rewrite.node(node, narrow);
    }
    let mut out = rewrite.out;
    let alias = |v: ValueId| rewrite.alias[v.index()];
    out.output = match out.output {
        Output::Logits(v) => Output::Logits(alias(v)),
        Output::Embedding(v) => Output::Embedding(alias(v)),
    };
    compact(&out)
}

/// Nodes that can run on output rows alone: they work row by row, and all that reads them does, up to a gather.
fn narrow_nodes(graph: &Graph) -> Vec<bool> {
    let mut need = vec![Need::Nothing; graph.values.len()];
    let mut narrow = vec![false; graph.nodes.len()];
    for (i, node) in graph.nodes.iter().enumerate().rev() {
        let rows = |v: &ValueId| graph.values[v.index()].rows;
        let most = node.outputs.iter().map(|v| need[v.index()]).max();
        narrow[i] = is_row_wise(&node.op)
            && node.outputs.iter().all(|v| rows(v) == Rows::Tokens)
            && most == Some(Need::Outputs);
        let needs = match node.op {
            Op::GatherOutputs => Need::Outputs,
            _ if narrow[i] => Need::Outputs,
            _ => Need::Tokens,
        };
        for v in &node.inputs {
            need[v.index()] = need[v.index()].max(needs);
        }
    }
    narrow
}

/// Whether each row of the result depends on the same row of the inputs alone, whatever rows these are.
fn is_row_wise(op: &Op) -> bool {
    match op {
        Op::Linear { .. }
        | Op::RmsNorm(_)
        | Op::LayerNorm(_)
        | Op::L2Norm { .. }
        | Op::Activation(_)
        | Op::Gated(_)
        | Op::Add
        | Op::Mul
        | Op::Scale { .. }
        | Op::Clamp { .. }
        | Op::SoftCap { .. }
        | Op::Cast { .. }
        | Op::Split { .. }
        | Op::Slice { .. }
        | Op::Concat { .. }
        | Op::Reshape { .. }
        | Op::SwapAxes
        | Op::RepeatHeads { .. }
        | Op::Route(_)
        | Op::Experts(_)
        | Op::AddRmsNorm(_)
        | Op::AddLayerNorm(_)
        | Op::GatedMerged { .. }
        | Op::HeadLinear { .. } => true,
        Op::TokenIds
        | Op::Positions(_)
        | Op::Embedding { .. }
        | Op::WeightValue { .. }
        | Op::Rope(_)
        | Op::Attention(_)
        | Op::LatentAttention(_)
        | Op::LogNScale { .. }
        | Op::CausalConv { .. }
        | Op::DeltaRule { .. }
        | Op::GatherOutputs
        | Op::Pool { .. }
        | Op::RopeWrite { .. }
        | Op::WriteKv { .. }
        | Op::PagedAttention(_) => false,
    }
}

struct Rewrite {
    out: Graph,
    /// By old value with token rows: the value that holds its output rows, once there is one.
    gathered: Vec<Option<ValueId>>,
    /// By old value: what stands for it.
    alias: Vec<ValueId>,
}

impl Rewrite {
    fn node(&mut self, node: &Node, narrow: bool) {
        if let (Op::GatherOutputs, [from], [to]) = (&node.op, &node.inputs[..], &node.outputs[..]) {
            match self.gathered[from.index()] {
                Some(made) => self.alias[to.index()] = made,
                None => {
                    self.gathered[from.index()] = Some(*to);
                    self.out.nodes.push(node.clone());
                }
            }
            return;
        }
        let mut node = node.clone();
        if narrow {
            for v in &mut node.inputs {
                *v = self.gathered_form(*v, node.scope);
            }
            for v in &node.outputs {
                self.out.values[v.index()].rows = Rows::Outputs;
                self.gathered[v.index()] = Some(*v);
            }
        } else {
            for v in &mut node.inputs {
                *v = self.alias[v.index()];
            }
        }
        self.out.nodes.push(node);
    }

    fn gathered_form(&mut self, value: ValueId, scope: crate::ScopeId) -> ValueId {
        if let Some(made) = self.gathered[value.index()] {
            return made;
        }
        let info = self.out.value(value).clone();
        if info.rows != Rows::Tokens {
            return value;
        }
        let made = ValueId(self.out.values.len() as u32);
        self.out.values.push(ValueInfo {
            rows: Rows::Outputs,
            ..info
        });
        self.out.nodes.push(Node {
            op: Op::GatherOutputs,
            inputs: vec![value],
            outputs: vec![made],
            scope,
        });
        self.gathered[value.index()] = Some(made);
        made
    }
}
