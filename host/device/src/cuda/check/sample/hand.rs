//! What guests are handed: candidates, whole rows and hidden states.

use std::collections::HashSet;
use std::sync::Arc;

use guesthouse_engine::{
    Asked, Branching, Candidates, Draw as DrawKind, Hidden, LogitsRow, LogprobsMode, RandomKey,
    SampleOutcome, SamplingPlan, Stage, Ticket,
};

use super::{
    Case, KernelReport, NAME, SHAPES, Shape, TIMED_VOCAB, TOLERANCE, Timed, VOCABS, logits, plans,
    sampler, tensor, time,
};
use crate::cpu::sample::{Isa, Work, draw as on_cpu, with_hidden};
use crate::cuda::check::memory::{DTYPES, Random, round};
use crate::cuda::check::timing::Timer;
use crate::cuda::driver::Gpu;
use crate::cuda::ops::Tensor;
use crate::cuda::options::CudaDtype;
use crate::cuda::sample::{HiddenRows, Sharing};
use crate::cuda::weights::stored;
use crate::device::Draw;
use crate::error::Result;
use crate::history::{Counting, History};

const ROWS: usize = 2;
const WIDTH: usize = 1037;

/// Tokens of a row that one device keeps and the other does not: sums of probabilities differ in their last bits, so of
/// many that are nearly equal, others may be the last ones that a truncation keeps.
const AT_THE_END: usize = 8;

/// Every type, vocabulary and shape, and times.
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
                report(one(gpu, case)?);
            }
        }
    }
    for shape in SHAPES {
        let case = Case {
            dtype: CudaDtype::Bf16,
            vocab: 50_257,
            shape,
            sharing: Sharing::Block,
        };
        report(one(gpu, case)?);
    }
    timed(gpu, report)
}

fn asked(candidates: u32, hidden: Hidden) -> Asked {
    Asked {
        candidates,
        branching: Branching::Search,
        hidden,
    }
}

/// Every list of stages with candidates of several lengths and whole rows, in both modes of log-probabilities.
fn one(gpu: &Arc<Gpu>, case: Case) -> Result<KernelReport> {
    let Case {
        dtype,
        vocab,
        shape,
        sharing,
    } = case;
    let (stored_logits, values) = logits(dtype, ROWS, vocab, shape);
    let buffer = gpu.upload(&stored_logits, "checking")?;
    let mut random = Random::new(5);
    let states: Vec<f32> = (0..ROWS * WIDTH)
        .map(|_| round(dtype, random.next()) as f32)
        .collect();
    let state_buffer = gpu.upload(&stored(&states, dtype), "checking")?;
    let kinds = [
        DrawKind::Candidates(asked(1, Hidden::Kept)),
        DrawKind::Candidates(asked(7, Hidden::Shown)),
        DrawKind::Candidates(asked(256, Hidden::Kept)),
        DrawKind::Candidates(asked(1024, Hidden::Shown)),
        DrawKind::Row(asked(1, Hidden::Shown)),
    ];
    let plans: Vec<SamplingPlan> = plans(vocab)
        .into_iter()
        .flat_map(|plan| {
            kinds.map(|draw| SamplingPlan {
                draw,
                ..plan.clone()
            })
        })
        .collect();
    let tokens = [2, 1, 2, 1, 0, 2].map(|t| t % vocab as u32);
    let history = History::new(&tokens, 2, Counting::On);
    let mask: Vec<u32> = (0..vocab.div_ceil(32) as u32)
        .map(|i| i.wrapping_mul(0x9e37_79b9) | 1)
        .collect();
    let draws: Vec<Draw<'_>> = plans
        .iter()
        .enumerate()
        .map(|(i, plan)| Draw {
            logits: i % ROWS,
            plan,
            history: &history,
            random: RandomKey {
                seed: i as u64 * 0x1234_5678_9abc,
                lineage: i as u32,
            },
            mu: None,
            mask: (i % 3 == 1).then_some(mask.as_slice()),
            top: [0, 5, 20][i % 3],
            logprobs: [LogprobsMode::Raw, LogprobsMode::Processed][i / 5 % 2],
        })
        .collect();
    // Hidden states lie the other way round.
    let of = [1, 0];
    let hidden = HiddenRows {
        rows: Tensor {
            data: state_buffer.address(),
            stride: WIDTH as i64,
        },
        width: WIDTH as u32,
        dtype,
        of: Some(&of),
    };
    let mut sampler = sampler(gpu, dtype, vocab, draws.len(), sharing)?;
    sampler.sample(Ticket(1), tensor(&buffer, vocab), Some(hidden), &draws)?;
    gpu.synchronize()?;
    let (outcomes, _) = sampler.finish(Ticket(1))?;
    let isa = Isa::detect();
    let mut work = Work::default();
    let (mut error, mut worst) = (0f64, 0);
    for (i, (draw, found)) in draws.iter().zip(&outcomes).enumerate() {
        let row = &values[draw.logits * vocab..(draw.logits + 1) * vocab];
        let state = &states[of[draw.logits] * WIDTH..(of[draw.logits] + 1) * WIDTH];
        let want = on_cpu(isa, row, draw, &mut work);
        let want = with_hidden(want, draw, || state.to_vec());
        let apart = difference(found, &want);
        if apart > error || apart.is_nan() {
            (error, worst) = (apart, i);
        }
    }
    let mut case = format!("handed {} {vocab} {shape:?} {sharing:?}", dtype.name());
    if error > TOLERANCE {
        let SamplingPlan { stages, draw } = &plans[worst];
        let named: String = format!("{stages:?}").chars().take(120).collect();
        case = format!("{case}: {named} {draw:?}");
    }
    Ok(KernelReport::new(NAME, case, error, TOLERANCE))
}

