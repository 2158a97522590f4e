#![allow(clippy::unwrap_used, clippy::panic)]

use guesthouse_engine::{LogprobsMode, RandomKey, SamplingPlan};

use super::philox::{Purpose, philox4x32_10, uniform, words};
use super::*;
use crate::history::{Counting, History};

/// Known answers of Random123's `kat_vectors` for philox4x32-10.
#[test]
fn philox_gives_the_published_numbers() {
    assert_eq!(
        philox4x32_10([0; 4], [0; 2]),
        [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]
    );
    assert_eq!(
        philox4x32_10([u32::MAX; 4], [u32::MAX; 2]),
        [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]
    );
    assert_eq!(
        philox4x32_10(
            [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
            [0xa409_3822, 0x299f_31d0]
        ),
        [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
    );
}

fn key(seed: u64) -> RandomKey {
    RandomKey { seed, lineage: 0 }
}

#[test]
fn counters_hold_token_position_lineage_and_purpose() {
    let random = RandomKey {
        seed: 0x1111_2222_3333_4444,
        lineage: 9,
    };
    let want = philox4x32_10([25, 7, 9, 0], [0x3333_4444, 0x1111_2222]);
    assert_eq!(words(random, 7, Purpose::Token, 25), want);
    assert!(uniform(0) > 0.0 && uniform(u32::MAX) < 1.0);
    assert_eq!(uniform(1 << 31), 0.5 + 2f32.powi(-24));
}

fn logits(n: usize, seed: u32) -> Vec<f32> {
    (0..n as u32)
        .map(|i| {
            let h = philox4x32_10([i, seed, 0, 0], [1, 2]);
            (h[0] as f32 / u32::MAX as f32
                + h[1] as f32 / u32::MAX as f32
                + h[2] as f32 / u32::MAX as f32
                - 1.5)
                * 5.0
        })
        .collect()
}

fn run(logits: &[f32], plan: &SamplingPlan, history: &History, seed: u64) -> SampleOutcome {
    let draw_ = drawn(plan, history, seed);
    draw(Isa::detect(), logits, &draw_, &mut Work::default())
}

fn drawn<'a>(plan: &'a SamplingPlan, history: &'a History, seed: u64) -> Draw<'a> {
    Draw {
        logits: 0,
        plan,
        history,
        random: key(seed),
        mu: None,
        mask: None,
        top: 4,
        logprobs: LogprobsMode::Raw,
    }
}

fn token(outcome: SampleOutcome) -> Sampled {
    match outcome {
        SampleOutcome::Token(t) => t,
        other => panic!("{other:?}"),
    }
}

fn softmax(x: &[f32]) -> Vec<f64> {
    let max = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let e: Vec<f64> = x
        .iter()
        .map(|&x| (f64::from(x) - f64::from(max)).exp())
        .collect();
    let sum: f64 = e.iter().sum();
    e.into_iter().map(|e| e / sum).collect()
}

/// What a plan leaves of the logits.
fn processed(logits: &[f32], stages: &[Stage], history: &History) -> Vec<f32> {
    let plan = SamplingPlan {
        stages: stages.to_vec(),
        draw: DrawKind::Greedy,
    };
    let mut x = logits.to_vec();
    let mut run = stages::Run::new(Isa::detect(), &drawn(&plan, history, 0));
    for stage in stages {
        run.apply(stage, &mut x).unwrap();
    }
    x
}

#[test]
fn draws_follow_the_distribution() {
    let x = [1.0, 0.0, -1.0, 2.0, f32::NEG_INFINITY, 0.5, 1.5, -3.0];
    let p = softmax(&x);
    let plan = SamplingPlan {
        stages: Vec::new(),
        draw: DrawKind::Sample,
    };
    let n = 40_000;
    let mut seen = [0f64; 8];
    for seed in 0..n {
        let s = token(run(&x, &plan, &History::default(), seed));
        seen[s.token as usize] += 1.0;
    }
    assert_eq!(seen[4], 0.0);
    let chi: f64 = seen
        .iter()
        .zip(&p)
        .filter(|(_, p)| **p > 0.0)
        .map(|(s, p)| (s - n as f64 * p).powi(2) / (n as f64 * p))
        .sum();
    // 6 degrees of freedom: 22.46 at 0.001.
    assert!(chi < 22.46, "chi-square {chi}");
}

/// Noise is skipped where it cannot win; this computes all of it.
#[test]
fn pruned_draws_equal_full_ones() {
    let x = logits(5000, 3);
    for position in 0..300u32 {
        let full = (0..5000u32)
            .map(|t| {
                let u = f64::from(uniform(
                    words(key(5), position, Purpose::Token, t / 4)[t as usize % 4],
                ));
                (f64::from(x[t as usize]) - (-u.ln()).ln(), t)
            })
            .max_by(|a, b| a.0.total_cmp(&b.0))
            .unwrap()
            .1;
        assert_eq!(select::gumbel(&x, key(5), position), full);
    }
}

#[test]
fn log_probabilities_and_ranks() {
    let x = logits(3000, 1);
    let p = softmax(&x);
    let best_token = (0..3000).max_by(|&a, &b| x[a].total_cmp(&x[b])).unwrap();
    let s = token(run(&x, &SamplingPlan::greedy(), &History::default(), 0));
    assert_eq!((s.token as usize, s.rank), (best_token, 1));
    assert!((f64::from(s.logprob) - p[best_token].ln()).abs() < 1e-5);
    let mut order: Vec<usize> = (0..3000).collect();
    order.sort_by(|&a, &b| x[b].total_cmp(&x[a]).then(a.cmp(&b)));
    for n in [1, 4, 32, 33, 200, 3000] {
        let want: Vec<u32> = order[..n].iter().map(|&t| t as u32).collect();
        assert_eq!(best(&x, n), want);
    }
    let scored = score(Isa::detect(), &x, order[17] as u32, 2);
    assert_eq!((scored.rank, scored.top.len()), (18, 2));
    // Equal logits: the lowest id wins, and ranks count only higher ones.
    let s = token(run(
        &[1.0, 3.0, 3.0, 0.0],
        &SamplingPlan::greedy(),
        &History::default(),
        0,
    ));
    assert_eq!((s.token, s.rank, s.top[1].0), (1, 1, 2));
    assert_eq!(score(Isa::detect(), &[1.0, 3.0, 3.0, 0.0], 2, 0).rank, 1);
}

fn kept(x: &[f32]) -> Vec<usize> {
    (0..x.len()).filter(|&i| x[i] > f32::NEG_INFINITY).collect()
}

#[test]
fn filters_keep_what_a_full_sort_keeps() {
    let x = logits(4000, 9);
    let p = softmax(&x);
    let mut order: Vec<usize> = (0..4000).collect();
    order.sort_by(|&a, &b| x[b].total_cmp(&x[a]));
    let none = History::default();
    for k in [1, 5, 64, 65, 700, 4000, 9000] {
        let mut want = order[..k.min(4000)].to_vec();
        want.sort_unstable();
        assert_eq!(kept(&processed(&x, &[Stage::TopK(k as u32)], &none)), want);
    }
    assert_eq!(
        kept(&processed(
            &[1.0, 2.0, 2.0, 2.0, 0.0],
            &[Stage::TopK(2)],
            &none
        )),
        [1, 2, 3]
    );
    for mass in [0.0, 0.1, 0.5, 0.9, 0.999, 1.0] {
        let mut sum = 0.0;
        let mut want = Vec::new();
        for &t in &order {
            want.push(t);
            sum += p[t];
            if sum >= f64::from(mass as f32) {
                break;
            }
        }
        if mass == 1.0 {
            want = order.clone();
        }
        want.sort_unstable();
        assert_eq!(
            kept(&processed(&x, &[Stage::TopP(mass as f32)], &none)),
            want,
            "top-p {mass}"
        );
    }
    for bar in [0.01, 0.2, 1.0] {
        let want: Vec<usize> = (0..4000)
            .filter(|&t| p[t] >= p[order[0]] * bar * (1.0 - 1e-9))
            .collect();
        assert_eq!(
            kept(&processed(&x, &[Stage::MinP(bar as f32)], &none)),
            want,
            "min-p {bar}"
        );
    }
    // Typical: closest to the entropy first.
    let entropy: f64 = p.iter().map(|p| -p * p.ln()).sum();
    let mut typical: Vec<usize> = (0..4000).collect();
    typical.sort_by(|&a, &b| {
        (-p[a].ln() - entropy)
            .abs()
            .total_cmp(&(-p[b].ln() - entropy).abs())
    });
    for mass in [0.2, 0.8] {
        let mut sum = 0.0;
        let mut want = Vec::new();
        for &t in &typical {
            want.push(t);
            sum += p[t];
            if sum >= mass {
                break;
            }
        }
        want.sort_unstable();
        assert_eq!(
            kept(&processed(&x, &[Stage::TypicalP(mass as f32)], &none)),
            want,
            "typical-p {mass}"
        );
    }
}

#[test]
fn stages_by_hand() {
    const GONE: f32 = f32::NEG_INFINITY;
    let x = [2.0, -1.0, 0.5, 3.0];
    // Prompt 0, 1; output 1, 3, 3.
    let history = History::new(&[0, 1, 1, 3, 3], 2, Counting::On);
    let go = |stage: Stage| processed(&x, &[stage], &history);
    assert_eq!(
        go(Stage::AllowedTokens(vec![3, 1, 77])),
        [GONE, -1.0, GONE, 3.0]
    );
    assert_eq!(go(Stage::BannedTokens(vec![3])), [2.0, -1.0, 0.5, GONE]);
    assert_eq!(
        go(Stage::BadWords(vec![vec![3, 3, 0], vec![1, 2], vec![2]])),
        [GONE, -1.0, GONE, 3.0]
    );
    assert_eq!(
        go(Stage::LogitBias(vec![(0, -5.0), (2, 1.0)])),
        [-3.0, -1.0, 1.5, 3.0]
    );
    assert_eq!(
        go(Stage::MinTokens {
            count: 3,
            banned: vec![0]
        }),
        x
    );
    assert_eq!(
        go(Stage::MinTokens {
            count: 4,
            banned: vec![0]
        }),
        [GONE, -1.0, 0.5, 3.0]
    );
    let penalties = Stage::Penalties {
        repetition: 2.0,
        presence: 0.25,
        frequency: 0.5,
    };
    assert_eq!(
        go(penalties),
        [1.0, -2.0 - 0.5 - 0.25, 0.5, 1.5 - 1.0 - 0.25]
    );
    assert_eq!(go(Stage::Temperature(0.5)), [4.0, -2.0, 1.0, 6.0]);
}

#[test]
fn what_cannot_be_sampled_says_why() {
    let outcome = |x: &[f32], plan: &SamplingPlan| run(x, plan, &History::default(), 0);
    let refused = |x: &[f32], plan: &SamplingPlan| match outcome(x, plan) {
        SampleOutcome::Refused(why) => why,
        other => panic!("{other:?}"),
    };
    // The model's doing, and the request's.
    for x in [f32::NAN, f32::INFINITY] {
        let found = outcome(&[1.0, x], &SamplingPlan::greedy());
        assert!(matches!(found, SampleOutcome::Failed(why) if why.contains("not finite")));
    }
    assert!(refused(&[f32::NEG_INFINITY; 3], &SamplingPlan::greedy()).contains("masked"));
    let plan = SamplingPlan {
        stages: vec![Stage::BannedTokens(vec![0, 1])],
        draw: DrawKind::Sample,
    };
    assert!(refused(&[1.0, 2.0], &plan).contains("banned tokens"));
    let plan = SamplingPlan {
        stages: vec![Stage::Temperature(0.0)],
        draw: DrawKind::Sample,
    };
    assert!(refused(&[1.0, 2.0], &plan).contains("temperature"));
}

#[test]
fn masks_come_before_raw_log_probabilities() {
    let plan = SamplingPlan {
        stages: vec![Stage::Temperature(0.5)],
        draw: DrawKind::Greedy,
    };
    let history = History::default();
    let mask = [0b0101u32];
    let draw_ = Draw {
        mask: Some(&mask),
        top: 3,
        ..drawn(&plan, &history, 1)
    };
    let x = [1.0, 9.0, 2.0, 9.0];
    let s = token(draw(Isa::detect(), &x, &draw_, &mut Work::default()));
    assert_eq!((s.token, s.rank), (2, 1));
    assert!((s.logprob - (2f32.exp() / (1f32.exp() + 2f32.exp())).ln()).abs() < 1e-6);
    assert!((s.processed_logprob - (4f32.exp() / (2f32.exp() + 4f32.exp())).ln()).abs() < 1e-6);
}

mod chi;
mod golden;
mod marks;
mod properties;
mod reference;
