#![allow(clippy::unwrap_used)]

use super::*;
use serde_json::json;

fn parse(messages: &Value, shape: &Shape) -> Result<Conversation, Error> {
    let messages = messages.to_string();
    Conversation::parse(
        &Fields {
            messages: &messages,
            tools: None,
            documents: None,
            kwargs: None,
            turn: Turn::Answer,
        },
        shape,
    )
}

fn shape(format: ContentFormat) -> Shape {
    Shape {
        format,
        no_content: NoContent::Empty,
        ..Shape::AS_SENT
    }
}

fn with_kwargs(kwargs: &Value) -> Result<Conversation, Error> {
    let kwargs = kwargs.to_string();
    let messages = r#"[{"role": "user", "content": "x"}]"#;
    Conversation::parse(
        &Fields {
            messages,
            tools: None,
            documents: None,
            kwargs: Some(&kwargs),
            turn: Turn::Answer,
        },
        &Shape::AS_SENT,
    )
}

#[test]
fn content_takes_the_form_that_the_template_wants() {
    let parts = json!([{"type": "text", "text": "a"}, "b", {"type": "refusal", "refusal": "c"}]);
    let as_parts = json!([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}, {"type": "text", "text": "c"}]);
    let one = json!([{"type": "text", "text": "a"}]);
    for (content, format, want) in [
        (&parts, ContentFormat::String, json!("a\nb\nc")),
        (&parts, ContentFormat::Either, as_parts.clone()),
        (&parts, ContentFormat::Parts, as_parts),
        (&json!("a"), ContentFormat::String, json!("a")),
        (&json!("a"), ContentFormat::Either, json!("a")),
        (&json!("a"), ContentFormat::Parts, one),
    ] {
        let got = parse(
            &json!([{"role": "user", "content": content}]),
            &shape(format),
        )
        .unwrap();
        assert_eq!(got.messages[0]["content"], want, "{format:?}");
    }
}

#[test]
fn absent_is_as_null() {
    for message in [
        json!({"role": "assistant"}),
        json!({"role": "assistant", "content": null, "name": null, "tool_calls": []}),
    ] {
        let got = |no_content| {
            let shape = Shape {
                no_content,
                ..Shape::AS_SENT
            };
            parse(&json!([message]), &shape).unwrap().messages[0].clone()
        };
        assert_eq!(
            got(NoContent::Null),
            json!({"role": "assistant", "content": null})
        );
        assert_eq!(
            got(NoContent::Empty),
            json!({"role": "assistant", "content": ""})
        );
    }
}

#[test]
fn arguments_take_the_form_that_the_template_wants() {
    for (given, object, text) in [
        (
            json!("{\"b\": 1, \"a\": [\"é\"]}"),
            json!({"b": 1, "a": ["é"]}),
            json!("{\"b\": 1, \"a\": [\"é\"]}"),
        ),
        (json!({"b": 1}), json!({"b": 1}), json!("{\"b\": 1}")),
        (json!(" "), json!({}), json!("{}")),
        (json!("not JSON"), json!("not JSON"), json!("not JSON")),
        (json!("[1]"), json!("[1]"), json!("[1]")),
    ] {
        for (arguments, want) in [(Arguments::Object, object), (Arguments::Text, text)] {
            let shape = Shape {
                arguments,
                ..Shape::AS_SENT
            };
            let message = json!({"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": given}}]});
            let got = parse(&json!([message]), &shape).unwrap();
            assert_eq!(
                got.messages[0]["tool_calls"][0]["function"]["arguments"], want,
                "{arguments:?}"
            );
        }
    }
}

