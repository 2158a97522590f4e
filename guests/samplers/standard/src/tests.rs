//! Expectations are vLLM's `SamplingParams` and `v1/sample/sampler.py`, written out by hand.

use super::*;
use guesthouse_sdk::sampling::{
    Draw, Dry, DynamicTemperature, Grammar, MinTokens, Mirostat, Penalties, Stage, TokenBias,
    Watermark, Xtc,
};

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

#[test]
fn constraints_that_vllm_lacks_stand_among_its_own() {
    let p = plan(
        r#"{"watermark": {"key": 18446744073709551615, "gamma": 0.5}, "dry_multiplier": 0.8, "dry_breaker_token_ids": [4],
            "repetition_penalty": 1.5, "min_tokens": 1, "no_repeat_ngram_size": 3, "bad_words_token_ids": [[1]],
            "temperature": 0}"#,
    );
    assert_eq!(
        p.stages,
        [
            Stage::BadWords(vec![vec![1]]),
            Stage::NoRepeatNgram(3),
            Stage::MinTokens(MinTokens {
                count: 1,
                banned: vec![2, 7]
            }),
            Stage::Penalties(Penalties {
                repetition: 1.5,
                presence: 0.0,
                frequency: 0.0
            }),
            Stage::Dry(Dry {
                multiplier: 0.8,
                base: 1.75,
                allowed_length: 2,
                range: 0,
                breakers: vec![4]
            }),
            Stage::Watermark(Watermark {
                key: u64::MAX,
                gamma: 0.5,
                delta: 2.0,
                context: 1
            }),
        ]
    );
    assert_eq!(p.draw, Draw::Greedy);
    let p = plan(
        r#"{"dry_multiplier": 1, "dry_base": 2, "dry_allowed_length": 4, "dry_range": 64,
            "watermark": {"key": -1, "delta": 1.5, "context": 8}}"#,
    );
    assert_eq!(
        p.stages,
        [
            Stage::Dry(Dry {
                multiplier: 1.0,
                base: 2.0,
                allowed_length: 4,
                range: 64,
                breakers: vec![]
            }),
            Stage::Watermark(Watermark {
                key: u64::MAX,
                gamma: 0.25,
                delta: 1.5,
                context: 8
            }),
        ]
    );
}

#[test]
fn truncations_come_in_the_documented_order() {
    let p = plan(
        r#"{"xtc_probability": 0.5, "tfs": 0.95, "eta_cutoff": 0.0003, "epsilon_cutoff": 0.0006, "top_p": 0.9, "top_k": 40,
            "typical_p": 0.8, "min_p": 0.05, "top_n_sigma": 1.5, "dynatemp_min": 0.5, "dynatemp_max": 1.5,
            "temperature": 0.7}"#,
    );
    assert_eq!(
        p.stages,
        [
            Stage::DynamicTemperature(DynamicTemperature {
                min: 0.5,
                max: 1.5,
                exponent: 1.0
            }),
            Stage::TopNSigma(1.5),
            Stage::MinP(0.05),
            Stage::TypicalP(0.8),
            Stage::TopK(40),
            Stage::TopP(0.9),
            Stage::EpsilonCutoff(0.0006),
            Stage::EtaCutoff(0.0003),
            Stage::TailFree(0.95),
            Stage::Xtc(Xtc {
                probability: 0.5,
                threshold: 0.1
            }),
        ]
    );
}

#[test]
fn values_that_change_nothing_make_no_stage() {
    let p = plan(
        r#"{"no_repeat_ngram_size": 0, "dry_multiplier": 0, "dry_base": 2, "top_n_sigma": -1, "epsilon_cutoff": 0,
            "eta_cutoff": 0, "tfs": 1, "xtc_probability": 0, "xtc_threshold": 0.3, "mirostat_mode": 0, "mirostat_tau": 3,
            "dynatemp_exponent": 2, "watermark": null}"#,
    );
    assert_eq!((p.stages, p.draw), (vec![], Draw::Sample));
}

