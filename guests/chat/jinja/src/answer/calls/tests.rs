#![allow(clippy::unwrap_used)]

use super::*;

fn tools() -> ToolTypes {
    ToolTypes::of_request(
        r#"[{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {
            "n": {"type": "integer"}, "s": {"type": "string"}, "b": {"type": "boolean"}, "l": {"type": "array"}}}}}]"#,
    )
    .unwrap()
}

/// (id, name, arguments)
fn parse(form: Calls, body: &str) -> Option<Vec<(Option<String>, String, String)>> {
    let calls = form.parse(body, &tools())?;
    Some(
        calls
            .into_iter()
            .map(|c| (c.id, c.name, c.arguments))
            .collect(),
    )
}

fn call(name: &str, arguments: &str) -> (Option<String>, String, String) {
    (None, name.to_owned(), arguments.to_owned())
}

/// As in Qwen3-Coder's template.
#[test]
fn functions_with_parameters() {
    let body = "\n<function=f>\n<parameter=n>\n12\n</parameter>\n<parameter=s>\n12\nand <b>\n</parameter>\n<parameter=b>\nTrue\n</parameter>\n<parameter=l>\n[1, \"x\"]\n</parameter>\n<parameter=other>\n1\n</parameter>\n</function>\n";
    let arguments = r#"{"n": 12, "s": "12\nand <b>", "b": true, "l": [1, "x"], "other": "1"}"#;
    assert_eq!(parse(Calls::Tags, body), Some(vec![call("f", arguments)]));
    assert_eq!(
        parse(Calls::Tags, "<function=g>\n</function>"),
        Some(vec![call("g", "{}")])
    );
    // What is not of the wanted type stays text.
    let wrong = "<function=f><parameter=n>many</parameter></function>";
    assert_eq!(
        parse(Calls::Tags, wrong),
        Some(vec![call("f", r#"{"n": "many"}"#)])
    );
    assert_eq!(parse(Calls::Tags, "<function=f"), None);
}

/// As in GLM-4.6's template.
#[test]
fn keys_and_values() {
    let body = "f\n<arg_key>n</arg_key>\n<arg_value>3</arg_value>\n<arg_key>s</arg_key>\n<arg_value>a b</arg_value>\n";
    assert_eq!(
        parse(Calls::Tags, body),
        Some(vec![call("f", r#"{"n": 3, "s": "a b"}"#)])
    );
    assert_eq!(
        parse(Calls::Tags, "get_time"),
        Some(vec![call("get_time", "{}")])
    );
    assert_eq!(parse(Calls::Tags, "not a name"), None);
    assert_eq!(parse(Calls::Tags, "f<arg_key>n"), None);
}

/// As Mistral's models write them: a list (7B v0.3, Nemo), or a name and arguments (Small 3.2, Magistral).
#[test]
fn brackets() {
    let list = r#" [{"name": "f", "arguments": {"a": 1}, "id": "abcdefghi"}, {"name": "g", "arguments": {}}]"#;
    let expected = vec![
        (
            Some("abcdefghi".to_owned()),
            "f".to_owned(),
            r#"{"a": 1}"#.to_owned(),
        ),
        call("g", "{}"),
    ];
    assert_eq!(parse(Calls::Brackets, list), Some(expected));
    assert_eq!(
        parse(Calls::Brackets, r#"f[ARGS]{"a": "é"}"#),
        Some(vec![call("f", r#"{"a": "é"}"#)])
    );
    assert_eq!(
        parse(Calls::Brackets, r#"f[CALL_ID]x1[ARGS]{}"#),
        Some(vec![(Some("x1".into()), "f".into(), "{}".into())])
    );
    assert_eq!(
        parse(Calls::Brackets, r#"f{"a": 1}"#),
        Some(vec![call("f", r#"{"a": 1}"#)])
    );
    for bad in [
        "",
        "f",
        "[ARGS]{}",
        "f[ARGS]3",
        "[{\"name\": 1}]",
        "f[ARGS]{",
    ] {
        assert_eq!(parse(Calls::Brackets, bad), None, "{bad}");
    }
}

/// As in the templates of DeepSeek V3 and V3.1.
#[test]
fn sections_of_both_versions() {
    let old = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{\"a\": 1}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>g\n```json\n{}\n```<｜tool▁call▁end｜>";
    let expected = vec![call("f", r#"{"a": 1}"#), call("g", "{}")];
    assert_eq!(parse(Calls::Sections, old), Some(expected.clone()));
    let new = "<｜tool▁call▁begin｜>f<｜tool▁sep｜>{\"a\": 1}<｜tool▁call▁end｜><｜tool▁call▁begin｜>g<｜tool▁sep｜>{}<｜tool▁call▁end｜>";
    assert_eq!(parse(Calls::Sections, new), Some(expected));
    for bad in [
        "",
        "f",
        "<｜tool▁call▁begin｜>f",
        "<｜tool▁call▁begin｜>f<｜tool▁sep｜>{",
    ] {
        assert_eq!(parse(Calls::Sections, bad), None, "{bad}");
    }
}

/// As Llama 3's templates ask for them.
#[test]
fn objects_alone_or_several() {
    let one = r#"{"name": "f", "parameters": {"a": 1}}"#;
    assert_eq!(
        parse(Calls::Object, one),
        Some(vec![call("f", r#"{"a": 1}"#)])
    );
    let two = format!("{one}; {one}\n");
    let twice = vec![call("f", r#"{"a": 1}"#), call("f", r#"{"a": 1}"#)];
    assert_eq!(parse(Calls::Object, &two), Some(twice));
    for bad in ["", "{", "{}", "x", r#"{"name": "f"} and text"#] {
        assert_eq!(parse(Calls::Object, bad), None, "{bad}");
    }
}
