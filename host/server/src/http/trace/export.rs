//! Spans of requests on their way to an OpenTelemetry collector.
//!
//! A request only puts its span into a queue of fixed length. A thread of the library's sends them in batches; what the
//! queue has no place for, and what the collector does not take, is lost.

use super::plain::PlainClient;
use axum::http::{HeaderMap, Uri};
use futures::future::{Either, select};
use opentelemetry::propagation::{Extractor, TextMapPropagator as _};
use opentelemetry::trace::TracerProvider as _;
use opentelemetry::{Context, Key, KeyValue};
use opentelemetry_otlp::{
    Protocol, SpanExporter as OtlpExporter, WithExportConfig as _, WithHttpConfig as _,
};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::{OTelSdkError, OTelSdkResult};
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{
    BatchConfigBuilder, BatchSpanProcessor, SdkTracer, SdkTracerProvider, SpanData, SpanExporter,
};
use std::fmt::Display;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::watch;

/// Least characters of a `traceparent`: version, trace, parent and flags in hexadecimal digits.
const TRACEPARENT: usize = 2 + 1 + 32 + 1 + 16 + 1 + 2;

/// Most spans that wait or are being sent.
const QUEUE: usize = 2048;

/// Where spans go: an OTLP collector's URL, for HTTP with protobuf.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TracesEndpoint(Uri);

/// Why there are no traces.
#[derive(Debug, thiserror::Error)]
pub enum TracesError {
    /// Not an URL that spans can be sent to.
    #[error(
        "the traces endpoint is {found:?}, expected the URL of an OTLP collector that takes HTTP with protobuf, such as \
         http://127.0.0.1:4318/v1/traces"
    )]
    Endpoint {
        /// What was given.
        found: String,
    },
    /// The client for it cannot be made.
    #[error(
        "traces cannot be sent to {endpoint}: {cause}; https needs the system's root certificates (ca-certificates)"
    )]
    Client {
        /// Host and port.
        endpoint: String,
        /// Why.
        cause: String,
    },
}

impl std::str::FromStr for TracesEndpoint {
    type Err = TracesError;

    fn from_str(text: &str) -> Result<Self, TracesError> {
        let uri: Option<Uri> = text.parse().ok();
        let uri = uri.filter(|uri| matches!(uri.scheme_str(), Some("http" | "https")));
        let uri = uri.filter(|uri| uri.host().is_some_and(|host| !host.is_empty()));
        uri.map(Self).ok_or_else(|| TracesError::Endpoint {
            found: text.to_owned(),
        })
    }
}

impl TracesEndpoint {
    /// Host and port, without what else the URL may hold.
    fn address(&self) -> String {
        let host = self.0.host().unwrap_or_default();
        match self.0.port_u16() {
            Some(port) => format!("{host}:{port}"),
            None => host.to_owned(),
        }
    }
}

/// Sends a span for each request; cheap to clone.
#[derive(Clone, Debug)]
pub struct Traces {
    provider: SdkTracerProvider,
    tracer: SdkTracer,
    queue: Arc<Queue>,
    /// True: nothing is sent any more.
    given_up: Arc<watch::Sender<bool>>,
}

impl Traces {
    /// Must be called in a runtime, which must outlive it or [`Traces::close`]. `OTEL_SERVICE_NAME`,
    /// `OTEL_RESOURCE_ATTRIBUTES`, `OTEL_TRACES_SAMPLER` and `OTEL_EXPORTER_OTLP_TRACES_HEADERS` hold as in all of OpenTelemetry's
    /// libraries.
    ///
    /// # Errors
    /// When the client cannot be made, as for https where the system has no root certificates.
    pub fn to(endpoint: &TracesEndpoint) -> Result<Self, TracesError> {
        crate::process::use_ring();
        let mut exporter = OtlpExporter::builder()
            .with_http()
            .with_protocol(Protocol::HttpBinary)
            .with_endpoint(endpoint.0.to_string());
        if endpoint.0.scheme_str() == Some("http") {
            exporter = exporter.with_http_client(PlainClient::new());
        }
        let exporter = exporter.build().map_err(|error| TracesError::Client {
            endpoint: endpoint.address(),
            cause: error.to_string(),
        })?;
        let queue = Arc::new(Queue::new(QUEUE, endpoint.address()));
        let (given_up, ends) = watch::channel(false);
        let exporter = Exporter {
            within: exporter,
            runtime: Handle::current(),
            queue: Arc::clone(&queue),
            ends,
        };
        let batches = BatchConfigBuilder::default().with_max_queue_size(QUEUE);
        let batches = BatchSpanProcessor::builder(exporter).with_batch_config(batches.build());
        let provider = SdkTracerProvider::builder()
            .with_span_processor(batches.build())
            .with_resource(resource())
            .build();
        Ok(Self {
            tracer: provider.tracer("guesthouse"),
            provider,
            queue,
            given_up: Arc::new(given_up),
        })
    }

    /// The caller's span, where `traceparent` and `tracestate` name one.
    pub(super) fn parent(headers: &HeaderMap) -> Context {
        TraceContextPropagator::new().extract_with_context(&Context::new(), &Headers(headers))
    }

