//! A request as one OpenTelemetry span, with vLLM's names where it has them. Never the prompt or the answer.

use super::Facts;
use super::export::{Sampled, Traces};
use super::report::Report;
use axum::http::Method;
use opentelemetry::trace::{Span as _, SpanBuilder, SpanKind, Status, Tracer as _};
use opentelemetry::{Context, KeyValue};
use std::borrow::Cow;
use std::time::{Duration, Instant, SystemTime};

/// Name of spans of requests that came to a model, as in vLLM.
const LLM_REQUEST: &str = "llm_request";

/// A span to be: whose part it is, and when it began.
#[derive(Clone, Debug)]
pub(super) struct Pending {
    traces: Traces,
    parent: Context,
    began: SystemTime,
}

impl Pending {
    pub(super) fn new(traces: Traces, headers: &axum::http::HeaderMap) -> Self {
        Self {
            traces,
            parent: Traces::parent(headers),
            began: SystemTime::now(),
        }
    }

    /// The request is over, `ended` after it began.
    pub(super) fn end(&self, report: &Report, facts: &Facts, ended: Duration) {
        self.traces.send(|tracer| {
            let builder = SpanBuilder::from_name(name(report, facts))
                .with_kind(SpanKind::Server)
                .with_start_time(self.began);
            let mut span = tracer.build_with_context(builder, &self.parent);
            if !span.span_context().is_sampled() {
                return Sampled::No;
            }
            span.set_attributes(attributes(report, facts, ended));
            if report.status.is_some_and(|status| status >= 500) {
                span.set_status(Status::error(report.error.unwrap_or_default()));
            }
            span.end_with_timestamp(self.began + ended);
            Sampled::Yes
        });
    }
}

/// Of HTTP's semantic conventions where no model was asked: method and route, neither as the client wrote it.
fn name(report: &Report, facts: &Facts) -> Cow<'static, str> {
    if facts.model.is_some() {
        return LLM_REQUEST.into();
    }
    let method = known(&report.method).unwrap_or("HTTP");
    match report.matched() {
        Some(route) => format!("{method} {route}").into(),
        None => method.into(),
    }
}

/// A method may be any word of the client's.
fn known(method: &Method) -> Option<&'static str> {
    ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"]
        .into_iter()
        .find(|known| *known == method.as_str())
}

fn attributes(report: &Report, facts: &Facts, ended: Duration) -> Vec<KeyValue> {
    let mut list = Attributes(Vec::with_capacity(24));
    let method = known(&report.method).unwrap_or("_OTHER");
    list.add("http.request.method", method);
    list.maybe("http.route", report.matched().map(str::to_owned));
    list.maybe("http.response.status_code", report.status.map(i64::from));
    list.maybe("error.type", report.error);
    list.add("guesthouse.outcome", report.outcome.name());
    let tenant = facts.tenant.as_ref();
    list.maybe(
        "guesthouse.tenant.id",
        tenant.map(|t| t.id.as_str().to_owned()),
    );
    list.add("gen_ai.request.id", report.trace.id().as_str().to_owned());
    list.maybe("gen_ai.response.model", facts.model.clone());
    if let Some(params) = &facts.params {
        list.add("gen_ai.request.n", i64::from(params.n));
        list.maybe(
            "gen_ai.request.max_tokens",
            params.max_tokens.map(i64::from),
        );
        list.maybe("gen_ai.request.temperature", params.temperature);
        list.maybe("gen_ai.request.top_p", params.top_p);
    }
    if let Some(usage) = &facts.usage {
        let (prompt, completion) = (usage.prompt_tokens, usage.completion_tokens);
        list.add("gen_ai.usage.prompt_tokens", i64::from(prompt));
        list.add("gen_ai.usage.completion_tokens", i64::from(completion));
    }
    let times = &facts.times;
    let first = times.first_token.map(|at: Instant| report.trace.since(at));
    for (name, time) in [
        ("gen_ai.latency.time_in_queue", times.queue),
        ("gen_ai.latency.time_to_first_token", first),
        ("gen_ai.latency.time_in_model_prefill", times.prefill),
        ("gen_ai.latency.time_in_model_decode", times.decode),
        ("gen_ai.latency.e2e", Some(ended)),
    ] {
        list.maybe(name, time.map(|time| time.as_secs_f64()));
    }
    list.0
}

struct Attributes(Vec<KeyValue>);

impl Attributes {
    fn add(&mut self, name: &'static str, value: impl Into<opentelemetry::Value>) {
        self.0.push(KeyValue::new(name, value));
    }

    fn maybe(&mut self, name: &'static str, value: Option<impl Into<opentelemetry::Value>>) {
        if let Some(value) = value {
            self.add(name, value);
        }
    }
}
