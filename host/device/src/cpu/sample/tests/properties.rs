//! Stages against their references on random rows, alone and in random orders.

use guesthouse_engine::{Dry, Watermark};

use super::reference::{Setting, Stop, apply_all};
use super::*;

/// Numbers that look random.
pub(super) struct Numbers(pub u64);

impl Numbers {
    pub(super) fn next(&mut self) -> u32 {
        self.0 += 1;
        philox4x32_10([self.0 as u32, 0, 0, 77], [3, 4])[0]
    }

    pub(super) fn below(&mut self, n: u32) -> u32 {
        ((u64::from(self.next()) * u64::from(n)) >> 32) as u32
    }

    fn unit(&mut self) -> f32 {
        uniform(self.next())
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u32) as usize]
    }
}

/// Kinds of stages that [`stage`] makes.
pub(super) const KINDS: u32 = 22;

/// A stage with usual or extreme numbers.
pub(super) fn stage(kind: u32, vocab: u32, numbers: &mut Numbers) -> Stage {
    let n = numbers;
    let ids = |n: &mut Numbers, most: u32| -> Vec<u32> {
        (0..n.below(most)).map(|_| n.below(vocab)).collect()
    };
    match kind {
        0 => {
            let mut allowed = ids(n, 2 * vocab);
            allowed.push(n.below(vocab));
            Stage::AllowedTokens(allowed)
        }
        1 => Stage::BannedTokens(ids(n, vocab.min(9))),
        2 => Stage::BadWords(vec![
            vec![n.below(vocab), n.below(vocab)],
            vec![n.below(vocab)],
        ]),
        3 => {
            let mut list = ids(n, 9);
            list.sort_unstable();
            list.dedup();
            Stage::LogitBias(
                list.into_iter()
                    .map(|t| (t, 8.0 * n.unit() - 4.0))
                    .collect(),
            )
        }
        4 => Stage::MinTokens {
            count: n.below(8),
            banned: ids(n, 3),
        },
        5 => Stage::Penalties {
            repetition: n.pick(&[1.0, 1.3, 0.7]),
            presence: n.pick(&[0.0, 0.5, -0.5]),
            frequency: n.pick(&[0.0, 0.25]),
        },
        6 => Stage::Temperature(n.pick(&[0.01, 0.7, 1.0, 1.9, 1e4])),
        7 => Stage::TopK(n.pick(&[0, 1, 3, 70, 4000, u32::MAX])),
        8 => Stage::TopP(n.pick(&[0.0, 0.3, 0.9, 0.999, 1.0])),
        9 => Stage::MinP(n.pick(&[0.0, 1e-5, 0.05, 0.7])),
        10 => Stage::TypicalP(n.pick(&[0.1, 0.5, 0.95, 1.0])),
        11 => Stage::NoRepeatNgram(n.pick(&[1, 2, 3, 50])),
        12 => Stage::Dry(Dry {
            multiplier: n.pick(&[0.0, 0.8, 3.0]),
            base: n.pick(&[1.0, 1.75, 40.0]),
            allowed_length: n.below(4),
            range: n.pick(&[0, 1, 5, 100]),
            breakers: ids(n, 3),
        }),
        13 => {
            let min = n.pick(&[0.1, 0.7, 1.0]);
            Stage::DynamicTemperature {
                min,
                max: min * n.pick(&[1.0, 2.0, 30.0]),
                exponent: n.pick(&[0.1, 1.0, 3.0]),
            }
        }
        14 => Stage::TopNSigma(n.pick(&[0.0, 0.5, 1.0, 3.0, 1e6])),
        15 => Stage::EpsilonCutoff(n.pick(&[0.0, 1e-4, 0.02, 1.0])),
        16 => Stage::EtaCutoff(n.pick(&[0.0, 1e-4, 0.02, 1.0])),
        17 => Stage::TailFree(n.pick(&[0.0, 0.3, 0.9, 0.99, 1.0, 7.0])),
        18 => Stage::Xtc {
            probability: n.pick(&[0.0, 0.5, 1.0]),
            threshold: n.pick(&[1e-3, 0.1, 0.4, 1.0]),
        },
        19 => Stage::Mirostat1 {
            tau: n.pick(&[0.0, 1.0, 3.0, 9.0]),
            eta: 0.1,
        },
        20 => Stage::Mirostat2 {
            tau: n.pick(&[0.0, 1.0, 3.0, 9.0]),
            eta: 0.1,
        },
        _ => Stage::Watermark(Watermark {
            key: u64::from(n.next()) << 20,
            gamma: n.pick(&[0.01, 0.25, 0.5, 0.99]),
            delta: n.pick(&[-1.0, 2.0, 30.0]),
            context: 1 + n.below(8),
        }),
    }
}

