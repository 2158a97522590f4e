use super::support::{GuestScript, Setup, timeless};
use crate::serving::GuestError;
use serde_json::{Value, json};

const PATH: &str = "/v1/chat/completions";

fn asking(more: Value) -> Value {
    let mut body = json!({"model": "tiny", "messages": [{"role": "user", "content": "hi"}]});
    for (key, value) in more.as_object().unwrap() {
        body[key] = value.clone();
    }
    body
}

fn values(events: &[String]) -> Vec<Value> {
    events
        .iter()
        .map(|event| serde_json::from_str(event).unwrap())
        .collect()
}

#[tokio::test]
async fn a_whole_answer_has_openais_shape() {
    let server = Setup::saying(&["Hello!<|im_end|>"]).start();
    let answer = server.ask(PATH, &asking(json!({}))).await;
    // <start> user \n h i <end> <start>
    assert_eq!(
        timeless(answer),
        json!({"id": "chatcmpl-ID", "object": "chat.completion", "created": 0, "model": "org/tiny",
            "choices": [{"index": 0, "message": {"role": "assistant", "content": "Hello!"}, "logprobs": null,
                "finish_reason": "stop", "stop_reason": null}],
            "usage": {"prompt_tokens": 10, "completion_tokens": 7, "total_tokens": 17, "prompt_tokens_details": {"cached_tokens": 0}}})
        .to_string()
    );
}

#[tokio::test]
async fn a_stream_begins_with_the_role_and_ends_with_the_finish() {
    let server = Setup::saying(&["Ho<|im_end|>"]).start();
    let answer = server.post(PATH, &asking(json!({"stream": true}))).await;
    let chunk = |delta: Value, finish: Value| {
        json!({"id": "chatcmpl-ID", "object": "chat.completion.chunk", "created": 0, "model": "org/tiny",
            "choices": [{"index": 0, "delta": delta, "logprobs": null, "finish_reason": finish}]})
        .to_string()
    };
    assert_eq!(
        answer.golden(),
        [
            chunk(json!({"role": "assistant", "content": ""}), json!(null)),
            chunk(json!({"content": "H"}), json!(null)),
            chunk(json!({"content": "o"}), json!(null)),
            chunk(json!({}), json!("stop")),
        ]
    );
    assert!(answer.body.ends_with("data: [DONE]\n\n"));
}

#[tokio::test]
async fn every_choice_of_a_stream_has_role_and_finish() {
    let server = Setup::saying(&["a<|im_end|>", "bb<|im_end|>", "ccc<|im_end|>"]).start();
    let events = values(
        &server
            .post(PATH, &asking(json!({"n": 3, "stream": true})))
            .await
            .golden(),
    );
    let choices: Vec<&Value> = events.iter().map(|event| &event["choices"][0]).collect();
    for (index, text) in ["a", "bb", "ccc"].iter().enumerate() {
        let own: Vec<_> = choices
            .iter()
            .filter(|choice| choice["index"] == index)
            .collect();
        assert_eq!(own[0]["delta"]["role"], "assistant");
        let joined: String = own
            .iter()
            .filter_map(|choice| choice["delta"]["content"].as_str())
            .collect();
        assert_eq!(&joined, text);
        assert_eq!(
            own.iter()
                .filter(|choice| choice["finish_reason"] == "stop")
                .count(),
            1
        );
        assert_eq!(own.last().unwrap()["finish_reason"], "stop");
    }
}

