use super::{KEY, Server, message, server};
use serde_json::{Value, json};

impl Server {
    async fn send_json(&self, method: &str, path: &str, body: Value) -> (u16, Value) {
        self.ask(method, path, body.to_string()).await
    }
}

#[tokio::test]
async fn tenants_come_change_and_go() {
    let server = server(&[KEY]);
    let empty = json!({"object": "list", "data": []});
    assert_eq!(server.get("tenants").await, (200, empty.clone()));
    let body = json!({"id": "acme", "policy": {"weight": 2, "quotas": {"kv_blocks": 8}}});
    let (status, added) = server.send_json("POST", "tenants", body.clone()).await;
    assert_eq!(status, 201, "{added}");
    let key = added["key"].as_str().unwrap().to_owned();
    let registry = server.admin.0.tenants.clone().unwrap();
    let tenant = registry.authenticate(&key).unwrap();
    assert_eq!((tenant.id.as_str(), tenant.policy.weight), ("acme", 2));
    let (status, again) = server.send_json("POST", "tenants", body).await;
    assert_eq!((status, &again["error"]["code"]), (409, &json!("conflict")));

    // The key is shown that once.
    let (_, card) = server.get("tenants/acme").await;
    assert_eq!(card["policy"], added["policy"]);
    assert_eq!(card["keys"].as_array().unwrap().len(), 1);
    assert!(!card.to_string().contains(&key));
    let (_, list) = server.get("tenants").await;
    assert_eq!(list["data"], json!([card]));

    let patch = json!({"policy": {"weight": 5, "quotas": {"kv_blocks": null}}});
    let (status, changed) = server.send_json("PATCH", "tenants/acme", patch).await;
    assert_eq!(status, 200, "{changed}");
    assert_eq!(changed["policy"]["weight"], 5);
    assert_eq!(changed["policy"]["quotas"], json!({}));
    assert_eq!(registry.authenticate(&key).unwrap().policy.weight, 5);

    let keep = json!({"keep_old_seconds": 600});
    let (status, more) = server.send_json("POST", "tenants/acme/keys", keep).await;
    assert_eq!((status, &more["object"]), (201, &json!("tenant.key")));
    assert!(registry.authenticate(&key).is_some());
    let (status, last) = server.ask("POST", "tenants/acme/keys", "").await;
    assert_eq!(status, 201);
    assert!(registry.authenticate(&key).is_none());
    assert!(
        registry
            .authenticate(more["key"].as_str().unwrap())
            .is_none()
    );
    assert!(
        registry
            .authenticate(last["key"].as_str().unwrap())
            .is_some()
    );

    let (status, gone) = server.ask("DELETE", "tenants/acme", "").await;
    assert_eq!((status, &gone["deleted"]), (200, &json!(true)));
    assert_eq!(server.get("tenants").await, (200, empty));
    assert!(registry.requires_key());
}

#[tokio::test]
async fn nonsense_about_tenants_is_told() {
    let server = server(&[KEY]);
    let acme = json!({"id": "acme"});
    assert_eq!(server.send_json("POST", "tenants", acme).await.0, 201);
    let quota = json!({"id": "b", "policy": {"quotas": {"kv_blocks": -1}}});
    for (method, path, body, status, words) in [
        ("POST", "tenants", json!({"id": "A"}), 400, "a-z"),
        ("POST", "tenants", json!({"id": "key-1"}), 400, "--api-key"),
        ("POST", "tenants", json!({}), 400, "missing field `id`"),
        (
            "POST",
            "tenants",
            json!({"id": "b", "key": 1}),
            400,
            "`key`",
        ),
        ("POST", "tenants", quota, 400, "quotas.kv_blocks"),
        ("PATCH", "tenants/acme", json!({"weight": 2}), 400, "weight"),
        (
            "PATCH",
            "tenants/acme",
            json!({"policy": {"weigth": 2}}),
            400,
            "weigth",
        ),
        (
            "PATCH",
            "tenants/acme",
            json!({"policy": {"weight": 0}}),
            400,
            "at least 1",
        ),
        (
            "PATCH",
            "tenants/b",
            json!({"policy": {}}),
            404,
            "no tenant `b`",
        ),
        (
            "POST",
            "tenants/acme/keys",
            json!({"keep": 1}),
            400,
            "`keep`",
        ),
        (
            "POST",
            "tenants/acme/keys",
            json!({"keep_old_seconds": -1}),
            400,
            "u64",
        ),
        ("POST", "tenants/b/keys", json!({}), 404, "no tenant `b`"),
        ("DELETE", "tenants/b", json!({}), 404, "no tenant `b`"),
        ("GET", "tenants/_", json!({}), 400, "a-z"),
        ("GET", "tenants/b/usage", json!({}), 404, "no tenant `b`"),
        ("PUT", "tenants/acme", json!({}), 405, "PUT"),
    ] {
        let (found, answer) = server.send_json(method, path, body).await;
        assert_eq!(found, status, "{method} {path}: {answer}");
        assert!(message(&answer).contains(words), "{words}: {answer}");
    }
    assert_eq!(server.ask("POST", "tenants", "{").await.0, 400);
    assert_eq!(
        server.get("tenants").await.1["data"][0]["policy"]["weight"],
        1
    );
}

#[tokio::test]
async fn what_tenants_used_is_told_by_day() {
    use guesthouse_tenants::{Counted, UsageDay, day_of};
    let server = server(&[KEY]);
    server
        .send_json("POST", "tenants", json!({"id": "acme"}))
        .await;
    let now = std::time::SystemTime::now();
    let now = now.duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    let counted = Counted {
        requests: 1,
        prompt_tokens: 2,
        output_tokens: 3,
        guest_ms: 4,
    };
    let entry = |tenant, day| UsageDay {
        tenant,
        day,
        counted,
    };
    let today = day_of(now);
    let registry = server.admin.0.tenants.clone().unwrap();
    // Another's, and one of long ago, are not told.
    let all = [entry(1, today), entry(2, today), entry(1, today - 40)];
    registry.add_usage(&all).unwrap();
    let (status, answer) = server.get("tenants/acme/usage").await;
    assert_eq!(status, 200);
    let day = u64::from(today) * 86_400;
    let expected = json!([{
        "day": day, "requests": 1, "prompt_tokens": 2, "output_tokens": 3, "guest_ms": 4,
    }]);
    assert_eq!(answer["data"], expected);
}
