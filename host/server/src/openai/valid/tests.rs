#![allow(clippy::unwrap_used, clippy::panic, clippy::needless_pass_by_value)]

use super::*;
use crate::openai::{
    ApiError, ChatFields, CompletionFields, ConversationFields, GenerateFields, RawPrompt,
    SamplingFields, TokenizeFields, parse,
};
use crate::serving::SamplingDefaults;
use serde_json::{Value, json};

fn facts() -> ModelFacts {
    ModelFacts {
        vocab: 1000,
        max_model_len: 64,
        max_n: 16,
        max_logprobs: 20,
        max_prompts: 4,
        max_choices: 20,
        defaults: SamplingDefaults::default(),
    }
}

fn merged(base: Value, more: &Value) -> Vec<u8> {
    let mut body = base;
    for (key, value) in more.as_object().unwrap() {
        body[key] = value.clone();
    }
    body.to_string().into_bytes()
}

fn chat_with(more: &Value, facts: &ModelFacts) -> Result<ValidChat, ApiError> {
    let body = merged(
        json!({"messages": [{"role": "user", "content": "x"}]}),
        more,
    );
    let sampling: SamplingFields = parse(&body)?;
    let chat: ChatFields = parse(&body)?;
    let conversation: ConversationFields = parse(&body)?;
    ValidChat::new(sampling, &chat, conversation, facts)
}

fn chat(more: &Value) -> Result<ValidChat, ApiError> {
    chat_with(more, &facts())
}

fn completion(more: &Value) -> Result<ValidCompletion, ApiError> {
    let body = merged(json!({"prompt": "x"}), more);
    let sampling: SamplingFields = parse(&body)?;
    ValidCompletion::new(sampling, parse::<CompletionFields>(&body)?, &facts())
}

fn generate(more: &Value) -> Result<ValidGenerate, ApiError> {
    let body = merged(json!({"prompt": "x"}), more);
    ValidGenerate::new(parse(&body)?, parse::<GenerateFields>(&body)?, &facts())
}

fn tokenize(body: &Value) -> Result<ValidTokenize, ApiError> {
    let body = body.to_string().into_bytes();
    ValidTokenize::new(parse::<TokenizeFields>(&body)?, parse(&body)?)
}

fn param<T: std::fmt::Debug>(result: Result<T, ApiError>, of: &Value) -> String {
    match result {
        Err(ApiError::Invalid {
            param: Some(param),
            message,
        }) => {
            assert!(message.contains('`'), "names no field: {message}");
            param
        }
        other => panic!("{of}: {other:?}"),
    }
}

