//! Layers that stretch the IR: latent attention with routed experts, and a recurrent layer, through every pass.

use crate::testing::*;
use crate::*;

fn linear(b: &mut GraphBuilder, x: ValueId, name: &str, out: u32) -> ValueId {
    let d = b.value_info(x).unwrap().shape[0];
    let w = b.param(name, &[out, d]).unwrap();
    b.linear(x, w, None, Sharding::Column).unwrap()
}

fn compiled(b: GraphBuilder, vocab: u32) -> String {
    let graph = optimize(b.finish(info(vocab)).unwrap(), &PassOptions::default()).unwrap();
    for model_bytes in [2, 4] {
        Plan::compile(graph.clone(), &PlanOptions::new(model_bytes)).unwrap();
    }
    dump_graph(&graph)
}

/// DeepSeek-V3 in small: rank 16, 2 heads of 8 + 4, 8 experts in 4 groups, one shared expert.
#[test]
fn latent_attention_and_experts() {
    let mut b = assumed();
    let ids = b.token_ids().unwrap();
    let positions = b.positions(PositionScheme::Standard).unwrap();
    let table = b.param("embed", &[32, 24]).unwrap();
    let x = b.embedding(table, ids).unwrap();
    b.scope("layers.0.attn").unwrap();
    let q = linear(&mut b, x, "q_proj", 2 * 12);
    let q = b.reshape(q, &[2, 12]).unwrap();
    let q = b.split(q, 1, &[8, 4]).unwrap();
    let q_rope = Rope {
        style: RopeStyle::Interleaved,
        ..neox(4)
    };
    let turned = b.rope(q[1], positions, q_rope.clone()).unwrap();
    let q = b.concat(&[q[0], turned], 1).unwrap();
    let kv = linear(&mut b, x, "kv_a", 16 + 4);
    let kv = b.split(kv, 0, &[16, 4]).unwrap();
    let w = b.param("kv_a_norm", &[16]).unwrap();
    let latent = b.rms_norm(kv[0], rms(w)).unwrap();
    let k_rope = b.reshape(kv[1], &[1, 4]).unwrap();
    let k_rope = b.rope(k_rope, positions, q_rope).unwrap();
    let k_rope = b.reshape(k_rope, &[4]).unwrap();
    let cache = b
        .declare_cache(CacheSpec {
            k_dim: 20,
            v_dim: 16,
            values: ValueLayout::PrefixOfKey,
            sharding: CacheSharding::Replicated,
            ..full_cache(1, 1)
        })
        .unwrap();
    let kv_b = b.param("kv_b", &[2 * (8 + 8), 16]).unwrap();
    let attention = LatentAttention {
        cache,
        kv_b,
        nope: 8,
        v_dim: 8,
        scale: 0.3,
    };
    let o = b.latent_attention(q, latent, k_rope, attention).unwrap();
    let o = b.reshape(o, &[16]).unwrap();
    let o = linear(&mut b, o, "o_proj", 24);
    let x = b.add(x, o).unwrap();
    b.scope("layers.0.mlp").unwrap();
    let w = b.param("post_norm", &[24]).unwrap();
    let h = b.rms_norm(x, rms(w)).unwrap();
    let wide = b.cast(h, ValueType::F32).unwrap();
    let w = b.param("router", &[8, 24]).unwrap();
    let scores = b.linear(wide, w, None, Sharding::Replicated).unwrap();
    let correction = b.param("correction", &[8]).unwrap();
    let route = Route {
        top_k: 3,
        scores: RouteScores::Sigmoid,
        groups: Some(RouteGroups {
            count: 4,
            top: 2,
            sum_of: 2,
        }),
        correction: Some(correction),
        renormalize: true,
        scale: 2.5,
    };
    let (weights, chosen) = b.route(scores, route).unwrap();
    let rows: Vec<WeightId> = (0..8)
        .flat_map(|e| [(e, "gate_proj"), (e, "up_proj")])
        .map(|(e, part)| b.param(&format!("experts.{e}.{part}"), &[6, 24]).unwrap())
        .collect();
    let gate_up = b.concat_rows(&rows).unwrap();
    let gate_up = b.reshape_weight(gate_up, &[8, 12, 24]).unwrap();
    let downs: Vec<WeightId> = (0..8)
        .map(|e| {
            b.param(&format!("experts.{e}.down_proj"), &[24, 6])
                .unwrap()
        })
        .collect();
    let down = b.concat_rows(&downs).unwrap();
    let down = b.reshape_weight(down, &[8, 24, 6]).unwrap();
    let experts = Experts {
        gate_up,
        gate_up_bias: None,
        down,
        down_bias: None,
        layout: GateLayout::Halves,
        gate: Gate::Plain(Activation::Silu),
    };
    let routed = b.experts(h, weights, chosen, experts).unwrap();
    let gate = linear(&mut b, h, "shared.gate", 6);
    let up = linear(&mut b, h, "shared.up", 6);
    let shared = b.gated(gate, up, Gate::Plain(Activation::Silu)).unwrap();
    let shared = linear(&mut b, shared, "shared.down", 24);
    let y = b.add(routed, shared).unwrap();
    let x = b.add(x, y).unwrap();
    b.scope("head").unwrap();
    let w = b.param("norm", &[24]).unwrap();
    let x = b.rms_norm(x, rms(w)).unwrap();
    let logits = linear(&mut b, x, "lm_head", 32);
    b.output_logits(logits).unwrap();
    insta::assert_snapshot!(compiled(b, 32));
}

