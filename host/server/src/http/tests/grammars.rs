//! What answers must follow. The device says what it is told to: an answer that does not follow its grammar ends with an error.

use super::support::{Server, Setup};
use serde_json::{Value, json};

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";

fn messages(more: Value) -> Value {
    let mut body = json!({"messages": [{"role": "user", "content": "x"}]});
    for (key, value) in more.as_object().unwrap() {
        body[key] = value.clone();
    }
    body
}

/// Status, and the text or the error.
async fn answer(server: &Server, more: Value) -> (u16, Value) {
    let answer = server.post(CHAT, &messages(more)).await;
    let mut body = answer.json();
    match answer.status.as_u16() {
        200 => (200, body["choices"][0]["message"]["content"].take()),
        status => (status, body["error"].take()),
    }
}

fn schema() -> Value {
    json!({"type": "object", "properties": {"id": {"type": "integer", "maximum": 9, "minimum": 0}},
        "required": ["id"], "additionalProperties": false})
}

#[tokio::test]
async fn answers_that_follow_are_given_whichever_field_asks() {
    let server = Setup::saying(&["{\"id\":7}<|im_end|>"]).start();
    let grammar = "root ::= \"{\" [a-z\"]+ \":\" [0-9] \"}\"";
    for more in [
        json!({"response_format": {"type": "json_object"}}),
        json!({"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": schema()}}}),
        json!({"structured_outputs": {"json": schema().to_string()}}),
        json!({"structured_outputs": {"regex": "\\{\"id\":\\d\\}"}}),
        json!({"structured_outputs": {"choice": ["{\"id\":7}", "none"]}}),
        json!({"structured_outputs": {"grammar": grammar}}),
        json!({"structured_outputs": {"grammar": "start: \"{\\\"id\\\":\" /[0-9]/ \"}\""}}),
        json!({"guided_json": schema()}),
        json!({"guided_regex": ".*"}),
        json!({"response_format": {"type": "structural_tag", "triggers": ["{"], "structures":
            [{"begin": "{\"id\":", "schema": {"type": "integer", "maximum": 9}, "end": "}"}]}}),
    ] {
        assert_eq!(
            answer(&server, more.clone()).await,
            (200, json!("{\"id\":7}")),
            "{more}"
        );
    }
    let body = json!({"prompt": ["a", "b"], "n": 2, "guided_json": schema()});
    let answer = server.post(COMPLETIONS, &body).await.json();
    for choice in answer["choices"].as_array().unwrap() {
        assert_eq!(choice["text"], "{\"id\":7}");
        assert_eq!(choice["finish_reason"], "stop");
    }
    assert_eq!(answer["choices"].as_array().unwrap().len(), 4);
}

#[tokio::test]
async fn one_that_does_not_follow_is_an_error() {
    let server = Setup::saying(&["{\"id\":77}<|im_end|>"]).start();
    let (status, error) = answer(&server, json!({"guided_json": schema()})).await;
    assert_eq!(status, 400, "{error}");
    assert!(
        error["message"]
            .as_str()
            .unwrap()
            .contains("cannot follow its grammar"),
        "{error}"
    );
}

#[tokio::test]
async fn what_is_wrong_with_a_grammar_is_told_with_its_place() {
    let server = Setup::saying(&["a"]).start();
    let deep = "(".repeat(1000);
    for (more, param, message) in [
        (
            json!({"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema":
                {"properties": {"a": {"type": "strin"}}}}}}),
            "response_format",
            "at /properties/a: ",
        ),
        (
            json!({"structured_outputs": {"json": "{\n]"}}),
            "structured_outputs",
            "line 2, column 1: ",
        ),
        (
            json!({"structured_outputs": {"regex": "a(b"}}),
            "structured_outputs",
            "line 1, column 2: unclosed group",
        ),
        (
            json!({"guided_choice": []}),
            "guided_choice",
            "the list of choices is empty",
        ),
        (
            json!({"guided_grammar": "root ::= (\"a\""}),
            "guided_grammar",
            "line 1, column 14: expected `)`",
        ),
        (
            json!({"guided_grammar": "start: a b"}),
            "guided_grammar",
            "line 1, column 8: unknown name",
        ),
        (
            json!({"guided_grammar": format!("start: {deep}")}),
            "guided_grammar",
            "line 1, column 208: the depth of brackets",
        ),
        (
            json!({"response_format": {"type": "structural_tag", "triggers": ["<"], "structures":
                [{"begin": "[", "schema": {}, "end": ""}]}}),
            "response_format",
            "at /structures/0/begin: ",
        ),
        (
            json!({"response_format": {"type": "json_object"}, "guided_regex": "a"}),
            "guided_regex",
            "leave one out",
        ),
    ] {
        let (status, error) = answer(&server, more.clone()).await;
        assert_eq!(
            (status, &error["param"]),
            (400, &json!(param)),
            "{more}: {error}"
        );
        assert_eq!(error["type"], "invalid_request_error");
        assert!(
            error["message"].as_str().unwrap().contains(message),
            "{more}: {error}"
        );
    }
}

#[tokio::test]
async fn samplers_that_leave_the_grammar_out_are_refused() {
    let mut setup = Setup::saying(&["a"]);
    setup.guests.ignores_grammars = true;
    let (status, error) = answer(&setup.start(), json!({"guided_regex": "a"})).await;
    assert_eq!((status, &error["param"]), (400, &json!("guided_regex")));
    assert!(
        error["message"]
            .as_str()
            .unwrap()
            .contains("does not follow"),
        "{error}"
    );
}