/// Ranges of OpenAI's API reference and of vLLM's SamplingParams.
#[test]
fn numbers_out_of_range_name_their_field() {
    let cases = [
        json!({"temperature": -1}),
        json!({"temperature": -0.001}),
        json!({"top_p": -0.1}),
        json!({"top_p": 1.5}),
        json!({"top_k": -2}),
        json!({"top_k": 4294967296u64}),
        json!({"min_p": -0.1}),
        json!({"min_p": 1.1}),
        json!({"typical_p": 0}),
        json!({"typical_p": 1.1}),
        json!({"frequency_penalty": 9}),
        json!({"frequency_penalty": -2.1}),
        json!({"presence_penalty": 2.1}),
        json!({"presence_penalty": -9}),
        json!({"repetition_penalty": 0}),
        json!({"repetition_penalty": -1}),
        json!({"n": 0}),
        json!({"n": -1}),
        json!({"n": 17}),
        json!({"n": 99999999999i64}),
        json!({"max_tokens": -3}),
        json!({"min_tokens": -1}),
        json!({"logit_bias": {"1000": 1}}),
        json!({"logit_bias": {"abc": 1}}),
        json!({"logit_bias": {"-1": 1}}),
        json!({"logit_bias": {"+1": 1}}),
        json!({"logit_bias": {"": 1}}),
        json!({"logit_bias": {"1.0": 1}}),
        json!({"logit_bias": {"1": 100.5}}),
        json!({"logit_bias": {"1": -101}}),
        json!({"stop": [""]}),
        json!({"stop": ""}),
        json!({"stop": ["ok", ""]}),
        json!({"stop_token_ids": [1000]}),
        json!({"allowed_token_ids": []}),
        json!({"allowed_token_ids": [1000]}),
        json!({"bad_words": [""]}),
        json!({"bad_words": vec!["a"; 257]}),
        json!({"stop": vec!["a"; 65]}),
        json!({"stop": "a".repeat(4097)}),
        json!({"stop_token_ids": vec![1; 1025]}),
        json!({"seed": 0.5}),
        json!({"seed": 1e30}),
        json!({"best_of": 1, "n": 2}),
        json!({"prompt_logprobs": 21}),
        json!({"prompt_logprobs": -1}),
        json!({"sampler": "other", "use_beam_search": true}),
        json!({"sampler": "Not A Name"}),
        json!({"guided_json": 5}),
        json!({"guided_regex": ["a"]}),
        json!({"guided_choice": ["a", 1]}),
        json!({"guided_grammar": {}}),
        json!({"structured_outputs": {}}),
        json!({"structured_outputs": "json"}),
        json!({"structured_outputs": {"regex": "a", "choice": ["a"]}}),
        json!({"structured_outputs": {"regexp": "a"}}),
        json!({"structured_outputs": {"json_object": 1}}),
        json!({"structured_outputs": {"json_object": false}}),
        json!({"truncate_prompt_tokens": 5}),
        json!({"cache_salt": ""}),
        json!({"cache_salt": 5}),
        json!({"response_format": {"type": "json_schema"}}),
        json!({"response_format": {"type": "json_schema", "json_schema": {"name": "a"}}}),
        json!({"response_format": {"type": "json_schema", "json_schema": {"schema": 5}}}),
        json!({"response_format": {"type": "xml"}}),
        json!({"response_format": 5}),
        json!({"stream_options": {"include_usage": true}}),
        json!({"stream_options": {}}),
    ];
    for case in cases {
        let field = case.as_object().unwrap().keys().next().unwrap();
        assert_eq!(&param(chat(&case), &case), field, "{case}");
        assert_eq!(&param(completion(&case), &case), field, "{case}");
        assert_eq!(&param(generate(&case), &case), field, "{case}");
    }
}

#[test]
fn the_bounds_themselves_are_accepted() {
    for case in [
        json!({"temperature": 0}),
        json!({"temperature": 2}),
        json!({"temperature": 7.5}),
        json!({"top_p": 0}),
        json!({"top_p": 1}),
        json!({"top_k": -1}),
        json!({"top_k": 0}),
        json!({"top_k": 1}),
        json!({"top_k": 100000}),
        json!({"min_p": 0}),
        json!({"min_p": 1}),
        json!({"typical_p": 1}),
        json!({"frequency_penalty": 2}),
        json!({"frequency_penalty": -2}),
        json!({"repetition_penalty": 0.01}),
        json!({"n": 16}),
        json!({"n": 2, "best_of": 2}),
        json!({"best_of": 1}),
        json!({"logit_bias": {"0": -100, "999": 100}}),
        json!({"logit_bias": {}}),
        json!({"stop": []}),
        json!({"stop": null}),
        json!({"stop": ["a", "b", "c", "d", "e"]}),
        json!({"stop_token_ids": [999]}),
        json!({"seed": -1}),
        json!({"seed": 18446744073709551615u64}),
        json!({"response_format": {"type": "text"}}),
        json!({"response_format": {"type": "text"}, "guided_regex": "a"}),
        json!({"response_format": {"type": "json_object"}}),
        json!({"structured_outputs": {"regex": "a", "json": null, "disable_fallback": true}}),
        json!({"use_beam_search": false}),
        json!({"use_beam_search": true, "sampler": "beam"}),
        json!({"best_of": 3}),
        json!({"sampler": "my-sampler", "sampler_args": {"a": 1}}),
        json!({"do_sample": true}),
        json!({"prompt_logprobs": 20}),
        json!({"stream": true, "stream_options": {"include_usage": true}}),
        json!({"stream": true, "stream_options": null}),
        json!({"stream": false, "stream_options": null}),
        json!({"user": "u", "some_future_field": {"a": 1}}),
    ] {
        assert!(chat(&case).is_ok(), "{case}: {:?}", chat(&case));
        assert!(completion(&case).is_ok(), "{case}: {:?}", completion(&case));
    }
}

