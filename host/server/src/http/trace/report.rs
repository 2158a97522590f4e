//! The end of a request, told once.

use super::span::Pending;
use super::{AccessLog, Telling, Trace};
use axum::extract::{MatchedPath, Request};
use axum::http::Method;
use axum::response::Response;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Routes that are asked every few seconds.
const QUIET: &[&str] = &["/health", "/ping", "/metrics", "/version"];

fn is_quiet(route: Option<&MatchedPath>) -> bool {
    route.is_some_and(|route| QUIET.contains(&route.as_str()))
}

/// The error's label, among an answer's extensions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::http) struct ErrorLabel(pub(in crate::http) &'static str);

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// All of its answer was taken.
    Complete,
    /// Its client left before that.
    Disconnected,
}

impl Outcome {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Complete => "complete",
            Self::Disconnected => "disconnected",
        }
    }
}

/// Logs the request, and sends its span, when dropped: its answer is over, or its client left.
pub(super) struct Report {
    pub(super) trace: Arc<Trace>,
    log: AccessLog,
    span: Option<Pending>,
    pub(super) method: Method,
    /// The route's pattern: paths are the client's own text.
    route: Option<MatchedPath>,
    pub(super) status: Option<u16>,
    pub(super) error: Option<&'static str>,
    pub(super) outcome: Outcome,
}

impl Report {
    pub(super) fn new(trace: &Arc<Trace>, telling: Telling, request: &Request) -> Self {
        let route = request.extensions().get::<MatchedPath>().cloned();
        let quiet = is_quiet(route.as_ref());
        let traces = telling.traces.filter(|_| !quiet);
        Self {
            trace: Arc::clone(trace),
            log: telling.log,
            span: traces.map(|traces| Pending::new(traces, request.headers())),
            method: request.method().clone(),
            route,
            status: None,
            error: None,
            outcome: Outcome::Disconnected,
        }
    }

    /// The route's pattern, where the path has one.
    pub(super) fn matched(&self) -> Option<&str> {
        self.route.as_ref().map(MatchedPath::as_str)
    }

    /// The answer's head is known.
    pub(super) fn answered(&mut self, response: &Response) {
        self.status = Some(response.status().as_u16());
        self.error = response
            .extensions()
            .get::<ErrorLabel>()
            .map(|label| label.0);
    }

    /// The answer's end was taken.
    pub(super) fn complete(&mut self) {
        self.outcome = Outcome::Complete;
    }
}

/// The same line at a level that is known only now.
macro_rules! line {
    ($level:ident, $($fields:tt)*) => { tracing::$level!($($fields)*) };
}

impl Drop for Report {
    fn drop(&mut self) {
        let trace = &self.trace;
        let now = Instant::now();
        let facts = trace.facts().clone();
        if let Some(span) = &self.span {
            span.end(self, &facts, trace.since(now));
        }
        let since = |at| millis(trace.since(at));
        let ms = since(now);
        let ttft_ms = facts.times.first_token.map(since);
        let queue_ms = facts.times.queue.map(millis);
        let prompt_tokens = facts.usage.map(|usage| usage.prompt_tokens);
        let cached_tokens = facts
            .usage
            .map(|usage| usage.prompt_tokens_details.cached_tokens);
        let completion_tokens = facts.usage.map(|usage| usage.completion_tokens);
        let (method, route) = (self.method.as_str(), self.matched().unwrap_or("none"));
        let outcome = self.outcome.name();
        macro_rules! told {
            ($level:ident) => {
                line!($level, parent: &trace.span, method, route, status = self.status, error = self.error, outcome,
                    model = facts.model, prompt_tokens, cached_tokens, completion_tokens, queue_ms, ttft_ms, ms, "request")
            };
        }
        if self.log == AccessLog::Off || is_quiet(self.route.as_ref()) {
            told!(debug);
        } else {
            told!(info);
        }
    }
}

fn millis(time: Duration) -> f64 {
    // Tenths: more is noise.
    (time.as_secs_f64() * 1e4).round() / 10.0
}