/// Peaked, flat, with ties, with holes, with few tokens, or with one.
pub(super) fn row(n: &mut Numbers) -> Vec<f32> {
    let vocab = n.pick(&[1, 2, 3, 5, 17, 130, 700, 5000]) as usize;
    let scale = n.pick(&[0.001, 1.0, 4.0, 30.0]);
    let kind = n.below(4);
    let mut row: Vec<f32> = (0..vocab)
        .map(|_| {
            let z: f32 = (0..4).map(|_| n.unit()).sum::<f32>() * 2.0 - 4.0;
            let x = z * scale;
            match kind {
                0 => x,
                1 => (x * 2.0).round() / 2.0,
                2 if n.below(3) > 0 => f32::NEG_INFINITY,
                2 => x,
                _ => x + if n.below(50) == 0 { 9.0 } else { 0.0 },
            }
        })
        .collect();
    row[n.below(vocab as u32) as usize] = scale;
    row
}

pub(super) fn setting(vocab: u32, n: &mut Numbers) -> Setting {
    let few = vocab.min(6);
    let len = n.below(40) as usize;
    let tokens: Vec<u32> = (0..len).map(|_| n.below(few)).collect();
    Setting {
        prompt_len: n.below(len as u32 + 1) as usize,
        tokens,
        random: RandomKey {
            seed: u64::from(n.next()),
            lineage: n.below(3),
        },
        mu: n.pick(&[None, None, Some(0.5), Some(4.0), Some(20.0), Some(-3.0)]),
    }
}

/// The row that the stages leave.
pub(super) fn run_stages(
    row: &[f32],
    plan: &SamplingPlan,
    s: &Setting,
) -> Result<Vec<f32>, String> {
    let history = History::for_plan(&s.tokens, s.prompt_len, plan);
    let draw = Draw {
        random: s.random,
        mu: s.mu,
        ..drawn(plan, &history, 0)
    };
    let mut run = stages::Run::new(Isa::detect(), &draw);
    let mut x = row.to_vec();
    for stage in &plan.stages {
        run.apply(stage, &mut x)?;
    }
    Ok(x)
}

/// Whether the case could be compared.
fn compare(row: &[f32], stages: Vec<Stage>, s: &Setting) -> bool {
    let plan = SamplingPlan {
        stages,
        draw: DrawKind::Sample,
    };
    let what = || format!("{:?} of {} tokens, {s:?}", plan.stages, row.len());
    let got = run_stages(row, &plan, s);
    match apply_all(row, &plan.stages, s) {
        Err(Stop::Unsure) => return false,
        Err(Stop::NothingLeft) => assert_eq!(got, Err(NO_PROBABILITIES.to_owned()), "{}", what()),
        Ok(want) => {
            let got = got.unwrap_or_else(|e| panic!("{e}: {}", what()));
            for (t, (&a, &b)) in got.iter().zip(&want).enumerate() {
                let a = f64::from(a);
                let close = a == b || (a - b).abs() <= 3e-6 * (1.0 + b.abs());
                assert!(close, "token {t}: {a} instead of {b}: {}", what());
            }
        }
    }
    true
}

#[test]
fn each_stage_equals_its_reference() {
    let mut n = Numbers(1 << 20);
    for kind in 0..KINDS {
        let mut compared = 0;
        for _ in 0..120 {
            let row = row(&mut n);
            let s = setting(row.len() as u32, &mut n);
            let stage = stage(kind, row.len() as u32, &mut n);
            compared += u32::from(compare(&row, vec![stage], &s));
        }
        assert!(compared >= 60, "kind {kind}: {compared} of 120 compared");
    }
}

