#![allow(clippy::unwrap_used)]

mod wide;

use super::*;
use crate::testing::*;
use crate::*;

/// Both sides of a pass.
fn sides(before: &Graph, pass: Pass) -> String {
    let after = pass(before);
    verify(&after).unwrap();
    format!(
        "before\n{}\nafter\n{}",
        dump_graph(before),
        dump_graph(&after)
    )
}

fn finish(mut b: GraphBuilder, x: ValueId, vocab: u32) -> Graph {
    b.scope("head").unwrap();
    b.output_logits(x).unwrap();
    b.finish(info(vocab)).unwrap()
}

fn start(b: &mut GraphBuilder) -> (ValueId, ValueId) {
    let ids = b.token_ids().unwrap();
    let positions = b.positions(PositionScheme::Standard).unwrap();
    let table = b.param("embed", &[16, 8]).unwrap();
    (b.embedding(table, ids).unwrap(), positions)
}

fn linear(b: &mut GraphBuilder, x: ValueId, name: &str, out: u32) -> ValueId {
    let d = b.value_info(x).unwrap().shape[0];
    let w = b.param(name, &[out, d]).unwrap();
    b.linear(x, w, None, Sharding::Column).unwrap()
}

#[test]
fn merges_qkv_with_bias_and_the_gated_pair() {
    let mut b = assumed();
    let (x, _) = start(&mut b);
    let q = linear(&mut b, x, "q", 8);
    let (w, bias) = (
        b.param("k", &[4, 8]).unwrap(),
        b.param("k.bias", &[4]).unwrap(),
    );
    let k = b.linear(x, w, Some(bias), Sharding::Column).unwrap();
    // Another sharding stays apart.
    let w = b.param("router", &[4, 8]).unwrap();
    let router = b.linear(x, w, None, Sharding::Replicated).unwrap();
    let v = b.concat(&[k, router], 0).unwrap();
    let y = b.add(q, v).unwrap();
    let gate = linear(&mut b, y, "gate", 6);
    let up = linear(&mut b, y, "up", 6);
    let z = b.gated(gate, up, Gate::Plain(Activation::Silu)).unwrap();
    let graph = finish(b, z, 6);
    insta::assert_snapshot!(sides(&graph, merge_linears::merge_linears));
}

/// Checkpoints that store gate and up as one matrix.
#[test]
fn a_split_pair_is_read_whole() {
    let ops = |swap: bool| {
        let mut b = assumed();
        let (x, _) = start(&mut b);
        let joint = linear(&mut b, x, "gate_up", 12);
        let parts = b.split(joint, 0, &[6, 6]).unwrap();
        let (gate, up) = if swap {
            (parts[1], parts[0])
        } else {
            (parts[0], parts[1])
        };
        let z = b.gated(gate, up, Gate::Plain(Activation::Silu)).unwrap();
        let graph = finish(b, z, 6);
        let after = merge_linears::merge_linears(&graph);
        verify(&after).unwrap();
        after
            .nodes
            .iter()
            .skip(3)
            .map(|n| n.op.name())
            .collect::<Vec<_>>()
    };
    assert_eq!(ops(false), ["linear", "gated-merged"]);
    // Up before gate is no layout that merged activations know.
    assert_eq!(ops(true), ["linear", "split", "gated"]);
}

/// A gate that something else reads as well cannot vanish into the pair, but its linear can be merged.
#[test]
fn a_gate_with_two_readers_is_only_split() {
    let mut b = assumed();
    let (x, _) = start(&mut b);
    let gate = linear(&mut b, x, "gate", 6);
    let up = linear(&mut b, x, "up", 6);
    let z = b.gated(gate, up, Gate::Plain(Activation::Silu)).unwrap();
    let z = b.add(z, gate).unwrap();
    let graph = finish(b, z, 6);
    let after = merge_linears::merge_linears(&graph);
    verify(&after).unwrap();
    let ops: Vec<_> = after.nodes.iter().map(|n| n.op.name()).collect();
    assert_eq!(
        ops,
        [
            "token-ids",
            "embedding",
            "gather-outputs",
            "linear",
            "split",
            "gated",
            "add"
        ]
    );
}

#[test]
fn fuses_sums_with_the_norm_that_follows() {
    let mut b = assumed();
    let (x, _) = start(&mut b);
    let y = linear(&mut b, x, "o", 8);
    let x = b.add(x, y).unwrap();
    let w = b.param("norm1", &[8]).unwrap();
    let h = b.rms_norm(x, rms(w)).unwrap();
    let x = b.add(x, h).unwrap();
    let (w, bias) = (
        b.param("norm2", &[8]).unwrap(),
        b.param("norm2.bias", &[8]).unwrap(),
    );
    let norm = LayerNorm {
        weight: Some(w),
        bias: Some(bias),
        eps: 1e-5,
    };
    let h = b.layer_norm(x, norm).unwrap();
    // A learned scale is broadcast: no residual.
    let w = b.param("gamma", &[8]).unwrap();
    let w = b.weight_value(w).unwrap();
    let y = b.add(h, w).unwrap();
    let w = b.param("norm3", &[8]).unwrap();
    let y = b.rms_norm(y, rms(w)).unwrap();
    let z = b.add(y, x).unwrap();
    let graph = finish(b, z, 8);
    insta::assert_snapshot!(sides(&graph, add_norm::add_norm));
}

