//! What tenants see and do not see of each other.

use super::support::{Answer, Setup, until};
use crate::http::access::{Caller, Sees};
use crate::http::{Access, ApiKeys};
use axum::body::Body;
use axum::http::Request;
use guesthouse_engine::{CacheSalt, Priority};
use guesthouse_tenants::{ModelAccess, Pins, Policy, Quotas, Tenant, TenantId};
use serde_json::{Value, json};
use std::sync::Arc;

const COMPLETIONS: &str = "/v1/completions";
const CHAT: &str = "/v1/chat/completions";

fn only(names: &[&str]) -> Policy {
    Policy {
        models: ModelAccess::Only(names.iter().map(|&name| name.to_owned()).collect()),
        ..Policy::default()
    }
}

fn pinning(model: &str, pins: Pins) -> Policy {
    Policy {
        pins: [(model.to_owned(), pins)].into(),
        ..Policy::default()
    }
}

fn listed(answer: &Answer) -> Vec<String> {
    let list = answer.json();
    let cards = list["data"].as_array().unwrap().iter();
    cards
        .map(|card| card["id"].as_str().unwrap().to_owned())
        .collect()
}

fn hello() -> Value {
    json!({"messages": [{"role": "user", "content": "x"}], "max_tokens": 2})
}

#[tokio::test]
async fn models_of_others_do_not_exist() {
    let tenants = [
        ("alias", only(&["tiny"])),
        ("all", Policy::default()),
        ("none", only(&[])),
    ];
    let (setup, house) = Setup::saying(&["a"]).of_tenants(&tenants);
    let server = setup.start();
    let [alias, all, none] = &house.keys[..] else {
        panic!("three keys")
    };
    assert_eq!(listed(&server.get_as(alias, "/v1/models").await), ["tiny"]);
    assert_eq!(
        listed(&server.get_as(all, "/v1/models").await),
        ["org/tiny", "tiny"]
    );
    assert!(listed(&server.get_as(none, "/v1/models").await).is_empty());
    let text = |answer: &Answer, name: &str| {
        assert_eq!(answer.status, 404, "{}", answer.body);
        answer.body.replace(name, "NAME")
    };
    let hidden = server.get_as(alias, "/v1/models/org/tiny").await;
    let absent = server.get_as(alias, "/v1/models/org/none").await;
    assert_eq!(text(&hidden, "org/tiny"), text(&absent, "org/none"));
    for path in [COMPLETIONS, "/generate", "/tokenize"] {
        let ask = |name: &str| json!({"model": name, "prompt": "x", "max_tokens": 1});
        let hidden = server.post_as(alias, path, &ask("org/tiny")).await;
        let absent = server.post_as(alias, path, &ask("org/none")).await;
        assert_eq!(text(&hidden, "org/tiny"), text(&absent, "org/none"));
        assert_eq!(server.post_as(alias, path, &ask("tiny")).await.status, 200);
    }
    let unnamed = json!({"prompt": "x", "max_tokens": 1});
    assert_eq!(
        server.post_as(alias, COMPLETIONS, &unnamed).await.status,
        200
    );
    assert_eq!(
        server.post_as(none, COMPLETIONS, &unnamed).await.status,
        404
    );
}

#[tokio::test]
async fn keys_stay_needed_when_the_last_is_gone() {
    let (setup, house) = Setup::saying(&["a"]).of_tenants(&[("a", Policy::default())]);
    let server = setup.start();
    let key = &house.keys[0];
    assert_eq!(server.get_as(key, "/v1/models").await.status, 200);
    let wrong = format!("{}0", &key[..key.len() - 1]);
    let refused = server.get_as(&wrong, "/v1/models").await;
    assert_eq!(refused.status, 401);
    assert!(!refused.body.contains(&wrong[..20]), "{}", refused.body);
    house
        .registry
        .remove(&TenantId::parse("a").unwrap())
        .unwrap();
    for path in ["/v1/models", "/metrics", "/version"] {
        assert_eq!(server.get_as(key, path).await.status, 401, "{path}");
        assert_eq!(server.get(path).await.status, 401, "{path}");
    }
    assert_eq!(server.get("/health").await.status, 200);
}

