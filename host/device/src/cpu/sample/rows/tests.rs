#![allow(clippy::unwrap_used, clippy::panic)]

use guesthouse_engine::{Draw as DrawKind, SamplingPlan, Stage};

use super::super::{Isa, Work};
use super::*;
use crate::history::{Counting, History};

fn logits(n: usize, seed: u32) -> Vec<f32> {
    (0..n as u32)
        .map(|i| {
            let w = super::super::philox::philox4x32_10([i, seed, 3, 0], [5, 6]);
            (w[0] as f32 / u32::MAX as f32 - 0.5) * 12.0
        })
        .collect()
}

/// Gumbel-max in plain f64 over the whole row.
fn slow_draw(logits: &[f32], random: RandomKey, position: u32) -> TokenId {
    let mut best = (f64::NEG_INFINITY, 0);
    for (t, &x) in logits.iter().enumerate() {
        let word = words(random, position, Purpose::Token, t as u32 / 4)[t % 4];
        let score = f64::from(x) - (-f64::from(uniform(word)).ln()).ln();
        if score > best.0 {
            best = (score, t as TokenId);
        }
    }
    best.1
}

#[test]
fn a_row_that_came_back_is_drawn_by_the_same_noise() {
    for seed in 0..300u64 {
        let mut row = logits(997, seed as u32);
        for x in row.iter_mut().skip(3).step_by(2) {
            *x = f32::NEG_INFINITY;
        }
        let random = RandomKey {
            seed: seed * 77,
            lineage: seed as u32 % 3,
        };
        let position = seed as u32 * 13;
        assert_eq!(
            draw_row(&row, random, position).unwrap(),
            slow_draw(&row, random, position)
        );
    }
}

#[test]
fn rows_without_a_distribution_are_refused() {
    let random = RandomKey {
        seed: 1,
        lineage: 0,
    };
    let error = |row: &[f32]| draw_row(row, random, 0).unwrap_err().to_string();
    assert!(error(&[1.0, f32::NAN]).contains("logit NaN of token 1 is not finite"));
    assert!(error(&[f32::INFINITY]).contains("logit inf of token 0"));
    assert!(error(&[f32::NEG_INFINITY; 5]).contains("row of 5 logits: every token is masked out"));
    assert!(error(&[]).contains("row of 0 logits"));
}

/// Log-probabilities and entropy in f64, and the order of preference, by a full sort.
struct Slow {
    order: Vec<TokenId>,
    log_probs: Vec<f64>,
    log_sum_exp: f64,
    entropy: f64,
}

fn slow(row: &[f32]) -> Slow {
    let mut order: Vec<TokenId> = (0..row.len() as TokenId).collect();
    order.sort_by(|&a, &b| {
        let by_logit = row[b as usize].partial_cmp(&row[a as usize]).unwrap();
        by_logit.then(a.cmp(&b))
    });
    let max = f64::from(row[order[0] as usize]);
    let sum: f64 = row.iter().map(|&x| (f64::from(x) - max).exp()).sum();
    let log_sum_exp = max + sum.ln();
    let log_probs: Vec<f64> = row.iter().map(|&x| f64::from(x) - log_sum_exp).collect();
    let entropy = log_probs
        .iter()
        .filter(|l| l.is_finite())
        .map(|l| -l * l.exp())
        .sum();
    Slow {
        order,
        log_probs,
        log_sum_exp,
        entropy,
    }
}

fn near(a: f32, b: f64) -> bool {
    (f64::from(a) - b).abs() <= 2e-6 * (1.0 + b.abs())
}

fn asked(candidates: u32) -> Asked {
    Asked {
        candidates,
        branching: guesthouse_engine::Branching::Choices,
        hidden: Hidden::Kept,
    }
}

/// Whole numbers and quarters: many are equal.
fn ties(n: usize, seed: u32) -> Vec<f32> {
    logits(n, seed)
        .iter()
        .map(|x| (x * 4.0).round() / 4.0)
        .collect()
}

fn run(row: &[f32], stages: Vec<Stage>, kind: DrawKind, mode: LogprobsMode) -> SampleOutcome {
    let plan = SamplingPlan { stages, draw: kind };
    let history = History::new(&[5, 9, 11], 2, Counting::On);
    let draw = Draw {
        logits: 0,
        plan: &plan,
        history: &history,
        random: RandomKey {
            seed: 1 << 40 | 9,
            lineage: 6,
        },
        mu: None,
        mask: None,
        top: 3,
        logprobs: mode,
    };
    super::super::draw(Isa::detect(), row, &draw, &mut Work::default())
}

/// What the stages below make of a row, in f64 where that matters.
fn processed(row: &[f32]) -> Vec<f32> {
    let mut row: Vec<f32> = row.iter().map(|x| x / 0.5).collect();
    for (t, x) in row.iter_mut().enumerate() {
        if t % 3 == 0 {
            *x = f32::NEG_INFINITY;
        }
        if t == 7 {
            *x += 100.0;
        }
    }
    row
}

fn stages(n: usize) -> Vec<Stage> {
    vec![
        Stage::Temperature(0.5),
        Stage::BannedTokens((0..n as TokenId).step_by(3).collect()),
        Stage::LogitBias(vec![(7, 100.0)]),
    ]
}

