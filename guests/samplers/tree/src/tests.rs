//! Trees by hand, with `temperature` 0: the first token of a thought takes the best ones, the others the best. Token 0 ends.

use super::*;
use guesthouse_sdk::sampling::Stage;
use guesthouse_sdk_step::testing::{Host, Offer};

fn model(generated: &[u32]) -> Offer {
    Offer::of_probabilities(&match generated {
        [] => [0.0, 0.5, 0.3, 0.2],
        [1] => [0.05, 0.4, 0.3, 0.25],
        [2] => [0.01, 0.02, 0.07, 0.9],
        [2, 3] => [0.05, 0.6, 0.3, 0.05],
        [2, 3, 1] => [0.2, 0.5, 0.2, 0.1],
        [2, 3, 2] => [0.99, 0.005, 0.003, 0.002],
        _ => [0.1, 0.6, 0.2, 0.1],
    })
}

fn expect(request: &str, max_tokens: u32, wanted: &[(&[u32], f32)]) {
    let host = Host {
        model: &model,
        stop_tokens: vec![0],
        max_tokens,
        wanted: wanted.len() as u32,
        vocab: 4,
    };
    let found = host.run::<Tree>(request).unwrap();
    assert_eq!(found.len(), wanted.len(), "{request}: {found:?}");
    for (branch, (tokens, score)) in found.iter().zip(wanted) {
        assert_eq!(&branch.tokens, tokens, "{request}");
        assert!(
            (branch.score - score).abs() < 2e-5,
            "{request}: {branch:?}, not {score}"
        );
    }
}

#[test]
fn the_best_thought_stays() {
    // 0.3 · 0.9 beats 0.5 · 0.4; of its two thoughts the second ends: 0.27 · 0.3 · 0.99.
    expect(
        r#"{"temperature": 0, "depth": 2, "branch": 2, "beam": 1}"#,
        9,
        &[(&[2, 3, 2, 0], -0.630_84)],
    );
}

#[test]
fn a_separator_ends_a_thought() {
    expect(
        r#"{"temperature": 0, "depth": 10, "branch": 2, "beam": 1, "separator_token_ids": [3]}"#,
        9,
        &[(&[2, 3, 2, 0], -0.630_84)],
    );
    // The other thought goes on without a fork: 0.5 · 0.4 · 0.6 · 0.6.
    expect(
        r#"{"temperature": 0, "depth": 10, "branch": 2, "beam": 2, "separator_token_ids": [3]}"#,
        4,
        &[
            (&[2, 3, 1, 1], -0.628_33),
            (&[2, 3, 2, 0], -0.630_84),
            (&[1, 1, 1, 1], -0.657_77),
        ],
    );
}

#[test]
fn all_branches_finish_at_the_limit() {
    let request = r#"{"temperature": 0, "depth": 2, "branch": 2, "beam": 2}"#;
    expect(
        request,
        4,
        &[(&[2, 3, 1, 1], -0.628_33), (&[2, 3, 2, 0], -0.630_84)],
    );
    // [1, 1, 2, 1] is pruned before the fifth token: 0.081 · 0.6² and 0.072 · 0.6² are best.
    expect(
        request,
        6,
        &[
            (&[2, 3, 1, 1, 1, 1], -0.589_17),
            (&[1, 1, 1, 1, 1, 1], -0.608_80),
            (&[2, 3, 2, 0], -0.630_84),
        ],
    );
}

#[test]
fn thoughts_begin_with_different_tokens_also_when_drawn() {
    let host = Host {
        model: &model,
        stop_tokens: vec![0],
        max_tokens: 1,
        wanted: 3,
        vocab: 4,
    };
    let mut tokens: Vec<u32> = host
        .run::<Tree>(r#"{"branch": 3, "beam": 1}"#)
        .unwrap()
        .iter()
        .map(|branch| branch.tokens[0])
        .collect();
    tokens.sort_unstable();
    assert_eq!(tokens, [1, 2, 3]);
}

fn create(request: &str, choices: u32) -> Result<SamplingPlan, Error> {
    let facts = ModelFacts {
        vocab_size: 100,
        stop_tokens: vec![2],
        max_len: 64,
        prompt_len: 4,
        max_tokens: 16,
        choices,
    };
    Tree::create(&Request::parse(request)?, facts)?.plan()
}

#[test]
fn the_plan_has_constraints_and_truncations() {
    let plan = create(r#"{"temperature": 0.5, "top_k": 9, "seed": 4}"#, 6).unwrap();
    assert_eq!(plan.stages, [Stage::Temperature(0.5), Stage::TopK(9)]);
    assert_eq!(
        (plan.draw, plan.seed),
        (Draw::Step(Asked::search(100)), Some(4))
    );
}

#[test]
fn wrong_fields_are_named() {
    for (request, choices, message) in [
        ("{}", 7, "n: must be at most beam · branch, 6, got 7"),
        (
            r#"{"depth": 0}"#,
            1,
            "depth: must be a whole number from 1 to 4096, got 0",
        ),
        (
            r#"{"branch": 17}"#,
            1,
            "branch: must be a whole number from 1 to 16, got 17",
        ),
        (
            r#"{"beam": 0}"#,
            1,
            "beam: must be a whole number from 1 to 16, got 0",
        ),
        (
            r#"{"separator_token_ids": [100]}"#,
            1,
            "separator_token_ids: must have token ids from 0 to 99, got 100",
        ),
    ] {
        assert_eq!(create(request, choices), Err(Error::request(message)));
    }
}
