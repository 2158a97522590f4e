//! Sampling against the CPU's sampler.

use std::sync::Arc;

use guesthouse_engine::{
    Draw as DrawKind, LogprobsMode, RandomKey, SampleOutcome, Sampled, SamplingPlan, Stage, Ticket,
};

use super::KernelReport;
use super::memory::{DTYPES, Random, round};
use super::timing::Timer;
use crate::cpu::sample::{Isa, Work, draw as on_cpu, score as score_on_cpu, stage_name};
use crate::cuda::driver::{Buffer, Gpu};
use crate::cuda::ops::Tensor;
use crate::cuda::options::CudaDtype;
use crate::cuda::sample::{Sampler, SamplerLimits, Sharing};
use crate::cuda::weights::stored;
use crate::device::{Draw, Score};
use crate::error::Result;
use crate::history::{Counting, History};

mod hand;
mod stages;

const NAME: &str = "sample";

/// Both add f32 exponentials in another order; the CPU's are those of a polynomial.
const TOLERANCE: f64 = 2e-5;

/// One token, a few, an odd number, and real ones.
const VOCABS: [usize; 6] = [1, 3, 31, 50_257, 128_256, 151_936];

const ROWS: usize = 4;

const SHAPES: [Shape; 4] = [Shape::Peaked, Shape::Flat, Shape::Ties, Shape::Holes];

/// What logits look like.
#[derive(Clone, Copy, Debug)]
enum Shape {
    /// Like a model's: a few tokens stand out.
    Peaked,
    /// Hardly different, as random weights make them.
    Flat,
    /// Whole numbers: many are equal.
    Ties,
    /// Most are -inf.
    Holes,
}

/// What draws are made from, and by whom.
#[derive(Clone, Copy)]
struct Case {
    dtype: CudaDtype,
    vocab: usize,
    shape: Shape,
    sharing: Sharing,
}

/// Every type, vocabulary, shape and plan, and times.
pub(super) fn check(gpu: &Arc<Gpu>, report: &mut dyn FnMut(KernelReport)) -> Result<()> {
    for dtype in DTYPES {
        for vocab in VOCABS {
            for shape in SHAPES {
                let case = Case {
                    dtype,
                    vocab,
                    shape,
                    sharing: Sharing::Best,
                };
                report(one(gpu, case, "", &plans(vocab))?);
                for (name, plans) in stages::plans(vocab) {
                    report(one(gpu, case, name, &plans)?);
                }
            }
        }
    }
    for vocab in [31, 50_257, 128_256] {
        for shape in SHAPES {
            let case = Case {
                dtype: CudaDtype::F32,
                vocab,
                shape,
                sharing: Sharing::Block,
            };
            report(one(gpu, case, "", &plans(vocab))?);
            for (name, plans) in stages::plans(vocab) {
                report(one(gpu, case, name, &plans)?);
            }
        }
    }
    report(failures(gpu)?);
    hand::check(gpu, report)?;
    timed(gpu, report)
}

/// Rows of logits of a type, and their values.
fn logits(dtype: CudaDtype, rows: usize, vocab: usize, shape: Shape) -> (Vec<u8>, Vec<f32>) {
    let mut random = Random::new(vocab as u64 + 7);
    let values: Vec<f32> = (0..rows * vocab)
        .map(|i| {
            let z = random.next();
            let x = match shape {
                Shape::Peaked if i % 997 == 5 => 9.0 + z,
                Shape::Peaked => 2.0 * z - 5.0,
                Shape::Flat => 0.01 * z,
                Shape::Ties => (3.0 * z).round(),
                // Some row would be all -inf otherwise.
                Shape::Holes if !i.is_multiple_of(7) && !i.is_multiple_of(vocab) => {
                    f64::NEG_INFINITY
                }
                Shape::Holes => z,
            };
            round(dtype, x) as f32
        })
        .collect();
    (stored(&values, dtype), values)
}

