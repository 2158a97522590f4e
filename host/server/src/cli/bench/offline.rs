//! Benchmarks on the engine itself: no HTTP, no text.

use super::super::options::ModelOptions;
use super::report::{Output, Timing, distribution, latencies, rate};
use super::roofline::Roofline;
use crate::model::LoadedModel;
use crate::serving::{RequestScope, SamplerRequest};
use anyhow::{Result, anyhow, bail};
use clap::Args;
use guesthouse_engine::{
    Attachments, Chooser, Disconnected, Draw, Event, EventSink, GenerationParams, Owner, Priority,
    Request, SamplingPlan, Stage, Stats, TokenId,
};
use rand::{Rng, SeedableRng, rngs::StdRng};
use serde_json::{Map, Value, json};
use std::str::FromStr;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

/// What both offline benchmarks are told.
#[derive(Debug, Args)]
struct Work {
    /// Tokens of each prompt, random ids.
    #[arg(long)]
    input_len: Option<usize>,
    /// Tokens of each answer; end tokens do not end it.
    #[arg(long, default_value_t = 128)]
    output_len: u32,
    /// 0 is greedy.
    #[arg(long, default_value_t = 0.0)]
    temperature: f64,
    /// Nucleus; 1 is none.
    #[arg(long, default_value_t = 1.0)]
    top_p: f64,
    /// Of prompts and draws.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Ask the model's sampler guest (see --sampler-module) for each request, instead of a plan made here.
    #[arg(long)]
    ask_sampler: bool,
}

#[derive(Debug, Args)]
pub(in crate::cli) struct Latency {
    #[command(flatten)]
    model: ModelOptions,
    #[command(flatten)]
    work: Work,
    /// Sequences at once.
    #[arg(long, default_value_t = 8)]
    batch_size: usize,
    /// Measure this instead, several after one load: BATCHxINPUT/OUTPUT, with @TEMPERATURE,TOP_P where sampled.
    #[arg(long, value_name = "WORK", num_args = 1..)]
    work_list: Vec<Shape>,
    /// Batches that are not counted.
    #[arg(long, default_value_t = 2)]
    num_iters_warmup: usize,
    /// Batches.
    #[arg(long, default_value_t = 5)]
    num_iters: usize,
    /// GB/s that the device's memory gives, for the share of the roofline (default: what the device measured).
    #[arg(long)]
    bandwidth: Option<f64>,
    #[command(flatten)]
    output: Output,
}

/// One entry of `--work-list`.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Shape {
    batch: usize,
    input_len: usize,
    output_len: u32,
    /// Temperature and top-p.
    sampled: Option<(f64, f64)>,
}

impl FromStr for Shape {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let read = || {
            let (sizes, sampled) = match text.split_once('@') {
                Some((sizes, sampling)) => {
                    let (temperature, top_p) = sampling.split_once(',')?;
                    (
                        sizes,
                        Some((temperature.parse().ok()?, top_p.parse().ok()?)),
                    )
                }
                None => (text, None),
            };
            let (batch, lengths) = sizes.split_once('x')?;
            let (input, output) = lengths.split_once('/')?;
            Some(Self {
                batch: batch.parse().ok().filter(|n| *n > 0)?,
                input_len: input.parse().ok().filter(|n| *n > 0)?,
                output_len: output.parse().ok().filter(|n| *n > 0)?,
                sampled,
            })
        };
        read().ok_or_else(|| {
            "expected BATCHxINPUT/OUTPUT or BATCHxINPUT/OUTPUT@TEMPERATURE,TOP_P, such as 64x1024/128"
                .to_owned()
        })
    }
}

impl Shape {
    fn work(&self, defaults: &Work) -> Work {
        let (temperature, top_p) = self
            .sampled
            .unwrap_or((defaults.temperature, defaults.top_p));
        Work {
            input_len: Some(self.input_len),
            output_len: self.output_len,
            temperature,
            top_p,
            seed: defaults.seed,
            ask_sampler: defaults.ask_sampler,
        }
    }
}

