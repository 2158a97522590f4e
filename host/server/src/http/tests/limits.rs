//! Requests over their tenant's limits, and what is given back.

use super::support::{Answer, Setup, until};
use crate::serving::GuestError;
use axum::body::Body;
use axum::http::Request;
use futures::FutureExt as _;
use futures::future::{Either, select};
use guesthouse_tenants::{Policy, Quotas, Tenant};
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tower::ServiceExt as _;

const COMPLETIONS: &str = "/v1/completions";

fn limited(quotas: Quotas) -> Policy {
    Policy {
        quotas,
        ..Policy::default()
    }
}

/// The answer to a request over `limit`, in OpenAI's shape.
fn check_over(answer: &Answer, limit: &str) {
    assert_eq!(answer.status, 429, "{}", answer.body);
    let error = answer.json()["error"].clone();
    assert_eq!(error["type"], "rate_limit_error");
    assert_eq!(error["code"], "rate_limit_exceeded");
    assert_eq!(error["param"], limit);
    assert!(
        error["message"].as_str().unwrap().contains(limit),
        "{error}"
    );
    let seconds: u64 = answer.headers["retry-after"]
        .to_str()
        .unwrap()
        .parse()
        .unwrap();
    assert!((1..=60).contains(&seconds), "{seconds}");
}

fn header(answer: &Answer, name: &str) -> u64 {
    answer.headers[name].to_str().unwrap().parse().unwrap()
}

/// As when its samplers take long: the threads that wait for them are not those of others.
#[tokio::test]
async fn a_tenant_waits_for_its_own_plans_alone() {
    let tenants = [("a", Policy::default()), ("b", Policy::default())];
    let (setup, house) = Setup::saying(&["a<|im_end|>"; 3]).of_tenants(&tenants);
    let server = setup.start();
    let body = json!({"prompt": "x"});
    let first = server.post_as(&house.keys[0], COMPLETIONS, &body).await;
    assert_eq!(first.status, 200);
    let tenant = server.guests.scopes.lock().unwrap()[0].tenant.id.clone();
    let mut held = Vec::new();
    while let Some(turn) = server.model.planning.of(tenant.as_str()).now_or_never() {
        held.push(turn);
    }
    // Both go on at the same time.
    let late = Box::pin(server.post_as(&house.keys[0], COMPLETIONS, &body));
    let other = Box::pin(server.post_as(&house.keys[1], COMPLETIONS, &body));
    let Either::Right((other, late)) = select(late, other).await else {
        panic!("the one that has no turn was first");
    };
    assert_eq!(other.status, 200);
    assert_eq!(
        server.guests.planned.lock().unwrap().len(),
        2,
        "not the late one"
    );
    held.clear();
    assert_eq!(late.await.status, 200);
}

#[tokio::test]
async fn requests_per_minute_are_counted_and_told() {
    let quotas = Quotas {
        requests_per_minute: Some(2),
        ..Quotas::default()
    };
    let tenants = [("a", limited(quotas)), ("b", Policy::default())];
    let (setup, house) = Setup::saying(&["a<|im_end|>"]).of_tenants(&tenants);
    let server = setup.start();
    let body = json!({"prompt": "x"});
    let first = server.post_as(&house.keys[0], COMPLETIONS, &body).await;
    assert_eq!(first.status, 200);
    assert_eq!(header(&first, "x-ratelimit-limit-requests"), 2);
    assert_eq!(header(&first, "x-ratelimit-remaining-requests"), 1);
    assert!(
        first.headers["x-ratelimit-reset-requests"]
            .to_str()
            .unwrap()
            .ends_with('s')
    );
    assert!(!first.headers.contains_key("x-ratelimit-limit-tokens"));
    // Refused requests count too, and so do those for tokens.
    let wrong = server
        .post_as(&house.keys[0], "/tokenize", &json!({}))
        .await;
    assert_eq!(wrong.status, 400);
    for path in [
        COMPLETIONS,
        "/generate",
        "/tokenize",
        "/v1/chat/completions",
    ] {
        let over = server.post_as(&house.keys[0], path, &body).await;
        check_over(&over, "requests_per_minute");
    }
    // What takes nothing is not counted, and others go on.
    assert_eq!(
        server.get_as(&house.keys[0], "/v1/models").await.status,
        200
    );
    let other = server.post_as(&house.keys[1], COMPLETIONS, &body).await;
    assert_eq!(other.status, 200);
    assert!(!other.headers.contains_key("x-ratelimit-limit-requests"));
    let own = server.get_as(&house.keys[0], "/metrics").await.body;
    let line = r#"guesthouse:tenant_refused_total{tenant="a",limit="requests_per_minute"} 4"#;
    assert!(own.contains(line), "{own}");
}

