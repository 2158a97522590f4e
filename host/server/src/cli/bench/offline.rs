//! Benchmarks on the engine itself: no HTTP, no text.

use super::super::options::ModelOptions;
use super::report::{Timing, latencies, publish, rate};
use crate::serving::ServedModel;
use anyhow::{Result, anyhow, bail};
use clap::Args;
use guesthouse_engine::{
    Disconnected, Event, EventSink, GenerationParams, Priority, Request, SamplingPlan, TokenId,
};
use rand::{Rng, SeedableRng, rngs::StdRng};
use serde_json::{Map, Value, json};
use std::path::PathBuf;
use std::sync::{Arc, mpsc};
use std::time::Instant;

#[derive(Debug, Args)]
pub(in crate::cli) struct Latency {
    #[command(flatten)]
    model: ModelOptions,
    /// Tokens of each prompt.
    #[arg(long, default_value_t = 32)]
    input_len: usize,
    /// Tokens of each answer.
    #[arg(long, default_value_t = 128)]
    output_len: u32,
    /// Sequences at once.
    #[arg(long, default_value_t = 8)]
    batch_size: usize,
    /// Batches that are not counted.
    #[arg(long, default_value_t = 2)]
    num_iters_warmup: usize,
    /// Batches.
    #[arg(long, default_value_t = 5)]
    num_iters: usize,
    /// Write the result here as JSON.
    #[arg(long)]
    output_json: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(in crate::cli) struct Throughput {
    #[command(flatten)]
    model: ModelOptions,
    /// Tokens of each prompt.
    #[arg(long, default_value_t = 128)]
    input_len: usize,
    /// Tokens of each answer.
    #[arg(long, default_value_t = 128)]
    output_len: u32,
    /// Requests, all sent at once.
    #[arg(long, default_value_t = 64)]
    num_prompts: usize,
    /// Write the result here as JSON.
    #[arg(long)]
    output_json: Option<PathBuf>,
}

impl Latency {
    pub(super) fn run(self) -> Result<()> {
        let loaded = self.model.load("bench")?;
        let mut random = StdRng::seed_from_u64(0);
        let mut batches = Vec::new();
        let mut timings = Vec::new();
        for i in 0..self.num_iters_warmup + self.num_iters {
            let prompts = prompts(&loaded.served, &mut random, self.batch_size, self.input_len);
            let started = Instant::now();
            let batch = run(&loaded.served, prompts, self.output_len)?;
            if i >= self.num_iters_warmup {
                batches.push(started.elapsed());
                timings.extend(batch);
            }
        }
        let mut result = Map::new();
        result.insert("batch_size".into(), json!(self.batch_size));
        result.insert("input_len".into(), json!(self.input_len));
        result.insert("output_len".into(), json!(self.output_len));
        let total = batches.iter().sum();
        let tokens: u64 = timings.iter().map(|t| t.output_tokens).sum();
        result.insert("output_tokens_per_second".into(), rate(tokens, total));
        result.extend(latencies(&timings));
        publish(&result, self.output_json.as_deref())
    }
}

impl Throughput {
    pub(super) fn run(self) -> Result<()> {
        let loaded = self.model.load("bench")?;
        let mut random = StdRng::seed_from_u64(0);
        // The first request pays for pages and threads.
        let warm = prompts(&loaded.served, &mut random, 1, self.input_len);
        run(&loaded.served, warm, 4)?;
        let prompts = prompts(
            &loaded.served,
            &mut random,
            self.num_prompts,
            self.input_len,
        );
        let started = Instant::now();
        let timings = run(&loaded.served, prompts, self.output_len)?;
        let elapsed = started.elapsed();
        let output: u64 = timings.iter().map(|t| t.output_tokens).sum();
        let input = (self.num_prompts * self.input_len) as u64;
        let mut result: Map<String, Value> = Map::new();
        result.insert("num_prompts".into(), json!(self.num_prompts));
        result.insert("elapsed_seconds".into(), json!(elapsed.as_secs_f64()));
        result.insert(
            "requests_per_second".into(),
            rate(self.num_prompts as u64, elapsed),
        );
        result.insert(
            "total_tokens_per_second".into(),
            rate(input + output, elapsed),
        );
        result.insert("output_tokens_per_second".into(), rate(output, elapsed));
        result.insert(
            "mean_decode_batch".into(),
            json!(loaded.served.engine.stats().mean_decode_batch()),
        );
        result.extend(latencies(&timings));
        publish(&result, self.output_json.as_deref())
    }
}

/// Random ids: no two prompts share a block, so the prefix cache does not help.
fn prompts(
    model: &ServedModel,
    random: &mut StdRng,
    count: usize,
    len: usize,
) -> Vec<Vec<TokenId>> {
    (0..count)
        .map(|_| {
            (0..len.max(1))
                .map(|_| random.random_range(0..model.vocab))
                .collect()
        })
        .collect()
}

struct Sink {
    place: usize,
    events: mpsc::Sender<(usize, Instant, Event)>,
}

impl EventSink for Sink {
    fn send(&mut self, event: Event) -> Result<(), Disconnected> {
        self.events
            .send((self.place, Instant::now(), event))
            .map_err(|_| Disconnected)
    }
}

/// Runs prompts greedily to exactly `output_len` tokens each.
fn run(model: &ServedModel, prompts: Vec<Vec<TokenId>>, output_len: u32) -> Result<Vec<Timing>> {
    let (sender, events) = mpsc::channel();
    let plan = Arc::new(SamplingPlan::greedy());
    let mut timings = Vec::with_capacity(prompts.len());
    for (place, prompt) in prompts.into_iter().enumerate() {
        let request = Request {
            id: model.engine.next_id(),
            cache_salt: model.cache_salt,
            prompt,
            params: GenerationParams {
                max_tokens: output_len,
                ..GenerationParams::default()
            },
            sampling: Arc::clone(&plan),
            seed: 0,
            priority: Priority::default(),
        };
        timings.push(Timing {
            sent: Instant::now(),
            tokens: Vec::new(),
            output_tokens: 0,
        });
        model.engine.submit(
            request,
            Box::new(Sink {
                place,
                events: sender.clone(),
            }),
        )?;
    }
    drop(sender);
    let mut open = timings.len();
    while open > 0 {
        let (place, at, event) = events
            .recv()
            .map_err(|_| anyhow!("the engine ended before the benchmark did"))?;
        match event {
            Event::Token { .. } => {
                timings[place].tokens.push(at);
                timings[place].output_tokens += 1;
            }
            Event::Finished { .. } => open -= 1,
            Event::Failed { error, .. } => bail!(error),
            Event::Started { .. } | Event::PromptLogprobs(_) => {}
        }
    }
    Ok(timings)
}
