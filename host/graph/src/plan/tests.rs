#![allow(clippy::unwrap_used)]

mod random;

use super::*;
use crate::testing::*;
use crate::*;

fn place(plan: &Plan, v: ValueId) -> (Rows, usize, usize, usize) {
    let p = plan.placement(v);
    (p.arena, p.base, p.row_stride, p.offset)
}

/// ids [] 4 bytes → 64; x [16] f32 64 bytes; a [16]; b [16]; …
#[test]
fn a_chain_by_hand() {
    let mut b = assumed();
    let ids = b.token_ids().unwrap();
    let table = b.param("embed", &[32, 16]).unwrap();
    let x = b.embedding(table, ids).unwrap();
    let w = b.param("a", &[48, 16]).unwrap();
    let wide = b.linear(x, w, None, Sharding::Column).unwrap();
    let parts = b.split(wide, 0, &[16, 32]).unwrap();
    let small = b.activate(parts[0], Activation::Silu).unwrap();
    let heads = b.reshape(parts[1], &[2, 16]).unwrap();
    let turned = b.swap_axes(heads).unwrap();
    let turned = b.reshape(turned, &[32]).unwrap();
    let pieces = b.split(turned, 0, &[16, 16]).unwrap();
    let sum = b.add(pieces[1], small).unwrap();
    let sum = b.add(sum, x).unwrap();
    let last = b.gather_outputs(sum).unwrap();
    b.output_logits(last).unwrap();
    let graph = b.finish(info(16)).unwrap();
    let plan = Plan::compile(graph, &PlanOptions::new(4)).unwrap();

    use Rows::{Outputs, Tokens};
    // The largest goes first: wide [48] at 0, while nodes 2 to 6 run.
    assert_eq!(place(&plan, wide), (Tokens, 0, 192, 0));
    assert_eq!(place(&plan, parts[0]), (Tokens, 0, 192, 0));
    assert_eq!(place(&plan, parts[1]), (Tokens, 0, 192, 64));
    assert_eq!(place(&plan, heads), (Tokens, 0, 192, 64));
    // Then turned [32], which is made from wide and so stands above it: 192..320, until node 9.
    let swapped = ValueId(heads.0 + 1);
    assert_eq!(place(&plan, swapped), (Tokens, 192, 128, 0));
    assert_eq!(place(&plan, pieces[1]), (Tokens, 192, 128, 64));
    // The rest takes 64 bytes each, in order of birth: ids are gone before wide begins; x meets all of these; small too.
    assert_eq!(place(&plan, ids), (Tokens, 0, 4, 0));
    assert_eq!(place(&plan, x), (Tokens, 320, 64, 0));
    assert_eq!(place(&plan, small), (Tokens, 384, 64, 0));
    // The sums come when wide is gone; the second beside the first.
    let first = ValueId(sum.0 - 1);
    assert_eq!(place(&plan, first), (Tokens, 0, 64, 0));
    assert_eq!(place(&plan, sum), (Tokens, 64, 64, 0));
    assert_eq!(place(&plan, last), (Outputs, 0, 64, 0));
    assert_eq!(
        (plan.token_bytes, plan.output_bytes, plan.broadcast_bytes),
        (448, 64, 0)
    );

    let views: Vec<_> = (0..plan.graph.nodes.len())
        .filter(|&i| plan.is_view(i))
        .map(|i| plan.graph.nodes[i].op.name())
        .collect();
    assert_eq!(views, ["split", "reshape", "reshape", "split"]);
    // Row 2 of 10 tokens of the second half of turned: 192 · 10 + 2 · 128 + 64.
    assert_eq!(plan.placement(pieces[1]).address(10, 2), 2240);
}

