use super::support::{Setup, until};
use crate::http::AccessLog;
use crate::testing::Logs;
use axum::body::Body;
use axum::http::Request;
use http_body_util::BodyExt as _;
use serde_json::json;
use tower::ServiceExt as _;

const SECRET: &str = "myprompt";

fn post(path: &str, id: &str, body: &serde_json::Value) -> Request<Body> {
    Request::post(path)
        .header("content-type", "application/json")
        .header("x-request-id", id)
        .body(Body::from(body.to_string()))
        .unwrap()
}

#[tokio::test]
async fn each_request_has_a_line_without_its_text() {
    let logs = Logs::default();
    let _logging = logs.start();
    let server = Setup::saying(&["abc<|im_end|>"]).start();
    let body = json!({"prompt": SECRET, "n": 2});
    let answer = server.send(post("/v1/completions", "my-1", &body)).await;
    assert_eq!(answer.status, 200);
    assert_eq!(answer.headers["x-request-id"], "my-1");
    let body = json!({"model": SECRET, "messages": []});
    let refused = server
        .send(post("/v1/chat/completions", "my 2", &body))
        .await;
    assert_eq!(refused.status, 404);
    let made = refused.headers["x-request-id"].to_str().unwrap();
    assert!(made.starts_with("req-"), "{made}");
    server.get(&format!("/{SECRET}")).await;

    let lines = logs.lines("request");
    assert_eq!(lines.len(), 3, "{}", logs.text());
    let line = &lines[0];
    assert_eq!(line["span"]["id"], "my-1");
    assert_eq!(line["level"], "INFO");
    assert_eq!(line["route"], "/v1/completions");
    assert_eq!(line["status"], 200);
    assert_eq!(line["outcome"], "complete");
    assert_eq!(line["model"], "org/tiny");
    // Eight bytes are eight tokens; each choice says three and the token that ends it.
    assert_eq!(line["prompt_tokens"], 8);
    assert_eq!(line["completion_tokens"], 8);
    let ms = |name: &str| line[name].as_f64().unwrap();
    assert!(ms("queue_ms") <= ms("ttft_ms") && ms("ttft_ms") <= ms("ms"));
    assert_eq!(lines[1]["error"], "model_not_found");
    assert_eq!(lines[1]["span"]["id"], made);
    assert_eq!(lines[2]["route"], "none");
    assert!(!logs.text().contains(SECRET), "{}", logs.text());
}

#[tokio::test]
async fn a_client_that_leaves_is_told_of() {
    let logs = Logs::default();
    let _logging = logs.start();
    let (setup, gate) = Setup::gated(&["abc"]);
    let server = setup.start();
    let body = json!({"prompt": "x", "stream": true});
    let router = crate::http::router(server.state.clone());
    let response = router.oneshot(post("/v1/completions", "left", &body)).await;
    let mut body = response.unwrap().into_body();
    gate.open(1);
    body.frame().await.unwrap().unwrap();
    assert_eq!(logs.lines("request").len(), 0);
    drop(body);
    let lines = logs.lines("request");
    assert_eq!(lines[0]["outcome"], "disconnected");
    assert_eq!(lines[0]["completion_tokens"], 1);
    gate.open(1000);
    until(|| server.stats().running == 0).await;
}

#[tokio::test]
async fn bodies_are_logged_for_who_asks_for_it() {
    let logs = Logs::default();
    let _logging = logs.start();
    let mut setup = Setup::saying(&["a"]);
    setup.config.log_bodies = Some(12);
    setup.config.access_log = AccessLog::Off;
    let server = setup.start();
    let body = json!({"prompt": "\u{1b}[2J long"});
    server.send(post("/v1/completions", "1", &body)).await;
    let lines = logs.lines("received");
    assert_eq!(lines[0]["body"], r#""{\"prompt\":\"\\""#.to_owned());
    assert_eq!(lines[0]["bytes"], body.to_string().len());
    assert_eq!(logs.lines("request")[0]["level"], "DEBUG");
    server.get("/health").await;
    assert_eq!(logs.lines("request")[1]["level"], "DEBUG");
}