#[tokio::test]
async fn tokens_are_reserved_and_unused_ones_come_back() {
    let quotas = Quotas {
        tokens_per_minute: Some(100),
        ..Quotas::default()
    };
    let (setup, house) = Setup::saying(&["abc<|im_end|>"]).of_tenants(&[("a", limited(quotas))]);
    let server = setup.start();
    let ask = async |max_tokens: u32| {
        let body = json!({"prompt": "0123456789", "max_tokens": max_tokens});
        server.post_as(&house.keys[0], COMPLETIONS, &body).await
    };
    // 10 of the prompt and 60 of the answer, of which 4 are used.
    let first = ask(60).await;
    assert_eq!(first.status, 200, "{}", first.body);
    let left = header(&first, "x-ratelimit-remaining-tokens");
    assert!((86..100).contains(&left), "{left}");
    check_over(&ask(200).await, "tokens_per_minute");
    let used = server.state.take_used(86_400);
    let [entry] = &used[..] else {
        panic!("{used:?}")
    };
    assert_eq!((entry.tenant, entry.day), (1, 1));
    let counted = entry.counted;
    assert_eq!(
        (
            counted.requests,
            counted.prompt_tokens,
            counted.output_tokens
        ),
        (2, 10, 4)
    );
    assert!(server.state.take_used(86_400).is_empty());
}

#[tokio::test]
async fn sequences_that_run_are_capped_per_tenant() {
    let quotas = Quotas {
        concurrent_sequences: Some(2),
        ..Quotas::default()
    };
    let (setup, gate) = Setup::gated(&["a<|im_end|>"]);
    let tenants = [("a", limited(quotas)), ("b", Policy::default())];
    let (setup, house) = setup.of_tenants(&tenants);
    let server = Arc::new(setup.start());
    let (other, key) = (Arc::clone(&server), house.keys[0].clone());
    let running = tokio::spawn(async move {
        other
            .post_as(&key, COMPLETIONS, &json!({"prompt": "x", "n": 2}))
            .await
    });
    until(|| server.state.limits().sequences(1) == 2).await;
    let body = json!({"prompt": "x"});
    let over = server.post_as(&house.keys[0], COMPLETIONS, &body).await;
    check_over(&over, "concurrent_sequences");
    gate.open(u64::MAX / 2);
    assert_eq!(running.await.unwrap().status, 200);
    until(|| server.state.limits().sequences(1) == 0).await;
    assert_eq!(
        server
            .post_as(&house.keys[0], COMPLETIONS, &body)
            .await
            .status,
        200
    );
    // More than the limit at once never fit, best-of's candidates included.
    let three = json!({"prompt": ["x", "y", "z"]});
    for body in [three, json!({"prompt": "x", "best_of": 3})] {
        let over = server.post_as(&house.keys[0], COMPLETIONS, &body).await;
        check_over(&over, "concurrent_sequences");
    }
    until(|| server.state.limits().sequences(1) == 0).await;
}

#[tokio::test]
async fn a_client_that_leaves_gives_back_what_it_held() {
    let quotas = Quotas {
        concurrent_sequences: Some(1),
        tokens_per_minute: Some(100),
        ..Quotas::default()
    };
    let (setup, _gate) = Setup::gated(&["a"]);
    let (setup, house) = setup.of_tenants(&[("a", limited(quotas))]);
    let server = setup.start();
    let body = json!({"prompt": "x", "max_tokens": 50, "stream": true});
    let request = Request::post(COMPLETIONS)
        .header("x-api-key", &house.keys[0])
        .body(Body::from(body.to_string()))
        .unwrap();
    let answer = crate::http::router(server.state.clone())
        .oneshot(request)
        .await
        .unwrap();
    assert_eq!(answer.status(), 200);
    assert_eq!(server.state.limits().sequences(1), 1);
    drop(answer);
    until(|| server.state.limits().sequences(1) == 0).await;
    // At most its prompt was computed; the rest is there again.
    let told = server
        .post_as(&house.keys[0], "/tokenize", &json!({"prompt": "x"}))
        .await;
    let left = header(&told, "x-ratelimit-remaining-tokens");
    assert!((99..=100).contains(&left), "{left}");
}

