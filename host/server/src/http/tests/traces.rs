//! Spans as a collector gets them. Expected bytes are written after OpenTelemetry's `trace.proto` and protobuf's encoding.

use super::support::Setup;
use crate::http::{Traces, TracesEndpoint};
use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, Request};
use axum::routing::post;
use guesthouse_tenants::Policy;
use serde_json::json;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::net::TcpListener;

const SECRET: &str = "myprompt";
/// The example of W3C's Trace Context.
const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
const TRACE_ID: u128 = 0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736;
const PARENT_ID: u64 = 0x00f0_67aa_0ba9_02b7;

fn traces(address: SocketAddr) -> Traces {
    let endpoint: TracesEndpoint = format!("http://{address}/v1/traces").parse().unwrap();
    Traces::to(&endpoint).unwrap()
}

/// What it got, one body after the other.
#[derive(Clone, Default)]
struct Collector(Arc<Mutex<Vec<u8>>>);

impl Collector {
    async fn start(&self) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let got = Arc::clone(&self.0);
        let take = async move |headers: HeaderMap, body: Bytes| {
            assert_eq!(headers["content-type"], "application/x-protobuf");
            got.lock().unwrap().extend_from_slice(&body);
        };
        let routes = Router::new().route("/v1/traces", post(take));
        tokio::spawn(async move { axum::serve(listener, routes).await.unwrap() });
        address
    }

    fn count(&self, bytes: &[u8]) -> usize {
        memchr::memmem::find_iter(&self.0.lock().unwrap(), bytes).count()
    }
}

/// A field with a length, number below 16.
fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    let mut field = vec![number << 3 | 2, u8::try_from(bytes.len()).unwrap()];
    field.extend_from_slice(bytes);
    field
}

fn attribute(name: &str, value: &[u8]) -> Vec<u8> {
    [field(1, name.as_bytes()), field(2, value)].concat()
}

fn text(name: &str, value: &str) -> Vec<u8> {
    attribute(name, &field(1, value.as_bytes()))
}

/// A number below 128.
fn small(name: &str, value: u8) -> Vec<u8> {
    attribute(name, &[3 << 3, value])
}

fn double(name: &str, value: f64) -> Vec<u8> {
    attribute(name, &[&[4 << 3 | 1][..], &value.to_le_bytes()].concat())
}

fn request(path: &str, parent: &str, body: &serde_json::Value) -> Request<Body> {
    Request::post(path)
        .header("content-type", "application/json")
        .header("traceparent", parent)
        .header("x-request-id", "my-1")
        .body(Body::from(body.to_string()))
        .unwrap()
}

#[tokio::test]
async fn a_request_is_a_span_of_its_callers_trace() {
    let collector = Collector::default();
    let traces = traces(collector.start().await);
    let (mut setup, house) =
        Setup::saying(&["abc<|im_end|>"]).of_tenants(&[("acme", Policy::default())]);
    setup.config.traces = Some(traces.clone());
    let server = setup.start();
    let body =
        json!({"prompt": SECRET, "n": 2, "max_tokens": 7, "temperature": 0.5, "top_p": 0.25});
    let mut asked = request("/v1/completions", PARENT, &body);
    let key = format!("Bearer {}", house.keys[0]);
    asked
        .headers_mut()
        .insert("authorization", key.parse().unwrap());
    assert_eq!(server.send(asked).await.status, 200);
    server.get("/health").await;
    server.get(&format!("/{SECRET}")).await;
    traces.close(Duration::from_secs(60)).await;

    // Its trace, its parent, its name, SERVER.
    let identity = field(1, &TRACE_ID.to_be_bytes());
    assert_eq!(collector.count(&identity), 1);
    assert_eq!(collector.count(&field(4, &PARENT_ID.to_be_bytes())), 1);
    assert_eq!(
        collector.count(&[&field(5, b"llm_request")[..], &[6 << 3, 2]].concat()),
        1
    );
    // Eight bytes are eight tokens; each choice says three and the token that ends it.
    for expected in [
        text("gen_ai.request.id", "my-1"),
        text("gen_ai.response.model", "org/tiny"),
        small("gen_ai.request.n", 2),
        small("gen_ai.request.max_tokens", 7),
        double("gen_ai.request.temperature", 0.5),
        double("gen_ai.request.top_p", 0.25),
        small("gen_ai.usage.prompt_tokens", 8),
        small("gen_ai.usage.completion_tokens", 8),
        text("guesthouse.tenant.id", "acme"),
        text("http.route", "/v1/completions"),
        text("http.request.method", "POST"),
        attribute("http.response.status_code", &[3 << 3, 0xc8, 0x01]),
        text("service.name", "guesthouse"),
    ] {
        assert_eq!(collector.count(&expected), 1, "{}", expected.escape_ascii());
    }
    for name in [
        "gen_ai.latency.time_in_queue",
        "gen_ai.latency.time_to_first_token",
        "gen_ai.latency.time_in_model_prefill",
        "gen_ai.latency.time_in_model_decode",
    ] {
        assert_eq!(collector.count(&field(1, name.as_bytes())), 1, "{name}");
    }
    // The unknown path is a span too, but what it says is not told, and probes are none.
    let spans = field(1, b"gen_ai.latency.e2e");
    assert_eq!(collector.count(&spans), 2);
    assert_eq!(collector.count(&text("guesthouse.outcome", "complete")), 2);
    assert_eq!(collector.count(SECRET.as_bytes()), 0);
}

#[tokio::test]
async fn what_the_caller_does_not_sample_is_not_sent() {
    let collector = Collector::default();
    let traces = traces(collector.start().await);
    let mut setup = Setup::saying(&["abc<|im_end|>"]);
    setup.config.traces = Some(traces.clone());
    let server = setup.start();
    let body = json!({"prompt": "x"});
    let unsampled = PARENT.replace("-01", "-00");
    // Too short, a forbidden version, no trace: as if there were none.
    let (short, version) = (&PARENT[..54], PARENT.replacen("00", "ff", 1));
    let zero = format!("00-{:032x}-00f067aa0ba902b7-01", 0);
    for parent in [&unsampled, &unsampled, short, &version, &zero] {
        let answer = server.send(request("/v1/completions", parent, &body)).await;
        assert_eq!(answer.status, 200);
    }
    traces.close(Duration::from_secs(60)).await;
    assert_eq!(collector.count(&text("gen_ai.request.id", "my-1")), 3);
    assert_eq!(collector.count(&field(4, &PARENT_ID.to_be_bytes())), 0);
    assert_eq!(collector.count(&TRACE_ID.to_be_bytes()), 0);
    assert_eq!(collector.count(&[0; 16]), 0);
}

/// Nobody listens at the one; the other takes connections, and answers none.
#[tokio::test]
async fn a_collector_that_is_away_or_hangs_changes_nothing() {
    let away = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let gone = away.local_addr().unwrap();
    drop(away);
    let hanging = TcpListener::bind("127.0.0.1:0").await.unwrap();
    for address in [gone, hanging.local_addr().unwrap()] {
        let traces = traces(address);
        let mut setup = Setup::saying(&["abc<|im_end|>"]);
        setup.config.traces = Some(traces.clone());
        let server = setup.start();
        for _ in 0..20 {
            server.ask("/v1/completions", &json!({"prompt": "x"})).await;
        }
        let closing = traces.close(Duration::from_millis(200));
        tokio::time::timeout(Duration::from_secs(60), closing)
            .await
            .unwrap();
        server.ask("/v1/completions", &json!({"prompt": "x"})).await;
    }
}
