//! Finds layers that differ only in their number.

use std::collections::HashMap;
use std::ops::Range;

use super::line;
use crate::{Graph, Node, ValueId};

/// A run of nodes to print.
pub(super) enum Block {
    /// As it is.
    One {
        /// Node indices.
        nodes: Range<usize>,
    },
    /// Several layers, of which the first is printed.
    Alike {
        /// Name of the first, "layers.0".
        first: String,
        /// Name of the last.
        last: String,
        /// Node indices of the first.
        nodes: Range<usize>,
        /// How many there are.
        times: usize,
    },
}

/// Neighbouring nodes of one layer.
struct Layer {
    /// "layers.0"; empty outside layers.
    name: String,
    /// The number.
    number: String,
    nodes: Range<usize>,
}

pub(super) fn blocks(graph: &Graph, suffix: &dyn Fn(usize, &Node) -> String) -> Vec<Block> {
    let layers = layers(graph);
    let texts: Vec<String> = (0..layers.len())
        .map(|i| normal_text(graph, &layers, i, suffix))
        .collect();
    let mut blocks = Vec::new();
    let mut i = 0;
    while i < layers.len() {
        let same = |j: &usize| !layers[*j].name.is_empty() && texts[*j] == texts[i];
        let times = 1 + (i + 1..layers.len()).take_while(same).count();
        let nodes = layers[i].nodes.clone();
        blocks.push(if times == 1 {
            Block::One { nodes }
        } else {
            Block::Alike {
                first: layers[i].name.clone(),
                last: layers[i + times - 1].name.clone(),
                nodes,
                times,
            }
        });
        i += times;
    }
    blocks
}

fn layers(graph: &Graph) -> Vec<Layer> {
    let mut layers: Vec<Layer> = Vec::new();
    for (i, node) in graph.nodes.iter().enumerate() {
        let (name, number) = layer_of(graph.scope(node.scope));
        match layers.last_mut() {
            Some(last) if last.name == name => last.nodes.end = i + 1,
            _ => layers.push(Layer {
                name: name.to_owned(),
                number: number.to_owned(),
                nodes: i..i + 1,
            }),
        }
    }
    layers
}

/// The scope up to its first number, and that number: ("layers.3", "3") of "layers.3.mlp".
fn layer_of(scope: &str) -> (&str, &str) {
    let mut end = 0;
    for part in scope.split('.') {
        end += part.len();
        if !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit()) {
            return (scope.get(..end).unwrap_or(scope), part);
        }
        end += 1;
    }
    ("", "")
}

/// The layer's lines with its number, its values and its caches made relative.
fn normal_text(
    graph: &Graph,
    layers: &[Layer],
    i: usize,
    suffix: &dyn Fn(usize, &Node) -> String,
) -> String {
    let layer = &layers[i];
    if layer.name.is_empty() {
        return String::new();
    }
    let mut names: HashMap<ValueId, String> = HashMap::new();
    let earlier = i.checked_sub(1).map_or(0..0, |j| layers[j].nodes.clone());
    for (nodes, mark) in [(earlier, "before"), (layer.nodes.clone(), "here")] {
        // The previous layer is counted from its end: only its results matter, not how many nodes it has.
        let outputs: Vec<ValueId> = graph.nodes[nodes]
            .iter()
            .flat_map(|n| n.outputs.iter().copied())
            .collect();
        let n = outputs.len();
        for (k, v) in outputs.into_iter().enumerate() {
            let place = if mark == "here" { k } else { n - k };
            names.insert(v, format!("{mark}{place}"));
        }
    }
    let mut text = String::new();
    for at in layer.nodes.clone() {
        let node = &graph.nodes[at];
        let scope = graph.scope(node.scope);
        text.push_str(scope.get(layer.name.len()..).unwrap_or_default());
        text.push(' ');
        text.push_str(node.op.name());
        for v in &node.inputs {
            text.push(' ');
            match names.get(v) {
                Some(name) => text.push_str(name),
                None => text.push_str(&v.to_string()),
            }
        }
        for v in &node.outputs {
            text.push_str(&format!(" {} {}", graph.value(*v), graph.value(*v).ty));
        }
        for detail in line::details(graph, &node.op) {
            text.push(' ');
            text.push_str(&without_number(&detail, &layer.number));
        }
        if let Some(cache) = node.op.cache() {
            text.push_str(&format!(" {}", graph.cache(cache)));
        }
        text.push_str(&suffix(at, node));
        text.push('\n');
    }
    text
}

/// Weight names with ".3." as ".*.", and cache ids without their number.
fn without_number(detail: &str, number: &str) -> String {
    match detail.strip_prefix("cache") {
        Some(id) if id.bytes().all(|b| b.is_ascii_digit()) => "cache".to_owned(),
        _ => detail.replace(&format!(".{number}."), ".*."),
    }
}