#[tokio::test]
async fn a_request_that_fails_gives_back_what_it_held() {
    let quotas = Quotas {
        concurrent_sequences: Some(1),
        ..Quotas::default()
    };
    for broken in ["render", "push", "plan"] {
        let mut setup = Setup::saying(&["a"]);
        let error = Some(GuestError::Failed("broken".to_owned()));
        match broken {
            "render" => setup.guests.fail_render = error,
            "push" => setup.guests.fail_push = error,
            _ => setup.guests.fail_plan = error,
        }
        let (setup, house) = setup.of_tenants(&[("a", limited(quotas))]);
        let server = setup.start();
        let body = json!({"messages": [{"role": "user", "content": "x"}], "max_tokens": 2});
        for _ in 0..2 {
            let answer = server
                .post_as(&house.keys[0], "/v1/chat/completions", &body)
                .await;
            assert_eq!(answer.status, 500, "{broken}: {}", answer.body);
            until(|| server.state.limits().sequences(1) == 0).await;
        }
    }
}

#[tokio::test]
async fn time_of_guests_is_limited() {
    let quotas = Quotas {
        guest_ms_per_minute: Some(100),
        ..Quotas::default()
    };
    let (setup, house) = Setup::saying(&["a"]).of_tenants(&[("a", limited(quotas))]);
    let used = Arc::new(AtomicU64::new(0));
    let told = Arc::clone(&used);
    let mut server = setup.start();
    let clock = move |_: &Tenant| Duration::from_micros(told.load(Ordering::SeqCst));
    server.state = server.state.clone().with_guest_clock(Arc::new(clock));
    let body = json!({"prompt": "x", "max_tokens": 1});
    let ask = async || server.post_as(&house.keys[0], COMPLETIONS, &body).await;
    for below in [0, 500, 900] {
        used.store(below, Ordering::SeqCst);
        assert_eq!(ask().await.status, 200);
    }
    used.store(150_200, Ordering::SeqCst);
    check_over(&ask().await, "guest_ms_per_minute");
    assert_eq!(server.state.take_used(0)[0].counted.guest_ms, 150);
}

#[tokio::test]
async fn embeddings_count_as_well() {
    let quotas = Quotas {
        concurrent_sequences: Some(2),
        tokens_per_minute: Some(20),
        ..Quotas::default()
    };
    let (setup, house) = Setup::embedding().of_tenants(&[("a", limited(quotas))]);
    let server = setup.start();
    let ask = async |input: Value| {
        let body = json!({"input": input});
        server
            .post_as(&house.keys[0], "/v1/embeddings", &body)
            .await
    };
    check_over(&ask(json!(["a", "b", "c"])).await, "concurrent_sequences");
    let answer = ask(json!(["0123456789", "01234"])).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    assert_eq!(server.state.limits().sequences(1), 0);
    check_over(&ask(json!("0123456789abcdef")).await, "tokens_per_minute");
}

#[tokio::test]
async fn sequences_per_request_are_capped() {
    let mut setup = Setup::saying(&["a<|im_end|>"]);
    setup.config.max_sequences = 4;
    let server = setup.start();
    let ask = async |path: &str, body: Value| server.post(path, &body).await;
    let four = json!({"prompt": ["x", "y"], "n": 2, "max_tokens": 1});
    assert_eq!(ask(COMPLETIONS, four).await.status, 200);
    for (path, body) in [
        (COMPLETIONS, json!({"prompt": ["x", "y", "z"], "n": 2})),
        (COMPLETIONS, json!({"prompt": "x", "best_of": 5})),
        ("/generate", json!({"prompt": "x", "n": 5})),
        (
            "/v1/chat/completions",
            json!({"messages": [{"role": "user", "content": "x"}], "n": 5}),
        ),
    ] {
        let refused = ask(path, body).await;
        assert_eq!(refused.status, 400, "{path}: {}", refused.body);
        assert_eq!(refused.json()["error"]["param"], "n");
    }
}
