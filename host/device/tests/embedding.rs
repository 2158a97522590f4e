//! Models whose output is a vector: whole prompts of unequal lengths in one batch, and in chunks.

#![allow(clippy::unwrap_used, clippy::panic, unreachable_pub)]

use std::sync::Arc;
use std::sync::mpsc::channel;

use guesthouse_device::{CpuDevice, CpuOptions, KvBudget};
use guesthouse_engine::{
    CacheSalt, Engine, EngineConfig, Event, Executor, GenerationParams, Owner, Priority, Progress,
    Request, RequestId, SamplingPlan, Task, TokenId,
};
use guesthouse_graph::{
    BuilderLimits, GraphBuilder, ModelInfo, Normalize, PassOptions, Plan, PlanOptions, Pooling,
    SourceCatalog, optimize,
};
use guesthouse_weights::MemorySource;

const VOCAB: u32 = 11;
const WIDTH: usize = 3;

/// Element `i` of token `t`'s row.
fn element(t: u32, i: usize) -> f32 {
    (t * 7 % 11) as f32 - 4.0 + i as f32 * 0.25 * t as f32
}

/// The vectors of a model that pools the embedding table's rows.
fn embed(
    (pooling, normalize): (Pooling, Normalize),
    chunk: u32,
    prompts: &[Vec<TokenId>],
) -> Vec<Vec<f32>> {
    let source = Arc::new(MemorySource::new());
    let catalog = Arc::new(SourceCatalog::new(Arc::clone(&source) as _));
    let mut b = GraphBuilder::new(catalog, BuilderLimits::default());
    let data = (0..VOCAB).flat_map(|t| (0..WIDTH).map(move |i| element(t, i)));
    let table = b.constant(&[VOCAB, WIDTH as u32], data.collect()).unwrap();
    let ids = b.token_ids().unwrap();
    let x = b.embedding(table, ids).unwrap();
    b.output_embedding(x, pooling, normalize).unwrap();
    let info = ModelInfo {
        architecture: "Test".to_owned(),
        vocab_size: VOCAB,
        max_position: 64,
    };
    let graph = optimize(b.finish(info).unwrap(), &PassOptions::default()).unwrap();
    let plan = Arc::new(Plan::compile(graph, &PlanOptions::new(4)).unwrap());
    let options = CpuOptions {
        threads: 2,
        kv: KvBudget::Blocks(8),
        max_step_tokens: 64,
        max_slots: 8,
        max_len: 64,
        ..CpuOptions::default()
    };
    let executor = CpuDevice::load(&plan, source.as_ref(), &options, &mut |_| {}).unwrap();
    assert_eq!(executor.info().task, Task::Embed);
    assert_eq!(executor.info().vocab, VOCAB);
    assert_eq!(executor.info().whole_prompt, pooling == Pooling::Mean);
    let config = EngineConfig {
        max_step_tokens: chunk,
        ..EngineConfig::default()
    };
    let mut engine = Engine::new(executor, config);
    let receivers: Vec<_> = prompts
        .iter()
        .enumerate()
        .map(|(id, prompt)| {
            let (sender, receiver) = channel();
            let request = Request {
                id: RequestId(id as u64),
                cache_salt: CacheSalt::default(),
                prompt: prompt.clone(),
                params: GenerationParams {
                    task: Task::Embed,
                    max_tokens: 0,
                    ..GenerationParams::default()
                },
                sampling: Arc::new(SamplingPlan::greedy()),
                seed: 0,
                priority: Priority::default(),
                owner: Owner::default(),
            };
            engine.submit(request, Box::new(sender)).unwrap();
            receiver
        })
        .collect();
    while engine.step().unwrap() == Progress::Worked {
        engine.check_integrity().unwrap();
    }
    let vector = |events: &std::sync::mpsc::Receiver<Event>| {
        let mut vectors = events.try_iter().filter_map(|event| match event {
            Event::Embedding(vector) => Some(vector),
            Event::Failed { error, .. } => panic!("{error}"),
            _ => None,
        });
        vectors.next().unwrap()
    };
    receivers.iter().map(vector).collect()
}

fn prompts() -> Vec<Vec<TokenId>> {
    [5, 1, 17, 30]
        .into_iter()
        .map(|n| (0..n).map(|i| (i * i + n) % VOCAB).collect())
        .collect()
}

fn close(found: &[f32], expected: &[f32]) {
    assert_eq!(found.len(), expected.len());
    for (f, e) in found.iter().zip(expected) {
        assert!((f - e).abs() < 1e-5, "{found:?} instead of {expected:?}");
    }
}

#[test]
fn the_last_row_is_taken_whatever_the_chunk() {
    for chunk in [64, 4] {
        let found = embed((Pooling::Last, Normalize::No), chunk, &prompts());
        for (found, prompt) in found.iter().zip(prompts()) {
            let last = *prompt.last().unwrap();
            let expected: Vec<f32> = (0..WIDTH).map(|i| element(last, i)).collect();
            close(found, &expected);
        }
    }
}

#[test]
fn means_are_over_the_whole_prompt() {
    let found = embed((Pooling::Mean, Normalize::No), 64, &prompts());
    for (found, prompt) in found.iter().zip(prompts()) {
        let sum = |i| prompt.iter().map(|&t| element(t, i)).sum::<f32>();
        let expected: Vec<f32> = (0..WIDTH).map(|i| sum(i) / prompt.len() as f32).collect();
        close(found, &expected);
    }
}

#[test]
fn normalised_vectors_have_length_one() {
    let plain = embed((Pooling::Last, Normalize::No), 64, &prompts());
    let unit = embed((Pooling::Last, Normalize::L2), 64, &prompts());
    for (unit, plain) in unit.iter().zip(plain) {
        let length = plain.iter().map(|x| x * x).sum::<f32>().sqrt();
        close(unit, &plain.iter().map(|x| x / length).collect::<Vec<_>>());
    }
}
