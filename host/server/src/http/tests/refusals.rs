use super::support::{Answer, Server, Setup};
use axum::body::Body;
use axum::http::Request;
use serde_json::{Value, json};

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";

fn server() -> Server {
    Setup::saying(&["a"]).start()
}

fn check(answer: &Answer, status: u16) -> Value {
    assert_eq!(answer.status, status, "{}", answer.body);
    let error = answer.json()["error"].take();
    let fields: Vec<_> = error
        .as_object()
        .unwrap()
        .keys()
        .map(String::as_str)
        .collect();
    assert_eq!(fields, ["message", "type", "param", "code"]);
    assert!(!error["message"].as_str().unwrap().is_empty() && error["type"].is_string());
    error
}

#[tokio::test]
async fn what_validation_refuses_is_four_hundred_with_its_field() {
    let server = server();
    let error = check(
        &server
            .post(
                CHAT,
                &json!({"messages": [{"role": "user", "content": "x"}], "temperature": -1}),
            )
            .await,
        400,
    );
    assert_eq!(
        (&error["param"], &error["type"], &error["code"]),
        (
            &json!("temperature"),
            &json!("invalid_request_error"),
            &json!(null)
        )
    );
    for (path, body) in [
        (CHAT, ""),
        (CHAT, "{not json"),
        (COMPLETIONS, "[]"),
        ("/tokenize", "5"),
        ("/generate", "{}"),
        ("/detokenize", r#"{"tokens": [999]}"#),
    ] {
        check(&server.post_text(path, body.to_owned()).await, 400);
    }
    for body in [
        json!({"prompt": ""}),
        json!({"prompt": ["a", ""]}),
        json!({"prompt": [999]}),
    ] {
        assert_eq!(
            check(&server.post(COMPLETIONS, &body).await, 400)["param"],
            "prompt"
        );
    }
}

#[tokio::test]
async fn what_does_not_fit_the_context_is_named_as_openai_does() {
    let server = server();
    let long = check(
        &server
            .post(COMPLETIONS, &json!({"prompt": "x".repeat(300)}))
            .await,
        400,
    );
    assert_eq!(
        (&long["code"], &long["param"]),
        (&json!("context_length_exceeded"), &json!("prompt"))
    );
    assert_eq!(
        long["message"],
        "This model's maximum context length is 256 tokens. However, you requested 301 tokens (300 in the prompt, 1 in the \
         completion). Please reduce the length of the prompt or completion."
    );
    let full = check(
        &server
            .post(COMPLETIONS, &json!({"prompt": "x".repeat(256)}))
            .await,
        400,
    );
    assert_eq!(full["code"], "context_length_exceeded");
    let much = check(
        &server
            .post(COMPLETIONS, &json!({"prompt": "x", "max_tokens": 256}))
            .await,
        400,
    );
    assert_eq!(
        (&much["code"], &much["param"]),
        (&json!("context_length_exceeded"), &json!("max_tokens"))
    );
    assert_eq!(
        server
            .post(COMPLETIONS, &json!({"prompt": "x", "max_tokens": 255}))
            .await
            .status,
        200
    );
    check(
        &server
            .post(
                COMPLETIONS,
                &json!({"prompt": "x", "max_tokens": 10_000_000_000i64}),
            )
            .await,
        400,
    );
    let chat = check(
        &server
            .post(
                CHAT,
                &json!({"messages": [{"role": "user", "content": "x".repeat(300)}]}),
            )
            .await,
        400,
    );
    assert_eq!(chat["param"], "messages");
    let scored = server
        .post(
            COMPLETIONS,
            &json!({"prompt": "x".repeat(256), "max_tokens": 0, "echo": true, "logprobs": 0}),
        )
        .await;
    assert_eq!(scored.status, 200, "{}", scored.body);
}

#[tokio::test]
async fn unknown_names_paths_and_methods() {
    let server = server();
    let body = json!({"model": "no-such", "messages": [{"role": "user", "content": "x"}]});
    let error = check(&server.post(CHAT, &body).await, 404);
    assert_eq!(
        (&error["code"], &error["param"]),
        (&json!("model_not_found"), &json!("model"))
    );
    assert!(error["message"].as_str().unwrap().contains("no-such"));
    check(&server.get("/v1/models/no-such").await, 404);
    check(&server.get("/v1/nothing").await, 404);
    check(&server.get("/").await, 404);
    let wrong = server.get(CHAT).await;
    check(&wrong, 405);
    assert_eq!(wrong.headers["allow"], "POST");
    check(&server.post("/health", &json!({})).await, 405);
}

#[tokio::test]
async fn bodies_of_the_wrong_kind_or_size() {
    let mut setup = Setup::saying(&["a"]);
    setup.config.max_body_bytes = 1000;
    let server = setup.start();
    let large = json!({"prompt": "x".repeat(1000)});
    check(&server.post(COMPLETIONS, &large).await, 413);
    // Without a length it is found out while it is read.
    let parts = futures::stream::iter((0..20).map(|_| Ok::<_, std::io::Error>("x".repeat(100))));
    let unknown = Request::post(COMPLETIONS)
        .body(Body::from_stream(parts))
        .unwrap();
    check(&server.send(unknown).await, 413);
    let ok = r#"{"prompt": "x", "max_tokens": 1}"#;
    for (kind, status) in [
        ("application/json", 200),
        ("application/json; charset=utf-8", 200),
        ("APPLICATION/JSON", 200),
        ("application/vnd.api+json", 200),
        ("text/plain", 415),
        ("application/x-www-form-urlencoded", 415),
        ("json", 415),
    ] {
        let request = Request::post(COMPLETIONS)
            .header("content-type", kind)
            .body(Body::from(ok))
            .unwrap();
        let answer = server.send(request).await;
        assert_eq!(answer.status, status, "{kind}");
        if status != 200 {
            check(&answer, status);
        }
    }
    assert_eq!(
        server
            .send(Request::post(COMPLETIONS).body(Body::from(ok)).unwrap())
            .await
            .status,
        200
    );
}

#[tokio::test(start_paused = true)]
async fn a_body_that_never_ends_times_out() {
    let server = server();
    let stream = futures::stream::pending::<Result<&str, std::io::Error>>();
    check(
        &server
            .send(
                Request::post(COMPLETIONS)
                    .body(Body::from_stream(stream))
                    .unwrap(),
            )
            .await,
        408,
    );
}

#[tokio::test]
async fn a_full_queue_says_when_to_come_back() {
    let (mut setup, gate) = Setup::gated(&["a<|im_end|>"]);
    setup.engine.max_waiting = 1;
    setup.engine.max_running = 1;
    setup.config.retry_after = 7;
    let server = std::sync::Arc::new(setup.start());
    let body = json!({"prompt": "x"});
    let mut tasks = Vec::new();
    for stage in [(1, 0), (1, 1)] {
        let (other, body) = (std::sync::Arc::clone(&server), body.clone());
        tasks.push(tokio::spawn(
            async move { other.post(COMPLETIONS, &body).await },
        ));
        if stage == (1, 0) {
            super::support::until(|| server.stats().running == 1).await;
        } else {
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        }
    }
    let refused = server.post(COMPLETIONS, &body).await;
    assert_eq!(check(&refused, 503)["code"], "overloaded");
    assert_eq!(refused.headers["retry-after"], "7");
    gate.open(1000);
    for task in tasks {
        assert_eq!(task.await.unwrap().status, 200);
    }
    assert_eq!(server.post(COMPLETIONS, &body).await.status, 200);
}

#[tokio::test]
async fn a_panic_is_a_server_error_and_the_server_goes_on() {
    let mut setup = Setup::saying(&["a"]);
    setup.guests.panic_in_plan = true;
    let server = setup.start();
    let error = check(
        &server.post(COMPLETIONS, &json!({"prompt": "x"})).await,
        500,
    );
    assert_eq!(error["type"], "server_error");
    assert_eq!(server.get("/health").await.status, 200);
}

#[tokio::test]
async fn keys_are_asked_for_where_they_matter() {
    let mut setup = Setup::saying(&["a"]);
    setup.config.api_keys = crate::http::ApiKeys::new(["secret", "", "other"]);
    let server = setup.start();
    let send = async |path: &str, key: Option<&str>| {
        let mut request = Request::get(path);
        if let Some(key) = key {
            request = request.header("authorization", key);
        }
        server.send(request.body(Body::empty()).unwrap()).await
    };
    for path in [
        "/v1/models",
        "/v1/models/tiny",
        "/version",
        "/v1/nothing",
        "/tokenize",
        "/generate",
        "/metrics",
    ] {
        for key in [
            None,
            Some("Bearer wrong"),
            Some("Bearer "),
            Some("secret"),
            Some("Basic secret"),
            Some("Bearer secret2"),
        ] {
            let answer = send(path, key).await;
            assert_eq!(
                check(&answer, 401)["code"],
                "invalid_api_key",
                "{path} {key:?}"
            );
            assert_eq!(answer.headers["www-authenticate"], "Bearer");
        }
        assert_ne!(send(path, Some("Bearer secret")).await.status, 401);
        assert_ne!(send(path, Some("bearer other")).await.status, 401);
    }
    for path in ["/health", "/ping", "/docs", "/openapi.json"] {
        assert_eq!(send(path, None).await.status, 200, "{path}");
    }
    assert_eq!(
        format!("{:?}", server.state.config().api_keys),
        "ApiKeys(2 keys)"
    );
}

#[tokio::test]
async fn compressed_bodies_and_odd_paths_are_refused_in_the_same_shape() {
    let server = server();
    let request = Request::post(COMPLETIONS)
        .header("content-encoding", "gzip")
        .body(Body::from("\u{1f}"))
        .unwrap();
    assert_eq!(
        check(&server.send(request).await, 415)["code"],
        "content_encoding"
    );
    assert_eq!(
        check(&server.get("/v1/models/%ff").await, 400)["param"],
        "model"
    );
}

#[tokio::test]
async fn nothing_left_to_choose_is_the_clients_mistake() {
    let server = server();
    let end = server.model.stop_tokens[0];
    let body = json!({"prompt": "x", "allowed_token_ids": [end], "min_tokens": 1, "max_tokens": 2});
    assert_eq!(
        check(&server.post(COMPLETIONS, &body).await, 400)["param"],
        "allowed_token_ids"
    );
    let documents = json!({"messages": [{"role": "user", "content": "x"}], "documents": ["x"]});
    assert_eq!(
        check(&server.post(CHAT, &documents).await, 400)["param"],
        "documents"
    );
}

#[tokio::test]
async fn texts_that_no_encoding_fits_are_refused_unencoded() {
    let server = server();
    let longest = server.model.encoding.longest_token();
    let text = "x".repeat(257 * longest);
    let said = check(
        &server
            .post(COMPLETIONS, &json!({"prompt": [text, "x"]}))
            .await,
        400,
    );
    assert_eq!(
        (&said["code"], &said["param"]),
        (&json!("context_length_exceeded"), &json!("prompt"))
    );
    assert!(
        said["message"]
            .as_str()
            .unwrap()
            .contains(&text.len().to_string()),
        "{said}"
    );
    let chat = json!({"messages": [{"role": "user", "content": text}]});
    assert_eq!(
        check(&server.post(CHAT, &chat).await, 400)["code"],
        "context_length_exceeded"
    );
    // Counting is what /tokenize is for.
    assert_eq!(
        server
            .post("/tokenize", &json!({"prompt": text}))
            .await
            .status,
        200
    );
}
