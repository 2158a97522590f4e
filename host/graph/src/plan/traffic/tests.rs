#![allow(clippy::unwrap_used)]

use super::*;
use crate::testing::{llama, rms};
use crate::{PassOptions, PlanOptions, Sharding, optimize, testing};

fn plan(model_bytes: usize) -> Plan {
    let graph = optimize(llama(), &PassOptions::default()).unwrap();
    Plan::compile(graph, &PlanOptions::new(model_bytes)).unwrap()
}

/// Per layer: two norms of 8; q [16, 8], k and v [8, 8], o [8, 16]; gate and up [12, 8], down [8, 12]: 688. Twice, with the
/// last norm, the head [32, 8], which is the embedding too, and one row of that: 1376 + 8 + 256 + 8.
#[test]
fn a_llama_by_hand() {
    assert_eq!(
        plan(2).weight_bytes_per_step(PlainStorage::AsModel),
        1648 * 2
    );
    assert_eq!(
        plan(4).weight_bytes_per_step(PlainStorage::AsModel),
        1648 * 4
    );
    assert_eq!(
        plan(4).weight_bytes_per_step(PlainStorage::AsStored),
        1648 * 2
    );
    // Keys and values of two heads of 4, in two layers.
    assert_eq!(
        plan(2).cache_bytes_per_step(10),
        10 * 2 * (2 * 4 + 2 * 4) * 2
    );
}

#[test]
fn an_embedding_that_nothing_else_reads_costs_a_row() {
    let mut b = testing::assumed();
    let ids = b.token_ids().unwrap();
    let table = b.param("embed", &[32, 8]).unwrap();
    let x = b.embedding(table, ids).unwrap();
    let norm = b.param("norm", &[8]).unwrap();
    let x = b.rms_norm(x, rms(norm)).unwrap();
    let head = b.param("head", &[32, 8]).unwrap();
    let logits = b.linear(x, head, None, Sharding::Column).unwrap();
    b.output_logits(logits).unwrap();
    let graph = optimize(
        b.finish(testing::info(32)).unwrap(),
        &PassOptions::default(),
    )
    .unwrap();
    let plan = Plan::compile(graph, &PlanOptions::new(2)).unwrap();
    assert_eq!(
        plan.weight_bytes_per_step(PlainStorage::AsModel),
        (8 + 8 + 256) * 2
    );
    assert_eq!(plan.cache_bytes_per_step(100), 0);
}
