//! Expectations are vLLM's `SamplingParams` and `v1/sample/sampler.py`, written out by hand.

use super::*;

fn facts() -> ModelFacts {
    ModelFacts {
        vocab_size: 100,
        stop_tokens: vec![2, 7],
        max_len: 64,
        prompt_len: 4,
        max_tokens: 16,
        choices: 1,
    }
}

fn plan(json: &str) -> SamplingPlan {
    Standard::create(&Request::parse(json).unwrap(), facts())
        .unwrap()
        .plan()
        .unwrap()
}

fn refused(json: &str) -> String {
    match Standard::create(&Request::parse(json).unwrap(), facts())
        .err()
        .unwrap()
    {
        Error::InvalidRequest(m) => m,
        other => panic!("{other:?}"),
    }
}

#[test]
fn nothing_said_is_a_plain_draw() {
    let p = plan("{}");
    assert_eq!((p.stages, p.draw, p.seed), (vec![], Draw::Sample, None));
}

#[test]
fn stages_come_in_the_order_of_vllm() {
    let p = plan(
        r#"{"top_p": 0.9, "top_k": 40, "min_p": 0.05, "typical_p": 0.8, "temperature": 0.7, "frequency_penalty": 0.5,
            "presence_penalty": -0.5, "repetition_penalty": 1.25, "logit_bias": {"5": -200, "3": 1.5}, "min_tokens": 4,
            "stop_token_ids": [9, 2], "bad_words_token_ids": [[1], [3, 4]], "allowed_token_ids": [1, 2, 3], "seed": 11,
            "grammar": {"syntax": "json", "source": "{}"}}"#,
    );
    assert_eq!(
        p.stages,
        [
            Stage::Grammar(Grammar {
                syntax: "json".into(),
                source: "{}".into()
            }),
            Stage::AllowedTokens(vec![1, 2, 3]),
            Stage::BadWords(vec![vec![1], vec![3, 4]]),
            Stage::MinTokens(MinTokens {
                count: 4,
                banned: vec![2, 7, 9]
            }),
            Stage::LogitBias(vec![
                TokenBias {
                    token: 5,
                    bias: -100.0
                },
                TokenBias {
                    token: 3,
                    bias: 1.5
                }
            ]),
            Stage::Penalties(Penalties {
                repetition: 1.25,
                presence: -0.5,
                frequency: 0.5
            }),
            Stage::Temperature(0.7),
            Stage::MinP(0.05),
            Stage::TypicalP(0.8),
            Stage::TopK(40),
            Stage::TopP(0.9),
        ]
    );
    assert_eq!((p.draw, p.seed), (Draw::Sample, Some(11)));
}

#[test]
fn temperature_zero_is_greedy_but_keeps_constraints() {
    let p = plan(
        r#"{"temperature": 0, "top_k": 5, "top_p": 0.5, "presence_penalty": 1, "logit_bias": {"1": 2}}"#,
    );
    assert_eq!(
        p.stages,
        [
            Stage::LogitBias(vec![TokenBias {
                token: 1,
                bias: 2.0
            }]),
            Stage::Penalties(Penalties {
                repetition: 1.0,
                presence: 1.0,
                frequency: 0.0
            }),
        ]
    );
    assert_eq!(p.draw, Draw::Greedy);
}

#[test]
fn edges_turn_stages_off() {
    for json in [
        r#"{"top_k": 0}"#,
        r#"{"top_k": -1}"#,
        r#"{"top_k": 100}"#,
        r#"{"top_p": 1, "min_p": 0, "typical_p": 1}"#,
    ] {
        let p = plan(json);
        assert_eq!((p.stages, p.draw), (vec![], Draw::Sample), "{json}");
    }
}

#[test]
fn edges_that_leave_one_token_are_greedy() {
    let p = plan(r#"{"top_p": 0}"#);
    assert_eq!((p.stages, p.draw), (vec![Stage::TopP(0.0)], Draw::Greedy));
    let p = plan(r#"{"min_p": 1}"#);
    assert_eq!((p.stages, p.draw), (vec![Stage::MinP(1.0)], Draw::Greedy));
}

#[test]
fn tiny_temperatures_are_bounded() {
    assert_eq!(
        plan(r#"{"temperature": 1e-6}"#).stages,
        [Stage::Temperature(0.01)]
    );
}

#[test]
fn seeds() {
    assert_eq!(plan(r#"{"seed": -1}"#).seed, None);
    assert_eq!(plan(r#"{"seed": -2}"#).seed, Some(u64::MAX - 1));
    assert_eq!(
        plan(r#"{"seed": 18446744073709551615}"#).seed,
        Some(u64::MAX)
    );
    assert!(refused(r#"{"seed": "x"}"#).starts_with("seed: "));
}

#[test]
fn out_of_range_names_the_parameter() {
    for (json, message) in [
        (
            r#"{"temperature": -0.1}"#,
            "temperature: must be at least 0, got -0.1",
        ),
        (
            r#"{"top_p": 1.1}"#,
            "top_p: must be between 0 and 1, got 1.1",
        ),
        (
            r#"{"top_k": -2}"#,
            "top_k: must be a whole number from -1 to 4294967295, got -2",
        ),
        (
            r#"{"min_p": -0.5}"#,
            "min_p: must be between 0 and 1, got -0.5",
        ),
        (r#"{"typical_p": 0}"#, "typical_p: must be above 0, got 0"),
        (
            r#"{"presence_penalty": 2.5}"#,
            "presence_penalty: must be between -2 and 2, got 2.5",
        ),
        (
            r#"{"frequency_penalty": -3}"#,
            "frequency_penalty: must be between -2 and 2, got -3",
        ),
        (
            r#"{"repetition_penalty": 0}"#,
            "repetition_penalty: must be above 0, got 0",
        ),
        (
            r#"{"logit_bias": {"100": 1}}"#,
            "logit_bias: must have token ids from 0 to 99 as keys, got 100",
        ),
        (
            r#"{"allowed_token_ids": []}"#,
            "allowed_token_ids: must have at least one token id, got []",
        ),
        (
            r#"{"allowed_token_ids": [100]}"#,
            "allowed_token_ids: must have token ids from 0 to 99, got 100",
        ),
        (
            r#"{"min_tokens": -1}"#,
            "min_tokens: must be a whole number from 0 to 4294967295, got -1",
        ),
        // Checked even where temperature 0 makes it moot.
        (
            r#"{"temperature": 0, "top_p": 5}"#,
            "top_p: must be between 0 and 1, got 5",
        ),
    ] {
        assert_eq!(refused(json), message);
    }
}

#[test]
fn stop_tokens_beyond_the_vocabulary_are_harmless() {
    let p = plan(r#"{"min_tokens": 1, "stop_token_ids": [5000]}"#);
    assert_eq!(
        p.stages,
        [Stage::MinTokens(MinTokens {
            count: 1,
            banned: vec![2, 7]
        })]
    );
}