/// Infinite where outcomes differ in kind, or in what must be equal.
fn difference(found: &SampleOutcome, want: &SampleOutcome) -> f64 {
    match (found, want) {
        (SampleOutcome::Candidates(a), SampleOutcome::Candidates(b)) => candidates_apart(a, b),
        (SampleOutcome::Row(a), SampleOutcome::Row(b)) => rows_apart(a, b),
        (SampleOutcome::Failed(a), SampleOutcome::Failed(b))
        | (SampleOutcome::Refused(a), SampleOutcome::Refused(b))
            if a == b =>
        {
            0.0
        }
        _ => f64::INFINITY,
    }
}

fn candidates_apart(a: &Candidates, b: &Candidates) -> f64 {
    let alone = |a: &Candidates, b: &Candidates| {
        let known: HashSet<u32> = b.tokens.iter().copied().collect();
        a.tokens.iter().filter(|t| !known.contains(t)).count()
    };
    let (more, less) = (alone(a, b), alone(b, a));
    if (1..=AT_THE_END).contains(&more.max(less)) && a.uniform == b.uniform {
        // Other tokens, but nearly equal ones.
        let sums = apart(&[a.log_sum_exp, a.entropy], &[b.log_sum_exp, b.entropy]);
        return sums.max(apart(&a.logits, &b.logits));
    }
    let same = a.tokens == b.tokens
        && a.ranks == b.ranks
        && a.logits == b.logits
        && a.uniform == b.uniform
        && a.hidden == b.hidden
        && ids(&a.top) == ids(&b.top);
    if !same {
        return f64::INFINITY;
    }
    let numbers = |c: &Candidates| {
        let top = c.top.iter().map(|t| t.1);
        [c.log_sum_exp, c.entropy]
            .into_iter()
            .chain(c.logprobs.iter().copied())
            .chain(top)
            .collect::<Vec<f32>>()
    };
    apart(&numbers(a), &numbers(b))
}

fn rows_apart(a: &LogitsRow, b: &LogitsRow) -> f64 {
    let same = kept_by_one(&a.logits, &b.logits).is_some_and(|n| n <= AT_THE_END)
        && a.raw == b.raw
        && a.uniform == b.uniform
        && a.hidden == b.hidden
        && ids(&a.top) == ids(&b.top);
    if !same {
        return f64::INFINITY;
    }
    let numbers = |r: &LogitsRow| r.top.iter().map(|t| t.1).collect::<Vec<f32>>();
    apart(&numbers(a), &numbers(b))
}

/// Tokens that only one of two rows keeps; none if a token that both keep has two values.
fn kept_by_one(a: &[f32], b: &[f32]) -> Option<usize> {
    let unequal = a.iter().zip(b).filter(|(x, y)| x != y);
    let mut count = usize::from(a.len() != b.len()) * (AT_THE_END + 1);
    for (x, y) in unequal {
        if *x > f32::NEG_INFINITY && *y > f32::NEG_INFINITY {
            return None;
        }
        count += 1;
    }
    Some(count)
}

fn ids(top: &[(u32, f32)]) -> Vec<u32> {
    top.iter().map(|t| t.0).collect()
}

/// Largest difference, in parts of numbers above 1.
fn apart(a: &[f32], b: &[f32]) -> f64 {
    a.iter()
        .zip(b)
        .map(|(x, y)| {
            if x == y {
                0.0
            } else {
                f64::from((x - y).abs() / y.abs().max(1.0))
            }
        })
        .fold(0.0, |most, x| if x > most || x.is_nan() { x } else { most })
}

/// Candidates of 64 rows, whole rows of a few.
fn timed(gpu: &Arc<Gpu>, report: &mut dyn FnMut(KernelReport)) -> Result<()> {
    let timer = Timer::new(gpu)?;
    let history = History::default();
    for (rows, name, kind) in [
        (
            64,
            "256 candidates",
            DrawKind::Candidates(asked(256, Hidden::Kept)),
        ),
        (
            64,
            "1024 candidates",
            DrawKind::Candidates(asked(1024, Hidden::Kept)),
        ),
        (8, "whole rows", DrawKind::Row(asked(1, Hidden::Kept))),
    ] {
        let (stored, _) = logits(CudaDtype::F32, rows, TIMED_VOCAB, Shape::Peaked);
        let buffer = gpu.upload(&stored, "checking")?;
        let plan = SamplingPlan {
            stages: vec![Stage::Temperature(0.8)],
            draw: kind,
        };
        let work = Timed {
            rows,
            logits: tensor(&buffer, TIMED_VOCAB),
            plan: &plan,
            history: &history,
        };
        report(time(gpu, &timer, &work, name)?);
    }
    Ok(())
}