#[derive(Debug, Args)]
pub(in crate::cli) struct Throughput {
    #[command(flatten)]
    model: ModelOptions,
    #[command(flatten)]
    work: Work,
    /// Requests, all sent at once.
    #[arg(long, default_value_t = 64)]
    num_prompts: usize,
    /// Repetitions; the one with the median output rate is reported.
    #[arg(long, default_value_t = 1)]
    num_iters: usize,
    #[command(flatten)]
    output: Output,
}

impl Latency {
    pub(super) fn run(self) -> Result<()> {
        let load = Instant::now();
        let loaded = self.model.load_for_bench()?;
        let loading = load.elapsed();
        let mut results = Vec::new();
        if self.work_list.is_empty() {
            results.push(self.measure(&loaded, self.batch_size, &self.work)?);
        }
        for shape in &self.work_list {
            results.push(self.measure(&loaded, shape.batch, &shape.work(&self.work))?);
        }
        for result in &mut results {
            let seconds = (loading.as_secs_f64() * 1e3).round() / 1e3;
            result.insert("load_seconds".into(), json!(seconds));
        }
        self.output.publish(&results)
    }

    fn measure(
        &self,
        loaded: &LoadedModel,
        batch_size: usize,
        work: &Work,
    ) -> Result<Map<String, Value>> {
        let input_len = work.input_len.unwrap_or(32);
        let mut random = StdRng::seed_from_u64(work.seed);
        let (mut batches, mut all) = (Vec::new(), Vec::new());
        let (mut prefills, mut steps) = (Vec::new(), Vec::new());
        let mut before = loaded.served.engine.stats();
        for i in 0..self.num_iters_warmup + self.num_iters {
            if i == self.num_iters_warmup {
                before = loaded.served.engine.stats();
            }
            let prompts = prompts(loaded, &mut random, batch_size, input_len);
            let started = Instant::now();
            let timings = run(loaded, prompts, work)?;
            if i < self.num_iters_warmup {
                continue;
            }
            batches.push(started.elapsed());
            let begun = timings.iter().filter_map(|t| t.tokens.first()).max();
            if let Some(&begun) = begun {
                prefills.push(begun - started);
                // Earlier gaps hold parts of other sequences' prompts.
                let gaps = timings.iter().flat_map(|t| t.tokens.windows(2));
                steps.extend(gaps.filter(|w| w[0] >= begun).map(|w| w[1] - w[0]));
            }
            all.extend(timings);
        }
        let mut result = work.describe(loaded, input_len);
        result.insert("batch_size".into(), json!(batch_size));
        let total: Duration = batches.iter().sum();
        let tokens: u64 = all.iter().map(|t| t.output_tokens).sum();
        result.insert("output_tokens_per_second".into(), rate(tokens, total));
        let median = median(&steps);
        for (name, samples) in [
            ("batch_ms", batches),
            ("prefill_ms", prefills),
            ("decode_step_ms", steps),
        ] {
            result.extend(distribution(samples).map(|d| (name.to_owned(), d)));
        }
        result.extend(latencies(&all));
        exposed(&mut result, &before, &loaded.served.engine.stats());
        let bandwidth = self.bandwidth.map(|gb| gb * 1e9).or(loaded.bandwidth);
        let context = input_len as u64 + u64::from(work.output_len) / 2;
        let roofline = Roofline::of_decode(loaded, batch_size as u64, context);
        result.extend(roofline.report(bandwidth, median));
        Ok(result)
    }
}

