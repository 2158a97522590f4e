use super::{KEY, Server, message, server_on};
use crate::model::testing::modules;
use crate::modules::ModuleDesk;
use crate::oci::Registries;
use crate::oci::testing::{Fake, sha256};
use axum::body::Body;
use axum::http::Request;
use guesthouse_component::{Role, builtin};
use guesthouse_tenants::Registry;
use serde_json::{Value, json};
use std::sync::Arc;

impl Server {
    async fn fetch(&self, name: &str, body: &Value) -> (u16, Value) {
        let request = Request::put(format!("/admin/v1/modules/{name}"))
            .header("authorization", format!("Bearer {KEY}"))
            .header("content-type", "application/json; charset=utf-8");
        self.send(request.body(Body::from(body.to_string())).unwrap())
            .await
    }
}

#[tokio::test]
async fn modules_come_from_registries() {
    let fake = Fake::start().await;
    let sampler = builtin::find(Role::Sampler, "standard").unwrap().bytes;
    let from = fake.keep(sampler).to_string();
    let folder = tempfile::tempdir().unwrap();
    let index = Arc::new(Registry::in_memory().unwrap());
    let modules_folder = folder.path().join("modules");
    let again = Arc::clone(&index);
    let kept = move || {
        modules()
            .keeping(Arc::clone(&again), &modules_folder)
            .unwrap()
    };
    let store = tokio::task::spawn_blocking(kept.clone()).await.unwrap();
    let desk = ModuleDesk::fetching(store, Registries::new(fake.config()));
    let server = server_on(&[KEY], desk);

    let (status, put) = server.fetch("mine", &json!({"source": from})).await;
    assert_eq!(status, 200, "{put}");
    assert_eq!(
        (&put["source"], &put["role"]),
        (&json!(from), &json!("sampler"))
    );
    assert_eq!(put["digest"], json!(sha256(sampler)));
    let (_, history) = server.get("modules/mine/history").await;
    assert_eq!(history["data"][0]["source"], json!(from));
    let later = tokio::task::spawn_blocking(kept).await.unwrap();
    assert_eq!(
        later.live()[0].1.provenance.to_string(),
        from,
        "after a restart too"
    );

    // What is no guest leaves the old one.
    let bad = fake.keep(b"#!/bin/sh").to_string();
    let elsewhere = from.replace("127.0.0.1", "registry.example");
    let tag = from.split('@').next().unwrap();
    for (body, words) in [
        (json!({"source": bad}), "not WebAssembly"),
        (json!({"source": elsewhere}), "not allowed"),
        (json!({"source": tag}), "no digest"),
        (json!({"from": from}), "unknown field"),
        (json!([]), "source"),
    ] {
        let (status, answer) = server.fetch("mine", &body).await;
        assert_eq!(status, 400, "{answer}");
        assert!(message(&answer).contains(words), "{answer}");
    }
    assert_eq!(server.get("modules/mine").await, (200, put));
}

#[tokio::test]
async fn nothing_is_fetched_by_default() {
    let fake = Fake::start().await;
    let from = fake.keep(b"x").to_string();
    let server = super::server(&[KEY]);
    let (status, answer) = server.fetch("mine", &json!({"source": from})).await;
    assert_eq!((status, &answer["error"]["param"]), (400, &json!("source")));
    assert!(message(&answer).contains("(none is)"), "{answer}");
    assert_eq!(fake.asked(), 0);
}
