//! What is measured, under vLLM's names.
//!
//! Counters and gauges of the engine come from its [`Stats`]; times are measured here, per choice, by the clock of the
//! engine's events.

mod histogram;
mod text;

use guesthouse_engine::Stats;
use histogram::Histogram;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;
use text::TextFormat;

/// Buckets in seconds or tokens; vLLM's, so that recorded queries keep their resolution.
const FIRST_TOKEN: &[f64] = &[
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
];
const BETWEEN_TOKENS: &[f64] = &[
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5,
    5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
];
const REQUEST: &[f64] = &[
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0,
    480.0, 960.0, 1920.0, 7680.0,
];
const TOKENS: &[f64] = &[
    1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 2e5,
    5e5, 1e6,
];
const CHOICES: &[f64] = &[1.0, 2.0, 5.0, 10.0, 20.0];

/// How a choice ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Stop,
    Length,
    Abort,
    Error,
}

const OUTCOMES: [(Outcome, &str); 4] = [
    (Outcome::Stop, "stop"),
    (Outcome::Length, "length"),
    (Outcome::Abort, "abort"),
    (Outcome::Error, "error"),
];

/// Moments in a choice's life.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timeline {
    submitted: Instant,
    started: Option<Instant>,
    first: Option<Instant>,
    last: Option<Instant>,
    prompt_tokens: u32,
    max_tokens: u32,
    n: u32,
}

impl Timeline {
    pub(super) fn begin(prompt_tokens: u32, max_tokens: u32, n: u32) -> Self {
        Self {
            submitted: Instant::now(),
            started: None,
            first: None,
            last: None,
            prompt_tokens,
            max_tokens,
            n,
        }
    }

    pub(super) fn start(&mut self, at: Instant) {
        self.started.get_or_insert(at);
    }

    /// A token came.
    pub(super) fn token(&mut self, at: Instant, metrics: &ModelMetrics) {
        match self.last {
            Some(last) => metrics.between_tokens.observe(seconds(last, at)),
            None => metrics.first_token.observe(seconds(self.submitted, at)),
        }
        self.first.get_or_insert(at);
        self.last = Some(at);
    }
}

fn seconds(from: Instant, to: Instant) -> f64 {
    to.saturating_duration_since(from).as_secs_f64()
}

/// Measurements of one model's requests.
pub(super) struct ModelMetrics {
    outcomes: [AtomicU64; OUTCOMES.len()],
    first_token: Histogram,
    between_tokens: Histogram,
    per_token: Histogram,
    request: Histogram,
    queue: Histogram,
    inference: Histogram,
    prefill: Histogram,
    decode: Histogram,
    prompt_tokens: Histogram,
    generation_tokens: Histogram,
    max_tokens: Histogram,
    choices: Histogram,
}

impl Default for ModelMetrics {
    fn default() -> Self {
        Self {
            outcomes: Default::default(),
            first_token: Histogram::new(FIRST_TOKEN),
            between_tokens: Histogram::new(BETWEEN_TOKENS),
            per_token: Histogram::new(BETWEEN_TOKENS),
            request: Histogram::new(REQUEST),
            queue: Histogram::new(REQUEST),
            inference: Histogram::new(REQUEST),
            prefill: Histogram::new(REQUEST),
            decode: Histogram::new(REQUEST),
            prompt_tokens: Histogram::new(TOKENS),
            generation_tokens: Histogram::new(TOKENS),
            max_tokens: Histogram::new(TOKENS),
            choices: Histogram::new(CHOICES),
        }
    }
}

impl ModelMetrics {
    /// A choice ended after `tokens` tokens.
    pub(super) fn ended(&self, line: &Timeline, outcome: Outcome, tokens: u32, at: Instant) {
        if let Some(i) = OUTCOMES.iter().position(|(known, _)| *known == outcome) {
            self.outcomes[i].fetch_add(1, Ordering::Relaxed);
        }
        self.request.observe(seconds(line.submitted, at));
        self.prompt_tokens.observe(f64::from(line.prompt_tokens));
        self.generation_tokens.observe(f64::from(tokens));
        self.max_tokens.observe(f64::from(line.max_tokens));
        self.choices.observe(f64::from(line.n));
        let Some(started) = line.started else { return };
        self.queue.observe(seconds(line.submitted, started));
        let (Some(first), Some(last)) = (line.first, line.last) else {
            return;
        };
        self.prefill.observe(seconds(started, first));
        self.decode.observe(seconds(first, last));
        self.inference.observe(seconds(started, last));
        if tokens > 1 {
            self.per_token
                .observe(seconds(first, last) / f64::from(tokens - 1));
        }
    }
}

/// One model's name and numbers.
pub(super) struct Measured<'a> {
    pub(super) name: &'a str,
    pub(super) max_model_len: u32,
    pub(super) metrics: &'a ModelMetrics,
    pub(super) stats: Stats,
}

/// Name, help and where the value is.
type Family<V> = (&'static str, &'static str, V);
type OfStats<T> = fn(&Stats) -> T;
type OfMetrics = fn(&ModelMetrics) -> &Histogram;