#[tokio::test]
async fn an_open_server_asks_for_no_keys_but_knows_them() {
    let (mut setup, house) = Setup::saying(&["a"]).of_tenants(&[("a", only(&["tiny"]))]);
    setup.config.access = Access::Open;
    let server = setup.start();
    assert_eq!(listed(&server.get("/v1/models").await).len(), 2);
    assert_eq!(
        listed(&server.get_as(&house.keys[0], "/v1/models").await),
        ["tiny"]
    );
    assert_eq!(server.get_as("wrong", "/v1/models").await.status, 200);
}

#[tokio::test]
async fn keys_of_the_command_line_are_tenants_too() {
    let (mut setup, house) = Setup::saying(&["a"]).of_tenants(&[("a", only(&["tiny"]))]);
    setup.config.api_keys = ApiKeys::new(["one", "two"]);
    let server = setup.start();
    for (key, models) in [("one", 2), ("two", 2), (house.keys[0].as_str(), 1)] {
        assert_eq!(
            listed(&server.get_as(key, "/v1/models").await).len(),
            models
        );
    }
    let keys = ApiKeys::new(["", "one", "two"]);
    let id = |key| keys.tenant(key).map(|tenant| tenant.id.to_string());
    assert_eq!(id("one").as_deref(), Some("key-1"));
    assert_eq!(id("two").as_deref(), Some("key-2"));
    assert_eq!((id(""), id("three")), (None, None));
}

#[test]
fn roots_of_caches_meet_only_where_tenants_share() {
    let caller = |number, shared_cache| Caller {
        tenant: Arc::new(Tenant {
            id: TenantId::parse("a").unwrap(),
            number,
            policy: Policy {
                shared_cache,
                priority: -3,
                weight: 5,
                quotas: Quotas {
                    kv_blocks: Some(7),
                    ..Quotas::default()
                },
                ..Policy::default()
            },
        }),
        sees: Sees::Own,
    };
    let model = CacheSalt([1; 32]);
    let salt = |number, shared, client| caller(number, shared).salt(model, client);
    assert_eq!(salt(1, false, None), salt(1, false, None));
    assert_ne!(salt(1, false, None), salt(2, false, None));
    assert_ne!(salt(1, false, Some("s")), salt(2, false, Some("s")));
    assert_eq!(salt(1, true, None), salt(2, true, None));
    assert_ne!(salt(1, true, None), salt(1, false, None));
    assert_ne!(salt(1, true, Some("s")), salt(2, true, None));
    let owner = caller(9, false).owner();
    assert_eq!((owner.tenant, owner.weight), (9, 5));
    assert_eq!((owner.max_blocks, owner.max_running), (Some(7), None));
    assert_eq!(caller(9, false).priority(), Priority(-3));
}

#[tokio::test]
async fn cached_prompts_of_one_tenant_are_no_hits_of_another() {
    let shared = Policy {
        shared_cache: true,
        ..Policy::default()
    };
    let tenants = [
        ("a", Policy::default()),
        ("b", Policy::default()),
        ("c", shared.clone()),
        ("d", shared),
    ];
    let (setup, house) = Setup::saying(&["a"]).of_tenants(&tenants);
    let server = setup.start();
    let cached = async |tenant: usize| {
        let body = json!({"prompt": "0123456789abcdef", "max_tokens": 1, "cache_salt": "s"});
        let answer = server
            .post_as(&house.keys[tenant], COMPLETIONS, &body)
            .await;
        let usage = answer.json()["usage"].clone();
        usage["prompt_tokens_details"]["cached_tokens"]
            .as_u64()
            .unwrap()
    };
    assert_eq!(cached(0).await, 0);
    assert!(cached(0).await > 0);
    assert_eq!(cached(1).await, 0);
    assert_eq!(cached(2).await, 0);
    assert!(cached(3).await > 0);
}