/// Plans that together hold every stage, in usual and in odd orders.
fn plans(vocab: usize) -> Vec<SamplingPlan> {
    let few: Vec<u32> = (0..vocab as u32).step_by(3).take(200).collect();
    let bias: Vec<(u32, f32)> = few
        .iter()
        .map(|&t| (t, (t % 7) as f32 - 3.0))
        .chain([(0, 0.5)])
        .collect();
    let sample = |stages: Vec<Stage>| SamplingPlan {
        stages,
        draw: DrawKind::Sample,
    };
    let greedy = |stages: Vec<Stage>| SamplingPlan {
        stages,
        draw: DrawKind::Greedy,
    };
    let penalties = Stage::Penalties {
        repetition: 1.3,
        presence: 0.5,
        frequency: 0.25,
    };
    vec![
        greedy(vec![]),
        sample(vec![]),
        sample(vec![Stage::Temperature(0.8), Stage::TopP(0.9)]),
        sample(vec![
            Stage::Temperature(0.6),
            Stage::TopK(20),
            Stage::TopP(0.95),
        ]),
        sample(vec![Stage::TopK(1000), Stage::MinP(0.01)]),
        sample(vec![Stage::Temperature(1.5), Stage::TypicalP(0.6)]),
        greedy(vec![penalties.clone(), Stage::LogitBias(bias.clone())]),
        sample(vec![
            Stage::BannedTokens(few.clone()),
            Stage::BadWords(vec![vec![1, 2, 0], vec![2, 1]]),
            Stage::MinTokens {
                count: 100,
                banned: vec![2],
            },
            penalties,
            Stage::Temperature(0.01),
            Stage::TopP(0.5),
        ]),
        sample(vec![Stage::AllowedTokens(few), Stage::Temperature(5e4)]),
        sample(vec![
            Stage::TopP(0.7),
            Stage::Temperature(2.0),
            Stage::LogitBias(bias),
            Stage::TopK(5),
            Stage::Temperature(0.5),
            Stage::MinP(0.1),
        ]),
    ]
}

fn sampler(
    gpu: &Arc<Gpu>,
    dtype: CudaDtype,
    vocab: usize,
    draws: usize,
    sharing: Sharing,
) -> Result<Sampler> {
    Sampler::sharing(
        gpu,
        SamplerLimits {
            vocab: vocab as u32,
            logits: dtype,
            rows: draws as u32,
            draws: draws as u32,
            steps: 1,
        },
        sharing,
    )
}

fn tensor(buffer: &Buffer, vocab: usize) -> Tensor {
    Tensor {
        data: buffer.address(),
        stride: vocab as i64,
    }
}

/// Every plan on every row, with and without a mask, and scores.
fn one(gpu: &Arc<Gpu>, case: Case, name: &str, plans: &[SamplingPlan]) -> Result<KernelReport> {
    let Case {
        dtype,
        vocab,
        shape,
        sharing,
    } = case;
    let (stored, values) = logits(dtype, ROWS, vocab, shape);
    let buffer = gpu.upload(&stored, "checking")?;
    let prompt: Vec<u32> = (0..300u32).map(|i| i * 7 % vocab as u32).collect();
    let mut tokens = prompt.clone();
    tokens.extend([0, 1, 2].map(|t: u32| t % vocab as u32));
    let history = History::new(&tokens, prompt.len(), Counting::On);
    let mask: Vec<u32> = (0..vocab.div_ceil(32) as u32)
        .map(|w| 0x9e37_79b9u32.rotate_left(w % 32) | u32::from(w == 0))
        .collect();
    let draws: Vec<Draw<'_>> = (0..plans.len() * 2)
        .map(|i| Draw {
            logits: i % ROWS,
            plan: &plans[i / 2],
            history: &history,
            random: RandomKey {
                seed: i as u64 * 0x1234_5678_9abc,
                lineage: i as u32,
            },
            mu: (i % 2 == 1).then_some(3.5),
            mask: (i % 2 == 1).then_some(mask.as_slice()),
            top: [0, 5, 64, 300][i % 4],
            logprobs: [LogprobsMode::Raw, LogprobsMode::Processed][i / 4 % 2],
        })
        .collect();
    let scores: Vec<Score> = (0..ROWS)
        .map(|i| Score {
            token: i,
            target: (i * 31 % vocab) as u32,
            top: 3,
        })
        .collect();
    let mut sampler = sampler(gpu, dtype, vocab, draws.len(), sharing)?;
    let logits = tensor(&buffer, vocab);
    sampler.score(Ticket(1), logits, &scores)?;
    sampler.sample(Ticket(1), logits, None, &draws)?;
    gpu.synchronize()?;
    let (outcomes, scored) = sampler.finish(Ticket(1))?;

    let isa = Isa::detect();
    let mut work = Work::default();
    let row = |r: usize| &values[r * vocab..(r + 1) * vocab];
    let mut error = 0f64;
    for (draw, found) in draws.iter().zip(&outcomes) {
        let want = on_cpu(isa, row(draw.logits), draw, &mut work);
        error = error.max(difference(found, &want));
    }
    for (score, found) in scores.iter().zip(&scored) {
        let want = score_on_cpu(isa, row(score.token), score.target, score.top);
        error = error.max(apart(found, &want));
    }
    let block = if sharing == Sharing::Block {
        " one block"
    } else {
        ""
    };
    let case = format!("{} {vocab} {shape:?}{block} {name}", dtype.name());
    // Several cuts in a row of nearly equal tokens: one token more or less at a border.
    let tolerance = if name == "mixed" { 1e-4 } else { TOLERANCE };
    Ok(KernelReport::new(NAME, case, error, tolerance))
}

