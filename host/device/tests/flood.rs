//! What a tenant feels of another's flood on the CPU, in wall-clock time. Run by hand on a quiet machine:
//! `cargo test --release -p guesthouse-device --test flood -- --ignored --nocapture`

#![allow(clippy::unwrap_used, clippy::panic, unreachable_pub)]

mod support;

use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use guesthouse_device::{CpuDevice, CpuOptions, KvBudget};
use guesthouse_engine::{
    CacheSalt, Drain, Engine, EngineConfig, EngineHandle, EngineThread, Event, GenerationParams,
    Owner, PrefixCaching, Priority, Request, SamplingPlan, TokenId,
};
use guesthouse_graph::PassOptions;
use guesthouse_weights::{BlockType, Scheme};
use support::llama::Llama;

/// Tokens of a bystander's prompt and answer.
const PROMPT: u32 = 128;
const ANSWER: u32 = 32;
const ROUNDS: usize = 8;
const FLOOD: u32 = 200;

/// Random weights in the shape of SmolLM2-135M, Q4_1.
fn engine() -> EngineHandle {
    let model = Llama {
        vocab: 49_152,
        hidden: 576,
        layers: 30,
        heads: 9,
        kv_heads: 3,
        head_dim: 64,
        ffn: 1536,
        tied: true,
        ..Llama::tiny()
    };
    let source = model.weights(Scheme::Block(BlockType::Q4_1), 3);
    let plan = model.plan(Arc::clone(&source) as _, &PassOptions::default());
    let options = CpuOptions {
        threads: 2,
        kv: KvBudget::Blocks(8192),
        block_size: 16,
        max_step_tokens: 512,
        max_slots: 256,
        max_len: 1024,
    };
    let executor = CpuDevice::load(&plan, source.as_ref(), &options, &mut |_| {}).unwrap();
    let config = EngineConfig {
        prefix_cache: PrefixCaching::Off,
        ..EngineConfig::default()
    };
    EngineThread::spawn(Engine::new(executor, config)).unwrap()
}

fn submit(engine: &EngineHandle, tenant: u64, prompt: u32, answer: u32) -> Receiver<Event> {
    let id = engine.next_id();
    let prompt: Vec<TokenId> = (0..prompt)
        .map(|at| (at * 37 + id.0 as u32 * 101) % 49_152)
        .collect();
    let request = Request {
        id,
        cache_salt: CacheSalt::default(),
        prompt,
        params: GenerationParams {
            max_tokens: answer,
            ..GenerationParams::default()
        },
        sampling: Arc::new(SamplingPlan::greedy()),
        seed: id.0,
        priority: Priority::default(),
        owner: Owner {
            tenant,
            ..Owner::default()
        },
    };
    let (sender, events) = channel();
    engine.submit(request, Box::new(sender)).unwrap();
    events
}

#[derive(Debug)]
struct Felt {
    first_token: Duration,
    between_tokens: Duration,
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

/// Medians over a bystander's requests, one after the other.
fn feel(engine: &EngineHandle) -> Felt {
    let (mut first, mut between) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let asked = Instant::now();
        let events = submit(engine, 1, PROMPT, ANSWER);
        let mut told = Vec::new();
        for event in events {
            match event {
                Event::Token { .. } => told.push(Instant::now()),
                Event::Failed { error, .. } => panic!("{error}"),
                _ => {}
            }
        }
        first.push(told[0] - asked);
        between.extend(told.windows(2).map(|pair| pair[1] - pair[0]));
    }
    Felt {
        first_token: median(first),
        between_tokens: median(between),
    }
}

#[test]
#[ignore = "measures; needs a quiet machine"]
fn a_bystander_beside_a_flood() {
    let engine = engine();
    feel(&engine);
    let alone = feel(&engine);
    let _flood: Vec<_> = (0..FLOOD).map(|_| submit(&engine, 2, 200, 600)).collect();
    let beside = feel(&engine);
    println!(
        "alone   {alone:.1?}\nbeside  {beside:.1?}\n{:?}",
        engine.shares()
    );
    println!(
        "first token {:.2} times, between tokens {:.2} times",
        beside.first_token.as_secs_f64() / alone.first_token.as_secs_f64(),
        beside.between_tokens.as_secs_f64() / alone.between_tokens.as_secs_f64(),
    );
    engine.shutdown(Drain::No);
    engine.join();
}
