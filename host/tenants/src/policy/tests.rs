#![allow(clippy::unwrap_used)]

use super::merge;
use crate::{ModelAccess, Policy, TenantsError};
use serde_json::{Value, json};

// The cases of RFC 7396, appendix A.
#[test]
fn patches_merge_as_the_rfc_says() {
    for (mut target, patch, result) in [
        (json!({"a":"b"}), json!({"a":"c"}), json!({"a":"c"})),
        (json!({"a":"b"}), json!({"b":"c"}), json!({"a":"b","b":"c"})),
        (json!({"a":"b"}), json!({"a":null}), json!({})),
        (
            json!({"a":"b","b":"c"}),
            json!({"a":null}),
            json!({"b":"c"}),
        ),
        (json!({"a":["b"]}), json!({"a":"c"}), json!({"a":"c"})),
        (json!({"a":"c"}), json!({"a":["b"]}), json!({"a":["b"]})),
        (
            json!({"a":{"b":"c"}}),
            json!({"a":{"b":"d","c":null}}),
            json!({"a":{"b":"d"}}),
        ),
        (json!({"a":[{"b":"c"}]}), json!({"a":[1]}), json!({"a":[1]})),
        (json!(["a", "b"]), json!(["c", "d"]), json!(["c", "d"])),
        (json!({"a":"b"}), json!(["c"]), json!(["c"])),
        (json!({"a":"foo"}), json!(null), json!(null)),
        (json!({"a":"foo"}), json!("bar"), json!("bar")),
        (json!({"e":null}), json!({"a":1}), json!({"e":null,"a":1})),
        (json!([1, 2]), json!({"a":"b","c":null}), json!({"a":"b"})),
        (
            json!({}),
            json!({"a":{"bb":{"ccc":null}}}),
            json!({"a":{"bb":{}}}),
        ),
    ] {
        merge(&mut target, &patch);
        assert_eq!(target, result, "{patch}");
    }
}

#[test]
fn policies_are_patched() {
    let patch = json!({
        "models": {"only": ["a"]},
        "quotas": {"requests_per_minute": 60, "kv_blocks": 8},
        "pins": {"*": {"chat": "house"}},
        "weight": 3,
    });
    let policy = Policy::default().patched(&patch).unwrap();
    assert_eq!(policy.models, ModelAccess::Only(["a".to_owned()].into()));
    assert_eq!(policy.quotas.requests_per_minute, Some(60));
    assert_eq!(policy.pins_for("any").chat.unwrap(), "house");
    let back = json!({
        "models": "all",
        "quotas": {"requests_per_minute": null, "kv_blocks": null},
        "pins": {"*": null},
        "weight": null,
    });
    assert_eq!(policy.patched(&back).unwrap(), Policy::default());
    assert_eq!(policy.patched(&json!({})).unwrap(), policy);
}

#[test]
fn nonsense_is_told_where_it_is() {
    let refused = |patch: Value| Policy::default().patched(&patch).unwrap_err().to_string();
    for (patch, words) in [
        (json!({"quotas": {"kv_block": 1}}), ["quotas", "kv_blocks"]),
        (
            json!({"quotas": {"kv_blocks": -1}}),
            ["quotas.kv_blocks", "u32"],
        ),
        (json!({"color": 1}), ["color", "weight"]),
        (json!({"weight": 0}), ["weight", "at least 1"]),
        (json!({"models": "some"}), ["models", "all"]),
        (json!("text"), ["at .", "struct Policy"]),
    ] {
        let told = refused(patch);
        assert!(words.iter().all(|word| told.contains(word)), "{told}");
    }
    let long = json!({"defaults": {"a": "x".repeat(1 << 16)}});
    let error = Policy::default().patched(&long).unwrap_err();
    assert!(matches!(
        error,
        TenantsError::Policy {
            field: "length",
            ..
        }
    ));
}
