//! Token 0 ends. A sample of L tokens has probability 0.5^(L - 1) · 0.25 or so, by its tokens.

use super::*;
use guesthouse_sdk::sampling::{Mirostat, Stage};
use guesthouse_sdk_step::testing::{Branch, Host, Offer};

/// After any token.
const ROW: [f32; 4] = [0.25, 0.5, 0.125, 0.125];

fn run(request: &str, wanted: u32) -> Vec<Branch> {
    let model = |_: &[u32]| Offer::of_probabilities(&ROW);
    let host = Host {
        model: &model,
        stop_tokens: vec![0],
        max_tokens: 8,
        wanted,
        vocab: 4,
    };
    host.run::<BestOf>(request).unwrap()
}

fn logprob(tokens: &[u32]) -> f32 {
    tokens.iter().map(|t| ROW[*t as usize].ln()).sum()
}

#[test]
fn scores_are_log_probabilities_per_token_and_come_best_first() {
    let all = run(r#"{"best_of": 24}"#, 24);
    assert_eq!(all.len(), 24);
    for branch in &all {
        let mean = logprob(&branch.tokens) / branch.tokens.len() as f32;
        assert!((branch.score - mean).abs() < 1e-5, "{branch:?}");
        let whole = branch.tokens.last() == Some(&0) || branch.tokens.len() == 8;
        assert!(whole, "{branch:?}");
    }
    assert!(all.is_sorted_by(|a, b| a.score >= b.score));
    let different: std::collections::BTreeSet<_> = all.iter().map(|b| &b.tokens).collect();
    assert!(different.len() > 8, "{different:?}");
    // The same samples, the best of them alone.
    let best = run(r#"{"best_of": 24}"#, 1);
    assert_eq!((best.len(), &best[0].tokens), (1, &all[0].tokens));
}

#[test]
fn the_sum_ranks_short_samples_first() {
    let all = run(r#"{"best_of": 24, "rank_by": "sum"}"#, 24);
    for branch in &all {
        assert!(
            (branch.score - logprob(&branch.tokens)).abs() < 1e-4,
            "{branch:?}"
        );
    }
    assert!(all[0].tokens.len() < all[23].tokens.len());
}

#[test]
fn first_tokens_follow_the_distribution() {
    let mut counts = [0f64; 4];
    let model = |generated: &[u32]| match generated {
        [] => Offer::of_probabilities(&ROW),
        _ => Offer::of_probabilities(&[1.0, 0.0, 0.0, 0.0]),
    };
    let host = Host {
        model: &model,
        stop_tokens: vec![0],
        max_tokens: 2,
        wanted: 64,
        vocab: 4,
    };
    for branch in host.run::<BestOf>(r#"{"best_of": 64}"#).unwrap() {
        counts[branch.tokens[0] as usize] += 1.0;
    }
    // Chi-square with three degrees of freedom: above 16.3 once in 1,000.
    let terms = counts.iter().zip(ROW).map(|(n, p)| {
        let expected = 64.0 * f64::from(p);
        (n - expected).powi(2) / expected
    });
    let chi: f64 = terms.sum();
    assert!(chi < 16.3, "{counts:?}");
}

#[test]
fn without_temperature_all_samples_are_the_best_tokens() {
    let all = run(r#"{"temperature": 0, "best_of": 3}"#, 2);
    assert_eq!(all.len(), 2);
    assert!(all.iter().all(|b| b.tokens == [1; 8]));
}

fn create(request: &str) -> Result<SamplingPlan, Error> {
    let facts = ModelFacts {
        vocab_size: 5000,
        stop_tokens: vec![2],
        max_len: 64,
        prompt_len: 4,
        max_tokens: 16,
        choices: 2,
    };
    BestOf::create(&Request::parse(request)?, facts)?.plan()
}

#[test]
fn the_plan_has_constraints_and_truncations() {
    let plan = create(r#"{"temperature": 0.5, "no_repeat_ngram_size": 2, "seed": 3}"#).unwrap();
    assert_eq!(
        plan.stages,
        [Stage::NoRepeatNgram(2), Stage::Temperature(0.5)]
    );
    assert_eq!(
        (plan.draw, plan.seed),
        (Draw::Step(Asked::search(1024)), Some(3))
    );
}

#[test]
fn wrong_fields_are_named() {
    for (request, message) in [
        (
            r#"{"best_of": 1}"#,
            "best_of: must be a whole number from 2 to 64, got 1",
        ),
        (
            r#"{"rank_by": "best"}"#,
            "rank_by: must be \"mean\" or \"sum\", got \"best\"",
        ),
        (
            r#"{"mirostat_mode": 1}"#,
            "mirostat_mode: must be 0 with the sampler best-of, which chooses tokens itself",
        ),
    ] {
        assert_eq!(create(request), Err(Error::request(message)));
    }
    // Where it has no effect it is no matter.
    let cold = create(r#"{"mirostat_mode": 1, "temperature": 0}"#).unwrap();
    let learns = Stage::Mirostat1(Mirostat { tau: 5.0, eta: 0.1 });
    assert!(!cold.stages.contains(&learns));
}