#[test]
fn stages_in_any_order_equal_their_references() {
    let mut n = Numbers(2 << 20);
    let mut compared = 0;
    for _ in 0..1200 {
        let row = row(&mut n);
        let vocab = row.len() as u32;
        let s = setting(vocab, &mut n);
        let mut stages: Vec<Stage> = Vec::new();
        for _ in 0..=n.below(6) {
            let kind = n.below(KINDS);
            let next = stage(kind, vocab, &mut n);
            let mirostat =
                |s: &Stage| matches!(s, Stage::Mirostat1 { .. } | Stage::Mirostat2 { .. });
            if !(mirostat(&next) && stages.iter().any(mirostat)) {
                stages.push(next);
            }
        }
        compared += u32::from(compare(&row, stages, &s));
    }
    assert!(compared >= 700, "{compared} of 1200 compared");
}

#[test]
fn rows_that_are_not_finite_are_refused_before_any_stage() {
    let mut n = Numbers(3 << 20);
    for kind in 0..KINDS {
        for bad in [f32::NAN, f32::INFINITY] {
            let mut row = row(&mut n);
            let vocab = row.len() as u32;
            row[n.below(vocab) as usize] = bad;
            let plan = SamplingPlan {
                stages: vec![stage(kind, vocab, &mut n)],
                draw: DrawKind::Sample,
            };
            let got = run(&row, &plan, &History::default(), 1);
            assert_eq!(got, SampleOutcome::Failed(NOT_FINITE.to_owned()));
        }
    }
}

#[test]
fn numbers_out_of_range_are_refused() {
    let dry = |multiplier, base| {
        Stage::Dry(Dry {
            multiplier,
            base,
            allowed_length: 2,
            range: 0,
            breakers: vec![],
        })
    };
    let mark = |gamma, delta, context| {
        Stage::Watermark(Watermark {
            key: 1,
            gamma,
            delta,
            context,
        })
    };
    let nan = f32::NAN;
    let dynamic = |min, max, exponent| Stage::DynamicTemperature { min, max, exponent };
    let xtc = |probability, threshold| Stage::Xtc {
        probability,
        threshold,
    };
    let bad = [
        Stage::NoRepeatNgram(0),
        dry(-1.0, 2.0),
        dry(1.0, 0.5),
        dry(nan, 2.0),
        dynamic(0.0, 1.0, 1.0),
        dynamic(1.0, 0.5, 1.0),
        dynamic(1.0, f32::INFINITY, 1.0),
        dynamic(1.0, 2.0, nan),
        Stage::TopNSigma(-1.0),
        Stage::EpsilonCutoff(1.5),
        Stage::EtaCutoff(nan),
        Stage::TailFree(nan),
        xtc(1.5, 0.1),
        xtc(0.5, nan),
        Stage::Mirostat1 { tau: nan, eta: 0.1 },
        Stage::Mirostat2 {
            tau: 1.0,
            eta: -1.0,
        },
        mark(0.0, 1.0, 1),
        mark(1.0, 1.0, 1),
        mark(0.5, nan, 1),
        mark(0.5, 1.0, 0),
        mark(0.5, 1.0, 9),
    ];
    for stage in bad {
        let plan = SamplingPlan {
            stages: vec![stage.clone()],
            draw: DrawKind::Sample,
        };
        match run(&[1.0, 2.0], &plan, &History::default(), 1) {
            SampleOutcome::Refused(why) => assert!(why.contains("expected"), "{stage:?}: {why}"),
            other => panic!("{stage:?}: {other:?}"),
        }
    }
    let miro = Stage::Mirostat2 { tau: 1.0, eta: 0.1 };
    let plan = SamplingPlan {
        stages: vec![miro.clone(), miro],
        draw: DrawKind::Sample,
    };
    let got = run(&[1.0, 2.0], &plan, &History::default(), 1);
    assert!(matches!(got, SampleOutcome::Refused(why) if why.contains("two mirostat")));
}