#[test]
fn candidates_are_those_of_a_full_sort() {
    for (n, make) in [
        (2000, logits as fn(usize, u32) -> Vec<f32>),
        (2000, ties),
        (40, ties),
    ] {
        for count in [1, 5, 33, 256, 1024, 5000] {
            for mode in [LogprobsMode::Raw, LogprobsMode::Processed] {
                let raw = make(n, count);
                let want_row = processed(&raw);
                let (of_raw, of_processed) = (slow(&raw), slow(&want_row));
                let (reported, of) = match mode {
                    LogprobsMode::Raw => (&raw, &of_raw),
                    LogprobsMode::Processed => (&want_row, &of_processed),
                };
                let kind = DrawKind::Candidates(asked(count));
                let SampleOutcome::Candidates(got) = run(&raw, stages(n), kind, mode) else {
                    panic!("no candidates");
                };
                let alive = want_row.iter().filter(|x| x.is_finite()).count();
                let len = alive.min(count as usize).min(1024);
                assert_eq!(
                    got.tokens,
                    of_processed.order[..len],
                    "{n} {count} {mode:?}"
                );
                for (i, &t) in got.tokens.iter().enumerate() {
                    let t = t as usize;
                    assert_eq!(got.logits[i].to_bits(), want_row[t].to_bits());
                    assert!(near(got.logprobs[i], of.log_probs[t]), "{i}");
                    let higher = reported.iter().filter(|&&x| x > reported[t]).count();
                    assert_eq!(got.ranks[i] as usize, higher + 1, "{i}");
                }
                assert!(near(got.log_sum_exp, of_processed.log_sum_exp));
                assert!(near(got.entropy, of_processed.entropy));
                let top: Vec<TokenId> = got.top.iter().map(|t| t.0).collect();
                assert_eq!(top, of.order[..3]);
                assert!(near(got.top[0].1, of.log_probs[top[0] as usize]));
                // Philox by hand: counter [0, position, lineage, purpose], key [low, high].
                let w = super::super::philox::philox4x32_10([0, 3, 6, 8], [9, 1 << 8]);
                assert_eq!(got.uniform, uniform(w[0]));
            }
        }
    }
}

#[test]
fn entropy_of_equal_and_of_certain_tokens() {
    let entropy = |row: &[f32]| match run(
        row,
        Vec::new(),
        DrawKind::Candidates(asked(1)),
        LogprobsMode::Raw,
    ) {
        SampleOutcome::Candidates(c) => f64::from(c.entropy),
        other => panic!("{other:?}"),
    };
    assert!((entropy(&[3.0; 64]) - 64f64.ln()).abs() < 1e-6);
    let one = [f32::NEG_INFINITY, -700.0, f32::NEG_INFINITY];
    assert_eq!(entropy(&one), 0.0);
    assert!(entropy(&[0.0, -1000.0]).abs() < 1e-12);
}

#[test]
fn whole_rows_come_with_the_raw_one_if_it_differs() {
    let raw = logits(300, 4);
    let row = |stages| match run(&raw, stages, DrawKind::Row(asked(1)), LogprobsMode::Raw) {
        SampleOutcome::Row(row) => row,
        other => panic!("{other:?}"),
    };
    let got = row(stages(300));
    assert_eq!(got.logits, processed(&raw));
    assert_eq!(got.raw.as_deref(), Some(&raw[..]));
    assert_eq!(got.top.len(), 3);
    let same = row(vec![Stage::MinTokens {
        count: 1,
        banned: vec![4],
    }]);
    assert_eq!((same.logits, same.raw), (raw.clone(), None));
}

#[test]
fn processed_log_probabilities_of_a_token() {
    let raw = logits(300, 8);
    let want = slow(&processed(&raw));
    for (mode, of) in [
        (LogprobsMode::Raw, slow(&raw)),
        (LogprobsMode::Processed, slow(&processed(&raw))),
    ] {
        let SampleOutcome::Token(got) = run(&raw, stages(300), DrawKind::Greedy, mode) else {
            panic!("no token");
        };
        assert_eq!(got.token, 7);
        assert!(near(got.logprob, of.log_probs[7]));
        assert!(near(got.processed_logprob, want.log_probs[7]));
        let rank = of.order.iter().position(|&t| t == 7).unwrap() + 1;
        assert_eq!(got.rank as usize, rank);
        let top: Vec<TokenId> = got.top.iter().map(|t| t.0).collect();
        assert_eq!(top, of.order[..3]);
    }
}

#[test]
fn rows_that_cannot_be_drawn_from_fail_for_guests_too() {
    for kind in [DrawKind::Candidates(asked(2)), DrawKind::Row(asked(2))] {
        let banned = Stage::BannedTokens(vec![0, 1, 2]);
        for (row, stages) in [
            ([1.0, f32::NAN, 0.0], Vec::new()),
            ([f32::NEG_INFINITY; 3], Vec::new()),
            ([1.0, 2.0, 3.0], vec![banned]),
        ] {
            let outcome = run(&row, stages, kind, LogprobsMode::Raw);
            let fails = match &outcome {
                SampleOutcome::Failed(_) => row[1].is_nan(),
                SampleOutcome::Refused(_) => !row[1].is_nan(),
                _ => false,
            };
            assert!(fails, "{outcome:?}");
        }
    }
}
