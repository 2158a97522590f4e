//! Hidden states of two numbers; expectations by hand. Token 0 ends.

use super::*;
use guesthouse_sdk_step::testing::{Branch, Host, Offer};

/// The prompt's state points along x, and so does that of token 1; token 2's is at right angles to it, token 3's opposite.
fn state(token: Option<&u32>) -> Vec<f32> {
    match token {
        Some(2) => vec![0.0, 2.0],
        Some(3) => vec![-1.0, 0.0],
        _ => vec![1.0, 0.0],
    }
}

fn run(request: &str, model: &dyn Fn(&[u32]) -> [f32; 4], max_tokens: u32) -> Branch {
    let model = |generated: &[u32]| Offer {
        hidden: state(generated.last()),
        ..Offer::of_probabilities(&model(generated))
    };
    let host = Host {
        model: &model,
        stop_tokens: vec![0],
        max_tokens,
        wanted: 1,
        vocab: 4,
    };
    let found = host.run::<Contrastive>(request).unwrap();
    assert_eq!(found.len(), 1);
    found[0].clone()
}

#[test]
fn likeness_is_weighed_against_probability() {
    let model = |generated: &[u32]| match generated.len() {
        // The first three; then the end.
        0..=2 => [0.05, 0.5, 0.3, 0.15],
        _ => [0.9, 0.05, 0.03, 0.02],
    };
    // First step, alpha 0.5: token 1 counts 0.25 - 0.5, token 2 counts 0.15 - 0, token 3 counts 0.075 + 0.5. Second step,
    // with states (1, 0), (-1, 0): 1 and 3 have likeness 1, 2 has 0. Third: 2 has 1 too, so 1 is best, 0.25 - 0.5.
    let answer = run(r#"{"penalty_alpha": 0.5}"#, &model, 10);
    assert_eq!(
        (&answer.tokens[..], answer.score),
        (&[3, 2, 1, 0][..], CHOSEN)
    );
    // Token 3 is not among the best two; then 1 counts 0.25 - 0.5 and 2 counts 0.15 - 0.5.
    let answer = run(r#"{"penalty_alpha": 0.5, "candidates": 2}"#, &model, 10);
    assert_eq!(answer.tokens, [2, 1, 1, 0]);
    // Probability alone.
    let answer = run(r#"{"penalty_alpha": 0}"#, &model, 10);
    assert_eq!(answer.tokens, [1, 1, 1, 0]);
}

#[test]
fn the_last_token_that_fits_is_the_likeliest() {
    let model = |_: &[u32]| [0.05, 0.5, 0.3, 0.15];
    assert_eq!(run(r#"{"penalty_alpha": 0.5}"#, &model, 2).tokens, [3, 1]);
    assert_eq!(run("{}", &model, 1).tokens, [1]);
}

#[test]
fn an_end_token_that_is_not_the_likeliest_is_passed_over() {
    let model = |_: &[u32]| [0.4, 0.45, 0.1, 0.05];
    let answer = run(r#"{"candidates": 1}"#, &model, 3);
    assert_eq!(answer.tokens, [1, 1, 1]);
}

fn create(request: &str, choices: u32) -> Result<SamplingPlan, Error> {
    let facts = ModelFacts {
        vocab_size: 100,
        stop_tokens: vec![2, 7],
        max_len: 64,
        prompt_len: 4,
        max_tokens: 16,
        choices,
    };
    Contrastive::create(&Request::parse(request)?, facts)?.plan()
}

#[test]
fn the_plan_asks_for_hidden_states() {
    let plan = create(r#"{"candidates": 5, "top_k": 40, "min_tokens": 0}"#, 1).unwrap();
    assert_eq!(plan.draw, Draw::Step(Asked::search(7).with_hidden()));
    assert_eq!(plan.stages, []);
}

#[test]
fn wrong_fields_are_named() {
    for (request, choices, message) in [
        ("{}", 2, "n: must be 1 with contrastive search, got 2"),
        (
            r#"{"penalty_alpha": 2}"#,
            1,
            "penalty_alpha: must be between 0 and 1, got 2",
        ),
        (
            r#"{"candidates": 0}"#,
            1,
            "candidates: must be a whole number from 1 to 32, got 0",
        ),
        (
            r#"{"penalty_window": 0}"#,
            1,
            "penalty_window: must be a whole number from 1 to 4096, got 0",
        ),
    ] {
        assert_eq!(create(request, choices), Err(Error::request(message)));
    }
}

mod replay;
