//! The golden embedding model: prompts of unequal lengths in one batch, whole and in chunks, against transformers
//! (`tests/golden/embedding.py`).

use crate::common::{Setup, Where, assert_idle, engine, golden};
use guesthouse_device::{CudaDtype, Numerics};
use guesthouse_engine::{
    CacheSalt, Event, GenerationParams, Owner, PrefixCaching, Priority, Progress, Request,
    RequestId, SamplingPlan, Task,
};
use serde_json::Value;
use std::sync::{Arc, mpsc};

fn numbers(value: &Value) -> impl Iterator<Item = f64> + '_ {
    value
        .as_array()
        .unwrap()
        .iter()
        .map(|x| x.as_f64().unwrap())
}

/// Largest difference of any number of any vector.
fn worst(device: Where, step_tokens: u32) -> f64 {
    let folder = golden("").join("../embeddings/qwen3-embedding");
    let text = std::fs::read_to_string(folder.join("golden.json")).unwrap();
    let reference: Value = serde_json::from_str(&text).unwrap();
    let prompts = reference["prompts"].as_array().unwrap();
    let setup = Setup {
        step_tokens,
        prefix_cache: PrefixCaching::On,
        device,
        ..Setup::default()
    };
    let mut engine = engine(&folder, setup);
    let mut worst = 0f64;
    // The second round finds its prompts in the prefix cache.
    for round in 0..2 {
        let sent: Vec<_> = prompts
            .iter()
            .enumerate()
            .map(|(i, prompt)| {
                let (sender, events) = mpsc::channel();
                let request = Request {
                    id: RequestId((round * prompts.len() + i) as u64 + 1),
                    cache_salt: CacheSalt::default(),
                    prompt: numbers(&prompt["ids"]).map(|id| id as u32).collect(),
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
                events
            })
            .collect();
        while engine.step().unwrap() == Progress::Worked {
            engine.check_integrity().unwrap();
        }
        for (events, prompt) in sent.iter().zip(prompts) {
            let vector = events.try_iter().find_map(|event| match event {
                Event::Embedding(vector) => Some(vector),
                Event::Failed { error, .. } => panic!("{error}"),
                _ => None,
            });
            let vector = vector.unwrap();
            let expected: Vec<f64> = numbers(&prompt["vector"]).collect();
            assert_eq!(vector.len(), expected.len());
            for (found, expected) in vector.iter().zip(expected) {
                worst = worst.max((f64::from(*found) - expected).abs());
            }
        }
    }
    let stats = engine.stats();
    assert!(stats.prefix_cache_hits > 0);
    assert_idle(&stats);
    println!("{device:?}, steps of {step_tokens}: {worst:.2e}");
    worst
}

#[test]
fn vectors_are_those_of_transformers() {
    for step_tokens in [512, 16] {
        assert!(worst(Where::Cpu, step_tokens) <= 1e-4);
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn cuda_vectors_are_those_of_transformers() {
    for (dtype, tolerance) in [(CudaDtype::F32, 1e-3), (CudaDtype::Bf16, 0.05)] {
        for step_tokens in [512, 16] {
            let found = worst(Where::cuda(dtype, Numerics::Fast), step_tokens);
            assert!(found <= tolerance, "{dtype:?}: {found}");
        }
    }
}
