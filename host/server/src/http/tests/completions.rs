use super::support::{END, Setup, timeless};
use serde_json::{Value, json};

const PATH: &str = "/v1/completions";

#[tokio::test]
async fn a_whole_answer_has_openais_shape() {
    let server = Setup::saying(&[" Paris<|im_end|>"]).start();
    let answer = server
        .ask(PATH, &json!({"model": "org/tiny", "prompt": "abc"}))
        .await;
    assert_eq!(
        timeless(answer),
        json!({"id": "cmpl-ID", "object": "text_completion", "created": 0, "model": "org/tiny",
            "choices": [{"index": 0, "text": " Paris", "logprobs": null, "finish_reason": "stop", "stop_reason": null}],
            "usage": {"prompt_tokens": 3, "completion_tokens": 7, "total_tokens": 10, "prompt_tokens_details": {"cached_tokens": 0}}})
        .to_string()
    );
}

#[tokio::test]
async fn a_stream_has_one_chunk_per_text_then_the_finish_then_done() {
    let server = Setup::saying(&["aé!<|im_end|>"]).start();
    let answer = server
        .post(PATH, &json!({"prompt": "x", "stream": true}))
        .await;
    assert!(
        answer.headers["content-type"]
            .to_str()
            .unwrap()
            .starts_with("text/event-stream")
    );
    let chunk = |choice: Value| {
        json!({"id": "cmpl-ID", "object": "text_completion", "created": 0, "model": "org/tiny", "choices": [choice]}).to_string()
    };
    let text = |text: &str| {
        chunk(
            json!({"index": 0, "text": text, "logprobs": null, "finish_reason": null, "stop_reason": null}),
        )
    };
    // é is two tokens; half of it is never sent.
    assert_eq!(
        answer.golden(),
        [
            text("a"),
            text("é"),
            text("!"),
            chunk(
                json!({"index": 0, "text": "", "logprobs": null, "finish_reason": "stop", "stop_reason": null})
            )
        ]
    );
}

#[tokio::test]
async fn usage_comes_last_and_is_null_before() {
    let server = Setup::saying(&["ab"]).start();
    let body = json!({"prompt": "x", "max_tokens": 2, "stream": true, "stream_options": {"include_usage": true}});
    let events: Vec<Value> = server
        .post(PATH, &body)
        .await
        .golden()
        .iter()
        .map(|event| serde_json::from_str(event).unwrap())
        .collect();
    let (last, rest) = events.split_last().unwrap();
    assert_eq!(last["choices"], json!([]));
    assert_eq!(last["usage"]["prompt_tokens"], 1);
    assert_eq!(last["usage"]["completion_tokens"], 2);
    assert!(
        rest.iter()
            .all(|event| event.as_object().unwrap().get("usage") == Some(&Value::Null))
    );
    assert_eq!(
        rest.last().unwrap()["choices"][0]["finish_reason"],
        "length"
    );

    let body = json!({"prompt": "x", "max_tokens": 2, "stream": true,
        "stream_options": {"include_usage": true, "continuous_usage_stats": true}});
    let counts: Vec<u64> = server
        .post(PATH, &body)
        .await
        .golden()
        .iter()
        .map(|event| {
            serde_json::from_str::<Value>(event).unwrap()["usage"]["completion_tokens"]
                .as_u64()
                .unwrap()
        })
        .collect();
    assert_eq!(counts, [1, 2, 2, 2]);
}

#[tokio::test]
async fn stop_strings_are_cut_and_counted() {
    let server = Setup::saying(&["one, two, three"]).start();
    for (stop, text, tokens) in [
        (", t", "one", 6),
        ("two", "one, ", 8),
        ("zzz", "one, two, three.", 16),
    ] {
        let answer = server
            .ask(PATH, &json!({"prompt": "x", "stop": [stop]}))
            .await;
        let choice = &answer["choices"][0];
        assert_eq!(
            (
                choice["text"].as_str().unwrap(),
                &answer["usage"]["completion_tokens"]
            ),
            (text, &json!(tokens))
        );
        let stopped = stop != "zzz";
        assert_eq!(
            choice["finish_reason"],
            if stopped { "stop" } else { "length" }
        );
        assert_eq!(
            choice["stop_reason"],
            if stopped { json!(stop) } else { json!(null) }
        );
        let events = server
            .post(PATH, &json!({"prompt": "x", "stop": stop, "stream": true}))
            .await
            .golden();
        let streamed: String = events
            .iter()
            .map(|event| {
                serde_json::from_str::<Value>(event).unwrap()["choices"][0]["text"]
                    .as_str()
                    .unwrap()
                    .to_owned()
            })
            .collect();
        assert_eq!(streamed, text);
    }
    let kept = server
        .ask(
            PATH,
            &json!({"prompt": "x", "stop": [", t"], "include_stop_str_in_output": true}),
        )
        .await;
    assert_eq!(kept["choices"][0]["text"], "one, t");
    let later = server
        .ask(
            PATH,
            &json!({"prompt": "x", "stop": ["o"], "min_tokens": 3, "max_tokens": 15}),
        )
        .await;
    assert_eq!(later["choices"][0]["text"], "one, tw");
}