/// Infinite where outcomes differ in kind.
fn difference(found: &SampleOutcome, want: &SampleOutcome) -> f64 {
    match (found, want) {
        (SampleOutcome::Token(a), SampleOutcome::Token(b)) => apart(a, b),
        (SampleOutcome::Failed(a), SampleOutcome::Failed(b))
        | (SampleOutcome::Refused(a), SampleOutcome::Refused(b))
            if a == b =>
        {
            0.0
        }
        _ => f64::INFINITY,
    }
}

/// Largest difference of log-probabilities; infinite where tokens or ranks differ.
fn apart(a: &Sampled, b: &Sampled) -> f64 {
    let ids = |s: &Sampled| s.top.iter().map(|t| t.0).collect::<Vec<_>>();
    if (a.token, a.rank, a.mu.is_some()) != (b.token, b.rank, b.mu.is_some()) || ids(a) != ids(b) {
        return f64::INFINITY;
    }
    let numbers = |s: &Sampled| {
        let mut all = vec![s.logprob, s.processed_logprob, s.mu.unwrap_or(0.0)];
        all.extend(s.top.iter().map(|t| t.1));
        all
    };
    numbers(a)
        .into_iter()
        .zip(numbers(b))
        .map(|(x, y)| {
            if x == y || (x.is_nan() && y.is_nan()) {
                0.0
            } else {
                f64::from((x - y).abs() / y.abs().max(1.0))
            }
        })
        .fold(0.0, |most, x| if x > most || x.is_nan() { x } else { most })
}

/// Rows and plans that cannot be sampled.
fn failures(gpu: &Arc<Gpu>) -> Result<KernelReport> {
    const VOCAB: usize = 100;
    let mut values = vec![0.5f32; 4 * VOCAB];
    values[17] = f32::NAN;
    values[VOCAB + 99] = f32::INFINITY;
    values[2 * VOCAB..3 * VOCAB].fill(f32::NEG_INFINITY);
    let buffer = gpu.upload(&stored(&values, CudaDtype::F32), "checking")?;
    let all: Vec<u32> = (0..VOCAB as u32).collect();
    let plan = |stages: Vec<Stage>| SamplingPlan {
        stages,
        draw: DrawKind::Sample,
    };
    let plans = [
        SamplingPlan::greedy(),
        plan(vec![Stage::Temperature(0.0)]),
        plan(vec![Stage::BannedTokens(all.clone()), Stage::TopK(3)]),
        plan(vec![Stage::BannedTokens(all), Stage::TopP(0.5)]),
    ];
    let history = History::default();
    let draws: Vec<Draw<'_>> = (0..4 * plans.len())
        .map(|i| Draw::plain(i % 4, &plans[i / 4], &history, 1))
        .collect();
    let mut sampler = sampler(gpu, CudaDtype::F32, VOCAB, draws.len(), Sharing::Best)?;
    sampler.sample(Ticket(1), tensor(&buffer, VOCAB), None, &draws)?;
    gpu.synchronize()?;
    let (outcomes, _) = sampler.finish(Ticket(1))?;
    let mut work = Work::default();
    let error = draws.iter().zip(&outcomes).map(|(draw, found)| {
        let row = &values[draw.logits * VOCAB..(draw.logits + 1) * VOCAB];
        difference(found, &on_cpu(Isa::detect(), row, draw, &mut work))
    });
    let error = error.fold(0.0, f64::max);
    Ok(KernelReport::new(
        NAME,
        "what cannot be sampled",
        error,
        0.0,
    ))
}

