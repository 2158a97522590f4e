use super::support::{Setup, until};
use crate::http::CorsOrigins;
use axum::body::Body;
use axum::http::Request;
use guesthouse_engine::Drain;
use guesthouse_tenants::{ModelAccess, Policy};
use serde_json::json;
use std::time::Duration;

#[tokio::test]
async fn models_are_listed_under_all_names() {
    let server = Setup::saying(&["a"]).start();
    let list = server.get("/v1/models").await.json();
    assert_eq!(list["object"], "list");
    let ids: Vec<_> = list["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|card| card["id"].as_str().unwrap())
        .collect();
    assert_eq!(ids, ["org/tiny", "tiny"]);
    let card = json!({"id": "org/tiny", "object": "model", "created": 1_700_000_000, "owned_by": "guesthouse", "root": "org/tiny", "max_model_len": 256});
    assert_eq!(list["data"][0], card);
    assert_eq!(server.get("/v1/models/org/tiny").await.json(), card);
    assert_eq!(server.get("/v1/models/org%2Ftiny").await.json(), card);
    assert_eq!(
        server.get("/v1/models/tiny").await.json()["root"],
        "org/tiny"
    );
}

#[tokio::test]
async fn health_follows_the_engine() {
    let (mut setup, gate) = Setup::gated(&["a"]);
    setup.config.stuck_after = Duration::ZERO;
    let server = std::sync::Arc::new(setup.start());
    assert_eq!(server.get("/health").await.status, 200);
    assert_eq!(server.get("/ping").await.status, 200);
    let other = std::sync::Arc::clone(&server);
    let task =
        tokio::spawn(async move { other.post("/v1/completions", &json!({"prompt": "x"})).await });
    until(|| server.stats().running == 1).await;
    let stuck = server.get("/health").await;
    assert_eq!(stuck.status, 503);
    assert!(
        stuck.json()["error"]["message"]
            .as_str()
            .unwrap()
            .contains("stuck")
    );
    gate.open(1000);
    assert_eq!(task.await.unwrap().status, 200);
    server.model.engine.shutdown(Drain::Yes);
    server.model.engine.join();
    assert_eq!(server.get("/health").await.status, 503);
    let late = server
        .post("/v1/completions", &json!({"prompt": "x"}))
        .await;
    assert_eq!(late.status, 503, "{}", late.body);
}

#[tokio::test]
async fn health_by_model_tells_strangers_nothing() {
    let policy = |models: &[&str]| Policy {
        models: ModelAccess::Only(models.iter().map(|&name| name.to_owned()).collect()),
        ..Policy::default()
    };
    let tenants = [("may", policy(&["org/tiny"])), ("not", policy(&["other"]))];
    let (mut setup, house) = Setup::saying(&["a"]).of_tenants(&tenants);
    setup.config.admin_keys = crate::http::ApiKeys::new(["admin"]);
    let server = setup.start();
    let [may, not] = &house.keys[..] else {
        panic!("two keys")
    };
    let (known, unknown) = ("/health?model=org/tiny", "/health?model=none");
    let statuses = async |known_is: u16| {
        for (key, path, status) in [
            (may.as_str(), known, known_is),
            (may, unknown, 404),
            (not, known, 404),
            ("admin", known, known_is),
            ("admin", unknown, 404),
            ("wrong", known, 401),
            ("wrong", unknown, 401),
        ] {
            assert_eq!(
                server.get_as(key, path).await.status,
                status,
                "{key} {path}"
            );
        }
        let (a, b) = (server.get(known).await, server.get(unknown).await);
        assert_eq!((a.status.as_u16(), &a.body), (401, &b.body));
    };
    statuses(200).await;
    assert_eq!(server.get("/health").await.status, 200);
    server.model.engine.shutdown(Drain::Yes);
    server.model.engine.join();
    statuses(503).await;
    for (answer, named) in [
        (server.get("/health").await, false),
        (server.get_as(not, "/health").await, false),
        (server.get_as(may, "/health").await, true),
        (server.get_as("admin", "/health").await, true),
    ] {
        assert_eq!(answer.status, 503);
        assert_eq!(answer.body.contains("org/tiny"), named, "{}", answer.body);
    }
}

/// Names and types as in vLLM's documentation ("Production metrics").
#[tokio::test]
async fn metrics_have_vllms_names_and_count() {
    let server = Setup::saying(&["abc<|im_end|>"]).start();
    server
        .ask("/v1/completions", &json!({"prompt": "xy", "n": 2}))
        .await;
    server
        .ask("/v1/completions", &json!({"prompt": "xy", "max_tokens": 2}))
        .await;
    let answer = server.get("/metrics").await;
    assert_eq!(
        answer.headers["content-type"],
        "text/plain; version=0.0.4; charset=utf-8"
    );
    let text = &answer.body;
    for (name, kind) in [
        ("vllm:num_requests_running", "gauge"),
        ("vllm:num_requests_waiting", "gauge"),
        ("vllm:kv_cache_usage_perc", "gauge"),
        ("vllm:prompt_tokens_total", "counter"),
        ("vllm:generation_tokens_total", "counter"),
        ("vllm:num_preemptions_total", "counter"),
        ("vllm:prefix_cache_queries_total", "counter"),
        ("vllm:prefix_cache_hits_total", "counter"),
        ("vllm:spec_decode_num_drafts_total", "counter"),
        ("vllm:spec_decode_num_draft_tokens_total", "counter"),
        ("vllm:spec_decode_num_accepted_tokens_total", "counter"),
        ("guesthouse:forced_tokens_total", "counter"),
        ("vllm:request_success_total", "counter"),
        ("vllm:time_to_first_token_seconds", "histogram"),
        ("vllm:time_per_output_token_seconds", "histogram"),
        ("vllm:inter_token_latency_seconds", "histogram"),
        ("vllm:e2e_request_latency_seconds", "histogram"),
        ("vllm:request_queue_time_seconds", "histogram"),
        ("vllm:request_prefill_time_seconds", "histogram"),
        ("vllm:request_decode_time_seconds", "histogram"),
        ("vllm:request_inference_time_seconds", "histogram"),
        ("vllm:request_prompt_tokens", "histogram"),
        ("vllm:request_generation_tokens", "histogram"),
        ("vllm:request_params_n", "histogram"),
        ("vllm:request_params_max_tokens", "histogram"),
        ("vllm:iteration_tokens_total", "histogram"),
        ("guesthouse:step_exposed_seconds", "summary"),
    ] {
        assert!(text.contains(&format!("# TYPE {name} {kind}\n")), "{name}");
        assert_eq!(
            text.matches(&format!("# TYPE {name} ")).count(),
            1,
            "{name}"
        );
    }
    let value = |line: &str| {
        let found = text
            .lines()
            .find_map(|l| l.strip_prefix(line)?.strip_prefix(' '))
            .unwrap_or_else(|| panic!("{line} in {text}"));
        found.parse::<f64>().unwrap()
    };
    assert_eq!(
        value(r#"vllm:request_success_total{model_name="org/tiny",finished_reason="stop"}"#),
        2.0
    );
    assert_eq!(
        value(r#"vllm:request_success_total{model_name="org/tiny",finished_reason="length"}"#),
        1.0
    );
    assert_eq!(
        value(r#"vllm:request_success_total{model_name="org/tiny",finished_reason="abort"}"#),
        0.0
    );
    assert_eq!(
        value(r#"vllm:time_to_first_token_seconds_count{model_name="org/tiny"}"#),
        3.0
    );
    // The scripted device says 40 µs for each collected step.
    let exposed = value(r#"guesthouse:step_exposed_seconds_sum{model_name="org/tiny"}"#);
    let steps = value(r#"guesthouse:step_exposed_seconds_count{model_name="org/tiny"}"#);
    assert!(exposed > 79e-6 && exposed <= steps * 40.1e-6, "{exposed}");
    assert_eq!(
        value(r#"vllm:inter_token_latency_seconds_count{model_name="org/tiny"}"#),
        3.0 + 3.0 + 1.0
    );
    assert_eq!(
        value(r#"vllm:e2e_request_latency_seconds_count{model_name="org/tiny"}"#),
        3.0
    );
    assert_eq!(
        value(r#"vllm:request_generation_tokens_sum{model_name="org/tiny"}"#),
        4.0 + 4.0 + 2.0
    );
    assert_eq!(
        value(r#"vllm:request_prompt_tokens_bucket{model_name="org/tiny",le="1.0"}"#),
        0.0
    );
    assert_eq!(
        value(r#"vllm:request_prompt_tokens_bucket{model_name="org/tiny",le="2.0"}"#),
        3.0
    );
    assert_eq!(
        value(r#"vllm:request_prompt_tokens_bucket{model_name="org/tiny",le="+Inf"}"#),
        3.0
    );
    assert!(value(r#"vllm:prompt_tokens_total{model_name="org/tiny"}"#) >= 4.0);
}

#[tokio::test]
async fn the_document_has_every_route_and_resolves() {
    let server = Setup::saying(&["a"]).start();
    let spec = server.get("/openapi.json").await.json();
    assert!(spec["openapi"].as_str().unwrap().starts_with("3."));
    for (path, method) in [
        ("/v1/chat/completions", "post"),
        ("/v1/completions", "post"),
        ("/v1/models", "get"),
        ("/v1/models/{model}", "get"),
        ("/generate", "post"),
        ("/tokenize", "post"),
        ("/detokenize", "post"),
        ("/health", "get"),
        ("/metrics", "get"),
        ("/version", "get"),
    ] {
        assert!(spec["paths"][path][method].is_object(), "{method} {path}");
    }
    let mut open = vec![&spec];
    while let Some(value) = open.pop() {
        if let Some(target) = value.get("$ref").and_then(|target| target.as_str()) {
            assert!(
                spec.pointer(target.trim_start_matches('#')).is_some(),
                "{target}"
            );
        }
        open.extend(
            value
                .as_object()
                .into_iter()
                .flat_map(|fields| fields.values()),
        );
        open.extend(value.as_array().into_iter().flatten());
    }
    for (schema, field) in [
        ("SamplingFields", "temperature"),
        ("ConversationFields", "messages"),
        ("CompletionFields", "prompt"),
        ("ChatChunk", "choices"),
    ] {
        assert!(
            spec["components"]["schemas"][schema]["properties"][field].is_object(),
            "{schema}.{field}"
        );
    }
    assert_eq!(
        spec["components"]["schemas"]["CompletionFields"]["required"],
        json!(["prompt"])
    );
}

#[tokio::test]
async fn the_page_needs_nothing_from_elsewhere() {
    let server = Setup::saying(&["a"]).start();
    let page = server.get("/docs").await;
    assert!(
        page.headers["content-type"]
            .to_str()
            .unwrap()
            .starts_with("text/html")
    );
    for word in ["/v1/chat/completions", "frequency_penalty", "ChatResponse"] {
        assert!(page.body.contains(word), "{word}");
    }
    for outside in ["<script", "src=", "href=\"http", "@import", "url("] {
        assert!(!page.body.contains(outside), "{outside}");
    }
    assert_eq!(
        server.get("/version").await.json(),
        json!({"version": env!("CARGO_PKG_VERSION")})
    );
}

#[tokio::test]
async fn pages_of_allowed_origins_may_ask() {
    let preflight = || {
        Request::options("/v1/models")
            .header("origin", "https://a.example")
            .header("access-control-request-method", "GET")
            .body(Body::empty())
            .unwrap()
    };
    let closed = Setup::saying(&["a"]).start().send(preflight()).await;
    assert!(!closed.headers.contains_key("access-control-allow-origin"));
    for (origins, allowed) in [
        (CorsOrigins::Any, Some("*")),
        (
            CorsOrigins::These(vec!["https://a.example".into()]),
            Some("https://a.example"),
        ),
        (CorsOrigins::These(vec!["https://b.example".into()]), None),
    ] {
        let mut setup = Setup::saying(&["a"]);
        setup.config.cors = origins;
        setup.config.api_keys = crate::http::ApiKeys::new(["k"]);
        let answer = setup.start().send(preflight()).await;
        assert_eq!(
            answer
                .headers
                .get("access-control-allow-origin")
                .map(|value| value.to_str().unwrap()),
            allowed
        );
    }
}
