#![allow(clippy::unwrap_used, clippy::panic)]

use super::*;

fn near(found: f32, expected: f64) {
    assert!(
        (f64::from(found) - expected).abs() < 1e-6,
        "{found} {expected}"
    );
}

/// Probabilities 1/8, 1/2, 1/4, 1/8 before the stages; 1/5, 4/5 of tokens 0 and 1 after.
fn row() -> LogitsRow {
    LogitsRow {
        logits: vec![1.0, 1.0 + 4f32.ln(), f32::NEG_INFINITY, f32::NEG_INFINITY],
        raw: Some(vec![0.0, 4f32.ln(), 2f32.ln(), 0.0]),
        uniform: 0.5,
        top: vec![(1, 0.5f32.ln())],
        hidden: Vec::new(),
    }
}

#[test]
fn tokens_of_whole_rows_are_reported_by_mode() {
    let row = row();
    let raw = sampled(Source::Row(&row), 0, LogprobsMode::Raw);
    near(raw.logprob, (1f64 / 8.0).ln());
    near(raw.processed_logprob, 0.2f64.ln());
    assert_eq!((raw.rank, raw.top.len(), raw.mu), (3, 1, None));
    let processed = sampled(Source::Row(&row), 0, LogprobsMode::Processed);
    near(processed.logprob, 0.2f64.ln());
    assert_eq!(processed.rank, 2);
    let removed = sampled(Source::Row(&row), 2, LogprobsMode::Raw);
    near(removed.logprob, 0.25f64.ln());
    assert_eq!(removed.processed_logprob, f32::NEG_INFINITY);
}

#[test]
fn candidates_are_reported_as_the_device_said() {
    let candidates = Candidates {
        tokens: vec![7, 3],
        logits: vec![2.0, 1.0],
        logprobs: vec![-0.5, -1.5],
        ranks: vec![2, 5],
        log_sum_exp: 3.0,
        entropy: 1.0,
        uniform: 0.5,
        top: Vec::new(),
        hidden: Vec::new(),
    };
    let found = sampled(Source::Candidates(&candidates), 3, LogprobsMode::Raw);
    assert_eq!(
        (found.logprob, found.rank, found.processed_logprob),
        (-1.5, 5, -2.0)
    );
}

#[test]
fn malformed_outcomes_are_told() {
    let row = LogitsRow {
        raw: Some(vec![0.0; 3]),
        ..row()
    };
    assert_eq!(
        check_row(&row, 4).unwrap_err(),
        "rows of 4 and 3 logits of a vocabulary of 4"
    );
    let candidates = |tokens: Vec<TokenId>| Candidates {
        logits: vec![0.0; 2],
        logprobs: vec![0.0; 2],
        ranks: vec![1; 2],
        tokens,
        log_sum_exp: 0.0,
        entropy: 0.0,
        uniform: 0.5,
        top: Vec::new(),
        hidden: Vec::new(),
    };
    assert!(check_candidates(&candidates(vec![1, 0]), 2, 4).is_ok());
    assert!(check_candidates(&candidates(vec![1, 4]), 2, 4).is_err());
    assert!(check_candidates(&candidates(vec![1, 0]), 1, 4).is_err());
    assert!(check_candidates(&candidates(vec![1]), 2, 4).is_err());
}