#[tokio::test]
async fn stop_tokens_are_told_and_the_models_own_are_not() {
    let server = Setup::saying(&["ab!cd<|im_end|>"]).start();
    let stopped = server
        .ask(
            PATH,
            &json!({"prompt": "x", "stop_token_ids": [u32::from(b'!')]}),
        )
        .await;
    assert_eq!(stopped["choices"][0]["text"], "ab");
    assert_eq!(stopped["choices"][0]["stop_reason"], u32::from(b'!'));
    assert_eq!(stopped["usage"]["completion_tokens"], 3);
    let kept = server
        .ask(
            PATH,
            &json!({"prompt": "x", "stop_token_ids": [33], "include_stop_str_in_output": true}),
        )
        .await;
    assert_eq!(kept["choices"][0]["text"], "ab!");
    let ended = server
        .ask(PATH, &json!({"prompt": "x", "stop_token_ids": [END]}))
        .await;
    assert_eq!(ended["choices"][0]["stop_reason"], json!(null));
    let on = server
        .ask(
            PATH,
            &json!({"prompt": "x", "ignore_eos": true, "max_tokens": 8}),
        )
        .await;
    assert_eq!(
        (
            &on["choices"][0]["text"],
            &on["choices"][0]["finish_reason"]
        ),
        (&json!("ab!cd.."), &json!("length"))
    );
    let shown = server.ask(PATH, &json!({"prompt": "x", "ignore_eos": true, "max_tokens": 7, "skip_special_tokens": false})).await;
    assert_eq!(shown["choices"][0]["text"], "ab!cd<|im_end|>.");
}

#[tokio::test]
async fn choices_are_numbered_over_all_prompts() {
    let server = Setup::saying(&["a<|im_end|>", "bb<|im_end|>"]).start();
    for stream in [false, true] {
        let answer = server
            .post(
                PATH,
                &json!({"prompt": ["x", "yy"], "n": 2, "stream": stream}),
            )
            .await;
        let mut texts = vec![String::new(); 4];
        let values: Vec<Value> = match stream {
            false => vec![answer.json()],
            true => answer
                .golden()
                .iter()
                .map(|event| serde_json::from_str(event).unwrap())
                .collect(),
        };
        for choice in values
            .iter()
            .flat_map(|value| value["choices"].as_array().unwrap())
        {
            texts[choice["index"].as_u64().unwrap() as usize] += choice["text"].as_str().unwrap();
        }
        assert_eq!(texts, ["a", "bb", "a", "bb"]);
    }
    let usage = &server
        .ask(PATH, &json!({"prompt": ["x", "yy"], "n": 2}))
        .await["usage"];
    assert_eq!(
        (&usage["prompt_tokens"], &usage["completion_tokens"]),
        (&json!(3), &json!(10))
    );
}

#[tokio::test]
async fn a_stop_string_ends_one_choice_and_leaves_the_others() {
    let server = Setup::saying(&["aXb<|im_end|>", "cccccc<|im_end|>"]).start();
    let answer = server
        .ask(PATH, &json!({"prompt": "x", "n": 2, "stop": "X"}))
        .await;
    assert_eq!(answer["choices"][0]["text"], "a");
    assert_eq!(answer["choices"][1]["text"], "cccccc");
    assert_eq!(answer["usage"]["completion_tokens"], 2 + 7);
}

