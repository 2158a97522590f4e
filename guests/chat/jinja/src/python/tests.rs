//! Expected values are CPython 3.12's.
#![allow(clippy::unwrap_used)]

use super::*;
use minijinja::value::Serde;
use serde_json::json;

fn value(v: &serde_json::Value) -> Value {
    Value::from(Serde(v))
}

#[test]
fn repr_is_pythons() {
    for (v, want) in [
        (json!(null), "None"),
        (json!(true), "True"),
        (
            json!([
                1,
                -2,
                1.0,
                1e16,
                1e-5,
                0.1,
                1.5e300,
                -0.0,
                123_456_789_012_345_680.0
            ]),
            "[1, -2, 1.0, 1e+16, 1e-05, 0.1, 1.5e+300, -0.0, 1.2345678901234568e+17]",
        ),
        (
            json!({"a": "it's", "b": "\"q\"", "c": "'\"", "d": []}),
            r#"{'a': "it's", 'b': '"q"', 'c': '\'"', 'd': []}"#,
        ),
        (
            json!(["\n\t\r\\\u{1}\u{7f}\u{a0}\u{ad}\u{200b}\u{2028}\u{3000}é漢🦙"]),
            r"['\n\t\r\\\x01\x7f\xa0\xad\u200b\u2028\u3000é漢🦙']",
        ),
    ] {
        assert_eq!(repr(&value(&v)), want);
    }
    assert_eq!(str(&Value::from("it's")), "it's");
    assert_eq!(str(&Value::UNDEFINED), "");
}

#[test]
fn dumps_is_pythons() {
    let v = value(
        &json!({"b": [1, 2.0, true, null], "a": {}, "c": "é\"\\\n\u{8}\u{c}\u{1}\u{7f}/🦙", "d": {"e": []}}),
    );
    let compact = "{\"b\": [1, 2.0, true, null], \"a\": {}, \"c\": \"é\\\"\\\\\\n\\b\\f\\u0001\u{7f}/🦙\", \"d\": {\"e\": []}}";
    assert_eq!(dumps(&v, &Dumps::default()).unwrap(), compact);
    let layout = Dumps {
        indent: Some(1),
        item_separator: ",".into(),
        keys: KeyOrder::Sorted,
        charset: Charset::Ascii,
        ..Dumps::default()
    };
    let want = "{\n \"a\": {},\n \"b\": [\n  1,\n  2.0,\n  true,\n  null\n ],\n \"c\": \"\\u00e9\\\"\\\\\\n\\b\\f\\u0001\\u007f/\\ud83e\\udd99\",\n \"d\": {\n  \"e\": []\n }\n}";
    assert_eq!(dumps(&v, &layout).unwrap(), want);
    assert!(dumps(&Value::UNDEFINED, &Dumps::default()).is_err());
}

#[test]
fn splitlines_is_pythons() {
    assert_eq!(
        splitlines("a\n\nb\r\nc\rd\u{2028}e\n"),
        ["a", "", "b", "c", "d", "e"]
    );
    assert!(splitlines("").is_empty());
    assert_eq!(splitlines("\n"), [""]);
}

#[test]
fn nesting_has_a_limit() {
    let deep = (0..1000).fold(Value::from(1), |v, _| Value::from(vec![v]));
    assert!(dumps(&deep, &Dumps::default()).is_err());
    assert!(repr(&deep).contains('…'));
}
