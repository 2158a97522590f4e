//! What is measured, under vLLM's names.
//!
//! Counters and gauges of the engine come from its [`Stats`]; times are measured here, per choice, by the clock of the
//! engine's events. Names without a label `tenant` count everyone's requests, as vLLM does.

mod histogram;
mod tenants;
mod text;

use super::trace::Times;
use guesthouse_engine::Stats;
use guesthouse_tenants::Tenant;
use histogram::Histogram;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;
use tenants::Absorb;
use text::TextFormat;

pub(super) use tenants::PerTenant;

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

    /// Phases of a request with these choices: the longest wait, from the first start to the first token of any, and
    /// from there to the last.
    pub(super) fn times<'a>(lines: impl Iterator<Item = &'a Self> + Clone) -> Times {
        let passed = |from: Instant, to: Instant| to.saturating_duration_since(from);
        let started = lines.clone().filter_map(|line| line.started).min();
        let first = lines.clone().filter_map(|line| line.first).min();
        let last = lines.clone().filter_map(|line| line.last).max();
        Times {
            queue: lines
                .filter_map(|line| Some(passed(line.submitted, line.started?)))
                .max(),
            prefill: started.zip(first).map(|(from, to)| passed(from, to)),
            decode: first.zip(last).map(|(from, to)| passed(from, to)),
            first_token: first,
        }
    }

    /// A token came.
    pub(super) fn token(&mut self, at: Instant, meter: &Meter) {
        for series in &meter.0 {
            series.generated.fetch_add(1, Ordering::Relaxed);
            match self.last {
                Some(last) => series.between_tokens.observe(seconds(last, at)),
                None => series.first_token.observe(seconds(self.submitted, at)),
            }
        }
        self.first.get_or_insert(at);
        self.last = Some(at);
    }
}

fn seconds(from: Instant, to: Instant) -> f64 {
    to.saturating_duration_since(from).as_secs_f64()
}

