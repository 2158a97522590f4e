//! Prompts that see themselves whole and GLM's two-dimensional positions, against the f64 reference.

#![allow(clippy::unwrap_used, clippy::panic, unreachable_pub)]

mod oracle;
mod support;

use std::sync::Arc;

use guesthouse_device::{CpuDevice, CpuOptions, DeviceError, DeviceExecutor, KvBudget};
use guesthouse_engine::{Executor, Input, LengthRules, Sampled, SamplingPlan, TokenId};
use guesthouse_graph::{
    Attention, BuilderLimits, CacheKind, CacheSharding, CacheSpec, Graph, GraphBuilder, Mask,
    ModelInfo, PassOptions, Plan, PlanOptions, PositionScheme, Rope, RopeScaling, RopeStyle,
    Sharding, SourceCatalog, ValueId, ValueLayout, WeightId, optimize,
};
use guesthouse_weights::{MemorySource, WeightSource};
use support::drive::{Driver, task, token};

const VOCAB: u32 = 64;
const MASK: TokenId = 60;
const GMASK: TokenId = 61;
const BOS: TokenId = 62;

fn weight(b: &mut GraphBuilder, shape: &[u32], seed: u64, size: f32) -> WeightId {
    let mut state = seed;
    let n = shape.iter().product::<u32>();
    let data = (0..n).map(|_| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        ((state >> 40) as f32 / (1 << 23) as f32 - 1.0) * size
    });
    b.constant(shape, data.collect()).unwrap()
}

fn linear(b: &mut GraphBuilder, x: ValueId, out: u32, input: u32, seed: u64) -> ValueId {
    let w = weight(b, &[out, input], seed, 0.4);
    b.linear(x, w, None, Sharding::Replicated).unwrap()
}

/// Two layers, 4 query heads on 2 key heads of 16 elements, whose halves turn by the two positions.
fn model(masks: [Mask; 2], scaling: &RopeScaling, window: Option<u32>) -> Graph {
    let source: Arc<dyn WeightSource> = Arc::new(MemorySource::new());
    let mut b = GraphBuilder::new(
        Arc::new(SourceCatalog::new(source)),
        BuilderLimits::default(),
    );
    let ids = b.token_ids().unwrap();
    let table = weight(&mut b, &[VOCAB, 64], 1, 1.5);
    let mut x = b.embedding(table, ids).unwrap();
    let scheme = PositionScheme::Glm2d {
        mask: MASK,
        gmask: GMASK,
        bos: BOS,
    };
    let positions = b.positions(scheme).unwrap();
    for (layer, mask) in masks.into_iter().enumerate() {
        let seed = 10 * layer as u64;
        let part = |b: &mut GraphBuilder, heads: u32, seed: u64| {
            let y = linear(b, x, heads * 16, 64, seed);
            b.reshape(y, &[heads, 16]).unwrap()
        };
        let (mut q, mut k) = (part(&mut b, 4, seed + 3), part(&mut b, 2, seed + 4));
        let v = part(&mut b, 2, seed + 5);
        for axis in 0..2 {
            let rope = Rope {
                rotary: 8,
                theta: 100.0,
                style: RopeStyle::Neox,
                scaling: scaling.clone(),
                axis,
                start: 8 * axis,
            };
            q = b.rope(q, positions, rope.clone()).unwrap();
            k = b.rope(k, positions, rope).unwrap();
        }
        let cache = b
            .declare_cache(CacheSpec {
                kind: window.map_or(CacheKind::Full, |window| CacheKind::Window { window }),
                kv_heads: 2,
                k_dim: 16,
                v_dim: 16,
                values: ValueLayout::Separate,
                sharding: CacheSharding::Heads,
            })
            .unwrap();
        let attention = Attention {
            cache,
            scale: 0.3,
            mask,
            window,
            softcap: None,
            alibi: None,
            sinks: None,
        };
        let y = b.attention(q, k, v, attention).unwrap();
        let y = b.reshape(y, &[64]).unwrap();
        let y = linear(&mut b, y, 64, 64, seed + 6);
        x = b.add(x, y).unwrap();
    }
    let logits = linear(&mut b, x, VOCAB, 64, 99);
    b.output_logits(logits).unwrap();
    let info = ModelInfo {
        architecture: "Test".to_owned(),
        vocab_size: VOCAB,
        max_position: 512,
    };
    b.finish(info).unwrap()
}

fn load(graph: Graph) -> Result<DeviceExecutor, DeviceError> {
    let passes = PassOptions::default();
    let plan = Plan::compile(optimize(graph, &passes).unwrap(), &PlanOptions::new(4)).unwrap();
    let options = CpuOptions {
        threads: 2,
        kv: KvBudget::Blocks(64),
        max_step_tokens: 256,
        max_slots: 4,
        max_len: 512,
        ..CpuOptions::default()
    };
    CpuDevice::load(&Arc::new(plan), &MemorySource::new(), &options, &mut |_| {})
}

/// `n` tokens with gmask and bos at these places.
fn text(n: usize, marks: &[(usize, TokenId)]) -> Vec<TokenId> {
    let mut out: Vec<TokenId> = (0..n as u32)
        .map(|i| (i * i * 7 + i * 3 + 11) % 60)
        .collect();
    for &(at, token) in marks {
        out[at] = token;
    }
    out
}