#[tokio::test]
async fn tool_calls_come_in_parts_and_whole() {
    let server = Setup::saying(&[r#"~hm~Ok @add|{"a": 1}@@sub|{}@<|im_end|>"#]).start();
    let tools = json!([{"type": "function", "function": {"name": "add", "parameters": {}}}, {"type": "function", "function": {"name": "sub"}}]);
    let answer = server.ask(PATH, &asking(json!({"tools": tools}))).await;
    let choice = &answer["choices"][0];
    assert_eq!(choice["finish_reason"], "tool_calls");
    assert_eq!(
        (
            &choice["message"]["content"],
            &choice["message"]["reasoning_content"]
        ),
        (&json!("Ok "), &json!("hm"))
    );
    let calls = choice["message"]["tool_calls"].as_array().unwrap();
    assert_eq!(calls.len(), 2);
    for (call, (name, arguments)) in calls.iter().zip([("add", r#"{"a": 1}"#), ("sub", "{}")]) {
        assert!(call["id"].as_str().unwrap().starts_with("call_") && call.get("index").is_none());
        assert_eq!(call["type"], "function");
        assert_eq!(
            call["function"],
            json!({"name": name, "arguments": arguments})
        );
    }
    assert_ne!(calls[0]["id"], calls[1]["id"]);

    let events = values(
        &server
            .post(PATH, &asking(json!({"tools": tools, "stream": true})))
            .await
            .golden(),
    );
    let mut ids = Vec::new();
    let mut arguments = vec![String::new(); 2];
    let mut reasoning = String::new();
    for delta in events.iter().map(|event| &event["choices"][0]["delta"]) {
        reasoning += delta["reasoning_content"].as_str().unwrap_or_default();
        for part in delta["tool_calls"].as_array().into_iter().flatten() {
            let index = part["index"].as_u64().unwrap() as usize;
            ids.extend(part.get("id").map(|id| (index, id.clone())));
            arguments[index] += part["function"]["arguments"].as_str().unwrap();
        }
    }
    assert_eq!(
        ids.iter().map(|(index, _)| *index).collect::<Vec<_>>(),
        [0, 1],
        "one id per call"
    );
    assert_eq!(arguments, [r#"{"a": 1}"#, "{}"]);
    assert_eq!(reasoning, "hm");
    assert_eq!(
        events.last().unwrap()["choices"][0]["finish_reason"],
        "tool_calls"
    );
    let rendered = server.guests.rendered.lock().unwrap();
    assert_eq!(
        serde_json::from_str::<Value>(rendered[0].tools.as_deref().unwrap()).unwrap(),
        tools
    );
}

#[tokio::test]
async fn calls_alone_have_no_content() {
    let server = Setup::saying(&["@f|{}@<|im_end|>"]).start();
    let message = server.ask(PATH, &asking(json!({}))).await["choices"][0]["message"].take();
    assert_eq!(message["content"], json!(null));
    // Cut off by length it is no finished call.
    let cut = server.ask(PATH, &asking(json!({"max_tokens": 4}))).await;
    assert_eq!(cut["choices"][0]["finish_reason"], "length");
}

#[tokio::test]
async fn log_probabilities_have_exact_bytes() {
    let server = Setup::saying(&["é"]).start();
    let answer = server
        .ask(
            PATH,
            &asking(json!({"logprobs": true, "top_logprobs": 2, "max_tokens": 2})),
        )
        .await;
    assert_eq!(
        answer["choices"][0]["logprobs"],
        json!({"content": [
            {"token": "\u{FFFD}", "logprob": -0.5, "bytes": [0xC3], "top_logprobs": [
                {"token": "\u{FFFD}", "logprob": -0.5, "bytes": [0xC3]}, {"token": "\u{FFFD}", "logprob": -1.5, "bytes": [0xC4]}]},
            {"token": "\u{FFFD}", "logprob": -0.5, "bytes": [0xA9], "top_logprobs": [
                {"token": "\u{FFFD}", "logprob": -0.5, "bytes": [0xA9]}, {"token": "\u{FFFD}", "logprob": -1.5, "bytes": [0xAA]}]}]})
    );
    let body =
        asking(json!({"logprobs": true, "top_logprobs": 2, "max_tokens": 2, "stream": true}));
    let events = values(&server.post(PATH, &body).await.golden());
    let streamed: Vec<_> = events
        .iter()
        .flat_map(|event| {
            event["choices"][0]["logprobs"]["content"]
                .as_array()
                .into_iter()
                .flatten()
        })
        .collect();
    assert_eq!(
        streamed,
        answer["choices"][0]["logprobs"]["content"]
            .as_array()
            .unwrap()
            .iter()
            .collect::<Vec<_>>()
    );
    let own = server
        .ask(PATH, &asking(json!({"logprobs": true, "max_tokens": 1})))
        .await;
    assert_eq!(
        own["choices"][0]["logprobs"]["content"][0]["top_logprobs"],
        json!([])
    );
}

#[tokio::test]
async fn the_guests_stop_strings_count() {
    let mut setup = Setup::saying(&["so END of it"]);
    setup.guests = GuestScript {
        stop_strings: vec!["END".into(), String::new()],
        ..GuestScript::default()
    };
    let server = setup.start();
    let answer = server.ask(PATH, &asking(json!({}))).await;
    assert_eq!(answer["choices"][0]["message"]["content"], "so ");
    let both = server.ask(PATH, &asking(json!({"stop": ["so"]}))).await;
    assert_eq!(both["choices"][0]["message"]["content"], "");
}

#[tokio::test]
async fn no_length_means_what_the_context_leaves() {
    let server = Setup::saying(&["a"]).start();
    for more in [
        json!({}),
        json!({"max_tokens": 0}),
        json!({"max_tokens": null}),
    ] {
        let answer = server.ask(PATH, &asking(more)).await;
        assert_eq!(answer["usage"]["total_tokens"], 256);
        assert_eq!(answer["choices"][0]["finish_reason"], "length");
    }
}

#[tokio::test]
async fn an_open_last_message_is_gone_on_with() {
    let server = Setup::saying(&["cd"]).start();
    let body = json!({"messages": [{"role": "assistant", "content": "ab"}], "continue_final_message": true, "echo": true, "max_tokens": 2});
    let answer = server.ask(PATH, &body).await;
    assert_eq!(answer["choices"][0]["message"]["content"], "abcd");
    assert!(server.guests.rendered.lock().unwrap()[0].continue_final_message);
    let mut streaming = body;
    streaming["stream"] = json!(true);
    let events = values(&server.post(PATH, &streaming).await.golden());
    let text: String = events
        .iter()
        .filter_map(|event| event["choices"][0]["delta"]["content"].as_str())
        .collect();
    assert_eq!(text, "abcd");
}

#[tokio::test]
async fn a_guests_refusal_is_the_clients_fault_and_its_failure_is_not() {
    for (error, status) in [
        (
            GuestError::InvalidRequest("roles must alternate".into()),
            400,
        ),
        (GuestError::Unsupported("no tools".into()), 400),
        (GuestError::Busy("all chat places are taken".into()), 503),
        (
            GuestError::Failed("chat guest jinja: out of fuel in render".into()),
            500,
        ),
    ] {
        let mut setup = Setup::saying(&["a"]);
        setup.guests.fail_render = Some(error.clone());
        let answer = setup.start().post(PATH, &asking(json!({}))).await;
        assert_eq!(answer.status, status);
        assert!(
            answer.json()["error"]["message"]
                .as_str()
                .unwrap()
                .starts_with(&error.to_string())
        );
        assert_eq!(answer.headers.contains_key("retry-after"), status == 503);
        let param = if status == 400 {
            json!("messages")
        } else {
            json!(null)
        };
        assert_eq!(answer.json()["error"]["param"], param);
    }
}

#[tokio::test]
async fn a_failure_within_a_stream_is_an_event_and_the_end() {
    let mut setup = Setup::saying(&["abc"]);
    setup.guests.fail_push = Some(GuestError::Failed(
        "chat guest jinja: trapped in push".into(),
    ));
    let server = setup.start();
    let answer = server.post(PATH, &asking(json!({"stream": true}))).await;
    assert_eq!(answer.status, 200);
    let events = answer.events();
    let error: Value = serde_json::from_str(events[1]).unwrap();
    assert_eq!(
        error,
        json!({"error": {"message": "chat guest jinja: trapped in push", "type": "server_error", "param": null, "code": "guest_error"}})
    );
    assert_eq!(events[2..], ["[DONE]"]);
    let whole = server.post(PATH, &asking(json!({}))).await;
    assert_eq!(whole.status, 500);
}

#[tokio::test]
async fn a_samplers_refusal_names_its_field() {
    let mut setup = Setup::saying(&["a"]);
    setup.guests.fail_plan = Some(GuestError::InvalidRequest(
        "top_p: must be at most 1".into(),
    ));
    let error = setup.start().post(PATH, &asking(json!({}))).await.json()["error"].take();
    assert_eq!(error["param"], "top_p");
}
