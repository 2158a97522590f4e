//! A model with recurrent layers beside attention, through the engine: what else runs, how prompts are cut, whose state a
//! block held before and whether a sequence was preempted change no bit.

#![allow(clippy::unwrap_used, clippy::panic, unreachable_pub)]

use std::sync::Arc;
use std::sync::mpsc::channel;

use guesthouse_device::{CpuDevice, CpuOptions, DeviceExecutor, KvBudget};
use guesthouse_engine::{
    CacheSalt, Engine, EngineConfig, Event, Executor, GenerationParams, GroupKind, Owner,
    PrefixCaching, Priority, Progress, Request, RequestId, SamplingPlan, Stats, TokenId,
};
use guesthouse_graph::{
    Activation, Attention, BuilderLimits, CacheId, CacheKind, CacheSharding, CacheSpec, CausalConv,
    DeltaInputs, GraphBuilder, Mask, ModelInfo, PassOptions, Plan, PlanOptions, Sharding,
    SourceCatalog, ValueId, ValueLayout, ValueType, WeightId, optimize,
};
use guesthouse_weights::MemorySource;

const VOCAB: u32 = 64;
const HIDDEN: u32 = 32;
const HEADS: u32 = 4;
const DIM: u32 = 8;

struct Model(GraphBuilder);

impl Model {
    fn weight(&mut self, shape: &[u32], seed: u32) -> WeightId {
        let n: u32 = shape.iter().product();
        let number = |i: u32| {
            let x = (i + 1)
                .wrapping_mul(2_654_435_761)
                .wrapping_add(seed.wrapping_mul(97_531));
            ((x ^ x >> 15).wrapping_mul(2_246_822_519) >> 8) as f32 / (1 << 23) as f32 - 1.0
        };
        let data = (0..n).map(|i| 0.6 * number(i)).collect();
        self.0.constant(shape, data).unwrap()
    }

    fn linear(&mut self, x: ValueId, out: u32, seed: u32) -> ValueId {
        let w = self.weight(&[out, HIDDEN], seed);
        self.0.linear(x, w, None, Sharding::Replicated).unwrap()
    }

    fn heads(&mut self, x: ValueId, seed: u32) -> ValueId {
        let y = self.linear(x, HIDDEN, seed);
        self.0.reshape(y, &[HEADS, DIM]).unwrap()
    }

    fn cache(&mut self, kind: CacheKind) -> CacheId {
        let recurrent = matches!(kind, CacheKind::Recurrent { .. });
        let dim = |d| if recurrent { 0 } else { d };
        let spec = CacheSpec {
            kind,
            kv_heads: dim(HEADS),
            k_dim: dim(DIM),
            v_dim: dim(DIM),
            values: ValueLayout::Separate,
            sharding: CacheSharding::Heads,
        };
        self.0.declare_cache(spec).unwrap()
    }

    fn state(&mut self, floats: u32) -> CacheId {
        self.cache(CacheKind::Recurrent { bytes: 4 * floats })
    }

    fn convolve(&mut self, x: ValueId, seed: u32) -> ValueId {
        let conv = CausalConv {
            weight: self.weight(&[HIDDEN, 4], seed),
            bias: None,
            cache: self.state(3 * HIDDEN),
            activation: Some(Activation::Silu),
        };
        let y = self.0.causal_conv(x, conv).unwrap();
        self.0.add(x, y).unwrap()
    }

    fn delta(&mut self, x: ValueId, seed: u32) -> ValueId {
        let (q, k, v) = (
            self.heads(x, seed),
            self.heads(x, seed + 1),
            self.heads(x, seed + 2),
        );
        let k = self.0.l2_norm(k, 1e-6).unwrap();
        let gate = |m: &mut Self, seed, kind, by| {
            let g = m.linear(x, HEADS, seed);
            let g = m.0.activate(g, kind).unwrap();
            let g = m.0.scale(g, by).unwrap();
            m.0.cast(g, ValueType::F32).unwrap()
        };
        let g = gate(self, seed + 3, Activation::Softplus, -0.2);
        let beta = gate(self, seed + 4, Activation::Sigmoid, 1.0);
        let cache = self.state(HEADS * DIM * DIM);
        let y = self
            .0
            .delta_rule(DeltaInputs { q, k, v, g, beta }, cache, 0.5);
        let y = self.0.reshape(y.unwrap(), &[HIDDEN]).unwrap();
        self.0.add(x, y).unwrap()
    }

    fn attend(&mut self, x: ValueId, seed: u32) -> ValueId {
        let (q, k, v) = (
            self.heads(x, seed),
            self.heads(x, seed + 1),
            self.heads(x, seed + 2),
        );
        let attention = Attention {
            cache: self.cache(CacheKind::Full),
            scale: 0.4,
            mask: Mask::Causal,
            window: None,
            softcap: None,
            alibi: None,
            sinks: None,
        };
        let y = self.0.attention(q, k, v, attention).unwrap();
        let y = self.0.reshape(y, &[HIDDEN]).unwrap();
        self.0.add(x, y).unwrap()
    }
}