#[test]
fn two_byte_models_and_exact_casts() {
    let build = || {
        let mut b = assumed();
        let ids = b.token_ids().unwrap();
        let table = b.param("embed", &[32, 16]).unwrap();
        let x = b.embedding(table, ids).unwrap();
        let wide = b.cast(x, ValueType::F32).unwrap();
        let w = b.param("gamma", &[16]).unwrap();
        let w = b.weight_value(w).unwrap();
        let w = b.activate(w, Activation::Exp).unwrap();
        let narrow = b.cast(wide, ValueType::Model).unwrap();
        let y = b.mul(narrow, w).unwrap();
        let y = b.gather_outputs(y).unwrap();
        b.output_logits(y).unwrap();
        (b.finish(info(16)).unwrap(), x, wide)
    };
    let (graph, x, wide) = build();
    let gpu = Plan::compile(graph, &PlanOptions::new(2)).unwrap();
    assert_eq!(place(&gpu, x).2, 32);
    assert_eq!(place(&gpu, wide).2, 64);
    let casts = |plan: &Plan| {
        let cast = |n: &Node| matches!(n.op, Op::Cast { .. });
        let nodes = plan.graph.nodes.iter().zip(&plan.execution);
        nodes
            .filter(|(n, _)| cast(n))
            .map(|(_, e)| *e)
            .collect::<Vec<_>>()
    };
    assert_eq!(casts(&gpu), [Execution::Run, Execution::Run]);
    // gamma [16] and exp(gamma) [16], 32 bytes each, both kept: 64 + 64.
    assert_eq!(gpu.broadcast_bytes, 128);
    let once = gpu.execution.iter().filter(|e| **e == Execution::Once);
    assert_eq!(once.count(), 2);

    let (graph, x, wide) = build();
    let cpu = Plan::compile(graph, &PlanOptions::new(4)).unwrap();
    assert_eq!(casts(&cpu), [Execution::View, Execution::View]);
    assert_eq!(place(&cpu, x), place(&cpu, wide));
    assert!(Plan::compile(build().0, &PlanOptions::new(3)).is_err());
}

#[test]
fn splits_of_an_inner_axis_copy() {
    let mut b = assumed();
    let ids = b.token_ids().unwrap();
    let table = b.param("embed", &[32, 16]).unwrap();
    let x = b.embedding(table, ids).unwrap();
    let heads = b.reshape(x, &[2, 8]).unwrap();
    let inner = b.split(heads, 1, &[4, 4]).unwrap();
    let one = b.reshape(inner[0], &[1, 8]).unwrap();
    // One head: its elements are contiguous.
    let half = b.slice(one, 1, 4, 4).unwrap();
    let flat = b.reshape(half, &[4]).unwrap();
    let y = b.gather_outputs(flat).unwrap();
    b.output_logits(y).unwrap();
    let plan = Plan::compile(b.finish(info(4)).unwrap(), &PlanOptions::new(4)).unwrap();
    let of = |name: &str| {
        plan.graph
            .nodes
            .iter()
            .position(|n| n.op.name() == name)
            .unwrap()
    };
    assert_eq!(plan.execution[of("split")], Execution::Run);
    assert_eq!(plan.execution[of("slice")], Execution::View);
    assert_eq!(place(&plan, half).3, 16);
}

#[test]
fn caches_of_equal_specs_form_groups() {
    let full = full_cache(2, 4);
    let window = CacheSpec {
        kind: CacheKind::Window { window: 8 },
        ..full
    };
    let mut b = assumed();
    let ids = b.token_ids().unwrap();
    let table = b.param("embed", &[32, 8]).unwrap();
    let mut x = b.embedding(table, ids).unwrap();
    for spec in [window, window, full, window] {
        let q = b.reshape(x, &[2, 4]).unwrap();
        let cache = b.declare_cache(spec).unwrap();
        let attention = Attention {
            window: Some(8),
            ..causal(cache)
        };
        let o = b.attention(q, q, q, attention).unwrap();
        x = b.reshape(o, &[8]).unwrap();
    }
    b.output_logits(x).unwrap();
    let graph = b.finish(info(8)).unwrap();
    let plan = Plan::compile(graph, &PlanOptions::new(2)).unwrap();
    let ids = |list: &[u32]| list.iter().map(|&i| CacheId(i)).collect::<Vec<_>>();
    assert_eq!(plan.groups.len(), 2);
    assert_eq!(plan.groups[0].caches, ids(&[0, 1, 3]));
    assert_eq!(plan.groups[1].caches, ids(&[2]));
    assert_eq!(
        plan.cache_slot(CacheId(3)),
        CacheSlot { group: 0, layer: 2 }
    );
    // 2 heads · (4 + 4) elements · 2 bytes · 3 layers.
    assert_eq!(plan.groups[0].bytes_per_position(2), 96);
    let mla = CacheGroup {
        spec: CacheSpec {
            kv_heads: 1,
            k_dim: 576,
            v_dim: 512,
            values: ValueLayout::PrefixOfKey,
            ..full
        },
        caches: ids(&[0]),
    };
    assert_eq!(mla.bytes_per_position(2), 1152);
    let state = CacheGroup {
        spec: CacheSpec {
            kind: CacheKind::Recurrent { bytes: 100 },
            ..full
        },
        caches: ids(&[0, 1]),
    };
    assert_eq!(
        (state.bytes_per_position(2), state.bytes_per_sequence()),
        (0, 200)
    );
}

