//! Architectures that strain the interface, at full size and without weights: their graphs pass the verifier, the passes
//! and the plan.
#![allow(clippy::unwrap_used, clippy::panic, missing_docs)]

use guesthouse_component::{GraphModule, Origin, Role, Runtime, RuntimeConfig, builtin};
use guesthouse_graph::{
    AssumedCatalog, CacheKind, Mask, Op, PassOptions, Plan, PlanOptions, optimize, verify,
};
use guesthouse_weights::DType;
use std::path::Path;
use std::sync::Arc;

/// (configuration, layers with a cache, an op that only this architecture has)
type Case = (&'static str, usize, fn(&Op) -> bool);

const CASES: &[Case] = &[
    ("deepseek-v3", 61, |op| matches!(op, Op::HeadLinear { .. })),
    (
        "gpt-oss-20b",
        24,
        |op| matches!(op, Op::PagedAttention(a) if a.sinks.is_some() && a.window == Some(128)),
    ),
    ("mixtral-8x7b", 32, |op| matches!(op, Op::Experts(_))),
    (
        "chatglm-6b",
        28,
        |op| matches!(op, Op::PagedAttention(a) if a.mask == Mask::PrefixBefore { marker: 130_004 }),
    ),
    (
        "mpt-7b",
        32,
        |op| matches!(op, Op::PagedAttention(a) if a.alibi.is_some()),
    ),
    (
        "mpt-30b-qk-ln",
        48,
        |op| matches!(op, Op::PagedAttention(a) if a.alibi.is_some()),
    ),
    (
        "bloom-176b",
        70,
        |op| matches!(op, Op::PagedAttention(a) if a.alibi.is_some()),
    ),
    (
        "falcon-40b",
        60,
        |op| matches!(op, Op::PagedAttention(a) if a.alibi.is_none()),
    ),
    ("qwen-7b", 32, |op| {
        matches!(op, Op::LogNScale { train_len: 8192 })
    }),
    (
        "baichuan2-13b",
        40,
        |op| matches!(op, Op::PagedAttention(a) if a.alibi.is_some()),
    ),
    ("qwen3-next-80b-a3b", 48, |op| {
        matches!(op, Op::DeltaRule { .. })
    }),
];

/// The embedded models.
fn modules(runtime: &Arc<Runtime>) -> Vec<(Vec<String>, GraphModule)> {
    let graphs = builtin::ALL.iter().filter(|b| b.role == Role::Graph);
    let load = |b: &builtin::Builtin| {
        let module = runtime.load(b.name, b.bytes, Origin::File).unwrap();
        let module = module.graph().unwrap();
        (module.architectures().unwrap(), module)
    };
    graphs.map(load).collect()
}

#[test]
fn full_sizes_pass_the_verifier_the_passes_and_the_plan() {
    let runtime = Runtime::new(RuntimeConfig::default()).unwrap();
    let modules = modules(&runtime);
    for (name, layers, special) in CASES {
        let path = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join(format!("../../tests/models/configs/{name}.json"));
        let config = std::fs::read_to_string(path).unwrap();
        let parsed: serde_json::Value = serde_json::from_str(&config).unwrap();
        let architecture = parsed["architectures"][0].as_str().unwrap();
        let (_, module) = modules
            .iter()
            .find(|(names, _)| names.iter().any(|n| n == architecture))
            .unwrap_or_else(|| panic!("{name}: no guest builds {architecture}"));
        let graph = module
            .build(
                &config,
                Arc::new(AssumedCatalog::new(DType::Bf16).absent_where(|_| false)),
            )
            .unwrap_or_else(|e| panic!("{name}: {e}"));
        verify(&graph).unwrap_or_else(|e| panic!("{name}: {e}"));
        let attention = graph
            .caches
            .iter()
            .filter(|c| !matches!(c.kind, CacheKind::Recurrent { .. }))
            .count();
        // Qwen3-Next keeps keys and values in every fourth layer; the others keep three convolutions and a state each.
        let recurrent = graph.caches.len() - attention;
        assert_eq!(
            attention + recurrent / 4,
            *layers,
            "{name}: layers with a cache"
        );
        let graph =
            optimize(graph, &PassOptions::default()).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert!(
            graph.nodes.iter().any(|n| special(&n.op)),
            "{name}: what makes it special is missing"
        );
        Plan::compile(graph, &PlanOptions::new(2)).unwrap_or_else(|e| panic!("{name}: {e}"));
    }
}