impl Throughput {
    pub(super) fn run(self) -> Result<()> {
        let loaded = self.model.load_for_bench()?;
        let input_len = self.work.input_len.unwrap_or(128);
        let mut random = StdRng::seed_from_u64(self.work.seed);
        // The first requests pay for pages, threads, kernels and graphs of every batch size that the job will see.
        let warm = prompts(&loaded, &mut random, self.num_prompts, input_len);
        run(&loaded, warm, &self.work.short())?;
        let mut rounds = Vec::new();
        for _ in 0..self.num_iters.max(1) {
            let before = loaded.served.engine.stats();
            let prompts = prompts(&loaded, &mut random, self.num_prompts, input_len);
            let started = Instant::now();
            let timings = run(&loaded, prompts, &self.work)?;
            rounds.push((
                started.elapsed(),
                timings,
                before,
                loaded.served.engine.stats(),
            ));
        }
        rounds.sort_by_key(|(elapsed, ..)| *elapsed);
        let tokens = |timings: &[Timing]| timings.iter().map(|t| t.output_tokens).sum::<u64>();
        let every: Vec<Value> = rounds
            .iter()
            .map(|(elapsed, timings, ..)| rate(tokens(timings), *elapsed))
            .collect();
        let (elapsed, timings, before, after) = rounds.swap_remove(rounds.len() / 2);
        let (output, input) = (tokens(&timings), (self.num_prompts * input_len) as u64);
        let mut result = self.work.describe(&loaded, input_len);
        result.insert("num_prompts".into(), json!(self.num_prompts));
        result.insert("elapsed_seconds".into(), json!(elapsed.as_secs_f64()));
        for (name, count) in [
            ("requests_per_second", self.num_prompts as u64),
            ("total_tokens_per_second", input + output),
            ("output_tokens_per_second", output),
        ] {
            result.insert(name.into(), rate(count, elapsed));
        }
        if every.len() > 1 {
            result.insert("output_tokens_per_second_all".into(), json!(every));
        }
        let steps = after.decode_steps.saturating_sub(before.decode_steps);
        let rows = after.decode_rows.saturating_sub(before.decode_rows);
        result.insert(
            "mean_decode_batch".into(),
            json!(rows as f64 / steps.max(1) as f64),
        );
        result.extend(latencies(&timings));
        exposed(&mut result, &before, &after);
        self.output.publish(&[result])
    }
}

impl Work {
    fn describe(&self, loaded: &LoadedModel, input_len: usize) -> Map<String, Value> {
        let mut all = Map::new();
        all.insert("model".into(), json!(loaded.served.id));
        all.insert("device".into(), json!(loaded.target.to_string()));
        all.insert("input_len".into(), json!(input_len));
        all.insert("output_len".into(), json!(self.output_len));
        all.insert("temperature".into(), json!(self.temperature));
        all.insert("top_p".into(), json!(self.top_p));
        all
    }

    /// The same with a few tokens to generate.
    fn short(&self) -> Self {
        Self {
            output_len: self.output_len.min(4),
            ..*self
        }
    }

    fn plan(&self) -> SamplingPlan {
        if self.temperature <= 0.0 {
            return SamplingPlan::greedy();
        }
        let mut stages = vec![Stage::Temperature(self.temperature as f32)];
        if self.top_p < 1.0 {
            stages.push(Stage::TopP(self.top_p as f32));
        }
        SamplingPlan {
            stages,
            draw: Draw::Sample,
        }
    }
}

/// A plan, and the guest where it asks one.
type Asked = (Arc<SamplingPlan>, Option<Box<dyn Chooser>>);

impl Work {
    /// What the sampler guest makes of one request.
    fn ask(&self, loaded: &LoadedModel, prompt: &[TokenId]) -> Result<Asked> {
        let fields = json!({ "temperature": self.temperature, "top_p": self.top_p });
        let planned = loaded.served.guests.plan(&SamplerRequest {
            scope: RequestScope::unrecorded(0),
            module: None,
            fields: fields.to_string(),
            prompt_len: u32::try_from(prompt.len()).unwrap_or(u32::MAX),
            max_tokens: self.output_len,
            n: 1,
        })?;
        Ok((Arc::new(planned.plan), planned.chooser))
    }
}

fn median(samples: &[Duration]) -> Option<Duration> {
    let mut sorted = samples.to_vec();
    sorted.sort_unstable();
    sorted.get(sorted.len() / 2).copied()
}

/// How long the device waited for the host, per step, where the device measures it, and the engine for sampler guests.
fn exposed(result: &mut Map<String, Value>, before: &Stats, after: &Stats) {
    let nanos = after.exposed_nanos.saturating_sub(before.exposed_nanos);
    let steps = after.steps.saturating_sub(before.steps);
    if nanos > 0 && steps > 0 {
        let micros = nanos as f64 / steps as f64 / 1e3;
        result.insert(
            "exposed_host_us_per_step".into(),
            json!((micros * 100.0).round() / 100.0),
        );
    }
    let waited = after
        .guest_wait_nanos
        .saturating_sub(before.guest_wait_nanos);
    if waited > 0 && steps > 0 {
        let micros = waited as f64 / steps as f64 / 1e3;
        result.insert(
            "guest_wait_us_per_step".into(),
            json!((micros * 10.0).round() / 10.0),
        );
    }
}