#[test]
fn wrong_shapes_are_refused_by_name() {
    for (messages, place) in [
        (json!({}), "messages:"),
        (json!([]), "messages:"),
        (json!(["x"]), "messages[0]:"),
        (
            json!([{"role": "user", "content": "x"}, {"content": "x"}]),
            "messages[1].role:",
        ),
        (json!([{"role": 1, "content": "x"}]), "messages[0].role:"),
        (
            json!([{"role": "user", "content": 1}]),
            "messages[0].content:",
        ),
        (
            json!([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]),
            "messages[0].content:",
        ),
        (
            json!([{"role": "user", "content": [{"type": "image", "text": "x"}]}]),
            "messages[0].content:",
        ),
        (
            json!([{"role": "user", "content": [{"type": "text"}]}]),
            "messages[0].content:",
        ),
    ] {
        let error = parse(&messages, &Shape::AS_SENT).unwrap_err();
        assert!(error.to_string().starts_with(place), "{error}");
    }
    for messages in [
        "",
        "[",
        "[{\"role\": \"\\ud800\"}]",
        &("[".repeat(200) + &"]".repeat(200)),
    ] {
        let fields = Fields {
            messages,
            tools: None,
            documents: None,
            kwargs: None,
            turn: Turn::Answer,
        };
        assert!(
            Conversation::parse(&fields, &Shape::AS_SENT).is_err(),
            "{messages}"
        );
    }
}

#[test]
fn tools_and_documents_are_lists_of_objects() {
    let messages = r#"[{"role": "user", "content": "x"}]"#;
    for (text, fine) in [
        ("[]", true),
        ("null", true),
        ("[{}]", true),
        ("{}", false),
        ("[1]", false),
        ("\"x\"", false),
    ] {
        let tools = Fields {
            messages,
            tools: Some(text),
            documents: None,
            kwargs: None,
            turn: Turn::Answer,
        };
        let documents = Fields {
            tools: None,
            documents: Some(text),
            ..tools.clone()
        };
        for fields in [tools, documents] {
            assert_eq!(
                Conversation::parse(&fields, &Shape::AS_SENT).is_ok(),
                fine,
                "{text}"
            );
        }
    }
}

#[test]
fn variables_of_the_server_cannot_be_set() {
    for key in [
        "messages",
        "tools",
        "add_generation_prompt",
        "chat_template",
        "bos_token",
        "eos_token",
        "image_token",
    ] {
        assert!(with_kwargs(&json!({key: "x"})).is_err(), "{key}");
    }
    assert!(with_kwargs(&json!({"a\u{F0000}": 1})).is_err());
    assert!(with_kwargs(&json!({"a": [{"b": "\u{F0000}"}]})).is_err());
    assert!(with_kwargs(&json!([])).is_err());
    assert_eq!(
        with_kwargs(&json!({"enable_thinking": false}))
            .unwrap()
            .kwargs["enable_thinking"],
        json!(false)
    );
}

#[test]
fn literals_are_broken_in_strings_and_keys() {
    let shape = Shape {
        assembled: vec!["<|user|>".into()],
        ..Shape::AS_SENT
    };
    let message = json!({"role": "user", "content": "<|a|> <", "x": {"<k": ["<v"]}, "tool_calls": [{"function": {"arguments": "{\"\\u003ca\": \"\\u003cb\"}"}}]});
    let got = parse(&json!([message]), &shape).unwrap().messages[0].clone();
    assert_eq!(got["content"], json!("<\u{10FFFD}|a|> <\u{10FFFD}"));
    assert_eq!(got["x"], json!({"<\u{10FFFD}k": ["<\u{10FFFD}v"]}));
    assert_eq!(
        got["tool_calls"][0]["function"]["arguments"],
        json!({"<\u{10FFFD}a": "<\u{10FFFD}b"})
    );
    assert_eq!(got["role"], json!("user"));
}

#[test]
fn what_could_go_on_with_a_literal_is_broken() {
    let literals = ["<|user|>".to_owned()];
    for (s, broken) in [
        ("user", true),
        ("user|>x", true),
        ("|", true),
        (">", true),
        ("se", true),
        ("x", false),
        ("", false),
        ("users", false),
        ("User", false),
    ] {
        assert_eq!(
            break_up(s, &literals),
            if broken {
                format!("\u{10FFFD}{s}")
            } else {
                s.to_owned()
            }
        );
    }
    let shape = Shape {
        assembled: literals.to_vec(),
        ..Shape::AS_SENT
    };
    let got = parse(
        &json!([{"role": "user|>", "name": "user", "content": ""}]),
        &shape,
    )
    .unwrap()
    .messages[0]
        .clone();
    assert_eq!(got["role"], json!("\u{10FFFD}user|>"));
    assert_eq!(got["name"], json!("\u{10FFFD}user"));
}
