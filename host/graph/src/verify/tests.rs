#![allow(clippy::unwrap_used)]

use super::*;
use crate::testing::llama;
use crate::{PassOptions, Plan, PlanOptions, optimize};

#[test]
fn accepts_what_the_builder_made() {
    verify(&llama()).unwrap();
}

/// Any single damaged index or shape is an error, never a panic.
#[test]
fn refuses_damaged_graphs() {
    let text = serde_json::to_string(&llama()).unwrap();
    let value: serde_json::Value = serde_json::from_str(&text).unwrap();
    let mut numbers = Vec::new();
    find_numbers(&value, String::new(), &mut numbers);
    assert!(numbers.len() > 250, "{}", numbers.len());
    let mut refused = 0;
    for path in &numbers {
        for bad in [0u32, 1, 77, u32::MAX] {
            let mut damaged = value.clone();
            *damaged.pointer_mut(path).unwrap() = bad.into();
            let graph: Graph = serde_json::from_value(damaged).unwrap();
            if verify(&graph).is_err() {
                refused += 1;
            } else {
                // What passes can be compiled.
                let graph = optimize(graph, &PassOptions::default()).unwrap();
                Plan::compile(graph, &PlanOptions::new(2)).unwrap();
            }
        }
    }
    // Most numbers are ids and dimensions; others (eps, scale, max_position) may be anything.
    assert!(
        refused > numbers.len() * 2,
        "{refused} of {}",
        numbers.len()
    );
}

fn find_numbers(value: &serde_json::Value, at: String, out: &mut Vec<String>) {
    match value {
        serde_json::Value::Number(n) if n.is_u64() => out.push(at),
        serde_json::Value::Array(items) => {
            for (i, item) in items.iter().enumerate() {
                find_numbers(item, format!("{at}/{i}"), out);
            }
        }
        serde_json::Value::Object(fields) => {
            for (key, item) in fields {
                find_numbers(item, format!("{at}/{key}"), out);
            }
        }
        _ => {}
    }
}

fn text_of(change: impl FnOnce(&mut Graph)) -> String {
    let mut graph = llama();
    change(&mut graph);
    verify(&graph).unwrap_err().to_string()
}

#[test]
fn names_the_fault() {
    let last = llama().nodes.len() - 1;
    assert_eq!(
        text_of(|g| g.nodes.swap(last, 0)),
        "malformed graph at linear in head: it reads %43; expected a value that an earlier node defines"
    );
    assert_eq!(
        text_of(|g| g.info.vocab_size = 33),
        "output-logits: [outputs, 32] model; expected logits [outputs, 33], the vocab-size"
    );
    assert_eq!(
        text_of(|g| {
            g.nodes.remove(last);
        }),
        "malformed graph at %44: no node defines it; expected exactly one"
    );
    assert_eq!(
        text_of(|g| g.caches[0].kv_heads = 3),
        "attention in layers.0.attn: k [tokens, 2, 4], v [tokens, 2, 4] with cache0 (full, 3 heads, keys of 4, values of 4); expected k [tokens, 3, 4] and v [tokens, 3, 4]"
    );
}
