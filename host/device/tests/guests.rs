//! What guests that choose tokens are given: candidates, whole rows and hidden states.

#![allow(clippy::unwrap_used, clippy::panic, unreachable_pub)]

mod support;

use std::sync::Arc;

use guesthouse_device::{CpuDevice, CpuOptions, DeviceExecutor, KvBudget};
use guesthouse_engine::{
    Asked, Branching, Candidates, Draw, Hidden, Input, LogitsRow, SampleOutcome, SampleTask,
    SamplingPlan, Stage, TokenId,
};
use guesthouse_graph::{
    BuilderLimits, GraphBuilder, ModelInfo, NormRounding, PassOptions, Plan, PlanOptions, RmsNorm,
    Sharding, SourceCatalog, optimize,
};
use guesthouse_weights::{DType, MemorySource, Scheme, WeightSource};
use support::drive::{Driver, task};
use support::llama::Llama;

fn options() -> CpuOptions {
    CpuOptions {
        threads: 2,
        kv: KvBudget::Blocks(64),
        max_step_tokens: 512,
        max_slots: 8,
        max_len: 600,
        ..CpuOptions::default()
    }
}

fn asked(candidates: u32, hidden: Hidden) -> Asked {
    Asked {
        candidates,
        branching: Branching::Search,
        hidden,
    }
}

fn plan(stages: Vec<Stage>, draw: Draw) -> SamplingPlan {
    SamplingPlan { stages, draw }
}

fn candidates(outcome: &SampleOutcome) -> Candidates {
    match outcome {
        SampleOutcome::Candidates(c) => (**c).clone(),
        other => panic!("{other:?}"),
    }
}

fn row_of(outcome: &SampleOutcome) -> LogitsRow {
    match outcome {
        SampleOutcome::Row(r) => (**r).clone(),
        other => panic!("{other:?}"),
    }
}

/// What the head does behind its matrix.
#[derive(Clone, Copy, Debug)]
enum End {
    Plain,
    Capped,
}

const WIDTH: usize = 32;
const CAP: f32 = 2.0;

/// A model whose head is the identity: its logits are its last hidden state.
fn identity(end: End, passes: &PassOptions) -> Driver<DeviceExecutor> {
    let mut source = MemorySource::new();
    let n = WIDTH as u32;
    let table: Vec<f32> = (0..WIDTH * WIDTH)
        .map(|i| ((i * 29 + i * i % 83) % 101) as f32 / 50.0 - 1.0)
        .collect();
    source.insert_f32("table", [WIDTH, WIDTH], &table).unwrap();
    let source = Arc::new(source);
    let mut b = GraphBuilder::new(
        Arc::new(SourceCatalog::new(Arc::clone(&source) as _)),
        BuilderLimits::default(),
    );
    let ids = b.token_ids().unwrap();
    let table = b.param("table", &[n, n]).unwrap();
    let one = (0..WIDTH * WIDTH).map(|i| f32::from(u8::from(i % (WIDTH + 1) == 0)));
    let one = b.constant(&[n, n], one.collect()).unwrap();
    let x = b.embedding(table, ids).unwrap();
    let norm = RmsNorm {
        weight: None,
        eps: 1e-5,
        offset: 0.0,
        rounding: NormRounding::CastThenWeight,
    };
    let x = b.rms_norm(x, norm).unwrap();
    let mut logits = b.linear(x, one, None, Sharding::Replicated).unwrap();
    if matches!(end, End::Capped) {
        logits = b.soft_cap(logits, CAP).unwrap();
    }
    b.output_logits(logits).unwrap();
    let info = ModelInfo {
        architecture: "Identity".to_owned(),
        vocab_size: n,
        max_position: 600,
    };
    let graph = optimize(b.finish(info).unwrap(), passes).unwrap();
    let plan = Plan::compile(graph, &PlanOptions::new(4)).unwrap();
    let device = CpuDevice::load(&Arc::new(plan), source.as_ref(), &options(), &mut |_| {});
    Driver::new(device.unwrap())
}