/// Measurements of requests: a model's all, or one tenant's of a model.
pub(super) struct Series {
    outcomes: [AtomicU64; OUTCOMES.len()],
    /// Sequences that wait, and that run.
    waiting: AtomicU64,
    running: AtomicU64,
    /// Of started prompts, and those of them that the prefix cache had.
    prompts: AtomicU64,
    cached: AtomicU64,
    generated: AtomicU64,
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

impl Default for Series {
    fn default() -> Self {
        Self {
            outcomes: Default::default(),
            waiting: AtomicU64::new(0),
            running: AtomicU64::new(0),
            prompts: AtomicU64::new(0),
            cached: AtomicU64::new(0),
            generated: AtomicU64::new(0),
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

impl Series {
    fn ended(&self, line: &Timeline, outcome: Outcome, tokens: u32, at: Instant) {
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

impl Absorb for Series {
    fn absorb(&self, other: &Self) {
        let counters: [fn(&Self) -> &AtomicU64; 5] = [
            |s| &s.waiting,
            |s| &s.running,
            |s| &s.prompts,
            |s| &s.cached,
            |s| &s.generated,
        ];
        for counter in counters {
            counter(self).fetch_add(counter(other).load(Ordering::Relaxed), Ordering::Relaxed);
        }
        for (into, from) in self.outcomes.iter().zip(&other.outcomes) {
            into.fetch_add(from.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        for (_, _, histogram) in HISTOGRAMS {
            histogram(self).absorb(histogram(other));
        }
    }
}

/// Measurements of one model's requests.
#[derive(Default)]
pub(super) struct ModelMetrics {
    total: Arc<Series>,
    tenants: PerTenant<Series>,
}

impl ModelMetrics {
    /// What measures a request of a tenant.
    pub(super) fn meter(&self, tenant: &Tenant) -> Meter {
        Meter([Arc::clone(&self.total), self.tenants.of(tenant)])
    }
}

/// Measures one request: for its model, and for its tenant.
#[derive(Clone)]
pub(super) struct Meter([Arc<Series>; 2]);

impl Meter {
    /// A prompt began to be computed.
    pub(super) fn started(&self, prompt: u32, cached: u32) {
        for series in &self.0 {
            series.prompts.fetch_add(prompt.into(), Ordering::Relaxed);
            series.cached.fetch_add(cached.into(), Ordering::Relaxed);
        }
    }

    /// A choice ended after `tokens` tokens.
    pub(super) fn ended(&self, line: &Timeline, outcome: Outcome, tokens: u32, at: Instant) {
        for series in &self.0 {
            series.ended(line, outcome, tokens, at);
        }
    }

    /// A sequence that waits, until it starts or the presence is dropped.
    pub(super) fn waiting(&self) -> Presence {
        Presence::of(self, |series| &series.waiting)
    }
}

type Gauge = fn(&Series) -> &AtomicU64;

/// Counts a sequence where it is, while it lives.
pub(super) struct Presence {
    meter: Meter,
    gauge: Gauge,
}

impl Presence {
    fn of(meter: &Meter, gauge: Gauge) -> Self {
        for series in &meter.0 {
            gauge(series).fetch_add(1, Ordering::Relaxed);
        }
        Self {
            meter: meter.clone(),
            gauge,
        }
    }

    /// It waits no longer.
    pub(super) fn start(&mut self) {
        *self = Self::of(&self.meter, |series| &series.running);
    }
}

impl Drop for Presence {
    fn drop(&mut self) {
        for series in &self.meter.0 {
            (self.gauge)(series).fetch_sub(1, Ordering::Relaxed);
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
type OfSeries = fn(&Series) -> &Histogram;

/// Without the prefix of their names.
const HISTOGRAMS: [Family<OfSeries>; 13] = [
    (
        "time_to_first_token_seconds",
        "From submission to a choice's first token.",
        |m| &m.first_token,
    ),
    (
        "inter_token_latency_seconds",
        "From one token to the next.",
        |m| &m.between_tokens,
    ),
    (
        "time_per_output_token_seconds",
        "From one token to the next.",
        |m| &m.between_tokens,
    ),
    (
        "request_time_per_output_token_seconds",
        "Mean time per token after the first, per choice.",
        |m| &m.per_token,
    ),
    (
        "e2e_request_latency_seconds",
        "From submission to the end.",
        |m| &m.request,
    ),
    (
        "request_queue_time_seconds",
        "From submission to the first step.",
        |m| &m.queue,
    ),
    (
        "request_inference_time_seconds",
        "From the first step to the last token.",
        |m| &m.inference,
    ),
    (
        "request_prefill_time_seconds",
        "From the first step to the first token.",
        |m| &m.prefill,
    ),
    (
        "request_decode_time_seconds",
        "From the first token to the last.",
        |m| &m.decode,
    ),
    ("request_prompt_tokens", "Prompt tokens per choice.", |m| {
        &m.prompt_tokens
    }),
    (
        "request_generation_tokens",
        "Tokens generated per choice.",
        |m| &m.generation_tokens,
    ),
    (
        "request_params_max_tokens",
        "Most tokens allowed, per choice.",
        |m| &m.max_tokens,
    ),
    ("request_params_n", "Choices per prompt, per choice.", |m| {
        &m.choices
    }),
];

/// All of them in Prometheus' text format, version 0.0.4.
pub(super) fn render(
    models: &[Measured<'_>],
    refused: &PerTenant<Refusals>,
    knows: &dyn Fn(u64) -> bool,
) -> String {
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
        of_engines(&mut out, models, (name, "gauge", help), value);
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
        let value = |stats: &Stats| value(stats) as f64;
        of_engines(&mut out, models, (name, "counter", help), value);
    }
    let subjects: Vec<_> = models
        .iter()
        .map(|model| Subject {
            labels: vec![("model_name", model.name)],
            series: &model.metrics.total,
        })
        .collect();
    outcomes(&mut out, VLLM, &subjects);
    histograms(&mut out, VLLM, &subjects, &HISTOGRAMS);
    out.family_steps(models);
    by_tenant(&mut out, models, refused, knows);
    out.finish()
}

/// A family, by name, type and help, of what each model's engine says.
fn of_engines(
    out: &mut TextFormat,
    models: &[Measured<'_>],
    (name, kind, help): (&str, &str, &str),
    value: impl Fn(&Stats) -> f64,
) {
    out.family(name, kind, help);
    for model in models {
        out.sample(name, &[("model_name", model.name)], value(&model.stats));
    }
}

/// Prefixes of names: vLLM's own, and that of all tenants side by side. A family holds series of one kind alone, so that
/// sums over it stay right.
const VLLM: &str = "vllm:";
const TENANT: &str = "guesthouse:tenant_";

/// Of what something was measured.
struct Subject<'a> {
    labels: Vec<(&'a str, &'a str)>,
    series: &'a Series,
}

fn outcomes(out: &mut TextFormat, prefix: &str, subjects: &[Subject<'_>]) {
    let name = format!("{prefix}request_success_total");
    out.family(&name, "counter", "Choices that ended, by how.");
    for Subject { labels, series } in subjects {
        for (count, (_, reason)) in series.outcomes.iter().zip(OUTCOMES) {
            let mut labels = labels.clone();
            labels.push(("finished_reason", reason));
            out.sample(&name, &labels, count.load(Ordering::Relaxed) as f64);
        }
    }
}

fn histograms(
    out: &mut TextFormat,
    prefix: &str,
    subjects: &[Subject<'_>],
    which: &[Family<OfSeries>],
) {
    for (name, help, histogram) in which {
        let name = format!("{prefix}{name}");
        out.family(&name, "histogram", help);
        for Subject { labels, series } in subjects {
            out.histogram(&name, labels, &histogram(series).snapshot());
        }
    }
}

/// What the engine counts of a model, as far as it is known of one tenant.
fn counts(out: &mut TextFormat, prefix: &str, subjects: &[Subject<'_>]) {
    let families: [(&str, &str, &str, Gauge); 6] = [
        (
            "num_requests_running",
            "gauge",
            "Sequences that run.",
            |s| &s.running,
        ),
        (
            "num_requests_waiting",
            "gauge",
            "Sequences that wait.",
            |s| &s.waiting,
        ),
        (
            "prompt_tokens_total",
            "counter",
            "Prompt tokens of started requests.",
            |s| &s.prompts,
        ),
        (
            "generation_tokens_total",
            "counter",
            "Tokens generated.",
            |s| &s.generated,
        ),
        (
            "prefix_cache_queries_total",
            "counter",
            "Prompt tokens looked up in the prefix cache.",
            |s| &s.prompts,
        ),
        (
            "prefix_cache_hits_total",
            "counter",
            "Prompt tokens found in the prefix cache.",
            |s| &s.cached,
        ),
    ];
    for (name, kind, help, value) in families {
        let name = format!("{prefix}{name}");
        out.family(&name, kind, help);
        for Subject { labels, series } in subjects {
            let value = value(series).load(Ordering::Relaxed);
            out.sample(&name, labels, value as f64);
        }
    }
}

fn refusals(out: &mut TextFormat, refused: &[(String, Arc<Refusals>)]) {
    let name = "guesthouse:tenant_refused_total";
    out.family(name, "counter", "Requests over a limit, by limit.");
    for (tenant, counts) in refused {
        for (limit, count) in LIMITS.iter().zip(&counts.0) {
            let labels = [("tenant", tenant.as_str()), ("limit", limit)];
            out.sample(name, &labels, count.load(Ordering::Relaxed) as f64);
        }
    }
}

/// All tenants side by side.
fn by_tenant(
    out: &mut TextFormat,
    models: &[Measured<'_>],
    refused: &PerTenant<Refusals>,
    knows: &dyn Fn(u64) -> bool,
) {
    let tenants: Vec<_> = models
        .iter()
        .map(|model| (model.name, model.metrics.tenants.list(knows)))
        .collect();
    if tenants.iter().all(|(_, tenants)| tenants.is_empty()) {
        return;
    }
    let subjects: Vec<_> = tenants
        .iter()
        .flat_map(|(model, tenants)| {
            tenants.iter().map(|(tenant, series)| Subject {
                labels: vec![("model_name", *model), ("tenant", tenant.as_str())],
                series,
            })
        })
        .collect();
    counts(out, TENANT, &subjects);
    outcomes(out, TENANT, &subjects);
    let told: Vec<_> = HISTOGRAMS
        .into_iter()
        .filter(|(name, _, _)| BY_TENANT.contains(name))
        .collect();
    histograms(out, TENANT, &subjects, &told);
    refusals(out, &refused.list(knows));
}

/// What a tenant sees: its own requests, under vLLM's names, and how full the cache is. Load is bounded, not hidden.
pub(super) fn render_own(
    models: &[Measured<'_>],
    tenant: &Tenant,
    refused: &PerTenant<Refusals>,
) -> String {
    let mut out = TextFormat::default();
    let series: Vec<_> = models
        .iter()
        .map(|model| (model, model.metrics.tenants.of(tenant)))
        .collect();
    let subjects: Vec<_> = series
        .iter()
        .map(|(model, series)| Subject {
            labels: vec![("model_name", model.name), ("tenant", tenant.id.as_str())],
            series,
        })
        .collect();
    counts(&mut out, VLLM, &subjects);
    let usage = (
        "vllm:kv_cache_usage_perc",
        "gauge",
        "Share of KV blocks held by sequences of all tenants, 1 is all.",
    );
    of_engines(&mut out, models, usage, Stats::kv_usage);
    outcomes(&mut out, VLLM, &subjects);
    histograms(&mut out, VLLM, &subjects, &HISTOGRAMS);
    refusals(&mut out, &[(tenant.id.to_string(), refused.of(tenant))]);
    out.finish()
}

/// Histograms that are kept side by side for all tenants.
const BY_TENANT: &[&str] = &[
    "time_to_first_token_seconds",
    "inter_token_latency_seconds",
    "e2e_request_latency_seconds",
    "request_queue_time_seconds",
];

/// Names of limits, as in `Quotas`.
const LIMITS: [&str; 4] = [
    "requests_per_minute",
    "tokens_per_minute",
    "concurrent_sequences",
    "guest_ms_per_minute",
];

/// How often a tenant's requests were over each of [`LIMITS`].
#[derive(Default)]
pub(super) struct Refusals([AtomicU64; LIMITS.len()]);

impl Refusals {
    pub(super) fn count(&self, limit: &str) {
        let place = LIMITS.iter().position(|known| *known == limit);
        if let Some(count) = place.and_then(|place| self.0.get(place)) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Absorb for Refusals {
    fn absorb(&self, other: &Self) {
        for (into, from) in self.0.iter().zip(&other.0) {
            into.fetch_add(from.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }
}

impl TextFormat {
    /// What is left: tokens per step (the engine keeps sum and count), and fixed facts.
    fn family_steps(&mut self, models: &[Measured<'_>]) {
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
            self.histogram(
                "vllm:iteration_tokens_total",
                &[("model_name", model.name)],
                &steps,
            );
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
        self.guests(models);
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

    /// Guests that choose tokens.
    fn guests(&mut self, models: &[Measured<'_>]) {
        let counters: [Family<OfStats<f64>>; 3] = [
            (
                "guesthouse:sampler_calls_total",
                "Questions to guests that choose tokens.",
                |stats| stats.guest_calls as f64,
            ),
            (
                "guesthouse:sampler_misses_total",
                "Answers of guests that came too late for their step.",
                |stats| stats.guest_misses as f64,
            ),
            (
                "guesthouse:sampler_wait_seconds_total",
                "Time that steps waited for guests' answers.",
                |stats| stats.guest_wait_nanos as f64 * 1e-9,
            ),
        ];
        for (name, help, value) in counters {
            self.family(name, "counter", help);
            for model in models {
                self.sample(name, &[("model_name", model.name)], value(&model.stats));
            }
        }
    }
}

#[cfg(test)]
mod tests;