#[test]
fn dynamic_temperature_is_bounded_like_temperature() {
    let p = plan(r#"{"dynatemp_min": 0, "dynatemp_max": 2, "dynatemp_exponent": 0.5}"#);
    let dynamic = DynamicTemperature {
        min: 0.01,
        max: 2.0,
        exponent: 0.5,
    };
    assert_eq!(p.stages, [Stage::DynamicTemperature(dynamic)]);
    assert_eq!(
        plan(r#"{"temperature": 0, "dynatemp_min": 1, "dynatemp_max": 2}"#).draw,
        Draw::Greedy
    );
}

#[test]
fn mirostat_stands_in_place_of_truncations() {
    let p = plan(
        r#"{"mirostat_mode": 2, "temperature": 0.8, "top_k": 40, "top_p": 0, "min_p": 1, "xtc_probability": 1,
            "frequency_penalty": 1}"#,
    );
    let penalties = Penalties {
        repetition: 1.0,
        presence: 0.0,
        frequency: 1.0,
    };
    let mirostat = |tau, eta| Mirostat { tau, eta };
    assert_eq!(
        (p.stages, p.draw),
        (
            vec![
                Stage::Penalties(penalties),
                Stage::Temperature(0.8),
                Stage::Mirostat2(mirostat(5.0, 0.1))
            ],
            Draw::Sample
        )
    );
    let p = plan(r#"{"mirostat_mode": 1, "mirostat_tau": 3, "mirostat_eta": 0.25}"#);
    assert_eq!(p.stages, [Stage::Mirostat1(mirostat(3.0, 0.25))]);
    let p = plan(r#"{"mirostat_mode": 1, "temperature": 0}"#);
    assert_eq!((p.stages, p.draw), (vec![], Draw::Greedy));
}

#[test]
fn arguments_of_the_sampler_count_as_fields() {
    let p = plan(r#"{"top_k": 5, "sampler_args": {"top_k": 7, "tfs": 0.5}}"#);
    assert_eq!(p.stages, [Stage::TopK(7), Stage::TailFree(0.5)]);
}

#[test]
fn more_out_of_range() {
    for (json, message) in [
        (
            r#"{"no_repeat_ngram_size": -1}"#,
            "no_repeat_ngram_size: must be a whole number from 0 to 4294967295, got -1",
        ),
        (
            r#"{"dry_multiplier": -1}"#,
            "dry_multiplier: must be at least 0, got -1",
        ),
        (
            r#"{"dry_base": 0.5}"#,
            "dry_base: must be at least 1, got 0.5",
        ),
        (
            r#"{"dry_allowed_length": 0}"#,
            "dry_allowed_length: must be a whole number from 1 to 4294967295, got 0",
        ),
        (
            r#"{"dry_range": 1.5}"#,
            "dry_range: must be a whole number from 0 to 4294967295, got 1.5",
        ),
        (
            r#"{"dry_breaker_token_ids": [100]}"#,
            "dry_breaker_token_ids: must have token ids from 0 to 99, got 100",
        ),
        (
            r#"{"dynatemp_min": 1}"#,
            "dynatemp_max: must come with dynatemp_min, got none",
        ),
        (
            r#"{"dynatemp_max": 1}"#,
            "dynatemp_min: must come with dynatemp_max, got none",
        ),
        (
            r#"{"dynatemp_min": 2, "dynatemp_max": 1}"#,
            "dynatemp_max: must be at least dynatemp_min, 2, got 1",
        ),
        (
            r#"{"dynatemp_exponent": 0}"#,
            "dynatemp_exponent: must be above 0, got 0",
        ),
        (
            r#"{"top_n_sigma": -2}"#,
            "top_n_sigma: must be at least -1, got -2",
        ),
        (
            r#"{"epsilon_cutoff": 1}"#,
            "epsilon_cutoff: must be below 1, got 1",
        ),
        (
            r#"{"eta_cutoff": 2}"#,
            "eta_cutoff: must be between 0 and 1, got 2",
        ),
        (r#"{"tfs": 0}"#, "tfs: must be above 0, got 0"),
        (
            r#"{"xtc_probability": 1.5}"#,
            "xtc_probability: must be between 0 and 1, got 1.5",
        ),
        (
            r#"{"xtc_threshold": -1}"#,
            "xtc_threshold: must be between 0 and 1, got -1",
        ),
        (
            r#"{"mirostat_mode": 3}"#,
            "mirostat_mode: must be a whole number from 0 to 2, got 3",
        ),
        (
            r#"{"mirostat_tau": 0}"#,
            "mirostat_tau: must be above 0, got 0",
        ),
        (
            r#"{"mirostat_eta": 2}"#,
            "mirostat_eta: must be between 0 and 1, got 2",
        ),
        (r#"{"watermark": 5}"#, "watermark: must be an object, got 5"),
        (
            r#"{"watermark": {}}"#,
            "watermark.key: must be a whole number, got none",
        ),
        (
            r#"{"watermark": {"key": 1, "gamma": 1}}"#,
            "watermark.gamma: must be below 1, got 1",
        ),
        (
            r#"{"watermark": {"key": 1, "delta": 1000}}"#,
            "watermark.delta: must be between -100 and 100, got 1000",
        ),
        (
            r#"{"watermark": {"key": 1, "context": 9}}"#,
            "watermark.context: must be a whole number from 1 to 8, got 9",
        ),
        (
            r#"{"sampler_args": []}"#,
            "sampler_args: must be an object, got []",
        ),
        // Where temperature 0 or mirostat makes it moot.
        (
            r#"{"temperature": 0, "tfs": 2}"#,
            "tfs: must be between 0 and 1, got 2",
        ),
        (
            r#"{"mirostat_mode": 1, "top_p": 2}"#,
            "top_p: must be between 0 and 1, got 2",
        ),
    ] {
        let refused = match Request::parse(json) {
            Ok(_) => refused(json),
            Err(Error::InvalidRequest(m)) => m,
            Err(other) => panic!("{other:?}"),
        };
        assert_eq!(refused, message);
    }
}