#[tokio::test]
async fn a_pinned_graph_module_hides_models_built_by_another() {
    let graph = |name: &str| Pins {
        graph: Some(name.to_owned()),
        ..Pins::default()
    };
    let tenants = [
        ("same", pinning("*", graph("scripted"))),
        ("other", pinning("org/tiny", graph("mine"))),
        ("named", pinning("tiny", graph("mine"))),
    ];
    let (setup, house) = Setup::saying(&["a"]).of_tenants(&tenants);
    let server = setup.start();
    let models =
        async |tenant: usize| listed(&server.get_as(&house.keys[tenant], "/v1/models").await);
    assert_eq!(models(0).await, ["org/tiny", "tiny"]);
    assert!(models(1).await.is_empty());
    assert_eq!(models(2).await, ["org/tiny"]);
    let body = json!({"model": "tiny", "prompt": "x"});
    let refused = server.post_as(&house.keys[1], COMPLETIONS, &body).await;
    let unnamed = json!({"prompt": "x"});
    let unnamed = server.post_as(&house.keys[1], COMPLETIONS, &unnamed).await;
    assert_eq!(
        (refused.status.as_u16(), unnamed.status.as_u16()),
        (404, 404)
    );
    assert!(unnamed.body.contains("`mine`"), "{}", unnamed.body);
    let error = &refused.json()["error"];
    assert_eq!(error["code"], "model_not_found");
    let message = error["message"].as_str().unwrap();
    assert!(
        message.contains("`mine`") && message.contains("`scripted`"),
        "{message}"
    );
}

#[tokio::test]
async fn guests_learn_whose_request_it_is_and_what_is_pinned() {
    let pins = Pins {
        chat: Some("my-chat".to_owned()),
        sampler: Some("my-sampler".to_owned()),
        graph: None,
    };
    let (setup, house) = Setup::saying(&["a"]).of_tenants(&[("a", pinning("tiny", pins.clone()))]);
    let server = setup.start();
    let mut body = hello();
    body["model"] = json!("tiny");
    assert_eq!(
        server.post_as(&house.keys[0], CHAT, &body).await.status,
        200
    );
    body["model"] = json!("org/tiny");
    assert_eq!(
        server.post_as(&house.keys[0], CHAT, &body).await.status,
        200
    );
    let tokenize = json!({"model": "tiny", "messages": body["messages"]});
    let answer = server.post_as(&house.keys[0], "/tokenize", &tokenize).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    let scopes = server.guests.scopes.lock().unwrap();
    let seen: Vec<_> = scopes
        .iter()
        .map(|scope| (scope.tenant.id.as_str(), &scope.pins))
        .collect();
    let none = Pins::default();
    assert_eq!(
        seen,
        [
            ("a", &pins),
            ("a", &pins),
            ("a", &none),
            ("a", &none),
            ("a", &pins)
        ]
    );
}

#[tokio::test]
async fn a_tenants_defaults_stand_for_what_requests_leave_out() {
    let defaults = json!({"temperature": 0.25, "max_tokens": 3, "stream": false, "model": "tiny"});
    let policy = Policy {
        defaults: defaults.as_object().unwrap().clone(),
        ..only(&["tiny"])
    };
    let (setup, house) = Setup::saying(&["abcdefgh"]).of_tenants(&[("a", policy)]);
    let server = setup.start();
    let key = &house.keys[0];
    for (path, body) in [
        (COMPLETIONS, json!({"prompt": "x"})),
        ("/generate", json!({"prompt": "x"})),
        (
            CHAT,
            json!({"messages": [{"role": "user", "content": "x"}]}),
        ),
    ] {
        let answer = server.post_as(key, path, &body).await;
        assert_eq!(answer.status, 200, "{}", answer.body);
        assert!(
            answer.body.contains("abc") && !answer.body.contains("abcd"),
            "{}",
            answer.body
        );
    }
    let body = json!({"prompt": "x", "temperature": 1.5, "max_tokens": 5});
    let answer = server.post_as(key, COMPLETIONS, &body).await.json();
    assert_eq!(answer["choices"][0]["text"], "abcde");
    let planned = server.guests.planned.lock().unwrap();
    let temperatures: Vec<Value> = planned
        .iter()
        .map(|fields| serde_json::from_str::<Value>(fields).unwrap()["temperature"].clone())
        .collect();
    assert_eq!(
        temperatures,
        [json!(0.25), json!(0.25), json!(0.25), json!(1.5)]
    );
}