/// Qwen3-Next in small: a convolution and a gated delta rule, with exact f32 gates from bf16 weights.
#[test]
fn recurrent_layers() {
    let state = |bytes| CacheSpec {
        kind: CacheKind::Recurrent { bytes },
        kv_heads: 0,
        k_dim: 0,
        v_dim: 0,
        ..full_cache(1, 1)
    };
    let mut b = assumed();
    let ids = b.token_ids().unwrap();
    let table = b.param("embed", &[32, 24]).unwrap();
    let x = b.embedding(table, ids).unwrap();
    b.scope("layers.0.linear_attn").unwrap();
    let qkv = linear(&mut b, x, "in_proj_qkv", 8 + 8 + 12);
    let ba = linear(&mut b, x, "in_proj_ba", 4);
    let conv = b.param("conv1d", &[28, 1, 4]).unwrap();
    let conv = CausalConv {
        weight: b.reshape_weight(conv, &[28, 4]).unwrap(),
        bias: None,
        cache: b.declare_cache(state(28 * 3 * 4)).unwrap(),
        activation: Some(Activation::Silu),
    };
    let qkv = b.causal_conv(qkv, conv).unwrap();
    let parts = b.split(qkv, 0, &[8, 8, 12]).unwrap();
    let q = b.reshape(parts[0], &[2, 4]).unwrap();
    let q = b.l2_norm(q, 1e-6).unwrap();
    let k = b.reshape(parts[1], &[2, 4]).unwrap();
    let k = b.l2_norm(k, 1e-6).unwrap();
    let v = b.reshape(parts[2], &[2, 6]).unwrap();
    let ba = b.cast(ba, ValueType::F32).unwrap();
    let ba = b.split(ba, 0, &[2, 2]).unwrap();
    let beta = b.activate(ba[0], Activation::Sigmoid).unwrap();
    let exact = |b: &mut GraphBuilder, name: &str| {
        let w = b.param(name, &[2]).unwrap();
        let w = b.weight_value(w).unwrap();
        b.cast(w, ValueType::F32).unwrap()
    };
    let bias = exact(&mut b, "dt_bias");
    let a_log = exact(&mut b, "A_log");
    let dt = b.add(ba[1], bias).unwrap();
    let dt = b.activate(dt, Activation::Softplus).unwrap();
    let decay = b.activate(a_log, Activation::Exp).unwrap();
    let decay = b.scale(decay, -1.0).unwrap();
    let g = b.mul(dt, decay).unwrap();
    let memory = b.declare_cache(state(2 * 4 * 6 * 4)).unwrap();
    let inputs = DeltaInputs { q, k, v, g, beta };
    let o = b.delta_rule(inputs, memory, 0.5).unwrap();
    let o = b.reshape(o, &[12]).unwrap();
    let o = linear(&mut b, o, "out_proj", 24);
    let x = b.add(x, o).unwrap();
    b.scope("head").unwrap();
    let logits = linear(&mut b, x, "lm_head", 32);
    b.output_logits(logits).unwrap();
    insta::assert_snapshot!(compiled(b, 32));
}
