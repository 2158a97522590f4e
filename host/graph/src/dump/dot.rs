//! The graph as a picture.

use std::collections::HashMap;
use std::fmt::Write;

use super::line;
use crate::{Graph, ValueId};

/// Graphviz source: `dot -Tsvg`. Nodes of one scope stand in one box.
#[must_use]
pub fn dot(graph: &Graph) -> String {
    let mut out = String::from(
        "digraph model {\n  rankdir=TB;\n  node [shape=box, fontname=\"sans-serif\"];\n",
    );
    let mut by_scope: Vec<Vec<usize>> = vec![Vec::new(); graph.scopes.len()];
    for (i, node) in graph.nodes.iter().enumerate() {
        if let Some(nodes) = by_scope.get_mut(node.scope.index()) {
            nodes.push(i);
        }
    }
    for (scope, nodes) in by_scope.iter().enumerate().filter(|(_, n)| !n.is_empty()) {
        let name = graph.scopes.get(scope).map_or("", String::as_str);
        let boxed = !name.is_empty();
        if boxed {
            let _ = writeln!(
                out,
                "  subgraph cluster_{scope} {{\n    label={};",
                quoted(name)
            );
        }
        for &i in nodes {
            let op = &graph.nodes[i].op;
            let mut label = vec![op.name().to_owned()];
            label.extend(line::details(graph, op));
            let _ = writeln!(out, "    n{i} [label={}];", quoted(&label.join("\n")));
        }
        if boxed {
            out.push_str("  }\n");
        }
    }
    let mut made_by: HashMap<ValueId, usize> = HashMap::new();
    for (i, node) in graph.nodes.iter().enumerate() {
        for v in &node.inputs {
            if let Some(from) = made_by.get(v) {
                let label = quoted(&graph.value(*v).to_string());
                let _ = writeln!(out, "  n{from} -> n{i} [label={label}];");
            }
        }
        for v in &node.outputs {
            made_by.insert(*v, i);
        }
    }
    if let Some(from) = made_by.get(&graph.output.value()) {
        let _ = writeln!(out, "  output [shape=oval];\n  n{from} -> output;");
    }
    out.push_str("}\n");
    out
}

/// A DOT string: names come from checkpoints and guests.
fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            c if c.is_control() => out.push(' '),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}