/// Vocabulary of what is timed.
const TIMED_VOCAB: usize = 128_256;

/// Rows of one plan.
struct Timed<'a> {
    rows: usize,
    /// `[rows, TIMED_VOCAB]` f32.
    logits: Tensor,
    plan: &'a SamplingPlan,
    history: &'a History,
}

/// How long the draws of a step take, with encoding and the wait for their results.
fn time(gpu: &Arc<Gpu>, timer: &Timer, work: &Timed<'_>, name: &str) -> Result<KernelReport> {
    let rows = work.rows;
    let draws: Vec<Draw<'_>> = (0..rows)
        .map(|i| Draw::plain(i, work.plan, work.history, i as u64))
        .collect();
    let mut sampler = sampler(gpu, CudaDtype::F32, TIMED_VOCAB, rows, Sharing::Best)?;
    sampler.ready()?;
    let seconds = timer.time(|| {
        sampler.sample(Ticket(1), work.logits, None, &draws)?;
        gpu.synchronize()?;
        sampler.finish(Ticket(1)).map(drop)
    })?;
    let case = format!("float32 {rows}×{TIMED_VOCAB} {name}");
    let mut line = KernelReport::new(NAME, case, 0.0, 0.0);
    line.seconds = Some(seconds);
    line.bytes = Some((rows * TIMED_VOCAB * 4) as f64);
    Ok(line)
}

/// Draws of many rows and of one: greedy, top-p, and each stage alone.
fn timed(gpu: &Arc<Gpu>, report: &mut dyn FnMut(KernelReport)) -> Result<()> {
    let timer = Timer::new(gpu)?;
    let top_p = SamplingPlan {
        stages: vec![Stage::Temperature(0.8), Stage::TopP(0.9)],
        draw: DrawKind::Sample,
    };
    let usual = [
        ("greedy".to_owned(), SamplingPlan::greedy()),
        ("top-p 0.9".to_owned(), top_p),
    ];
    let history: Vec<u32> = (0..1000u32).map(|i| i * i % 50_000).collect();
    let history = History::new(&history, 500, Counting::On);
    for (shape, rows) in [
        (Shape::Peaked, 1),
        (Shape::Peaked, 64),
        (Shape::Peaked, 256),
        (Shape::Flat, 1),
        (Shape::Flat, 256),
    ] {
        let (stored, _) = logits(CudaDtype::F32, rows, TIMED_VOCAB, shape);
        let buffer = gpu.upload(&stored, "checking")?;
        let alone = stages::alone(TIMED_VOCAB).into_iter().map(|stage| {
            let plan = SamplingPlan {
                stages: vec![stage.clone()],
                draw: DrawKind::Sample,
            };
            (stage_name(&stage).to_owned(), plan)
        });
        for (name, plan) in usual.iter().cloned().chain(alone) {
            let work = Timed {
                rows,
                logits: tensor(&buffer, TIMED_VOCAB),
                plan: &plan,
                history: &history,
            };
            let name = format!("{shape:?} {name}");
            report(time(gpu, &timer, &work, &name)?);
        }
    }
    Ok(())
}