fn executor(blocks: u32) -> DeviceExecutor {
    let source = Arc::new(MemorySource::new());
    let catalog = Arc::new(SourceCatalog::new(Arc::clone(&source) as _));
    let mut m = Model(GraphBuilder::new(catalog, BuilderLimits::default()));
    let ids = m.0.token_ids().unwrap();
    let table = m.weight(&[VOCAB, HIDDEN], 1);
    let x = m.0.embedding(table, ids).unwrap();
    let x = m.convolve(x, 10);
    let x = m.delta(x, 20);
    let x = m.attend(x, 30);
    let x = m.convolve(x, 40);
    let x = m.delta(x, 50);
    let logits = m.linear(x, VOCAB, 60);
    m.0.output_logits(logits).unwrap();
    let info = ModelInfo {
        architecture: "Test".to_owned(),
        vocab_size: VOCAB,
        max_position: 512,
    };
    let graph = optimize(m.0.finish(info).unwrap(), &PassOptions::default()).unwrap();
    let plan = Arc::new(Plan::compile(graph, &PlanOptions::new(4)).unwrap());
    let options = CpuOptions {
        threads: 2,
        kv: KvBudget::Blocks(blocks),
        max_step_tokens: 256,
        max_slots: 16,
        max_len: 512,
        ..CpuOptions::default()
    };
    CpuDevice::load(&plan, source.as_ref(), &options, &mut |_| {}).unwrap()
}

/// Token and bits of its log-probability.
type Output = Vec<(TokenId, u32)>;

/// Runs requests of these prompts and lengths at once; each one's choices, and what the engine counted.
fn run(
    (blocks, chunk): (u32, u32),
    prompts: &[Vec<TokenId>],
    tokens: u32,
    n: u32,
) -> (Vec<Vec<Output>>, Stats) {
    let config = EngineConfig {
        max_step_tokens: chunk,
        prefix_cache: PrefixCaching::On,
        ..EngineConfig::default()
    };
    let mut engine = Engine::new(executor(blocks), config);
    let mut receivers = Vec::new();
    for (id, prompt) in prompts.iter().enumerate() {
        let (sender, receiver) = channel();
        let request = Request {
            id: RequestId(id as u64),
            cache_salt: CacheSalt::default(),
            prompt: prompt.clone(),
            params: GenerationParams {
                max_tokens: tokens,
                n,
                ..GenerationParams::default()
            },
            sampling: Arc::new(SamplingPlan::greedy()),
            seed: 7,
            priority: Priority::default(),
            owner: Owner::default(),
        };
        engine.submit(request, Box::new(sender)).unwrap();
        receivers.push(receiver);
    }
    while engine.step().unwrap() == Progress::Worked {
        engine.check_integrity().unwrap();
    }
    let stats = engine.stats();
    assert_eq!(stats.blocks_used, 0);
    let outputs = receivers.iter().map(|events| {
        let mut choices = vec![Vec::new(); n as usize];
        for event in events.try_iter() {
            match event {
                Event::Token { choice, sampled } => {
                    choices[choice as usize].push((sampled.token, sampled.logprob.to_bits()));
                }
                Event::Failed { error, .. } => panic!("{error}"),
                Event::Started { cached_tokens, .. } => assert_eq!(cached_tokens, 0),
                _ => {}
            }
        }
        assert!(choices.iter().all(|c| c.len() == tokens as usize));
        choices
    });
    (outputs.collect(), stats)
}

fn prompts() -> Vec<Vec<TokenId>> {
    // All begin alike, and would hit each other's blocks if a state had any.
    (0..7u32)
        .map(|p| {
            (0..40 + 3 * p)
                .map(|i| if i < 33 { i } else { i * 7 + p } % VOCAB)
                .collect()
        })
        .collect()
}

const TOKENS: u32 = 24;

/// Each prompt by itself, in one chunk, on a fresh device.
fn alone() -> Vec<Vec<Output>> {
    let one = |prompt: &Vec<TokenId>| {
        let (mut outputs, _) = run((64, 256), std::slice::from_ref(prompt), TOKENS, 1);
        outputs.remove(0)
    };
    prompts().iter().map(one).collect()
}

#[test]
fn a_state_takes_one_block() {
    let info = executor(64);
    let kinds: Vec<GroupKind> = info.info().groups.iter().map(|g| g.kind).collect();
    assert_eq!(
        kinds,
        [GroupKind::Recurrent, GroupKind::Recurrent, GroupKind::Full]
    );
}

#[test]
fn batches_and_chunks_change_no_bit() {
    let alone = alone();
    assert_ne!(alone[0], alone[1]);
    for chunk in [256, 64, 7] {
        let (outputs, stats) = run((64, chunk), &prompts(), TOKENS, 1);
        assert_eq!(stats.preemptions, 0);
        assert_eq!(outputs, alone, "chunks of {chunk}");
    }
}

#[test]
fn preempted_sequences_begin_again_with_an_empty_state() {
    // 8 blocks are 128 positions, and states of 8 sequences: two or three run at once and push each other out.
    let (outputs, stats) = run((8, 32), &prompts(), TOKENS, 1);
    assert!(stats.preemptions > 0);
    assert_eq!(outputs, alone());
}

#[test]
fn choices_have_states_of_their_own() {
    let prompt = &prompts()[..1];
    let (outputs, _) = run((64, 256), prompt, TOKENS, 3);
    assert_eq!(outputs[0], vec![alone()[0][0].clone(); 3]);
}
