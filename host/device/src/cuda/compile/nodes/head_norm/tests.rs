#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use guesthouse_graph::{
    Attention, BuilderLimits, CacheKind, CacheSharding, CacheSpec, GraphBuilder, Mask, ModelInfo,
    NormRounding, PassOptions, PlanOptions, PositionScheme, Rope, RopeScaling, RopeStyle, Sharding,
    SourceCatalog, ValueLayout, optimize,
};
use guesthouse_weights::MemorySource;

use super::*;

const D: u32 = 16;

/// What differs between graphs.
#[derive(Clone, Copy)]
struct Variant {
    /// Added to the mean square of keys.
    k_eps: f32,
    /// Something else reads the normalised queries.
    is_read_twice: bool,
}

/// One layer with norms of two query heads and one key head.
fn plan(variant: Variant) -> Plan {
    let mut source = MemorySource::new();
    let mut weight = |name: &str, shape: [usize; 2]| {
        source
            .insert_f32(name, shape, &vec![0.5; shape[0] * shape[1]])
            .unwrap();
    };
    weight("table", [8, 32]);
    weight("q", [32, 32]);
    weight("k", [16, 32]);
    weight("v", [16, 32]);
    source.insert_f32("q_norm", [16], &[0.5; 16]).unwrap();
    source.insert_f32("k_norm", [16], &[0.5; 16]).unwrap();
    let catalog = Arc::new(SourceCatalog::new(Arc::new(source)));
    let mut b = GraphBuilder::new(catalog, BuilderLimits::default());
    let (ids, positions) = (
        b.token_ids().unwrap(),
        b.positions(PositionScheme::Standard).unwrap(),
    );
    let table = b.param("table", &[8, 32]).unwrap();
    let x = b.embedding(table, ids).unwrap();
    let mut heads = |name: &str, n: u32| {
        let w = b.param(name, &[n * D, 32]).unwrap();
        let y = b.linear(x, w, None, Sharding::Column).unwrap();
        b.reshape(y, &[n, D]).unwrap()
    };
    let (q, k, v) = (heads("q", 2), heads("k", 1), heads("v", 1));
    let mut normalised = |name: &str, x: ValueId, eps: f32| {
        let weight = Some(b.param(name, &[D]).unwrap());
        let norm = RmsNorm {
            weight,
            eps,
            offset: 0.0,
            rounding: NormRounding::CastThenWeight,
        };
        b.rms_norm(x, norm).unwrap()
    };
    let (qn, kn) = (
        normalised("q_norm", q, 1e-6),
        normalised("k_norm", k, variant.k_eps),
    );
    let rope = Rope {
        rotary: D,
        theta: 10_000.0,
        style: RopeStyle::Neox,
        scaling: RopeScaling::None,
        axis: 0,
        start: 0,
    };
    let qr = b.rope(qn, positions, rope.clone()).unwrap();
    let kr = b.rope(kn, positions, rope).unwrap();
    let cache = b
        .declare_cache(CacheSpec {
            kind: CacheKind::Full,
            kv_heads: 1,
            k_dim: D,
            v_dim: D,
            values: ValueLayout::Separate,
            sharding: CacheSharding::Heads,
        })
        .unwrap();
    let attention = Attention {
        cache,
        scale: 0.25,
        mask: Mask::Causal,
        window: None,
        softcap: None,
        alibi: None,
        sinks: None,
    };
    let mut o = b.attention(qr, kr, v, attention).unwrap();
    if variant.is_read_twice {
        o = b.add(o, qn).unwrap();
    }
    let o = b.reshape(o, &[32]).unwrap();
    let logits = b.linear(o, table, None, Sharding::Replicated).unwrap();
    b.output_logits(logits).unwrap();
    let info = ModelInfo {
        architecture: "Test".to_owned(),
        vocab_size: 8,
        max_position: 64,
    };
    let graph = optimize(b.finish(info).unwrap(), &PassOptions::default()).unwrap();
    Plan::compile(graph, &PlanOptions::new(2)).unwrap()
}

#[test]
fn norms_of_equal_parameters_are_left_to_the_rotation() {
    let plan = plan(Variant {
        k_eps: 1e-6,
        is_read_twice: false,
    });
    let found = candidates(&plan);
    assert_eq!(found.len(), 1);
    let node = &plan.graph.nodes[found[0].rotation];
    assert!(matches!(node.op, Op::RopeWrite { .. }));
    let shapes = found[0].inputs.map(|v| plan.graph.value(v).shape.clone());
    assert_eq!(shapes, [vec![2, D], vec![1, D]]);
    // The merged linear's result is there until the values have been written.
    for (norm, value) in found[0].norms.into_iter().zip(found[0].inputs) {
        assert!(is_kept(&plan, value, norm, found[0].rotation));
    }
    for (norm, rotated) in found[0].norms.into_iter().zip(&node.inputs) {
        assert!(matches!(plan.graph.nodes[norm].op, Op::RmsNorm(_)));
        assert_eq!(plan.graph.nodes[norm].outputs, [*rotated]);
    }
}

#[test]
fn what_was_overwritten_cannot_be_read() {
    let plan = plan(Variant {
        k_eps: 1e-6,
        is_read_twice: false,
    });
    // The embedding is dead once the merged linear has run; by the end its memory holds something else.
    let last = plan.graph.nodes.len() - 1;
    assert!(!is_kept(&plan, plan.graph.nodes[2].outputs[0], 2, last));
}

#[test]
fn norms_that_differ_or_are_read_elsewhere_stay() {
    let differ = plan(Variant {
        k_eps: 1e-5,
        is_read_twice: false,
    });
    assert_eq!(candidates(&differ), []);
    let shared = plan(Variant {
        k_eps: 1e-6,
        is_read_twice: true,
    });
    assert_eq!(candidates(&shared), []);
}
