//! Text for people: what `guesthouse graph MODEL` prints, and a picture for Graphviz.

mod dot;
mod fold;
mod line;

pub use dot::dot;

use std::fmt::Write;

use crate::{Execution, Graph, ModelInfo, Node, Plan, Rows, ValueId, rules};
use fold::{Block, blocks};

/// One line per node under its scope; runs of layers that differ only in their number are printed once.
///
/// ```text
/// %12 = linear(%11) 'q.weight' [576, 576] q4_1 + 'k.weight' [192, 576] q4_1, column -> [tokens, 768]
/// ```
#[must_use]
pub fn dump_graph(graph: &Graph) -> String {
    let mut out = String::new();
    header(&graph.info, &mut out);
    caches(graph, &mut out);
    body(graph, &|_, _| String::new(), &mut out);
    let _ = writeln!(out, "output {}", graph.output.value());
    out
}

/// Like [`dump_graph`], with the memory of each value: its arena and base, bytes per row.
#[must_use]
pub fn dump_plan(plan: &Plan) -> String {
    let mut out = String::new();
    header(&plan.graph.info, &mut out);
    let _ = writeln!(
        out,
        "memory: {} bytes a token, {} an output row, {} for all; model numbers of {} bytes",
        plan.token_bytes, plan.output_bytes, plan.broadcast_bytes, plan.model_bytes
    );
    for (i, group) in plan.groups.iter().enumerate() {
        let layers = group.caches.len();
        let _ = write!(out, "group {i}: {layers} × ({}), ", group.spec);
        let _ = match group.bytes_per_sequence() {
            0 => writeln!(
                out,
                "{} bytes a token",
                group.bytes_per_position(plan.model_bytes)
            ),
            bytes => writeln!(out, "{bytes} bytes a sequence"),
        };
    }
    body(&plan.graph, &|i, node| place(plan, i, node), &mut out);
    let _ = writeln!(out, "output {}", plan.graph.output.value());
    out
}

fn header(info: &ModelInfo, out: &mut String) {
    let _ = writeln!(
        out,
        "{}: vocabulary {}, context {}",
        info.architecture, info.vocab_size, info.max_position
    );
}

fn caches(graph: &Graph, out: &mut String) {
    let mut i = 0;
    while let Some(spec) = graph.caches.get(i) {
        let run = graph.caches[i..].iter().take_while(|s| *s == spec).count();
        let _ = match run {
            1 => writeln!(out, "cache{i}: {spec}"),
            _ => writeln!(out, "cache{i} … cache{}: {spec}", i + run - 1),
        };
        i += run;
    }
}

/// " @tokens 0+64": arena, base, and offset within the row where there is one.
fn place(plan: &Plan, i: usize, node: &Node) -> String {
    let mut out = String::new();
    for v in &node.outputs {
        let p = plan.placement(*v);
        let arena = match p.arena {
            Rows::Broadcast => "all".to_owned(),
            rows => rows.to_string(),
        };
        let _ = write!(out, " @{arena} {}", p.base);
        if p.offset > 0 {
            let _ = write!(out, "+{}", p.offset);
        }
    }
    match plan.execution[i] {
        Execution::Run => {}
        Execution::View => out.push_str(" view"),
        Execution::Once => out.push_str(" once"),
    }
    out
}

fn body(graph: &Graph, suffix: &dyn Fn(usize, &Node) -> String, out: &mut String) {
    for block in blocks(graph, suffix) {
        match block {
            Block::One { nodes } => section(graph, nodes, suffix, out),
            Block::Alike {
                first,
                last,
                nodes,
                times,
            } => {
                let _ = writeln!(
                    out,
                    "{first} … {last} (× {times} layers), the first of them:"
                );
                section(graph, nodes, suffix, out);
            }
        }
    }
}

fn section(
    graph: &Graph,
    nodes: std::ops::Range<usize>,
    suffix: &dyn Fn(usize, &Node) -> String,
    out: &mut String,
) {
    let mut scope = None;
    for i in nodes {
        let node = &graph.nodes[i];
        if scope != Some(node.scope) {
            scope = Some(node.scope);
            let name = graph.scope(node.scope);
            if !name.is_empty() {
                let _ = writeln!(out, "{name}");
            }
        }
        let _ = writeln!(out, "  {}{}", line::node(graph, node), suffix(i, node));
    }
}

/// "'q.weight' [576, 576] q4_1"
fn weight_text(graph: &Graph, id: crate::WeightId) -> String {
    let weight = graph.weight(id);
    format!(
        "{} {:?} {}",
        rules::weight_name(&graph.weights, id),
        weight.shape,
        weight.scheme
    )
}

/// "%1, %2, … (40 more)"
fn ids(values: &[ValueId]) -> String {
    const SHOWN: usize = 16;
    let mut text = values
        .iter()
        .take(SHOWN)
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join(", ");
    if values.len() > SHOWN {
        let _ = write!(text, ", … ({} more)", values.len() - SHOWN);
    }
    text
}

#[cfg(test)]
mod tests;
