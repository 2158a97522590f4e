//! What is told of each request when it ended: one line of log and, where it is asked for, one OpenTelemetry span.
//!
//! Never the prompt or the answer.

mod body;
mod export;
mod plain;
mod report;
mod span;

use super::request_id::{self, RequestId};
use crate::openai::Usage;
use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::middleware::{Next, from_fn};
use axum::response::Response;
use guesthouse_tenants::Tenant;
use report::Report;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tracing::Instrument as _;

pub use export::{Traces, TracesEndpoint, TracesError};
pub(super) use report::ErrorLabel;

/// Whether a line is logged for each request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AccessLog {
    /// At level info, but at debug for what probes and scrapers ask.
    #[default]
    Requests,
    /// At level debug.
    Off,
}

tokio::task_local! {
    /// The request that the running task serves.
    static CURRENT: Arc<Trace>;
}

/// One request, from its head to the end of its answer.
#[derive(Debug)]
pub(super) struct Trace {
    id: RequestId,
    /// All that is logged on the way stands in it.
    span: tracing::Span,
    began: Instant,
    facts: Mutex<Facts>,
}

/// What is known of a request so far.
#[derive(Clone, Debug, Default)]
pub(super) struct Facts {
    pub(super) tenant: Option<Arc<Tenant>>,
    /// Id of the model, never what the client called it.
    pub(super) model: Option<String>,
    pub(super) params: Option<Params>,
    pub(super) usage: Option<Usage>,
    pub(super) times: Times,
}

/// Parameters of a request for text.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Params {
    /// Choices per prompt.
    pub(super) n: u32,
    /// Most tokens of a choice; none where the context alone bounds it.
    pub(super) max_tokens: Option<u32>,
    /// As the client sent it or the model's default.
    pub(super) temperature: Option<f64>,
    /// Likewise.
    pub(super) top_p: Option<f64>,
}

/// Phases of a request; those that it did not come to are none.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Times {
    /// From submission to the first step.
    pub(super) queue: Option<Duration>,
    /// From the first step to the first token.
    pub(super) prefill: Option<Duration>,
    /// From the first token to the last.
    pub(super) decode: Option<Duration>,
    /// When the first token came.
    pub(super) first_token: Option<Instant>,
}

impl Trace {
    fn begin(id: RequestId) -> Self {
        let span = tracing::info_span!("request", id = id.as_str(), tenant = tracing::field::Empty);
        Self {
            id,
            span,
            began: Instant::now(),
            facts: Mutex::default(),
        }
    }

    /// The request that the running task serves; outside of one, a request that nobody is told of.
    pub(super) fn current() -> Arc<Self> {
        CURRENT
            .try_with(Arc::clone)
            .unwrap_or_else(|_| Arc::new(Self::begin(RequestId::of(&axum::http::HeaderMap::new()))))
    }

    /// Time from the request's arrival to `at`.
    fn since(&self, at: Instant) -> Duration {
        at.saturating_duration_since(self.began)
    }

    pub(super) fn id(&self) -> &RequestId {
        &self.id
    }

    /// Adds to what is known.
    pub(super) fn note(&self, add: impl FnOnce(&mut Facts)) {
        add(&mut self.facts());
    }

    fn facts(&self) -> MutexGuard<'_, Facts> {
        self.facts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Where requests are told of.
#[derive(Clone, Debug, Default)]
pub(crate) struct Telling {
    pub(crate) log: AccessLog,
    /// None: no spans are made.
    pub(crate) traces: Option<Traces>,
}

/// Puts a trace around all routes. It must be the outermost layer.
pub(crate) fn traced<S: Clone + Send + Sync + 'static>(
    routes: Router<S>,
    telling: Telling,
) -> Router<S> {
    routes.layer(from_fn(move |request, next| {
        follow(telling.clone(), request, next)
    }))
}

async fn follow(telling: Telling, request: Request, next: Next) -> Response {
    let trace = Arc::new(Trace::begin(RequestId::of(request.headers())));
    let mut report = Report::new(&trace, telling, &request);
    let mut response = within(&trace, next.run(request)).await;
    if let Some(id) = trace.id.header() {
        response.headers_mut().insert(request_id::HEADER, id);
    }
    report.answered(&response);
    response.map(|body| Body::new(body::Followed::new(body, trace, report)))
}

async fn within<T>(trace: &Arc<Trace>, work: impl Future<Output = T>) -> T {
    let work = work.instrument(trace.span.clone());
    CURRENT.scope(Arc::clone(trace), work).await
}

/// Takes over whose request it is. It stands right within what looks at keys.
pub(super) async fn note_tenant(request: Request, next: Next) -> Response {
    if let Some(tenant) = request.extensions().get::<Arc<Tenant>>() {
        let trace = Trace::current();
        trace.span.record("tenant", tenant.id.as_str());
        trace.note(|facts| facts.tenant = Some(Arc::clone(tenant)));
    }
    next.run(request).await
}
