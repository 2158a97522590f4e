#![allow(clippy::unwrap_used, clippy::panic)]

use super::*;

fn read(fields: Value) -> Result<Option<Structured>, ApiError> {
    structured(&serde_json::from_value(fields).unwrap())
}

#[test]
fn every_field_names_its_syntax() {
    let schema = json!({"type": "object"});
    let tags = json!({"type": "structural_tag", "structures": [], "triggers": []});
    for (fields, syntax, source) in [
        (
            json!({"response_format": {"type": "json_object"}}),
            "json_object",
            "",
        ),
        (
            json!({"response_format": {"type": "json_schema", "json_schema": {"name": "a", "strict": true, "schema": schema}}}),
            "json_schema",
            r#"{"type":"object"}"#,
        ),
        (
            json!({"response_format": tags}),
            "structural_tag",
            r#"{"type":"structural_tag","structures":[],"triggers":[]}"#,
        ),
        (
            json!({"structured_outputs": {"json": schema}}),
            "json_schema",
            r#"{"type":"object"}"#,
        ),
        (
            json!({"structured_outputs": {"json": "{}", "regex": null}}),
            "json_schema",
            "{}",
        ),
        (
            json!({"structured_outputs": {"regex": "a+"}}),
            "regex",
            "a+",
        ),
        (
            json!({"structured_outputs": {"choice": ["a", "b"]}}),
            "choice",
            r#"["a","b"]"#,
        ),
        (
            json!({"structured_outputs": {"json_object": true}}),
            "json_object",
            "",
        ),
        (
            json!({"structured_outputs": {"grammar": "start: \"::=\""}}),
            "lark",
            "start: \"::=\"",
        ),
        (
            json!({"structured_outputs": {"grammar": "# a\n root  ::= \"a\""}}),
            "gbnf",
            "# a\n root  ::= \"a\"",
        ),
        (
            json!({"structured_outputs": {"structural_tag": "{}"}}),
            "structural_tag",
            "{}",
        ),
        (
            json!({"guided_json": schema}),
            "json_schema",
            r#"{"type":"object"}"#,
        ),
        (json!({"guided_regex": "a"}), "regex", "a"),
        (json!({"guided_choice": ["a"]}), "choice", r#"["a"]"#),
        (
            json!({"guided_grammar": "root ::= \"a\""}),
            "gbnf",
            "root ::= \"a\"",
        ),
    ] {
        let found = read(fields.clone()).unwrap().unwrap();
        assert_eq!(
            (found.syntax, found.source.as_str()),
            (syntax, source),
            "{fields}"
        );
        assert!(fields.get(found.param).is_some());
    }
    assert_eq!(
        read(json!({"response_format": {"type": "text"}})).unwrap(),
        None
    );
    assert_eq!(read(json!({})).unwrap(), None);
}

#[test]
fn two_of_them_are_one_too_many() {
    let error = read(json!({"guided_regex": "a", "response_format": {"type": "json_object"}}));
    assert_eq!(
        error.unwrap_err().to_string(),
        "`response_format` and `guided_regex` both say what the answer must follow; leave one out"
    );
    let error = read(json!({"structured_outputs": {"regex": "a", "choice": ["b"]}})).unwrap_err();
    assert!(error.to_string().contains("has 2 of"), "{error}");
}