/// The value of one line of metrics.
fn value(text: &str, line: &str) -> Option<f64> {
    let found = text
        .lines()
        .find_map(|l| l.strip_prefix(line)?.strip_prefix(' '))?;
    Some(found.parse().unwrap())
}

#[tokio::test]
async fn a_tenant_sees_its_own_series_and_the_administrator_all() {
    let tenants = [("a", Policy::default()), ("b", Policy::default())];
    let (mut setup, house) = Setup::saying(&["abc<|im_end|>"]).of_tenants(&tenants);
    setup.config.admin_keys = ApiKeys::new(["admin"]);
    let server = setup.start();
    let body = json!({"prompt": "xy"});
    for tenant in [0, 0, 1] {
        let answer = server
            .post_as(&house.keys[tenant], COMPLETIONS, &body)
            .await;
        assert_eq!(answer.status, 200);
    }
    let success = |prefix: &str, tenant: &str| {
        format!(
            r#"{prefix}request_success_total{{model_name="org/tiny",{tenant}finished_reason="stop"}}"#
        )
    };
    let (a, b) = (r#"tenant="a","#, r#"tenant="b","#);
    let own = server.get_as(&house.keys[0], "/metrics").await.body;
    assert_eq!(value(&own, &success("vllm:", a)), Some(2.0));
    let of_a = |name: &str| {
        value(
            &own,
            &format!(r#"vllm:{name}{{model_name="org/tiny",tenant="a"}}"#),
        )
    };
    assert_eq!(of_a("prompt_tokens_total"), Some(4.0));
    assert_eq!(of_a("generation_tokens_total"), Some(8.0));
    assert_eq!(of_a("time_to_first_token_seconds_count"), Some(2.0));
    assert_eq!(of_a("num_requests_running"), Some(0.0));
    assert!(
        !own.contains(r#"tenant="b""#) && !own.contains("guesthouse:step"),
        "{own}"
    );
    let all = server.get_as("admin", "/metrics").await.body;
    assert_eq!(value(&all, &success("vllm:", "")), Some(3.0));
    assert_eq!(value(&all, &success("guesthouse:tenant_", a)), Some(2.0));
    assert_eq!(value(&all, &success("guesthouse:tenant_", b)), Some(1.0));
    assert!(all.contains("guesthouse:sampler_calls_total{"), "{all}");
    // The administrator's key opens nothing else.
    assert_eq!(server.get_as("admin", "/v1/models").await.status, 401);
    let b_id = TenantId::parse("b").unwrap();
    house.registry.remove(&b_id).unwrap();
    until(|| {
        let known = server.state.tenants();
        !known.contains(&2)
    })
    .await;
    let all = server.get_as("admin", "/metrics").await.body;
    assert!(!all.contains(r#"tenant="b""#), "{all}");
    let other = success("guesthouse:tenant_", r#"tenant="other","#);
    assert_eq!(value(&all, &other), Some(1.0));
    assert_eq!(value(&all, &success("vllm:", "")), Some(3.0));
}

#[tokio::test]
async fn encoded_bodies_are_refused_everywhere() {
    let server = Setup::saying(&["a"]).start();
    for (method, path) in [
        ("POST", COMPLETIONS),
        ("POST", CHAT),
        ("POST", "/v1/embeddings"),
        ("POST", "/generate"),
        ("POST", "/tokenize"),
        ("POST", "/detokenize"),
        ("POST", "/ping"),
        ("GET", "/v1/models"),
        ("GET", "/metrics"),
        ("POST", "/none"),
    ] {
        let request = Request::builder().method(method).uri(path);
        let request = request.header("content-encoding", "gzip");
        let answer = server.send(request.body(Body::from("x")).unwrap()).await;
        assert_eq!(answer.status, 415, "{method} {path}");
        assert_eq!(answer.json()["error"]["code"], "content_encoding");
    }
}
