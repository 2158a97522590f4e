#![allow(clippy::unwrap_used)]

use super::fill;
use bytes::Bytes;
use guesthouse_tenants::{Policy, Tenant, TenantId};
use serde_json::{Value, json};

fn filled(defaults: &Value, body: &str) -> String {
    let tenant = Tenant {
        id: TenantId::parse("a").unwrap(),
        number: 1,
        policy: Policy {
            defaults: defaults.as_object().unwrap().clone(),
            ..Policy::default()
        },
    };
    let bytes = fill(Bytes::from(body.to_owned()), &tenant).unwrap();
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn value(defaults: &Value, body: &Value) -> Value {
    serde_json::from_str(&filled(defaults, &body.to_string())).unwrap()
}

#[test]
fn what_a_request_says_stays() {
    let defaults = json!({"temperature": 0.3, "top_p": 0.5});
    assert_eq!(
        value(&defaults, &json!({"prompt": "x", "top_p": 1.0})),
        json!({"prompt": "x", "top_p": 1.0, "temperature": 0.3})
    );
    assert_eq!(value(&defaults, &json!({})), defaults);
    assert_eq!(
        value(&defaults, &json!({"temperature": null, "top_p": 0})),
        json!({"temperature": 0.3, "top_p": 0})
    );
}

#[test]
fn the_clients_text_stays_with_its_faults() {
    let body = "{ \"seed\": 18446744073709551615, \"n\": 1, \"n\": 2 } \n";
    assert_eq!(
        filled(&json!({"top_k": 4}), body),
        "{ \"seed\": 18446744073709551615, \"n\": 1, \"n\": 2 ,\"top_k\":4}"
    );
}

#[test]
fn other_names_of_a_field_count_as_that_field() {
    assert_eq!(
        value(
            &json!({"max_tokens": 5}),
            &json!({"max_completion_tokens": 9})
        ),
        json!({"max_completion_tokens": 9})
    );
    assert_eq!(
        value(
            &json!({"guided_regex": "a"}),
            &json!({"response_format": {"type": "text"}})
        ),
        json!({"response_format": {"type": "text"}})
    );
}

#[test]
fn options_of_streams_are_added_to_streams_alone() {
    let defaults = json!({"stream_options": {"include_usage": true}});
    assert_eq!(value(&defaults, &json!({"n": 1})), json!({"n": 1}));
    assert_eq!(
        value(&defaults, &json!({"stream": true})),
        json!({"stream": true, "stream_options": {"include_usage": true}})
    );
    let both = json!({"stream": true, "stream_options": {"include_usage": true}});
    assert_eq!(value(&both, &json!({})), both);
}