#[test]
fn hidden_states_are_what_the_head_reads() {
    for end in [End::Plain, End::Capped] {
        for passes in [PassOptions::default(), PassOptions::minimal()] {
            let mut driver = identity(end, &passes);
            let shown = asked(4, Hidden::Shown);
            let tokens: Vec<TokenId> = (0..9).map(|i| i * 7 % 32).collect();
            driver.admit(0, &tokens, &plan(Vec::new(), Draw::Row(shown)), 1);
            driver.admit(
                1,
                &tokens[..5],
                &plan(Vec::new(), Draw::Candidates(shown)),
                1,
            );
            driver.admit(2, &tokens[..6], &SamplingPlan::greedy(), 1);
            let mut scored = driver.row(2, 0, 6, Input::History);
            scored.prompt_logprobs = Some(0);
            let rows = vec![
                driver.row(0, 0, 9, Input::History),
                driver.row(1, 0, 5, Input::History),
                scored,
            ];
            let back = SampleTask {
                back: 3,
                ..task(0, 0)
            };
            let tasks = vec![task(2, 2), task(1, 1), task(0, 0), back];
            let output = driver.step(rows, tasks);
            let of_candidates = candidates(&output.samples[1]);
            let hidden = [
                row_of(&output.samples[2]).hidden,
                row_of(&output.samples[3]).hidden,
            ];
            assert_ne!(hidden[0], hidden[1]);
            for (i, hidden) in hidden.iter().enumerate() {
                let logits = row_of(&output.samples[2 + i]).logits;
                let want = hidden.iter().map(|x| match end {
                    End::Plain => *x,
                    End::Capped => CAP * (x / CAP).tanh(),
                });
                for (x, want) in logits.iter().zip(want) {
                    assert!((x - want).abs() < 1e-5, "{end:?} {x} {want}");
                }
            }
            for (t, x) in of_candidates.tokens.iter().zip(&of_candidates.logits) {
                let state = of_candidates.hidden[*t as usize];
                let want = match end {
                    End::Plain => state,
                    End::Capped => CAP * (state / CAP).tanh(),
                };
                assert!((x - want).abs() < 1e-5);
            }
        }
    }
}

#[test]
fn a_row_is_the_head_times_the_hidden_state() {
    let model = Llama {
        tied: true,
        ..Llama::tiny()
    };
    let source = model.weights(Scheme::Plain(DType::F32), 3);
    let compiled = model.plan(Arc::clone(&source) as _, &PassOptions::default());
    let device = CpuDevice::load(&compiled, source.as_ref(), &options(), &mut |_| {});
    let mut driver = Driver::new(device.unwrap());
    let tokens: Vec<TokenId> = (0..20).map(|i| i * 37 % 300).collect();
    let shown = asked(1, Hidden::Shown);
    driver.admit(0, &tokens, &plan(Vec::new(), Draw::Row(shown)), 1);
    let row = driver.row(0, 0, 20, Input::History);
    let got = row_of(&driver.step(vec![row], vec![task(0, 0)]).samples[0]);
    let bytes = source.read("model.embed_tokens.weight").unwrap();
    let head: Vec<f32> = bytes
        .chunks(4)
        .map(|b| f32::from_le_bytes(b.try_into().unwrap()))
        .collect();
    assert_eq!((got.logits.len(), got.hidden.len()), (300, 64));
    for (row, logit) in head.chunks(64).zip(&got.logits) {
        let sum: f64 = row
            .iter()
            .zip(&got.hidden)
            .map(|(w, x)| f64::from(*w) * f64::from(*x))
            .sum();
        assert!((sum - f64::from(*logit)).abs() < 1e-4, "{sum} {logit}");
    }
    assert_eq!(got.raw, None);
}

#[test]
fn candidates_are_the_best_of_the_row() {
    let stages = vec![
        Stage::Penalties {
            repetition: 1.0,
            presence: 0.0,
            frequency: 3.0,
        },
        Stage::Temperature(0.5),
        Stage::TopK(50),
    ];
    let model = Llama::tiny();
    let source = model.weights(Scheme::Plain(DType::F32), 3);
    let compiled = model.plan(Arc::clone(&source) as _, &PassOptions::default());
    let run = |draw| {
        let device = CpuDevice::load(&compiled, source.as_ref(), &options(), &mut |_| {});
        let mut driver = Driver::new(device.unwrap());
        driver.admit(0, &[4, 9, 200], &plan(stages.clone(), draw), 1);
        let row = driver.row(0, 0, 3, Input::History);
        driver.step(vec![row], Vec::new());
        let row = driver.row(0, 3, 1, Input::Known(vec![17]));
        driver.step(vec![row], vec![task(0, 0)]).samples.remove(0)
    };
    let row = row_of(&run(Draw::Row(asked(1, Hidden::Kept))));
    let few = candidates(&run(Draw::Candidates(asked(10, Hidden::Kept))));
    let all = candidates(&run(Draw::Candidates(asked(1024, Hidden::Kept))));
    assert!(all.tokens.len() >= 50 && all.tokens.len() < 300);
    assert_eq!(all.tokens[..10], few.tokens);
    for (t, x) in all.tokens.iter().zip(&all.logits) {
        assert_eq!(row.logits[*t as usize].to_bits(), x.to_bits());
    }
    assert!(row.raw.is_some() && row.hidden.is_empty() && few.hidden.is_empty());
    assert_eq!(row.uniform, few.uniform);
    assert_eq!(row.top, few.top);
}