/// All of them in Prometheus' text format, version 0.0.4.
pub(super) fn render(models: &[Measured<'_>]) -> String {
    let mut out = TextFormat::default();
    let gauges: [Family<OfStats<f64>>; 3] = [
        (
            "vllm:num_requests_running",
            "Sequences that run.",
            |stats| stats.running as f64,
        ),
        (
            "vllm:num_requests_waiting",
            "Sequences that wait.",
            |stats| stats.waiting as f64,
        ),
        (
            "vllm:kv_cache_usage_perc",
            "Share of KV blocks held by sequences, 1 is all.",
            Stats::kv_usage,
        ),
    ];
    for (name, help, value) in gauges {
        out.family(name, "gauge", help);
        for model in models {
            out.sample(name, &[("model_name", model.name)], value(&model.stats));
        }
    }
    let counters: [Family<OfStats<u64>>; 9] = [
        (
            "vllm:num_preemptions_total",
            "Sequences preempted.",
            |stats| stats.preemptions,
        ),
        (
            "vllm:prompt_tokens_total",
            "Prompt tokens of started requests.",
            |stats| stats.prompt_tokens,
        ),
        (
            "vllm:generation_tokens_total",
            "Tokens generated.",
            |stats| stats.generation_tokens,
        ),
        (
            "vllm:prefix_cache_queries_total",
            "Prompt tokens looked up in the prefix cache.",
            |stats| stats.prefix_cache_queries,
        ),
        (
            "vllm:prefix_cache_hits_total",
            "Prompt tokens found in the prefix cache.",
            |stats| stats.prefix_cache_hits,
        ),
        (
            "vllm:spec_decode_num_drafts_total",
            "Rows with guessed tokens.",
            |stats| stats.drafts,
        ),
        (
            "vllm:spec_decode_num_draft_tokens_total",
            "Tokens guessed.",
            |stats| stats.drafted_tokens,
        ),
        (
            "vllm:spec_decode_num_accepted_tokens_total",
            "Guessed tokens that were right.",
            |stats| stats.accepted_tokens,
        ),
        (
            "guesthouse:forced_tokens_total",
            "Tokens that a grammar forced, emitted without a draw.",
            |stats| stats.forced_tokens,
        ),
    ];
    for (name, help, value) in counters {
        out.family(name, "counter", help);
        for model in models {
            out.sample(
                name,
                &[("model_name", model.name)],
                value(&model.stats) as f64,
            );
        }
    }
    out.family(
        "vllm:request_success_total",
        "counter",
        "Choices that ended, by how.",
    );
    for model in models {
        for (i, (_, reason)) in OUTCOMES.iter().enumerate() {
            let count = model.metrics.outcomes[i].load(Ordering::Relaxed);
            out.sample(
                "vllm:request_success_total",
                &[("model_name", model.name), ("finished_reason", reason)],
                count as f64,
            );
        }
    }
    let histograms: [Family<OfMetrics>; 12] = [
        (
            "vllm:time_to_first_token_seconds",
            "From submission to a choice's first token.",
            |m| &m.first_token,
        ),
        (
            "vllm:inter_token_latency_seconds",
            "From one token to the next.",
            |m| &m.between_tokens,
        ),
        (
            "vllm:time_per_output_token_seconds",
            "From one token to the next.",
            |m| &m.between_tokens,
        ),
        (
            "vllm:request_time_per_output_token_seconds",
            "Mean time per token after the first, per choice.",
            |m| &m.per_token,
        ),
        (
            "vllm:e2e_request_latency_seconds",
            "From submission to the end.",
            |m| &m.request,
        ),
        (
            "vllm:request_queue_time_seconds",
            "From submission to the first step.",
            |m| &m.queue,
        ),
        (
            "vllm:request_inference_time_seconds",
            "From the first step to the last token.",
            |m| &m.inference,
        ),
        (
            "vllm:request_prefill_time_seconds",
            "From the first step to the first token.",
            |m| &m.prefill,
        ),
        (
            "vllm:request_decode_time_seconds",
            "From the first token to the last.",
            |m| &m.decode,
        ),
        (
            "vllm:request_prompt_tokens",
            "Prompt tokens per choice.",
            |m| &m.prompt_tokens,
        ),
        (
            "vllm:request_generation_tokens",
            "Tokens generated per choice.",
            |m| &m.generation_tokens,
        ),
        (
            "vllm:request_params_max_tokens",
            "Most tokens allowed, per choice.",
            |m| &m.max_tokens,
        ),
    ];
    for (name, help, histogram) in histograms {
        out.family(name, "histogram", help);
        for model in models {
            out.histogram(name, model.name, &histogram(model.metrics).snapshot());
        }
    }
    out.family(
        "vllm:request_params_n",
        "histogram",
        "Choices per prompt, per choice.",
    );
    out.family_steps(models);
    out.finish()
}

impl TextFormat {
    /// What is left: choices, tokens per step (the engine keeps sum and count), and fixed facts.
    fn family_steps(&mut self, models: &[Measured<'_>]) {
        for model in models {
            self.histogram(
                "vllm:request_params_n",
                model.name,
                &model.metrics.choices.snapshot(),
            );
        }
        self.family(
            "vllm:iteration_tokens_total",
            "histogram",
            "Tokens computed per engine step.",
        );
        for model in models {
            let steps = histogram::Snapshot {
                buckets: Vec::new(),
                count: model.stats.steps,
                sum: model.stats.step_tokens as f64,
            };
            self.histogram("vllm:iteration_tokens_total", model.name, &steps);
        }
        self.family(
            "guesthouse:step_exposed_seconds",
            "summary",
            "Time per engine step that the device waited for the host.",
        );
        for model in models {
            let labels = [("model_name", model.name)];
            let seconds = model.stats.exposed_nanos as f64 * 1e-9;
            self.sample("guesthouse:step_exposed_seconds_sum", &labels, seconds);
            let steps = model.stats.steps as f64;
            self.sample("guesthouse:step_exposed_seconds_count", &labels, steps);
        }
        self.family(
            "guesthouse:max_model_len",
            "gauge",
            "Longest sequence, tokens.",
        );
        for model in models {
            self.sample(
                "guesthouse:max_model_len",
                &[("model_name", model.name)],
                f64::from(model.max_model_len),
            );
        }
    }
}

#[cfg(test)]
mod tests;