/// Random ids: no two prompts share a block, so the prefix cache does not help.
fn prompts(
    loaded: &LoadedModel,
    random: &mut StdRng,
    count: usize,
    len: usize,
) -> Vec<Vec<TokenId>> {
    (0..count)
        .map(|_| {
            (0..len.max(1))
                .map(|_| random.random_range(0..loaded.served.vocab))
                .collect()
        })
        .collect()
}

/// Notes the time of each token; all that the engine's thread does for it is to read a clock.
struct Sink {
    timing: Option<Timing>,
    done: mpsc::Sender<Result<Timing>>,
}

impl EventSink for Sink {
    fn send(&mut self, event: Event) -> Result<(), Disconnected> {
        let outcome = match event {
            Event::Token { .. } => {
                if let Some(timing) = &mut self.timing {
                    timing.tokens.push(Instant::now());
                    timing.output_tokens += 1;
                }
                return Ok(());
            }
            Event::Started { .. } | Event::PromptLogprobs(_) | Event::Embedding(_) => {
                return Ok(());
            }
            Event::Finished { .. } => self
                .timing
                .take()
                .ok_or_else(|| anyhow!("a request ended twice")),
            Event::Failed { error, .. } => Err(error.into()),
        };
        self.done.send(outcome).map_err(|_| Disconnected)
    }
}

/// Runs prompts to exactly `output_len` tokens each.
fn run(loaded: &LoadedModel, prompts: Vec<Vec<TokenId>>, work: &Work) -> Result<Vec<Timing>> {
    let engine = &loaded.served.engine;
    let (done, timings) = mpsc::channel();
    let plan = Arc::new(work.plan());
    let count = prompts.len();
    let mut requests: Vec<(Request, Option<Box<dyn Chooser>>)> = Vec::with_capacity(count);
    for (place, prompt) in prompts.into_iter().enumerate() {
        let (sampling, chooser) = match work.ask_sampler {
            true => work.ask(loaded, &prompt)?,
            false => (Arc::clone(&plan), None),
        };
        let request = Request {
            id: engine.next_id(),
            cache_salt: loaded.served.cache_salt,
            prompt,
            params: GenerationParams {
                max_tokens: work.output_len,
                drafts: loaded.served.generation.drafts,
                ..GenerationParams::default()
            },
            sampling,
            seed: work.seed.wrapping_add(place as u64),
            priority: Priority::default(),
            owner: Owner::default(),
        };
        requests.push((request, chooser));
    }
    for (request, chooser) in requests {
        let timing = Timing {
            sent: Instant::now(),
            tokens: Vec::with_capacity(work.output_len as usize),
            output_tokens: 0,
        };
        let sink = Sink {
            timing: Some(timing),
            done: done.clone(),
        };
        let attachments = Attachments {
            sink: Box::new(sink),
            constraint: None,
            chooser,
        };
        engine.submit(request, attachments)?;
    }
    drop(done);
    let timings: Vec<Timing> = timings.iter().collect::<Result<_>>()?;
    if timings.len() < count {
        bail!("the engine ended before the benchmark did");
    }
    Ok(timings)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_are_read_or_refused() {
        let shape = Shape {
            batch: 64,
            input_len: 1024,
            output_len: 128,
            sampled: None,
        };
        assert_eq!("64x1024/128".parse(), Ok(shape));
        let sampled = Shape {
            sampled: Some((0.8, 0.9)),
            ..shape
        };
        assert_eq!("64x1024/128@0.8,0.9".parse(), Ok(sampled));
        for text in [
            "",
            "64",
            "64x1024",
            "0x1/1",
            "1x0/1",
            "1x1/0",
            "1x1/1@",
            "1x1/1@0.8",
            "-1x1/1",
        ] {
            assert!(text.parse::<Shape>().is_err(), "{text}");
        }
    }
}