#[test]
fn chat_takes_zero_or_no_max_tokens_as_what_the_context_leaves() {
    let max = |more: Value| chat(&more).unwrap().params().max_tokens();
    assert_eq!(max(json!({})), MaxTokens::Rest);
    assert_eq!(max(json!({"max_tokens": 0})), MaxTokens::Rest);
    assert_eq!(
        max(json!({"max_completion_tokens": 0, "max_tokens": 5})),
        MaxTokens::Exactly(5)
    );
    assert_eq!(
        max(json!({"max_completion_tokens": 7, "max_tokens": 5})),
        MaxTokens::Exactly(7)
    );
    assert_eq!(
        param(chat(&json!({"max_completion_tokens": -1})), &json!(0)),
        "max_completion_tokens"
    );
    assert_eq!(
        param(chat(&json!({"max_tokens": 5, "min_tokens": 6})), &json!(0)),
        "min_tokens"
    );
}

#[test]
fn completions_take_zero_max_tokens_for_scoring_alone() {
    let max = |more: Value| completion(&more).unwrap().params().max_tokens();
    assert_eq!(max(json!({})), MaxTokens::AtMost(16));
    assert_eq!(
        max(json!({"max_tokens": 0, "echo": true, "logprobs": 0})),
        MaxTokens::Exactly(0)
    );
    assert_eq!(
        max(json!({"max_tokens": 0, "prompt_logprobs": 1})),
        MaxTokens::Exactly(0)
    );
    for bad in [
        json!({"max_tokens": 0}),
        json!({"max_tokens": 0, "echo": true}),
        json!({"max_tokens": 0, "logprobs": 1}),
    ] {
        assert_eq!(param(completion(&bad), &bad), "max_tokens");
    }
    assert_eq!(
        param(generate(&json!({"max_tokens": 0})), &json!(0)),
        "max_tokens"
    );
}

#[test]
fn what_the_engine_must_score_is_the_larger_of_both_requests() {
    let scored = |more: Value| completion(&more).unwrap().scored_prompt();
    assert_eq!(scored(json!({"logprobs": 3})), None);
    assert_eq!(scored(json!({"logprobs": 3, "echo": true})), Some(3));
    assert_eq!(
        scored(json!({"logprobs": 3, "echo": true, "prompt_logprobs": 5})),
        Some(5)
    );
    assert_eq!(scored(json!({"prompt_logprobs": 0})), Some(0));
    assert_eq!(
        param(
            completion(&json!({"prompt_logprobs": 0, "stream": true})),
            &json!(0)
        ),
        "prompt_logprobs"
    );
}

#[test]
fn log_probabilities_are_bounded_and_need_their_switch() {
    let top = |more: Value| chat(&more).unwrap().params().top_logprobs();
    assert_eq!(top(json!({})), None);
    assert_eq!(top(json!({"logprobs": true})), Some(0));
    assert_eq!(top(json!({"logprobs": true, "top_logprobs": 20})), Some(20));
    assert_eq!(top(json!({"logprobs": false, "top_logprobs": 0})), None);
    for bad in [
        json!({"top_logprobs": 5}),
        json!({"logprobs": true, "top_logprobs": 21}),
        json!({"logprobs": true, "top_logprobs": -1}),
        json!({"logprobs": false, "top_logprobs": 1}),
    ] {
        assert_eq!(param(chat(&bad), &bad), "top_logprobs");
    }
    assert_eq!(param(chat(&json!({"logprobs": 5})), &json!(0)), "logprobs");
    assert_eq!(
        completion(&json!({"logprobs": 0}))
            .unwrap()
            .params()
            .top_logprobs(),
        Some(0)
    );
    assert_eq!(
        param(completion(&json!({"logprobs": 21})), &json!(0)),
        "logprobs"
    );
    assert_eq!(
        param(completion(&json!({"logprobs": -1})), &json!(0)),
        "logprobs"
    );
}