    /// Hands over one span, made by `make` unless the queue is full; it tells whether the span is to be sent.
    pub(super) fn send(&self, make: impl FnOnce(&SdkTracer) -> Sampled) {
        if self.queue.enter() && make(&self.tracer) == Sampled::No {
            self.queue.leave(1);
        }
    }

    /// Sends what waits, for at most so long; what is left is lost. Nothing is sent afterwards.
    pub async fn close(&self, limit: Duration) {
        let provider = self.provider.clone();
        // Longer than what is waited for here: its thread must have ended when the runtime does.
        let patience = limit + Duration::from_secs(5);
        let mut closing =
            tokio::task::spawn_blocking(move || provider.shutdown_with_timeout(patience));
        if tokio::time::timeout(limit, &mut closing).await.is_err() {
            self.given_up.send_replace(true);
            let _ = closing.await;
        }
    }
}

/// Whether a span is one of those that are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sampled {
    /// It is on its way.
    Yes,
    /// The sampler, or the caller's `traceparent`, leaves it out.
    No,
}

/// What describes this server: the environment first.
fn resource() -> Resource {
    let found = Resource::builder().build();
    let name = found.get(&Key::from_static_str("service.name"));
    let unnamed = name.is_none_or(|name| name.as_str().starts_with("unknown_service"));
    let version = KeyValue::new("service.version", env!("CARGO_PKG_VERSION"));
    let resource = Resource::builder().with_attribute(version);
    if unnamed {
        resource.with_service_name("guesthouse").build()
    } else {
        resource.build()
    }
}

struct Headers<'a>(&'a HeaderMap);

impl Extractor for Headers<'_> {
    /// None where it stands twice or is cut short: W3C calls that invalid, the library does not.
    fn get(&self, key: &str) -> Option<&str> {
        let mut values = self.0.get_all(key).iter();
        let value = values.next()?.to_str().ok()?;
        let cut = key == "traceparent" && value.trim().len() < TRACEPARENT;
        (values.next().is_none() && !cut).then_some(value)
    }

    fn keys(&self) -> Vec<&str> {
        self.0.keys().map(axum::http::HeaderName::as_str).collect()
    }
}

/// Counts spans that wait, and tells when some are lost: once until they are taken again.
#[derive(Debug)]
struct Queue {
    most: usize,
    collector: String,
    waiting: AtomicUsize,
    losing: AtomicBool,
    /// Since spans began to be lost.
    lost: AtomicUsize,
}

impl Queue {
    fn new(most: usize, collector: String) -> Self {
        Self {
            most,
            collector,
            waiting: AtomicUsize::new(0),
            losing: AtomicBool::new(false),
            lost: AtomicUsize::new(0),
        }
    }

    /// Takes a place; false where there is none.
    fn enter(&self) -> bool {
        let more = |waiting| (waiting < self.most).then_some(waiting + 1);
        let order = Ordering::Relaxed;
        let entered = self.waiting.fetch_update(order, order, more).is_ok();
        if !entered {
            self.lose(1, &"its queue is full");
        }
        entered
    }

    fn leave(&self, spans: usize) {
        self.waiting.fetch_sub(spans, Ordering::Relaxed);
    }

    fn lose(&self, spans: usize, why: &dyn Display) {
        self.lost.fetch_add(spans, Ordering::Relaxed);
        if !self.losing.swap(true, Ordering::Relaxed) {
            tracing::warn!(collector = self.collector, %why, "spans of requests are lost, requests are not touched; check --otlp-traces-endpoint");
        }
    }

    fn sent(&self) {
        if self.losing.swap(false, Ordering::Relaxed) {
            let lost = self.lost.swap(0, Ordering::Relaxed);
            tracing::info!(
                collector = self.collector,
                lost,
                "spans of requests are taken again"
            );
        }
    }
}

/// The library's exporter, with what its client needs: the thread of batches has no runtime of its own.
#[derive(Debug)]
struct Exporter {
    within: OtlpExporter,
    runtime: Handle,
    queue: Arc<Queue>,
    ends: watch::Receiver<bool>,
}

impl SpanExporter for Exporter {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let spans = batch.len();
        let mut ends = self.ends.clone();
        let result = {
            let ended = pin!(ends.wait_for(|ended| *ended));
            let sending = pin!(self.within.export(batch));
            let mut either = select(ended, sending);
            let first = poll_fn(|context| {
                let _within = self.runtime.enter();
                std::pin::Pin::new(&mut either).poll(context)
            });
            match first.await {
                Either::Left(_) => Err(OTelSdkError::InternalFailure("shut down".to_owned())),
                Either::Right((sent, _)) => sent,
            }
        };
        self.queue.leave(spans);
        match &result {
            Ok(()) => self.queue.sent(),
            Err(error) => self.queue.lose(spans, error),
        }
        result
    }

    fn shutdown_with_timeout(&self, limit: Duration) -> OTelSdkResult {
        self.within.shutdown_with_timeout(limit)
    }

    fn shutdown(&self) -> OTelSdkResult {
        self.within.shutdown()
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.within.set_resource(resource);
    }
}

#[cfg(test)]
mod tests;
