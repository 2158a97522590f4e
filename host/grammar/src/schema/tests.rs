#![allow(clippy::unwrap_used, clippy::panic)]

use super::*;
use crate::testing::{accepts, compiler, start};

/// Schemas with documents that the Python package jsonschema found valid or not (`tests/make_golden.py`).
#[test]
fn documents_are_judged_as_jsonschema_judges_them() {
    let golden: Value =
        serde_json::from_str(include_str!("../../tests/golden/schemas.json")).unwrap();
    let compiler = compiler();
    let mut judged = 0;
    for case in golden.as_array().unwrap() {
        let schema = case["schema"].to_string();
        for document in case["documents"].as_array().unwrap() {
            let text = document["text"].as_str().unwrap();
            assert_eq!(
                accepts(&compiler, "json_schema", &schema, text),
                document["valid"].as_bool().unwrap(),
                "{schema}: {text}"
            );
            judged += 1;
        }
    }
    assert!(judged > 100, "{judged}");
}

#[test]
fn white_space_is_free_but_bounded() {
    let compiler = compiler();
    let schema = r#"{"type": "array", "items": {"type": "integer"}}"#;
    assert!(accepts(&compiler, "json_schema", schema, "[ 1 ,\n\t2\r\n]"));
    assert!(accepts(
        &compiler,
        "json_schema",
        schema,
        &format!("[{}1]", " ".repeat(64))
    ));
    assert!(!accepts(
        &compiler,
        "json_schema",
        schema,
        &format!("[{}1]", " ".repeat(65))
    ));
    // A client's settings of the matcher are not taken.
    let schema = r#"{"x-guidance": {"whitespace_flexible": false, "lenient": true}, "type": "array", "uniqueItems": true}"#;
    assert!(start(&compiler, "json_schema", schema).is_err());
}

#[test]
fn only_exclusive_options_become_any_of() {
    let root = json!({});
    let mut same = json!({"oneOf": [{"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"]},
        {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"]}]});
    let before = same.clone();
    exclusive(&mut same, &root);
    assert_eq!(same, before);
    let mut optional = json!({"oneOf": [{"type": "object", "properties": {"a": {"const": 1}}},
        {"type": "object", "properties": {"a": {"const": 2}}}]});
    exclusive(&mut optional, &root);
    assert!(optional.get("oneOf").is_some());
    let mut apart = json!({"items": {"oneOf": [{"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"]},
        {"type": "object", "properties": {"a": {"enum": [2]}}, "required": ["a"]}]}});
    exclusive(&mut apart, &root);
    assert!(apart["items"].get("anyOf").is_some());
}