#[test]
fn prompts_are_checked_against_the_vocabulary() {
    for bad in [
        json!([]),
        json!([[]]),
        json!([1000]),
        json!([[1], [1000]]),
        json!([[1], []]),
        json!(["a", "b", "c", "d", "e"]),
    ] {
        let body = json!({"prompt": bad});
        assert_eq!(param(completion(&body), &body), "prompt");
    }
    assert_eq!(
        completion(&json!({"prompt": [999]})).unwrap().prompts(),
        [RawPrompt::Ids(vec![999])]
    );
    let many = json!({"prompt": ["a", "b"], "n": 11});
    assert_eq!(param(completion(&many), &many), "n");
    assert_eq!(
        param(completion(&json!({"suffix": "x"})), &json!(0)),
        "suffix"
    );
    assert!(completion(&json!({"suffix": ""})).is_ok());
    assert_eq!(
        param(generate(&json!({"prompt": ["a", "b"]})), &json!(0)),
        "prompt"
    );
}

#[test]
fn malformed_messages_are_refused_at_their_place() {
    let cases = [
        (json!([]), "messages"),
        (json!([5]), "messages[0]"),
        (
            json!([{"role": "user", "content": "a"}, "b"]),
            "messages[1]",
        ),
        (json!([{"content": "a"}]), "messages[0].role"),
        (json!([{"role": 5, "content": "a"}]), "messages[0].role"),
        (json!([{"role": "", "content": "a"}]), "messages[0].role"),
        (json!([{"role": "user"}]), "messages[0].content"),
        (
            json!([{"role": "user", "content": null}]),
            "messages[0].content",
        ),
        (
            json!([{"role": "user", "content": 5}]),
            "messages[0].content",
        ),
        (
            json!([{"role": "user", "content": {"type": "text", "text": "a"}}]),
            "messages[0].content",
        ),
        (
            json!([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]),
            "messages[0].content[0]",
        ),
        (
            json!([{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "input_audio"}]}]),
            "messages[0].content[1]",
        ),
        (
            json!([{"role": "user", "content": [{"type": "text"}]}]),
            "messages[0].content[0]",
        ),
        (
            json!([{"role": "user", "content": ["a"]}]),
            "messages[0].content[0]",
        ),
        (
            json!([{"role": "assistant", "tool_calls": {}}]),
            "messages[0].tool_calls",
        ),
        (
            json!([{"role": "assistant", "tool_calls": [{}]}]),
            "messages[0].tool_calls[0].function.name",
        ),
    ];
    for (messages, place) in cases {
        let body = json!({"messages": messages});
        assert_eq!(param(chat(&body), &body), place);
    }
    for good in [
        json!([{"role": "assistant", "content": null, "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]}]),
        json!([{"role": "assistant"}]),
        json!([{"role": "custom", "content": []}]),
        json!([{"role": "tool", "tool_call_id": "1", "content": "5"}]),
    ] {
        assert!(chat(&json!({"messages": good})).is_ok());
    }
}

#[test]
fn tools_and_their_choice_must_fit() {
    let tool = json!({"type": "function", "function": {"name": "f", "description": "d", "parameters": {}}});
    let named = |name: &str| json!({"type": "function", "function": {"name": name}});
    for good in [
        json!({"tools": []}),
        json!({"tools": [tool]}),
        json!({"tools": [tool], "tool_choice": "required"}),
        json!({"tools": [tool], "tool_choice": named("f")}),
        json!({"tool_choice": "none"}),
        json!({"tool_choice": "auto"}),
        json!({"tools": [{"type": "function", "function": {"name": "f"}}], "parallel_tool_calls": false}),
    ] {
        assert!(chat(&good).is_ok(), "{good}: {:?}", chat(&good));
    }
    for (bad, place) in [
        (json!({"tools": ["f"]}), "tools[0]"),
        (json!({"tools": [{"type": "x"}]}), "tools[0]"),
        (json!({"tools": [tool, {"type": "function"}]}), "tools[1]"),
        (
            json!({"tools": [{"type": "function", "function": {"name": "f", "parameters": []}}]}),
            "tools[0]",
        ),
        (json!({"tool_choice": "required"}), "tool_choice"),
        (
            json!({"tools": [tool], "tool_choice": named("g")}),
            "tool_choice",
        ),
        (
            json!({"tools": [tool], "tool_choice": "always"}),
            "tool_choice",
        ),
        (json!({"tools": [tool], "tool_choice": 5}), "tool_choice"),
        (json!({"functions": []}), "functions"),
        (json!({"function_call": "auto"}), "function_call"),
    ] {
        assert_eq!(param(chat(&bad), &bad), place);
    }
}

#[test]
fn clients_cannot_speak_as_the_template() {
    for forger in ["\u{F0000}", "a\u{F0001}b", "\u{FFFFD}"] {
        for (bad, place) in [
            (
                json!({"messages": [{"role": "user", "content": forger}]}),
                "messages",
            ),
            (
                json!({"messages": [{"role": forger, "content": "a"}]}),
                "messages",
            ),
            (
                json!({"messages": [{"role": "user", "content": [{"type": "text", "text": forger}]}]}),
                "messages",
            ),
            (
                json!({"messages": [{"role": "user", "content": "a", forger: 1}]}),
                "messages",
            ),
            (
                json!({"messages": [{"role": "user", "content": "a", "x": [[{"y": forger}]]}]}),
                "messages",
            ),
            (
                json!({"tools": [{"type": "function", "function": {"name": "f", "parameters": {forger: 1}}}]}),
                "tools",
            ),
            (json!({"documents": [{"text": forger}]}), "documents"),
            (
                json!({"chat_template_kwargs": {forger: 1}}),
                "chat_template_kwargs",
            ),
            (
                json!({"chat_template_kwargs": {"a": {"b": forger}}}),
                "chat_template_kwargs",
            ),
        ] {
            assert_eq!(param(chat(&bad), &bad), place);
        }
    }
    for free in ["\u{EFFFF}", "\u{100000}", "\u{E000}", "🎈"] {
        assert!(chat(&json!({"messages": [{"role": "user", "content": free}]})).is_ok());
    }
    for reserved in [
        "messages",
        "tools",
        "documents",
        "add_generation_prompt",
        "bos_token",
        "eos_token",
        "raise_exception",
        "strftime_now",
    ] {
        let bad = json!({"chat_template_kwargs": {reserved: "x"}});
        assert_eq!(param(chat(&bad), &bad), "chat_template_kwargs");
    }
    assert!(chat(&json!({"chat_template_kwargs": {"enable_thinking": false}})).is_ok());
    assert_eq!(
        param(chat(&json!({"chat_template": "{{ x }}"})), &json!(0)),
        "chat_template"
    );
}

#[test]
fn conversations_reach_the_guest_as_they_came() {
    let both = json!({"add_generation_prompt": true, "continue_final_message": true});
    assert_eq!(param(chat(&both), &both), "continue_final_message");
    let guest = |more: Value| chat(&more).unwrap().conversation().to_guest(7);
    let plain = guest(json!({}));
    assert_eq!(plain.messages, r#"[{"role":"user","content":"x"}]"#);
    assert!(
        plain.add_generation_prompt
            && !plain.continue_final_message
            && plain.tools.is_none()
            && plain.kwargs.is_none()
    );
    assert_eq!(plain.now, 7);
    let open = guest(
        json!({"continue_final_message": true, "tool_choice": "none", "chat_template_kwargs": {"a": 1}, "documents": [{"t": 1}]}),
    );
    assert!(!open.add_generation_prompt && open.continue_final_message);
    assert_eq!(open.tool_choice.as_deref(), Some("\"none\""));
    assert_eq!(open.kwargs.as_deref(), Some(r#"{"a":1}"#));
    assert_eq!(open.documents.as_deref(), Some(r#"[{"t":1}]"#));
    assert_eq!(guest(json!({"tools": []})).tools, None);
    let echo = json!({"echo": true, "messages": [{"role": "assistant", "content": "so "}]});
    assert_eq!(chat(&echo).unwrap().echo(), "so ");
    assert_eq!(chat(&json!({"echo": true})).unwrap().echo(), "");
}

#[test]
fn the_sampler_sees_what_was_set_and_the_models_defaults() {
    let sampler = |more: Value, facts: &ModelFacts| -> Value {
        serde_json::from_str(
            &chat_with(&more, facts)
                .unwrap()
                .params()
                .sampler_request(&[], &[]),
        )
        .unwrap()
    };
    assert_eq!(sampler(json!({}), &facts()), json!({}));
    assert_eq!(
        sampler(
            json!({"temperature": 0.5, "top_p": 0, "top_k": 5, "min_p": 0.1, "typical_p": 0.9, "presence_penalty": 1,
                "frequency_penalty": -1, "repetition_penalty": 1.5, "logit_bias": {"10": 1, "9": -1}, "min_tokens": 3,
                "stop_token_ids": [3], "ignore_eos": true, "seed": -2, "allowed_token_ids": [1, 2]}),
            &facts()
        ),
        json!({"temperature": 0.5, "top_p": 0.0, "min_p": 0.1, "typical_p": 0.9, "repetition_penalty": 1.5,
            "presence_penalty": 1.0, "frequency_penalty": -1.0, "top_k": 5, "logit_bias": {"9": -1.0, "10": 1.0},
            "allowed_token_ids": [1, 2], "min_tokens": 3, "stop_token_ids": [3], "ignore_eos": true, "seed": u64::MAX - 1})
    );
    assert_eq!(
        sampler(json!({"do_sample": false, "temperature": 1}), &facts())["temperature"],
        json!(0.0)
    );
    let mut set = facts();
    set.defaults = SamplingDefaults {
        temperature: Some(0.6),
        top_k: Some(20),
        max_tokens: Some(9),
        ..SamplingDefaults::default()
    };
    assert_eq!(
        sampler(json!({"top_k": 0}), &set),
        json!({"temperature": 0.6, "top_k": 0})
    );
    assert_eq!(
        chat_with(&json!({}), &set).unwrap().params().max_tokens(),
        MaxTokens::AtMost(9)
    );
    let words = chat(&json!({"bad_words": ["no"]})).unwrap();
    assert_eq!(words.params().bad_words(), ["no"]);
    assert_eq!(
        words.params().sampler_request(&[vec![1, 2]], &[]),
        r#"{"bad_words_token_ids":[[1,2]]}"#
    );
}

#[test]
fn stop_tokens_join_the_models_unless_it_is_ignored() {
    let all = |more: Value| chat(&more).unwrap().params().stopping().all_tokens(&[7, 5]);
    assert_eq!(all(json!({})), [5, 7]);
    assert_eq!(all(json!({"stop_token_ids": [9, 7, 1, 9]})), [1, 5, 7, 9]);
    assert_eq!(all(json!({"stop_token_ids": [9], "ignore_eos": true})), [9]);
}

#[test]
fn usage_is_told_when_asked_for() {
    let usage = |options: Value| {
        chat(&json!({"stream": true, "stream_options": options}))
            .unwrap()
            .params()
            .delivery()
    };
    assert_eq!(
        usage(json!(null)),
        Delivery::Stream {
            usage: StreamUsage::Never
        }
    );
    assert_eq!(
        usage(json!({"include_usage": true})),
        Delivery::Stream {
            usage: StreamUsage::Last
        }
    );
    assert_eq!(
        usage(json!({"include_usage": true, "continuous_usage_stats": true})),
        Delivery::Stream {
            usage: StreamUsage::Every
        }
    );
    assert_eq!(
        chat(&json!({"stream": false})).unwrap().params().delivery(),
        Delivery::Whole
    );
}

#[test]
fn tokenize_takes_one_of_prompt_and_messages() {
    let message = json!([{"role": "user", "content": "x"}]);
    assert_eq!(param(tokenize(&json!({})), &json!(0)), "prompt");
    assert_eq!(
        param(
            tokenize(&json!({"prompt": "a", "messages": message})),
            &json!(0)
        ),
        "prompt"
    );
    assert_eq!(
        param(tokenize(&json!({"messages": []})), &json!(0)),
        "messages"
    );
    assert!(tokenize(&json!({"prompt": ""})).is_ok());
    assert!(matches!(
        tokenize(&json!({"messages": message})).unwrap().input(),
        TokenizeInput::Chat(_)
    ));
    assert_eq!(
        tokenize(&json!({"prompt": "a", "return_token_strs": true}))
            .unwrap()
            .strings(),
        TokenStrings::Wanted
    );
}
