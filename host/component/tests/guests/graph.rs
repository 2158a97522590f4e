use std::sync::{Arc, LazyLock};

use guesthouse_component::{ComponentError, GraphModule, GuestErrorKind};
use guesthouse_graph::{AssumedCatalog, Graph, Op, Output};
use guesthouse_weights::DType;

use crate::common::{load, says};

static MODULE: LazyLock<GraphModule> = LazyLock::new(|| load("hostile_graph").graph().unwrap());

fn build(config: &str) -> Result<Graph, ComponentError> {
    let catalog = AssumedCatalog::new(DType::F32).absent(["absent".to_owned()]);
    MODULE.build(config, Arc::new(catalog))
}

#[track_caller]
fn honest() {
    let graph = build("honest").unwrap();
    assert_eq!((graph.info.vocab_size, graph.info.max_position), (8, 16));
    let ops: Vec<_> = graph
        .nodes
        .iter()
        .map(|node| std::mem::discriminant(&node.op))
        .collect();
    let is = |op: &Op| std::mem::discriminant(op);
    assert!(ops.contains(&is(&Op::TokenIds)) && ops.contains(&is(&Op::GatherOutputs)));
    let Output::Logits(logits) = graph.output else {
        panic!("{:?}", graph.output)
    };
    assert_eq!(graph.value(logits).shape, [8]);
}

#[track_caller]
fn fails(config: &str, label: &str, parts: &[&str]) {
    says(&build(config).map(|_| ()).unwrap_err(), label, parts);
    honest();
}

#[test]
fn an_honest_graph_passes() {
    assert_eq!(MODULE.architectures().unwrap(), ["Hostile"]);
    honest();
}

#[test]
fn endless_loops_run_out_of_time() {
    fails("loop", "timeout", &["model.build", "budget 5000 ms"]);
}

#[test]
fn memory_is_bounded() {
    fails("allocate", "limit_memory", &["model.build", "268435456"]);
    let error = build("recurse").unwrap_err();
    assert!(matches!(error.label(), "limit_stack" | "trap"), "{error}");
    honest();
}

#[test]
fn panics_are_told_with_their_message() {
    fails("panic", "trap", &["model.build", "out of ideas"]);
}

#[test]
fn forged_ids_are_errors() {
    fails("forged-value", "graph", &["add"]);
    fails("forged-weight", "graph", &["transpose"]);
    fails("forged-cache", "graph", &["attention"]);
}

#[test]
fn graphs_are_bounded() {
    fails("giant-graph", "graph", &[]);
    fails("many-scopes", "graph", &["scope"]);
    fails("huge-split", "graph", &["split"]);
    fails("huge-name", "graph", &["param"]);
    fails("many-constants", "graph", &["constant"]);
    fails("huge-constant", "graph", &["constant"]);
}

#[test]
fn findings_of_the_builder_name_tensors_and_shapes() {
    fails("missing-tensor", "graph", &["absent"]);
    fails("wrong-shape", "graph", &["linear", "[8, 5]"]);
    fails("no-output", "graph", &[]);
    fails("wrong-vocab", "graph", &["9"]);
    fails("unknown-setting", "unsupported", &["model.build", "turbo"]);
}

#[test]
fn an_error_is_an_answer() {
    let error = build("error").unwrap_err();
    assert_eq!(error.guest_kind(), Some(GuestErrorKind::InvalidConfig));
    says(
        &error,
        "guest_invalid_config",
        &["model.build", "no such model"],
    );
}
