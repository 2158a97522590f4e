//! Expectations are by hand, from the rules of transformers' `_beam_search`.

use super::*;
use guesthouse_sdk::sampling::Penalties;
use guesthouse_sdk_step::testing::{Host, Offer};

/// Probabilities after each token, and at the beginning; 0 ends.
const START: [f32; 3] = [0.1, 0.5, 0.4];
const AFTER: [[f32; 3]; 3] = [[1.0, 0.0, 0.0], [0.2, 0.45, 0.35], [0.9, 0.06, 0.04]];

fn bigram(generated: &[u32]) -> Offer {
    let row = generated.last().map_or(START, |t| AFTER[*t as usize]);
    Offer::of_probabilities(&row)
}

fn search(request: &str, wanted: u32) -> Vec<(Vec<u32>, f32)> {
    let host = Host {
        model: &bigram,
        stop_tokens: vec![0],
        max_tokens: 6,
        wanted,
        vocab: 3,
    };
    let found = host.run::<Beam>(request).unwrap();
    found.into_iter().map(|b| (b.tokens, b.score)).collect()
}

fn expect(request: &str, wanted: &[(&[u32], f32)]) {
    let found = search(request, wanted.len() as u32);
    assert_eq!(found.len(), wanted.len(), "{request}: {found:?}");
    for ((tokens, score), (wanted, count)) in found.iter().zip(wanted) {
        assert_eq!(tokens, wanted, "{request}");
        assert!(
            (score - count).abs() < 2e-5,
            "{request}: {score} for {count}"
        );
    }
}

#[test]
fn the_width_is_n() {
    // 0.4 · 0.9, and 0.5 · 0.35 · 0.9. The end as first token is only third best.
    expect("{}", &[(&[2, 0], -0.510_83), (&[1, 2, 0], -0.616_10)]);
}

#[test]
fn one_beam_is_greedy() {
    expect(r#"{"beam_width": 1}"#, &[(&[1, 1, 1, 1, 1, 1], -0.780_95)]);
}

#[test]
fn fewer_may_be_returned_than_beams() {
    expect(r#"{"best_of": 2}"#, &[(&[2, 0], -0.510_83)]);
}

#[test]
fn all_three_ways_to_stop_agree_here() {
    for stopping in ["true", "false", "\"never\""] {
        let request = format!("{{\"early_stopping\": {stopping}}}");
        expect(&request, &[(&[2, 0], -0.510_83), (&[1, 2, 0], -0.616_10)]);
    }
}

#[test]
fn a_length_penalty_favours_long_hypotheses_up_to_the_limit() {
    // 0.5 · 0.45³ · 0.35 · 0.9 and 0.5 · 0.45⁵, by 6².
    expect(
        r#"{"length_penalty": 2}"#,
        &[
            (&[1, 1, 1, 1, 2, 0], -0.117_88),
            (&[1, 1, 1, 1, 1, 1], -0.130_16),
        ],
    );
    // Two have finished after the third token: 0.36 and 0.1575.
    expect(
        r#"{"length_penalty": 2, "early_stopping": true}"#,
        &[(&[1, 2, 0], -0.205_37), (&[2, 0], -0.255_41)],
    );
}

#[test]
fn without_a_length_penalty_log_probabilities_count() {
    expect(
        r#"{"length_penalty": 0}"#,
        &[(&[2, 0], -1.021_65), (&[1, 2, 0], -1.848_33)],
    );
}

#[test]
fn end_tokens_may_be_ignored() {
    // The host of the test still ends at 0, and the guest takes that: 0 is one continuation of many.
    let ended = search(r#"{"ignore_eos": true, "beam_width": 2}"#, 1);
    assert_eq!(ended[0].0, [2, 0]);
}

fn facts(choices: u32) -> ModelFacts {
    ModelFacts {
        vocab_size: 100,
        stop_tokens: vec![2, 7],
        max_len: 64,
        prompt_len: 4,
        max_tokens: 16,
        choices,
    }
}

fn create(request: &str, choices: u32) -> Result<SamplingPlan, Error> {
    Beam::create(&Request::parse(request)?, facts(choices))?.plan()
}

#[test]
fn candidates_leave_enough_that_do_not_end() {
    for (request, candidates) in [
        // One per end token and beam besides the beam itself.
        (r#"{"beam_width": 4}"#, 12),
        (r#"{"beam_width": 4, "stop_token_ids": [1, 2]}"#, 16),
        (r#"{"beam_width": 4, "ignore_eos": true}"#, 8),
        (r#"{"beam_width": 500}"#, 1024),
    ] {
        let draw = create(request, 1).unwrap().draw;
        assert_eq!(draw, Draw::Step(Asked::search(candidates)), "{request}");
    }
}

#[test]
fn constraints_are_stages_and_truncations_are_none() {
    let plan = create(
        r#"{"repetition_penalty": 1.5, "temperature": 0.5, "top_k": 3, "use_beam_search": true}"#,
        2,
    );
    let penalties = Penalties {
        repetition: 1.5,
        presence: 0.0,
        frequency: 0.0,
    };
    assert_eq!(plan.unwrap().stages, [Stage::Penalties(penalties)]);
}

#[test]
fn wrong_fields_are_named() {
    for (request, message) in [
        (
            r#"{"beam_width": 1}"#,
            "beam_width: must be a whole number from 2 to 512, got 1",
        ),
        (
            r#"{"best_of": 513}"#,
            "best_of: must be a whole number from 2 to 512, got 513",
        ),
        (
            r#"{"beam_width": 3, "best_of": 4}"#,
            "best_of: must equal beam_width, 3, got 4",
        ),
        (
            r#"{"length_penalty": 11}"#,
            "length_penalty: must be between -10 and 10, got 11",
        ),
        (
            r#"{"early_stopping": "ever"}"#,
            "early_stopping: must be true, false or \"never\", got \"ever\"",
        ),
        (
            r#"{"use_beam_search": 1}"#,
            "use_beam_search: must be true or false, got 1",
        ),
        (r#"{"top_p": 2}"#, "top_p: must be between 0 and 1, got 2"),
    ] {
        assert_eq!(create(request, 2), Err(Error::request(message)));
    }
}

mod replay;
