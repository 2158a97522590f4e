#![allow(clippy::unwrap_used, clippy::panic)]

use super::parse;
use crate::openai::{
    ApiError, CompletionFields, ConversationFields, DetokenizeFields, PromptField, RawPrompt,
    SamplingFields,
};

fn param<T: serde::de::DeserializeOwned + std::fmt::Debug>(body: &str) -> Option<String> {
    match parse::<T>(body.as_bytes()).unwrap_err() {
        ApiError::Invalid { param, message } => {
            assert!(!message.is_empty());
            param
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn wrong_types_name_their_field() {
    let cases = [
        (r#"{"temperature": "hot"}"#, "temperature"),
        (r#"{"n": 1.5}"#, "n"),
        (r#"{"n": true}"#, "n"),
        (r#"{"max_tokens": "many"}"#, "max_tokens"),
        (r#"{"stop": 5}"#, "stop"),
        (r#"{"stop": ["a", 5]}"#, "stop"),
        (r#"{"stop": {"a": 1}}"#, "stop"),
        (r#"{"logit_bias": []}"#, "logit_bias"),
        (r#"{"logit_bias": {"5": "x"}}"#, "logit_bias"),
        (r#"{"stop_token_ids": [-1]}"#, "stop_token_ids"),
        (r#"{"stop_token_ids": [5000000000]}"#, "stop_token_ids"),
        (r#"{"seed": "x"}"#, "seed"),
        (r#"{"stream": "yes"}"#, "stream"),
        (
            r#"{"stream": true, "stream_options": {"include_usage": 1}}"#,
            "stream_options",
        ),
        (r#"{"model": 3}"#, "model"),
    ];
    for (body, field) in cases {
        assert_eq!(
            param::<SamplingFields>(body).as_deref(),
            Some(field),
            "{body}"
        );
    }
    assert_eq!(
        param::<ConversationFields>(r#"{"messages": "hi"}"#).as_deref(),
        Some("messages")
    );
    assert_eq!(
        param::<ConversationFields>(r#"{"messages": [], "tools": {}}"#).as_deref(),
        Some("tools")
    );
    assert_eq!(param::<DetokenizeFields>("{}").as_deref(), Some("tokens"));
    assert_eq!(param::<CompletionFields>("{}").as_deref(), Some("prompt"));
}

#[test]
fn what_is_not_an_object_is_refused() {
    for body in [
        "",
        "{not json",
        "[]",
        "5",
        "\"x\"",
        "null",
        "{}{}",
        "{\"a\": 1,}",
        "{\"user\": \"\\ud800\"}",
        "{\"temperature\": 1e999}",
    ] {
        assert!(parse::<SamplingFields>(body.as_bytes()).is_err(), "{body}");
    }
    assert!(parse::<SamplingFields>(b"{\"user\": \"\xff\"}").is_err());
}

#[test]
fn deep_nesting_is_refused_or_passed_over_but_never_overflows() {
    let deep = |field: &str| {
        format!(
            "{{\"{field}\": {}{}}}",
            "[".repeat(200_000),
            "]".repeat(200_000)
        )
    };
    assert!(parse::<ConversationFields>(deep("messages").as_bytes()).is_err());
    assert!(parse::<SamplingFields>(deep("unknown").as_bytes()).is_ok());
}

#[test]
fn nulls_are_absent_and_unknown_fields_are_passed_over() {
    let fields: SamplingFields = parse(
        br#"{"temperature": null, "stop": null, "logit_bias": null, "future": {"a": [1]}, "n": 2}"#,
    )
    .unwrap();
    assert_eq!((fields.temperature, fields.n), (None, Some(2)));
    assert!(fields.stop.is_none() && fields.logit_bias.is_none());
}

#[test]
fn prompts_come_in_four_kinds() {
    let prompt = |json: &str| {
        parse::<CompletionFields>(format!("{{\"prompt\": {json}}}").as_bytes()).map(|f| f.prompt)
    };
    let text = |text: &str| RawPrompt::Text(text.to_owned());
    assert_eq!(prompt("\"a\"").unwrap(), PromptField::One(text("a")));
    assert_eq!(
        prompt("[\"a\", \"b\"]").unwrap(),
        PromptField::Many(vec![text("a"), text("b")])
    );
    assert_eq!(
        prompt("[1, 2]").unwrap(),
        PromptField::One(RawPrompt::Ids(vec![1, 2]))
    );
    assert_eq!(
        prompt("[[1], [2, 3]]").unwrap(),
        PromptField::Many(vec![RawPrompt::Ids(vec![1]), RawPrompt::Ids(vec![2, 3])])
    );
    assert_eq!(prompt("[]").unwrap(), PromptField::Empty);
    for bad in [
        "5",
        "null",
        "{}",
        "[1, \"a\"]",
        "[\"a\", 1]",
        "[[1], 2]",
        "[[1], \"a\"]",
        "[-1]",
        "[1.5]",
        "[[\"a\"]]",
        "[99999999999]",
        "[null]",
    ] {
        assert_eq!(
            param::<CompletionFields>(&format!("{{\"prompt\": {bad}}}")).as_deref(),
            Some("prompt"),
            "{bad}"
        );
    }
}

#[test]
fn only_objects_are_requests() {
    for body in [
        r#"["tiny"]"#,
        "[]",
        r#""x""#,
        "null",
        "5",
        "-1",
        "true",
        " [1]",
    ] {
        match parse::<SamplingFields>(body.as_bytes()).unwrap_err() {
            ApiError::Invalid {
                param: None,
                message,
            } => assert!(message.contains("not an object"), "{body}: {message}"),
            other => panic!("{body}: {other:?}"),
        }
    }
}

#[test]
fn a_repeated_field_is_named() {
    let twice = r#"{"max_tokens": 1, "max_tokens": 2}"#;
    assert_eq!(
        param::<SamplingFields>(twice).as_deref(),
        Some("max_tokens")
    );
}