fn close(logits: &[f64], got: &Sampled) {
    let max = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let norm = max + logits.iter().map(|x| (x - max).exp()).sum::<f64>().ln();
    let size = logits.iter().fold(1f64, |m, x| m.max(x.abs()));
    assert!(!got.top.is_empty());
    for &(t, l) in &got.top {
        let error = (f64::from(l) - (logits[t as usize] - norm)).abs();
        assert!(error <= 1e-4 * size, "token {t}: {error} with {size}");
    }
}

/// Runs a prompt and what follows it in chunks that end at these places; each chunk's last position is compared, and of the
/// prompt all are.
fn check(graph: &Graph, tokens: &[TokenId], prompt_len: usize, ends: &[usize]) {
    let source: Arc<dyn WeightSource> = Arc::new(MemorySource::new());
    let want = oracle::run(graph, &source, tokens, prompt_len);
    let executor = load(graph.clone()).unwrap();
    assert!(executor.info().whole_prompt);
    let mut driver = Driver::new(executor);
    driver.admit_generated(0, tokens, prompt_len as u32);
    let mut start = 0;
    for &end in ends {
        let mut row = driver.row(0, start as u32, (end - start) as u32, Input::History);
        row.prompt_logprobs = (start + 1 < prompt_len).then_some(VOCAB);
        let output = driver.step(vec![row], vec![task(0, 0)]);
        if let Some(scores) = output.prompt_logprobs.first() {
            assert_eq!(scores.entries.len(), prompt_len - 1);
            for (want, got) in want.iter().zip(&scores.entries) {
                close(want, got);
            }
        }
        close(&want[end - 1], &token(&output, 0));
        start = end;
    }
}

#[test]
fn a_prompt_sees_itself_and_what_follows_is_causal() {
    let marker = BOS;
    for mask in [Mask::PrefixLm, Mask::PrefixBefore { marker }] {
        let graph = model([mask; 2], &RopeScaling::None, None);
        // Prefixes that end within a tile of keys, at its end and beyond it.
        for (prompt, bos) in [(5, 4), (40, 39), (64, 63), (70, 64), (150, 140)] {
            let tokens = text(prompt + 6, &[(bos - 1, GMASK), (bos, BOS)]);
            let ends: Vec<usize> = (prompt..=tokens.len()).collect();
            check(&graph, &tokens, prompt, &ends);
            // After a preemption: the prompt and some of the output at once, then the rest.
            check(&graph, &tokens, prompt, &[prompt + 3, prompt + 6]);
        }
    }
}

#[test]
fn a_window_bounds_what_lies_before() {
    let graph = model([Mask::PrefixLm; 2], &RopeScaling::None, Some(9));
    let tokens = text(100, &[(38, GMASK), (39, BOS)]);
    check(&graph, &tokens, 80, &[80, 81, 90, 100]);
}

#[test]
fn sequences_of_one_step_have_their_own_prefixes() {
    let graph = model(
        [Mask::PrefixBefore { marker: BOS }; 2],
        &RopeScaling::None,
        None,
    );
    let source: Arc<dyn WeightSource> = Arc::new(MemorySource::new());
    let texts = [
        text(30, &[(20, GMASK), (21, BOS)]),
        text(9, &[(2, MASK), (8, BOS)]),
        text(77, &[(75, GMASK), (76, BOS)]),
    ];
    let mut driver = Driver::new(load(graph.clone()).unwrap());
    let mut rows = Vec::new();
    for (slot, text) in (0..).zip(&texts) {
        driver.admit(slot, text, &SamplingPlan::greedy(), 0);
        rows.push(driver.row(slot, 0, text.len() as u32, Input::History));
    }
    let output = driver.step(rows, (0..3).map(|slot| task(slot, slot)).collect());
    for (i, text) in texts.iter().enumerate() {
        let want = oracle::run(&graph, &source, text, text.len());
        close(&want[text.len() - 1], &token(&output, i));
    }
}

#[test]
fn layers_with_different_prefixes_are_refused() {
    let masks = [Mask::PrefixLm, Mask::PrefixBefore { marker: BOS }];
    let graph = model(masks, &RopeScaling::None, None);
    let error = load(graph).err().unwrap();
    assert!(error.to_string().contains("different prefixes"), "{error}");
    // A causal layer among them is no contradiction.
    let graph = model([Mask::Causal, Mask::PrefixLm], &RopeScaling::None, None);
    assert!(load(graph).unwrap().info().whole_prompt);
}

#[test]
fn the_engine_is_told_of_ropes_that_depend_on_lengths() {
    let info = |scaling| {
        let graph = model([Mask::Causal; 2], &scaling, None);
        load(graph).unwrap().info().clone()
    };
    let plain = info(RopeScaling::None);
    assert!(!plain.whole_prompt);
    assert_eq!(plain.lengths, LengthRules::default());
    let dynamic = info(RopeScaling::Dynamic {
        factor: 2.0,
        original: 20,
    });
    assert_eq!(dynamic.lengths.by_prompt_above, Some(20));
    assert!(dynamic.lengths.anew_above.is_empty());
    let qwen = info(RopeScaling::DynamicQwen { original: 30 });
    assert_eq!(qwen.lengths.by_prompt_above, Some(30));
    let long = info(RopeScaling::LongRope {
        short: vec![1.0; 4],
        long: vec![2.0; 4],
        original: 40,
        attention_factor: 1.0,
    });
    assert_eq!(long.lengths.by_prompt_above, None);
    assert_eq!(long.lengths.anew_above, [40]);
}