/// Layers reuse the same memory: depth costs nothing.
#[test]
fn memory_does_not_grow_with_depth() {
    let bytes = |layers, reuse| {
        let graph = optimize(deep_llama(layers), &PassOptions::default()).unwrap();
        let options = PlanOptions {
            model_bytes: 4,
            reuse,
        };
        Plan::compile(graph, &options).unwrap().token_bytes
    };
    assert_eq!(bytes(3, Reuse::ByLiveness), bytes(20, Reuse::ByLiveness));
    assert!(bytes(20, Reuse::Never) > 5 * bytes(20, Reuse::ByLiveness));
}

/// SmolLM2-135M's sizes: the peak is what the gated activation needs, residual and its norm 2 · 576, gate and up 2 · 1536
/// and its result 1536, all f32, beside ids or positions: 4 · (1152 + 3072 + 1536) + 64.
#[test]
fn the_peak_is_what_one_op_needs() {
    let mut b = assumed();
    let ids = b.token_ids().unwrap();
    let positions = b.positions(PositionScheme::Standard).unwrap();
    let table = b.param("embed", &[49152, 576]).unwrap();
    let mut x = b.embedding(table, ids).unwrap();
    let linear = |b: &mut GraphBuilder, x: ValueId, name: &str, [out, d]: [u32; 2]| {
        let w = b.param(name, &[out, d]).unwrap();
        b.linear(x, w, None, Sharding::Column).unwrap()
    };
    for layer in 0..30 {
        let name = |part: &str| format!("layers.{layer}.{part}");
        let w = b.param(&name("norm1"), &[576]).unwrap();
        let h = b.rms_norm(x, rms(w)).unwrap();
        let q = linear(&mut b, h, &name("q"), [576, 576]);
        let k = linear(&mut b, h, &name("k"), [192, 576]);
        let v = linear(&mut b, h, &name("v"), [192, 576]);
        let q = b.reshape(q, &[9, 64]).unwrap();
        let k = b.reshape(k, &[3, 64]).unwrap();
        let v = b.reshape(v, &[3, 64]).unwrap();
        let q = b.rope(q, positions, neox(64)).unwrap();
        let k = b.rope(k, positions, neox(64)).unwrap();
        let cache = b.declare_cache(full_cache(3, 64)).unwrap();
        let o = b.attention(q, k, v, causal(cache)).unwrap();
        let o = b.reshape(o, &[576]).unwrap();
        let o = linear(&mut b, o, &name("o"), [576, 576]);
        x = b.add(x, o).unwrap();
        let w = b.param(&name("norm2"), &[576]).unwrap();
        let h = b.rms_norm(x, rms(w)).unwrap();
        let gate = linear(&mut b, h, &name("gate"), [1536, 576]);
        let up = linear(&mut b, h, &name("up"), [1536, 576]);
        let y = b.gated(gate, up, Gate::Plain(Activation::Silu)).unwrap();
        let y = linear(&mut b, y, &name("down"), [576, 1536]);
        x = b.add(x, y).unwrap();
    }
    let logits = linear(&mut b, x, "embed", [49152, 576]);
    b.output_logits(logits).unwrap();
    let graph = optimize(b.finish(info(49152)).unwrap(), &PassOptions::default()).unwrap();
    let plan = Plan::compile(graph, &PlanOptions::new(4)).unwrap();
    assert_eq!(plan.token_bytes, 4 * (2 * 576 + 3072 + 1536) + 64);
    // Logits beside the last norm's result.
    assert_eq!(plan.output_bytes, 4 * (49152 + 576));
    // 30 layers of 3 heads, 64 numbers each for key and value.
    assert_eq!(plan.groups[0].bytes_per_position(2), 30 * 3 * 128 * 2);
}

/// x, then logits 64 bytes wider each: the cap would fit where x was, but x is what a guest may ask for.
#[test]
fn what_the_head_reads_stays() {
    let mut b = assumed();
    let ids = b.token_ids().unwrap();
    let table = b.param("embed", &[32, 16]).unwrap();
    let x = b.embedding(table, ids).unwrap();
    let x = b.gather_outputs(x).unwrap();
    let logits = b.linear(x, table, None, Sharding::Replicated).unwrap();
    let half = b.scale(logits, 0.5).unwrap();
    let capped = b.slice(half, 0, 0, 16).unwrap();
    let capped = b.soft_cap(capped, 30.0).unwrap();
    b.output_logits(capped).unwrap();
    let plan = Plan::compile(b.finish(info(16)).unwrap(), &PlanOptions::new(4)).unwrap();
    assert_eq!(plan.graph.head_input(), Some(x));
    let span = |v| {
        let p = plan.placement(v);
        p.base..p.base + p.row_stride
    };
    for v in [logits, half, capped] {
        let (a, b) = (span(x), span(v));
        assert!(a.end <= b.start || b.end <= a.start, "{a:?} {b:?}");
    }
}
