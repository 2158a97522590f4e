//! Searches of sampler guests through every layer: guest in its sandbox, its thread, engine, device. References are
//! transformers' beam search (`tests/golden/beam.py`) and a contrastive search in PyTorch (`tests/golden/contrastive.py`).

use crate::common::{
    Ask, Got, Setup, Where, assert_idle, cases, engine, golden, modules, run_with,
};
use guesthouse_component::{
    CallContext, ModelFacts, Role, SamplerModule, SamplerThreads, ThreadsConfig,
};
use guesthouse_device::{CudaDtype, CudaGraphs, Numerics};
use guesthouse_engine::{Chooser, GenerationParams};
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A search that was recorded, and its result.
trait Recorded {
    fn model(&self) -> &str;
    fn prompt(&self) -> &[u32];
    fn end_tokens(&self) -> &[u32];
    fn max_new_tokens(&self) -> u32;
    fn wanted(&self) -> u32;
    /// The request's fields.
    fn request(&self) -> Value;
    /// What is wrong with an answer, if anything.
    fn differs(&self, got: &Got) -> Option<String>;
}

#[derive(Deserialize)]
struct Cases<T> {
    cases: Vec<T>,
}

#[derive(Deserialize)]
struct Beam {
    model: String,
    prompt: Vec<u32>,
    end_tokens: Vec<u32>,
    num_beams: u32,
    num_return_sequences: u32,
    length_penalty: f64,
    early_stopping: Value,
    max_new_tokens: u32,
    sequences: Vec<Sequence>,
}

#[derive(Deserialize)]
struct Sequence {
    tokens: Vec<u32>,
    score: f64,
}

impl Recorded for Beam {
    fn model(&self) -> &str {
        &self.model
    }

    fn prompt(&self) -> &[u32] {
        &self.prompt
    }

    fn end_tokens(&self) -> &[u32] {
        &self.end_tokens
    }

    fn max_new_tokens(&self) -> u32 {
        self.max_new_tokens
    }

    fn wanted(&self) -> u32 {
        self.num_return_sequences
    }

    fn request(&self) -> Value {
        json!({
            "beam_width": self.num_beams,
            "length_penalty": self.length_penalty,
            "early_stopping": self.early_stopping,
        })
    }

    fn differs(&self, got: &Got) -> Option<String> {
        self.sequences.iter().enumerate().find_map(|(i, wanted)| {
            let found = got.ids(i);
            if found != wanted.tokens {
                return Some(format!("{i}: {found:?} instead of {:?}", wanted.tokens));
            }
            let sum: f64 = got.tokens[i].iter().map(|s| f64::from(s.logprob)).sum();
            let score = sum / (found.len() as f64).powf(self.length_penalty);
            let off = (score - wanted.score).abs();
            // Twelve log-probabilities, each 1e-3 off at most.
            (off > 1e-3 * wanted.score.abs().max(1.0))
                .then(|| format!("{i}: counts {score} instead of {}", wanted.score))
        })
    }
}

#[derive(Deserialize)]
struct Contrastive {
    model: String,
    prompt: Vec<u32>,
    end_tokens: Vec<u32>,
    penalty_alpha: f64,
    top_k: u32,
    max_new_tokens: u32,
    tokens: Vec<u32>,
}

impl Recorded for Contrastive {
    fn model(&self) -> &str {
        &self.model
    }

    fn prompt(&self) -> &[u32] {
        &self.prompt
    }

    fn end_tokens(&self) -> &[u32] {
        &self.end_tokens
    }

    fn max_new_tokens(&self) -> u32 {
        self.max_new_tokens
    }

    fn wanted(&self) -> u32 {
        1
    }

    fn request(&self) -> Value {
        json!({"penalty_alpha": self.penalty_alpha, "candidates": self.top_k})
    }

    fn differs(&self, got: &Got) -> Option<String> {
        let found = got.ids(0);
        (found != self.tokens).then(|| format!("{found:?} instead of {:?}", self.tokens))
    }
}

/// The request with its guest, which waits for the engine's rows.
fn begin(
    module: &SamplerModule,
    threads: &SamplerThreads,
    recorded: &dyn Recorded,
    vocab: u32,
) -> (Ask, Option<Box<dyn Chooser>>) {
    let facts = ModelFacts {
        vocab_size: vocab,
        stop_tokens: recorded.end_tokens().to_vec(),
        max_len: 512,
        prompt_len: recorded.prompt().len() as u32,
        max_tokens: recorded.max_new_tokens(),
        choices: recorded.wanted(),
    };
    let context = CallContext::new("search", 0);
    let (planned, stepping) = module
        .begin(&recorded.request().to_string(), &facts, context)
        .unwrap();
    let ask = Ask {
        prompt: recorded.prompt().to_vec(),
        params: GenerationParams {
            max_tokens: recorded.max_new_tokens(),
            n: recorded.wanted(),
            stop_tokens: recorded.end_tokens().to_vec(),
            ..GenerationParams::default()
        },
        sampling: Arc::new(planned.plan),
        seed: 0,
    };
    (ask, stepping.map(|stepping| threads.chooser(stepping)))
}

/// All searches of each model at once, on one engine.
fn compare<T: Recorded>(guest: &str, recorded: &[T], device: Where) -> Vec<String> {
    let module = modules().named(Role::Sampler, guest).unwrap().unwrap();
    let module = module.sampler().unwrap();
    let threads = SamplerThreads::new(ThreadsConfig::new(|_, _, _| Err("no rows".to_owned())));
    let mut models: BTreeMap<&str, Vec<&T>> = BTreeMap::new();
    for search in recorded {
        if cases().iter().any(|name| name == search.model()) {
            models.entry(search.model()).or_default().push(search);
        }
    }
    let mut wrong = Vec::new();
    for (model, searches) in models {
        let config = std::fs::read_to_string(golden(model).join("config.json")).unwrap();
        let config: Value = serde_json::from_str(&config).unwrap();
        let vocab = config["vocab_size"].as_u64().unwrap() as u32;
        let asks = searches
            .iter()
            .map(|search| begin(&module, &threads, *search, vocab))
            .collect();
        let setup = Setup {
            device,
            ..Setup::default()
        };
        let mut engine = engine(&golden(model), setup);
        let got = run_with(&mut engine, asks);
        assert_idle(&engine.stats());
        for (search, got) in searches.iter().zip(&got) {
            if let Some(what) = search.differs(got) {
                let (request, ends) = (search.request(), search.end_tokens());
                wrong.push(format!("{model} on {device:?}: {request} {ends:?}: {what}"));
            }
        }
        println!("{guest}: {} searches of {model} on {device:?}", got.len());
    }
    wrong
}

fn compare_all(devices: &[Where]) {
    let beams: Cases<Beam> =
        serde_json::from_str(include_str!("../../../../tests/golden/beam.json")).unwrap();
    let contrastive: Cases<Contrastive> =
        serde_json::from_str(include_str!("../../../../tests/golden/contrastive.json")).unwrap();
    let mut wrong = Vec::new();
    for device in devices {
        wrong.extend(compare("beam", &beams.cases, *device));
        wrong.extend(compare("contrastive", &contrastive.cases, *device));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn searches_find_what_the_references_find() {
    compare_all(&[Where::Cpu]);
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn cuda_searches() {
    compare_all(&[
        Where::cuda(CudaDtype::F32, Numerics::Fast),
        Where::Cuda {
            dtype: CudaDtype::F32,
            numerics: Numerics::Fast,
            graphs: CudaGraphs::Eager,
        },
        Where::cuda(CudaDtype::F32, Numerics::BatchInvariant),
    ]);
}
