#![allow(clippy::unwrap_used)]

use super::*;
use crate::testing::{deep_llama, llama};
use crate::{PassOptions, PlanOptions, optimize};

#[test]
fn a_whole_graph() {
    insta::assert_snapshot!(dump_graph(&llama()));
}

/// Six layers: the first and the last differ from those between.
#[test]
fn equal_layers_are_printed_once() {
    let graph = optimize(deep_llama(6), &PassOptions::default()).unwrap();
    insta::assert_snapshot!(dump_graph(&graph));
}

#[test]
fn a_plan_shows_memory() {
    let graph = optimize(llama(), &PassOptions::default()).unwrap();
    let plan = Plan::compile(graph, &PlanOptions::new(4)).unwrap();
    insta::assert_snapshot!(dump_plan(&plan));
}

#[test]
fn a_picture_quotes_names() {
    let mut graph = llama();
    graph.scopes[1] = "a \"quoted\" \\ scope\n".to_owned();
    let text = dot(&graph);
    assert!(
        text.contains(r#"label="a \"quoted\" \\ scope\n";"#),
        "{text}"
    );
    assert_eq!(text.matches(" -> output").count(), 1);
    // Every use of a value is an edge, and the output one more.
    let uses: usize = graph.nodes.iter().map(|n| n.inputs.len()).sum();
    assert_eq!(text.matches(" -> ").count(), uses + 1);
}
