//! Draws through every stage follow the reference's distribution: chi-square over many seeds, always the same ones.

use guesthouse_engine::{Dry, Watermark};

use super::properties::{Numbers, stage};
use super::reference::{Setting, apply_all, softmax};
use super::*;

/// Seeds of a case.
const DRAWS: u64 = 8000;

fn row() -> Vec<f32> {
    // Mixed, without ties.
    (0..24u32)
        .map(|i| ((i * 7 % 24) as f32) * 0.23 - 2.0 + 0.01 * i as f32)
        .collect()
}

/// Chi-square that 1 of 10,000 samples exceeds (Wilson and Hilferty).
fn bar(freedom: f64) -> f64 {
    let v = 2.0 / (9.0 * freedom);
    freedom * (1.0 - v + 3.719 * v.sqrt()).powi(3)
}

fn check(stages: Vec<Stage>) {
    let row = row();
    let tokens: Vec<u32> = vec![0, 1, 2, 3, 1, 2, 5, 1, 2];
    let plan = SamplingPlan {
        stages,
        draw: DrawKind::Sample,
    };
    let history = History::for_plan(&tokens, 4, &plan);
    let mut seen = vec![0f64; row.len()];
    // What is expected depends on the seed where a stage throws a coin, so it is added up draw by draw.
    let mut want = vec![0f64; row.len()];
    for seed in 0..DRAWS {
        let setting = Setting {
            tokens: tokens.clone(),
            prompt_len: 4,
            random: key(seed),
            mu: None,
        };
        let p = softmax(&apply_all(&row, &plan.stages, &setting).unwrap());
        want.iter_mut().zip(&p).for_each(|(w, p)| *w += p);
        let token = token(run(&row, &plan, &history, seed)).token;
        assert!(p[token as usize] > 0.0, "{:?}", plan.stages);
        seen[token as usize] += 1.0;
    }
    // Rare tokens count as one.
    let (mut chi, mut cells, mut rare) = (0.0, 0.0, (0.0, 0.0));
    for (s, w) in seen.iter().zip(&want) {
        if *w >= 8.0 {
            chi += (s - w) * (s - w) / w;
            cells += 1.0;
        } else {
            rare = (rare.0 + s, rare.1 + w);
        }
    }
    if rare.1 >= 1.0 {
        chi += (rare.0 - rare.1) * (rare.0 - rare.1) / rare.1;
        cells += 1.0;
    }
    if cells < 2.0 {
        assert!(chi < 1e-6);
        return;
    }
    assert!(
        chi < bar(cells - 1.0),
        "{:?}: {chi} over {cells} cells",
        plan.stages
    );
}

#[test]
fn every_stage_alone() {
    let hand = [
        Stage::AllowedTokens(vec![3, 5, 7, 23]),
        Stage::BannedTokens(vec![3, 5, 7]),
        Stage::BadWords(vec![vec![1, 2, 7], vec![2, 9], vec![4, 10], vec![11]]),
        Stage::LogitBias(vec![(2, 1.5), (3, -2.0)]),
        Stage::MinTokens {
            count: 6,
            banned: vec![7],
        },
        Stage::Penalties {
            repetition: 1.3,
            presence: 0.5,
            frequency: 0.25,
        },
        Stage::Temperature(0.7),
        Stage::TopK(5),
        Stage::TopP(0.8),
        Stage::MinP(0.1),
        Stage::TypicalP(0.7),
        Stage::NoRepeatNgram(3),
        Stage::Dry(Dry {
            multiplier: 1.0,
            base: 1.5,
            allowed_length: 1,
            range: 0,
            breakers: vec![],
        }),
        Stage::DynamicTemperature {
            min: 0.3,
            max: 1.5,
            exponent: 2.0,
        },
        Stage::TopNSigma(1.0),
        Stage::EpsilonCutoff(0.03),
        Stage::EtaCutoff(0.3),
        Stage::TailFree(0.9),
        Stage::Xtc {
            probability: 0.5,
            threshold: 0.06,
        },
        Stage::Mirostat1 { tau: 2.0, eta: 0.1 },
        Stage::Mirostat2 { tau: 2.0, eta: 0.1 },
        Stage::Watermark(Watermark {
            key: 99,
            gamma: 0.4,
            delta: 1.5,
            context: 2,
        }),
    ];
    for stage in hand {
        check(vec![stage]);
    }
}

#[test]
fn stages_together() {
    check(vec![
        Stage::Temperature(1.4),
        Stage::Xtc {
            probability: 0.4,
            threshold: 0.07,
        },
        Stage::TopP(0.9),
    ]);
    let mut n = Numbers(9 << 20);
    let watermark = stage(21, 24, &mut n);
    check(vec![watermark, Stage::Mirostat2 { tau: 1.7, eta: 0.1 }]);
}