#[tokio::test]
async fn log_probabilities_come_in_four_lists() {
    let server = Setup::saying(&["hé<|im_end|>"]).start();
    let answer = server
        .ask(PATH, &json!({"prompt": "x", "logprobs": 2}))
        .await;
    assert_eq!(answer["choices"][0]["text"], "hé");
    // é is C3 A9; the device names the token one above as second best.
    assert_eq!(
        answer["choices"][0]["logprobs"],
        json!({"tokens": ["h", "bytes:\\xc3", "bytes:\\xa9", "<|im_end|>"],
            "token_logprobs": [-0.5, -0.5, -0.5, -0.5],
            "top_logprobs": [{"h": -0.5, "i": -1.5}, {"bytes:\\xc3": -0.5, "bytes:\\xc4": -1.5},
                {"bytes:\\xa9": -0.5, "bytes:\\xaa": -1.5}, {"<|im_end|>": -0.5, "\u{0}": -1.5}],
            "text_offset": [0, 1, 2, 2]})
    );
    let own = server
        .ask(
            PATH,
            &json!({"prompt": "x", "logprobs": 0, "max_tokens": 1}),
        )
        .await;
    assert_eq!(
        own["choices"][0]["logprobs"]["top_logprobs"],
        json!([{"h": -0.5}])
    );
    let ids = server.ask(PATH, &json!({"prompt": "x", "logprobs": 0, "max_tokens": 1, "return_tokens_as_token_ids": true})).await;
    assert_eq!(
        ids["choices"][0]["logprobs"]["tokens"],
        json!(["token_id:104"])
    );
}

