#![allow(clippy::unwrap_used, clippy::panic)]

mod oci;
mod tenants;

use super::{Admin, router};
use crate::http::{ApiKeys, AppState, HttpConfig};
use crate::model::testing::modules;
use crate::model::{DeviceChoice, LoadOptions};
use crate::modules::ModuleDesk;
use axum::body::{Body, to_bytes};
use axum::http::Request;
use guesthouse_component::{Role, builtin};
use guesthouse_tenants::Registry;
use serde_json::{Value, json};
use std::path::Path;
use std::sync::Arc;
use tower::ServiceExt as _;

const KEY: &str = "secret";

struct Server {
    admin: Admin,
    state: AppState,
}

fn server(keys: &[&str]) -> Server {
    server_on(keys, ModuleDesk::new(modules()))
}

fn server_on(keys: &[&str], desk: ModuleDesk) -> Server {
    let state = AppState::new(Vec::new(), HttpConfig::default());
    let options = LoadOptions {
        device: DeviceChoice::Cpu,
        threads: Some(1),
        ..LoadOptions::default()
    };
    Server {
        admin: Admin::new(
            state.clone(),
            desk,
            options,
            ApiKeys::new(keys),
            Some(Arc::new(Registry::in_memory().unwrap())),
        ),
        state,
    }
}

impl Server {
    async fn send(&self, request: Request<Body>) -> (u16, Value) {
        let answer = router(self.admin.clone()).oneshot(request).await.unwrap();
        let status = answer.status().as_u16();
        let body = to_bytes(answer.into_body(), usize::MAX).await.unwrap();
        (status, serde_json::from_slice(&body).unwrap())
    }

    async fn ask(&self, method: &str, path: &str, body: impl Into<Body>) -> (u16, Value) {
        let request = Request::builder()
            .method(method)
            .uri(format!("/admin/v1/{path}"))
            .header("authorization", format!("Bearer {KEY}"));
        self.send(request.body(body.into()).unwrap()).await
    }

    async fn get(&self, path: &str) -> (u16, Value) {
        self.ask("GET", path, Body::empty()).await
    }
}

fn message(answer: &Value) -> &str {
    answer["error"]["message"].as_str().unwrap()
}

#[tokio::test]
async fn only_the_key_opens_it() {
    let server = server(&[KEY]);
    let path = "/admin/v1/models";
    for (header, value, status) in [
        ("x-none", "", 401),
        ("authorization", "Bearer wrong", 401),
        ("authorization", KEY, 401),
        ("x-api-key", "", 401),
        ("x-api-key", KEY, 200),
        ("authorization", "Bearer secret", 200),
    ] {
        let request = Request::get(path).header(header, value);
        let answer = server.send(request.body(Body::empty()).unwrap()).await;
        assert_eq!(answer.0, status, "{header}: {value}");
    }
    // Without a key there is no way in at all.
    let closed = self::server(&[""]);
    let request = Request::get(path).header("authorization", "Bearer ");
    assert_eq!(
        closed.send(request.body(Body::empty()).unwrap()).await.0,
        401
    );
}

#[tokio::test]
async fn modules_are_put_listed_and_deleted() {
    let server = server(&[KEY]);
    let graph = builtin::find(Role::Graph, "llama").unwrap().bytes;
    let sampler = builtin::find(Role::Sampler, "standard").unwrap().bytes;
    let (status, answer) = server.ask("PUT", "modules/Mine", graph).await;
    assert_eq!((status, &answer["error"]["param"]), (400, &json!("name")));
    let (status, answer) = server.ask("PUT", "modules/mine", "#!/bin/sh").await;
    assert_eq!(status, 400);
    assert!(message(&answer).contains("not WebAssembly"), "{answer}");
    assert_eq!(server.get("modules/mine").await.0, 404);

    let large = Request::put("/admin/v1/modules/mine")
        .header("x-api-key", KEY)
        .header("content-length", (128 << 20) + 1);
    let (status, answer) = server.send(large.body(Body::empty()).unwrap()).await;
    assert_eq!(status, 413, "{answer}");
    assert_eq!(answer["error"]["code"], "module_too_large");

    let (status, put) = server.ask("PUT", "modules/mine", graph).await;
    assert_eq!(status, 200, "{put}");
    assert_eq!(
        (&put["role"], &put["source"]),
        (&json!("graph"), &json!("upload"))
    );
    assert_eq!(put["builds"][0], "LlamaForCausalLM");
    assert_eq!(server.get("modules/mine").await, (200, put.clone()));
    let (status, answer) = server.ask("PUT", "modules/mine", sampler).await;
    assert_eq!(status, 409);
    assert!(message(&answer).contains("graph module"), "{answer}");

    let (_, list) = server.get("modules").await;
    let list = list["data"].as_array().unwrap();
    assert_eq!(list[0], put);
    assert_eq!(list.len(), builtin::ALL.len() + 1);
    let (status, answer) = server.ask("DELETE", "modules/mine", "").await;
    assert_eq!((status, &answer["deleted"]), (200, &json!(true)));
    assert_eq!(server.ask("DELETE", "modules/mine", "").await.0, 404);
}

#[tokio::test]
async fn models_are_loaded_and_unloaded() {
    let server = server(&[KEY]);
    let case = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/cases/llama");
    let load = |more: Value| {
        let mut body =
            json!({"model": case, "name": "tiny/one", "load_format": "dummy", "max_model_len": 32});
        body.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        body.to_string()
    };
    for (more, status, word) in [
        (json!({"name": "a b"}), 400, "name"),
        (json!({"graph": "A B"}), 400, "module"),
        (
            json!({"graph": "no-such"}),
            400,
            "no graph module named 'no-such'",
        ),
        (json!({"max_model_len": 1}), 400, "max_model_len"),
        (json!({"model": "/no/such/folder"}), 400, "folder"),
        (json!({"tenant": "x"}), 400, "unknown field"),
        (json!({"gpu_memory_utilization": 2}), 400, "at most 1"),
    ] {
        let (found, answer) = server.ask("POST", "models", load(more)).await;
        assert_eq!(found, status, "{answer}");
        assert!(message(&answer).contains(word), "{word}: {answer}");
    }
    assert!(server.state.served().is_empty());

    let (status, card) = server.ask("POST", "models", load(json!({}))).await;
    assert_eq!(status, 201, "{card}");
    assert_eq!(
        (&card["id"], &card["max_model_len"]),
        (&json!("tiny/one"), &json!(32))
    );
    assert_eq!(card["architecture"], "LlamaForCausalLM");
    assert_eq!(card["modules"]["graph"]["name"], "llama");
    assert_eq!(server.ask("POST", "models", load(json!({}))).await.0, 409);
    assert_eq!(server.get("models/tiny/one").await, (200, card.clone()));
    assert_eq!(server.get("models").await.1["data"], json!([card]));
    assert_eq!(server.state.served()[0].id, "tiny/one");

    let engine = server.state.served()[0].engine.clone();
    let (status, answer) = server.ask("DELETE", "models/tiny/one", "").await;
    assert_eq!((status, &answer["deleted"]), (200, &json!(true)));
    assert!(server.state.served().is_empty());
    drop(engine);
    assert_eq!(server.ask("DELETE", "models/tiny/one", "").await.0, 404);
    assert_eq!(server.ask("POST", "models", load(json!({}))).await.0, 201);
}
