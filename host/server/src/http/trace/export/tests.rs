#![allow(clippy::unwrap_used)]

use super::{Queue, TracesEndpoint};
use crate::testing::Logs;

#[test]
fn an_endpoint_is_an_url_of_http() {
    for (url, address) in [
        ("http://127.0.0.1:4318/v1/traces", "127.0.0.1:4318"),
        (
            "https://user:secret@collector.example/v1/traces",
            "collector.example",
        ),
    ] {
        let endpoint: TracesEndpoint = url.parse().unwrap();
        assert_eq!(endpoint.address(), address);
    }
    for url in [
        "",
        "localhost:4317",
        "grpc://localhost:4317",
        "http://",
        "/v1/traces",
        "unix:/x",
    ] {
        let error = url.parse::<TracesEndpoint>().unwrap_err().to_string();
        assert!(error.contains("http://127.0.0.1:4318/v1/traces"), "{error}");
    }
}

#[test]
fn a_loss_is_told_once_until_it_ends() {
    let logs = Logs::default();
    let queue = Queue::new(2, "collector".to_owned());
    let told = |message: &str| logs.lines(message).len();
    let (lost, again) = (
        "spans of requests are lost, requests are not touched; check --otlp-traces-endpoint",
        "spans of requests are taken again",
    );
    logs.during(|| {
        assert!(queue.enter() && queue.enter());
        assert_eq!(told(lost), 0);
        assert!(!queue.enter() && !queue.enter());
        queue.leave(2);
        queue.lose(2, &"network error");
        assert_eq!(told(lost), 1);
        queue.sent();
        queue.sent();
        assert!(queue.enter());
        queue.leave(1);
        queue.lose(1, &"network error");
    });
    assert_eq!((told(lost), told(again)), (2, 1), "{}", logs.text());
    assert_eq!(logs.lines(again)[0]["lost"], 4);
}