#[test]
fn separates_writing_from_attending() {
    let mut b = assumed();
    let (x, positions) = start(&mut b);
    let q = b.reshape(x, &[2, 4]).unwrap();
    let cache = b.declare_cache(full_cache(2, 4)).unwrap();
    let (turned, other) = (
        neox(4),
        Rope {
            theta: 500.0,
            ..neox(4)
        },
    );
    b.scope("alike").unwrap();
    let (a, k) = (
        b.rope(q, positions, turned.clone()).unwrap(),
        b.rope(q, positions, turned.clone()).unwrap(),
    );
    let o = b.attention(a, k, q, causal(cache)).unwrap();
    b.scope("differently").unwrap();
    let cache2 = b.declare_cache(full_cache(2, 4)).unwrap();
    let (a, k) = (
        b.rope(o, positions, turned).unwrap(),
        b.rope(o, positions, other).unwrap(),
    );
    let o = b.attention(a, k, o, causal(cache2)).unwrap();
    b.scope("shared").unwrap();
    let o = b.attention_shared(o, causal(cache)).unwrap();
    b.scope("unrotated").unwrap();
    let cache3 = b.declare_cache(full_cache(2, 4)).unwrap();
    let o = b.attention(o, o, o, causal(cache3)).unwrap();
    let o = b.reshape(o, &[8]).unwrap();
    let graph = finish(b, o, 8);
    insta::assert_snapshot!(sides(&graph, rope_write::rope_write));
}

#[test]
fn gathers_as_early_as_rows_allow() {
    let mut b = assumed();
    let (x, _) = start(&mut b);
    let q = b.reshape(x, &[2, 4]).unwrap();
    let cache = b.declare_cache(full_cache(2, 4)).unwrap();
    let o = b.attention(q, q, q, causal(cache)).unwrap();
    let o = b.reshape(o, &[8]).unwrap();
    let y = b.add(x, o).unwrap();
    let y = linear(&mut b, y, "mlp", 8);
    let w = b.param("gamma", &[8]).unwrap();
    let w = b.weight_value(w).unwrap();
    let y = b.mul(y, w).unwrap();
    b.scope("head").unwrap();
    let y = b.gather_outputs(y).unwrap();
    let y = linear(&mut b, y, "head", 16);
    b.output_logits(y).unwrap();
    let graph = b.finish(info(16)).unwrap();
    insta::assert_snapshot!(sides(&graph, gather));
}

/// What a later token reads is computed for every token.
#[test]
fn rows_that_feed_a_cache_are_not_dropped() {
    let mut b = assumed();
    let (x, _) = start(&mut b);
    let y = linear(&mut b, x, "a", 8);
    let q = b.reshape(y, &[2, 4]).unwrap();
    let cache = b.declare_cache(full_cache(2, 4)).unwrap();
    let o = b.attention(q, q, q, causal(cache)).unwrap();
    let o = b.reshape(o, &[8]).unwrap();
    let z = b.add(y, o).unwrap();
    let graph = finish(b, z, 8);
    let a = graph
        .nodes
        .iter()
        .find(|n| n.op.name() == "linear")
        .unwrap();
    assert_eq!(graph.value(a.outputs[0]).rows, Rows::Tokens);
    assert_eq!(graph.value(graph.output.value()).rows, Rows::Outputs);
    let gathers = graph.nodes.iter().filter(|n| n.op == Op::GatherOutputs);
    assert_eq!(gathers.count(), 2);
}

#[test]
fn dead_code_goes_but_not_a_write_that_is_read() {
    let mut b = assumed();
    let (x, positions) = start(&mut b);
    b.rope(x, positions, neox(4)).unwrap_err();
    let dead = linear(&mut b, x, "dead", 8);
    b.scale(dead, 2.0).unwrap();
    let q = b.reshape(x, &[2, 4]).unwrap();
    let unread = b.declare_cache(full_cache(2, 4)).unwrap();
    b.attention(q, q, q, causal(unread)).unwrap();
    let read = b.declare_cache(full_cache(1, 8)).unwrap();
    let one = b.reshape(x, &[1, 8]).unwrap();
    b.attention(one, one, one, causal(read)).unwrap();
    let o = b.attention_shared(one, causal(read)).unwrap();
    let o = b.reshape(o, &[8]).unwrap();
    let o = b.gather_outputs(o).unwrap();
    let graph = finish(b, o, 8);
    insta::assert_snapshot!(sides(&graph, compact));
}

/// The whole pipeline on a Llama.
#[test]
fn a_llama_before_and_after() {
    let before = llama();
    let after = optimize(before.clone(), &PassOptions::default()).unwrap();
    insta::assert_snapshot!(format!(
        "before\n{}\nafter\n{}",
        dump_graph(&before),
        dump_graph(&after)
    ));
}

#[test]
fn the_smallest_pipeline_still_separates_writes() {
    let graph = optimize(llama(), &PassOptions::minimal()).unwrap();
    let count = |name| graph.nodes.iter().filter(|n| n.op.name() == name).count();
    assert_eq!(count("attention"), 0);
    assert_eq!((count("rope-write"), count("paged-attention")), (2, 2));
    // Per layer q, k, v, o, gate, up, down; and the head.
    assert_eq!(count("linear"), 2 * 7 + 1);
}

#[test]
fn optimize_refuses_what_does_not_verify() {
    let mut graph = llama();
    graph.info.vocab_size = 7;
    assert!(optimize(graph, &PassOptions::default()).is_err());
}
