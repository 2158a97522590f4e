#![allow(clippy::unwrap_used, clippy::panic)]

use super::*;
use crate::testing::{accepts, compiler, start};

fn place(syntax: &str, source: &str) -> (Option<Place>, String) {
    let error = start(&compiler(), syntax, source).err().unwrap();
    (error.place().cloned(), error.to_string())
}

fn line(line: usize, column: usize) -> Option<Place> {
    Some(Place::Line { line, column })
}

fn pointer(pointer: &str) -> Option<Place> {
    Some(Place::Pointer(pointer.into()))
}

#[test]
fn names_are_read_back() {
    for syntax in Syntax::ALL {
        assert_eq!(syntax.name().parse(), Ok(syntax));
    }
    let error = "json".parse::<Syntax>().unwrap_err();
    assert_eq!(error.label(), "syntax");
    assert!(error.to_string().contains("json_schema"), "{error}");
}

#[test]
fn errors_tell_the_place() {
    assert_eq!(place("regex", "ab(c").0, line(1, 3));
    assert_eq!(place("regex", "^ab[z-a]").0, line(1, 5));
    assert_eq!(place("choice", "[\"a\",\n 7]").0, line(2, 2));
    assert_eq!(place("json_schema", "{\"type\":\n\"object\"").0, line(2, 8));
    assert_eq!(
        place("lark", "start: \"a\"\n  | $\n")
            .0
            .map(|p| matches!(p, Place::Line { line: 2, .. })),
        Some(true)
    );
    assert_eq!(place("json_schema", "7").0, pointer(""));
    let (at, text) = place(
        "json_schema",
        r#"{"type": "object", "properties": {"a/b": {"type": "array", "items": {"type": "strin"}}}}"#,
    );
    assert_eq!(at, pointer("/properties/a~1b/items"), "{text}");
    let (at, text) = place(
        "json_schema",
        r#"{"properties": {"a": {"type": "array", "uniqueItems": true}}}"#,
    );
    assert_eq!(at, pointer("/properties/a"), "{text}");
    assert!(text.contains("uniqueItems"), "{text}");
    let (at, text) = place(
        "json_schema",
        r##"{"anyOf": [{"type": "null"}, {"$ref": "#/$defs/x"}], "$defs": {"x": {"properties": {"p": {"pattern": "("}}}}}"##,
    );
    assert_eq!(at, pointer("/$defs/x/properties/p"), "{text}");
    let (at, _) = place("json_schema", r##"{"items": {"$ref": "#/$defs/none"}}"##);
    assert_eq!(at, pointer("/items/$ref"));
}

#[test]
fn too_much_is_told() {
    let error = start(&compiler(), "lark", &format!("start: {}", "(".repeat(300)))
        .err()
        .unwrap();
    assert_eq!(error.label(), "too_large");
    assert_eq!(error.place(), line(1, 208).as_ref());
    let error = start(&compiler(), "regex", &"a".repeat(2 << 20))
        .err()
        .unwrap();
    assert_eq!(error.label(), "too_large");
}

/// A balanced-brackets recogniser by hand against the Lark grammar, over all texts of up to six characters.
#[test]
fn lark_is_context_free() {
    let compiler = compiler();
    let grammar = "start: item*\nitem: \"(\" start \")\" | \"[\" start \"]\" | \"x\"";
    fn balanced(text: &str) -> bool {
        let mut open = Vec::new();
        text.chars().all(|c| match c {
            '(' | '[' => {
                open.push(c);
                true
            }
            ')' => open.pop() == Some('('),
            ']' => open.pop() == Some('['),
            _ => true,
        }) && open.is_empty()
    }
    let mut texts = vec![String::new()];
    let mut seen = 0;
    for _ in 0..4 {
        texts = texts
            .iter()
            .flat_map(|text| ["(", ")", "[", "]", "x"].map(|c| format!("{text}{c}")))
            .collect();
        for text in &texts {
            assert_eq!(
                accepts(&compiler, "lark", grammar, text),
                balanced(text),
                "{text}"
            );
            seen += 1;
        }
    }
    assert_eq!(seen, 5 + 25 + 125 + 625);
}

#[test]
fn control_tokens_are_theirs_who_name_them() {
    let compiler = compiler();
    let mut follower = start(&compiler, "lark", "start: <|tool|> /[a-z]+/").unwrap();
    assert!(follower.fork().accept(2 + u32::from(b'<')).is_err());
    follower.accept(1).unwrap();
    follower.accept(2 + u32::from(b'a')).unwrap();
    follower.accept(0).unwrap();
    // Text never is one.
    let mut follower = start(&compiler, "regex", r"[\s\S]*").unwrap();
    assert!(follower.fork().accept(1).is_err());
    follower.accept(2 + u32::from(b'<')).unwrap();
    assert!(start(&compiler, "lark", "start: <|other|>").is_err());
}

#[test]
fn structural_tags_hold_json_in_free_text() {
    let compiler = compiler();
    let source = r#"{"type": "structural_tag", "structures": [
        {"begin": "<function=add>", "schema": {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"],
            "additionalProperties": false}, "end": "</function>"},
        {"begin": "<function=now>", "schema": {"type": "object", "maxProperties": 0, "additionalProperties": false}, "end": "</function>"},
        {"begin": "!", "schema": {"enum": ["x"]}, "end": ""}], "triggers": ["<function=", "!"]}"#;
    for text in [
        "",
        "free text, {\"n\": 7} and <func",
        "a<function=add>{\"n\":1}</function>",
        "<function=now>{}</function> then <function=add>{ \"n\" : 2 }</function> end",
        "so!\"x\"!\"x\"",
    ] {
        assert!(accepts(&compiler, "structural_tag", source, text), "{text}");
    }
    for text in [
        "a<function=add>{\"n\":3}</function>",
        "a<function=",
        "<function=add>{\"n\":1}",
        "<function=sub>{}</function>",
        "<function=now>{}</functio>",
        "x!y",
    ] {
        assert!(
            !accepts(&compiler, "structural_tag", source, text),
            "{text}"
        );
    }
    for (bad, at) in [
        (
            r#"{"type": "structural_tag", "structures": [], "triggers": ["a"]}"#,
            "/structures",
        ),
        (
            r#"{"type": "structural_tag", "structures": [{"begin": "b", "schema": {}, "end": ""}], "triggers": ["a"]}"#,
            "/structures/0/begin",
        ),
        (
            r#"{"type": "structural_tag", "structures": [{"begin": "a", "schema": 7, "end": ""}], "triggers": ["a"]}"#,
            "/structures/0/schema",
        ),
        (
            r#"{"type": "structural_tag", "structures": [{"begin": "a", "schema": {}, "end": ""}], "triggers": ["a", "b"]}"#,
            "/triggers/1",
        ),
        (r#"{"type": "structural_tag", "format": {}}"#, "/format"),
        (r#"{"type": "object"}"#, "/type"),
    ] {
        assert_eq!(place("structural_tag", bad).0, pointer(at));
    }
}

#[test]
fn discriminated_unions_are_taken_as_one_of() {
    let compiler = compiler();
    let source = r##"{"oneOf": [{"$ref": "#/$defs/cat"}, {"$ref": "#/$defs/dog"}], "discriminator": {"propertyName": "kind"}, "$defs": {
        "cat": {"type": "object", "properties": {"kind": {"const": "cat"}}, "required": ["kind"]},
        "dog": {"type": "object", "properties": {"kind": {"const": "dog"}}, "required": ["kind"]}}}"##;
    assert!(accepts(
        &compiler,
        "json_schema",
        source,
        r#"{"kind":"cat"}"#
    ));
    assert!(accepts(
        &compiler,
        "json_schema",
        source,
        r#"{"kind":"dog"}"#
    ));
    assert!(!accepts(
        &compiler,
        "json_schema",
        source,
        r#"{"kind":"cow"}"#
    ));
    // Not seen to be exclusive: an error, rather than outputs that do not validate.
    assert!(
        start(
            &compiler,
            "json_schema",
            r#"{"oneOf": [{"type": "integer"}, {"minimum": 3}]}"#
        )
        .is_err()
    );
}