#[tokio::test]
async fn streamed_log_probabilities_are_the_whole_ones() {
    let server = Setup::saying(&["hé, so<|im_end|>"]).start();
    let whole = server
        .ask(
            PATH,
            &json!({"prompt": "xy", "logprobs": 1, "echo": true, "stop": "soon"}),
        )
        .await;
    let events = server
        .post(
            PATH,
            &json!({"prompt": "xy", "logprobs": 1, "echo": true, "stop": "soon", "stream": true}),
        )
        .await
        .golden();
    let mut lists =
        json!({"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []});
    let mut text = String::new();
    for event in events {
        let choice = serde_json::from_str::<Value>(&event).unwrap()["choices"][0].take();
        text += choice["text"].as_str().unwrap();
        for (name, list) in lists.as_object_mut().unwrap() {
            list.as_array_mut().unwrap().extend(
                choice["logprobs"][name]
                    .as_array()
                    .into_iter()
                    .flatten()
                    .cloned(),
            );
        }
    }
    assert_eq!(text, "xyhé, so");
    assert_eq!(whole["choices"][0]["text"], json!(text));
    assert_eq!(whole["choices"][0]["logprobs"], lists);
}

#[tokio::test]
async fn echo_puts_the_prompt_before_the_answer() {
    let server = Setup::saying(&["cd"]).start();
    let answer = server
        .ask(
            PATH,
            &json!({"prompt": "ab", "echo": true, "max_tokens": 2}),
        )
        .await;
    assert_eq!(answer["choices"][0]["text"], "abcd");
    let ids = server
        .ask(
            PATH,
            &json!({"prompt": [END, 97], "echo": true, "max_tokens": 1}),
        )
        .await;
    assert_eq!(ids["choices"][0]["text"], "<|im_end|>ac");
    let scored = server
        .ask(
            PATH,
            &json!({"prompt": "ab", "echo": true, "logprobs": 1, "max_tokens": 1}),
        )
        .await;
    assert_eq!(
        scored["choices"][0]["logprobs"],
        json!({"tokens": ["a", "b", "c"], "token_logprobs": [null, -0.25, -0.5],
            "top_logprobs": [null, {"b": -0.25}, {"c": -0.5}], "text_offset": [0, 1, 2]})
    );
    let only = server
        .ask(
            PATH,
            &json!({"prompt": "ab", "echo": true, "logprobs": 1, "max_tokens": 0, "n": 2}),
        )
        .await;
    for choice in only["choices"].as_array().unwrap() {
        assert_eq!(
            (&choice["text"], &choice["logprobs"]["token_logprobs"]),
            (&json!("ab"), &json!([null, -0.25]))
        );
        assert_eq!(choice["finish_reason"], "length");
    }
    assert_eq!(only["usage"]["completion_tokens"], 0);
    let short = server
        .ask(
            PATH,
            &json!({"prompt": "a", "echo": true, "logprobs": 0, "max_tokens": 1}),
        )
        .await;
    assert_eq!(
        short["choices"][0]["logprobs"]["token_logprobs"],
        json!([null, -0.5])
    );
    let streamed = server
        .post(
            PATH,
            &json!({"prompt": "ab", "echo": true, "max_tokens": 1, "stream": true}),
        )
        .await
        .golden();
    assert_eq!(
        serde_json::from_str::<Value>(&streamed[0]).unwrap()["choices"][0]["text"],
        "ab"
    );
}

#[tokio::test]
async fn prompt_log_probabilities_are_vllms_maps() {
    let server = Setup::saying(&["c"]).start();
    let answer = server
        .ask(
            PATH,
            &json!({"prompt": "ab", "prompt_logprobs": 2, "max_tokens": 1}),
        )
        .await;
    assert_eq!(
        answer["choices"][0]["prompt_logprobs"],
        json!([null, {"98": {"logprob": -0.25, "rank": 1, "decoded_token": "b"}, "99": {"logprob": -1.25, "rank": 2, "decoded_token": "c"}}])
    );
}

#[tokio::test]
async fn ids_and_texts_are_the_same_prompt() {
    let server = Setup::saying(&["z"]).start();
    let text = server
        .ask(PATH, &json!({"prompt": "a<|im_end|>", "max_tokens": 1}))
        .await;
    let ids = server
        .ask(PATH, &json!({"prompt": [97, END], "max_tokens": 1}))
        .await;
    assert_eq!(
        (
            &text["usage"]["prompt_tokens"],
            &ids["usage"]["prompt_tokens"]
        ),
        (&json!(2), &json!(2))
    );
    let lists = server
        .ask(PATH, &json!({"prompt": [[97, END], [98]], "max_tokens": 1}))
        .await;
    assert_eq!(lists["usage"]["prompt_tokens"], 3);
}

#[tokio::test]
async fn the_default_length_is_sixteen_or_what_is_left() {
    let server = Setup::saying(&["a"]).start();
    let tokens = async |prompt: usize| {
        server
            .ask(PATH, &json!({"prompt": "x".repeat(prompt)}))
            .await["usage"]["completion_tokens"]
            .take()
    };
    assert_eq!(tokens(3).await, 16);
    assert_eq!(tokens(250).await, 6);
}

#[tokio::test]
async fn generate_returns_prompt_and_answers() {
    let server = Setup::saying(&["ab", "cd"]).start();
    let whole = server
        .ask(
            "/generate",
            &json!({"prompt": "x: ", "n": 2, "max_tokens": 2, "temperature": 1}),
        )
        .await;
    assert_eq!(whole, json!({"text": ["x: ab", "x: cd"]}));
    let answer = server
        .post(
            "/generate",
            &json!({"prompt": "x: ", "max_tokens": 2, "stream": true}),
        )
        .await;
    assert!(answer.body.ends_with('\0'));
    let objects: Vec<Value> = answer
        .body
        .split_terminator('\0')
        .map(|object| serde_json::from_str(object).unwrap())
        .collect();
    assert_eq!(
        objects,
        [
            json!({"text": ["x: a"]}),
            json!({"text": ["x: ab"]}),
            json!({"text": ["x: ab"]})
        ]
    );
    let ids = server
        .ask("/generate", &json!({"prompt": [120, 121], "max_tokens": 1}))
        .await;
    assert_eq!(ids, json!({"text": ["xya"]}));
}

#[tokio::test]
async fn bad_words_reach_the_sampler_as_ids() {
    let server = Setup::saying(&["a"]).start();
    server
        .ask(
            PATH,
            &json!({"prompt": "x", "max_tokens": 1, "bad_words": ["no"], "temperature": 0.5}),
        )
        .await;
    let planned: Value = serde_json::from_str(&server.guests.planned.lock().unwrap()[0]).unwrap();
    assert_eq!(
        planned,
        json!({"temperature": 0.5, "bad_words_token_ids": [[110, 111], [32, 110, 111]]})
    );
}

#[tokio::test]
async fn cached_prompts_are_shared_within_a_tenant_and_a_salt_alone() {
    let mut setup = Setup::saying(&["a"]);
    setup.config.api_keys = crate::http::ApiKeys::new(["one", "two"]);
    let server = setup.start();
    let cached = async |key: &str, salt: Value| {
        let body =
            json!({"prompt": "0123456789abcdef", "max_tokens": 1, "cache_salt": salt}).to_string();
        let request =
            axum::http::Request::post(PATH).header("authorization", format!("Bearer {key}"));
        let answer = server.send(request.body(body.into()).unwrap()).await.json();
        answer["usage"]["prompt_tokens_details"]["cached_tokens"]
            .as_u64()
            .unwrap()
    };
    assert_eq!(cached("one", json!(null)).await, 0);
    assert!(cached("one", json!(null)).await > 0);
    assert_eq!(cached("two", json!(null)).await, 0);
    assert_eq!(cached("one", json!("s")).await, 0);
    assert!(cached("one", json!("s")).await > 0);
}
