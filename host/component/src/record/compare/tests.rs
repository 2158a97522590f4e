#![allow(clippy::unwrap_used)]
use super::*;
use serde_json::json;

fn recorded(output: Value) -> RecordedCall {
    RecordedCall {
        line: 4,
        call: 3,
        role: "sampler".into(),
        module: "m".into(),
        digest: "d".into(),
        function: "stepping.step".into(),
        input: Value::Null,
        output,
        log: vec!["info: a".into()],
    }
}

fn compare(was: &Value, is: &Value) -> Option<Difference> {
    let call = recorded(was.clone());
    first_difference(&call, "stepping.step", is, &["info: a".into()])
}

#[test]
fn equal_calls_do_not_differ() {
    let output = json!({ "ok": { "a": [1, 2], "b": { "u32": "AQAAAA==" } } });
    assert_eq!(compare(&output, &output), None);
}

#[test]
fn numbers_in_lists_are_told_by_index() {
    // 1 and 2 against 1 and 3.
    let was = json!({ "ok": { "token": { "u32": "AQAAAAIAAAA=" } } });
    let is = json!({ "ok": { "token": { "u32": "AQAAAAMAAAA=" } } });
    let found = compare(&was, &is).unwrap();
    assert_eq!(
        found.to_string(),
        "call 3 (line 4), stepping.step of module m: ok.token[1] was 2, is 3"
    );
    // 0.0 against -0.0.
    let was = json!({ "ok": { "f32": "AAAAAA==" } });
    let is = json!({ "ok": { "f32": "AAAAgA==" } });
    let found = compare(&was, &is).unwrap();
    assert_eq!(found.field, "ok[0]");
    assert_eq!(found.recorded, "0.0 (bits 00000000)");
    assert_eq!(found.got, "-0.0 (bits 80000000)");
    let was = json!({ "ok": { "u32": "AQAAAAIAAAA=" } });
    let is = json!({ "ok": { "u32": "AQAAAA==" } });
    let found = compare(&was, &is).unwrap();
    assert_eq!(
        (&*found.field, &*found.recorded, &*found.got),
        ("ok.length", "2", "1")
    );
}

#[test]
fn outcomes_functions_and_log_lines_are_compared() {
    let found = compare(&json!({ "ok": 1 }), &json!({ "error": "late" })).unwrap();
    assert_eq!(
        (&*found.field, &*found.recorded, &*found.got),
        ("ok", "1", "\"(nothing)\"")
    );
    let found = compare(&json!({ "ok": [1, 2] }), &json!({ "ok": [1, 5] })).unwrap();
    assert_eq!(
        (&*found.field, &*found.recorded, &*found.got),
        ("ok[1]", "2", "5")
    );
    let call = recorded(json!({ "ok": 1 }));
    let found = first_difference(&call, "stepping.select", &json!({ "ok": 1 }), &[]).unwrap();
    assert_eq!(
        (&*found.field, &*found.got),
        ("function", "stepping.select")
    );
    let found = first_difference(&call, "stepping.step", &json!({ "ok": 1 }), &[]).unwrap();
    assert_eq!(
        (&*found.field, &*found.recorded, &*found.got),
        ("log.length", "1", "0")
    );
}
