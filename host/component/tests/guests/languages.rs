//! The example samplers in Rust, Python and JavaScript, from examples/build.sh: the same inputs, the same tokens.

use std::path::Path;

use guesthouse_component::{
    ComponentError, ModelFacts, Origin, PlannedSampling, SamplerModule, Stepping, Verdict,
};
use guesthouse_engine::{Choice, Content, Draw, Next, Rows};

use crate::common::{context, runtime};

const VOCAB: u32 = 1000;
const STEPS: u32 = 100;

fn modules() -> Vec<SamplerModule> {
    let folder = std::env::var("GUESTHOUSE_EXAMPLES").unwrap_or_else(|_| {
        concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/examples").to_owned()
    });
    let load = |name: &str| {
        let file = Path::new(&folder).join(format!("{name}.wasm"));
        let bytes = std::fs::read(&file)
            .unwrap_or_else(|e| panic!("{}: {e}; run examples/build.sh", file.display()));
        let module = runtime().load(name, &bytes, Origin::File).unwrap();
        assert!(module.steps());
        assert!(
            !module
                .imports()
                .iter()
                .any(|import| import.contains("wasi")),
            "{name} imports {:?}",
            module.imports()
        );
        module.sampler().unwrap()
    };
    ["sampler-rust", "sampler-python", "sampler-javascript"]
        .map(load)
        .into()
}

fn begin(
    module: &SamplerModule,
    request: &str,
) -> Result<(PlannedSampling, Stepping), ComponentError> {
    let facts = ModelFacts {
        vocab_size: VOCAB,
        stop_tokens: vec![2],
        max_len: 4096,
        prompt_len: 4,
        max_tokens: 1000,
        choices: 3,
    };
    let (planned, stepping) = module.begin(request, &facts, context())?;
    Ok((planned, stepping.unwrap()))
}

/// SplitMix64: numbers in (0, 1).
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> f32 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (((z ^ (z >> 31)) >> 41) as f32 + 0.5) / (1 << 23) as f32
    }
}

/// A step of three rows; some have fewer than n candidates.
fn rows(step: u32, n: usize, numbers: &mut Numbers) -> Rows {
    const ROWS: usize = 3;
    let mut logits = Vec::new();
    for _ in 0..ROWS {
        let mut row: Vec<f32> = (0..n).map(|_| numbers.next() * 12.0 - 4.0).collect();
        row.sort_by(|a, b| b.total_cmp(a));
        if n > 2 && step.is_multiple_of(5) {
            row[n - 2..].fill(f32::NEG_INFINITY);
        }
        logits.extend(row);
    }
    Rows {
        branches: vec![0, 1, 2],
        choices: vec![0, 1, 2],
        last: vec![7; ROWS],
        lengths: vec![step; ROWS],
        uniform: (0..ROWS).map(|_| numbers.next()).collect(),
        random: vec![],
        content: Content::Candidates {
            n: n as u32,
            tokens: (0..ROWS * n)
                .map(|i| (step + i as u32 * 7) % VOCAB)
                .collect(),
            logits,
            log_sum_exp: vec![0.0; ROWS],
            entropy: (0..ROWS).map(|_| numbers.next() * 6.0).collect(),
        },
        hidden: vec![],
    }
}

/// Whether `token` is what its row's uniform number picks, by the C library's exponential. Boundaries may differ by rounding.
fn is_the_draw(rows: &Rows, choice: &Choice, min: f64, max: f64) -> bool {
    let Content::Candidates {
        n,
        tokens,
        logits,
        entropy,
        ..
    } = &rows.content
    else {
        return false;
    };
    let (row, n) = (choice.row as usize, *n as usize);
    let h = f64::from(entropy[row]);
    let temperature = min + (max - min) * h / (1.0 + h);
    let weights: Vec<f64> = logits[row * n..][..n]
        .iter()
        .map(|l| (f64::from(*l) / temperature).exp())
        .collect();
    let total: f64 = weights.iter().sum();
    let Some(place) = tokens[row * n..][..n]
        .iter()
        .position(|t| *t == choice.token)
    else {
        return false;
    };
    let before: f64 = weights[..place].iter().sum::<f64>() / total;
    let after = before + weights[place] / total;
    let u = f64::from(rows.uniform[row]);
    before - 1e-3 < u && u < after + 1e-3
}

#[test]
#[ignore = "needs examples/build.sh"]
fn samplers_in_three_languages_choose_the_same_tokens() {
    let modules = modules();
    for (args, n, min, max) in [
        ("{}", 20, 0.3, 1.5),
        (r#"{"k": 5, "min": 0.7, "max": 2.1}"#, 5, 0.7, 2.1),
        (r#"{"k": 256, "min": 1.7, "max": null}"#, 256, 1.7, 1.7),
        (r#"{"k": 1}"#, 1, 0.3, 1.5),
    ] {
        let request = format!(r#"{{"temperature": 0.5, "seed": 7, "sampler_args": {args}}}"#);
        let mut sessions: Vec<Stepping> = Vec::new();
        for module in &modules {
            let (planned, stepping) = begin(module, &request).unwrap();
            assert_eq!((planned.plan.stages.len(), planned.seed), (0, Some(7)));
            let Draw::Candidates(asked) = planned.plan.draw else {
                panic!("{:?}", planned.plan.draw);
            };
            assert_eq!(asked.candidates as usize, n);
            sessions.push(stepping);
        }
        let mut numbers = Numbers(n as u64);
        let mut places = 0;
        for step in 0..STEPS {
            let rows = rows(step, n, &mut numbers);
            let mut answers = Vec::new();
            for session in &mut sessions {
                match session.step(rows.clone()).unwrap() {
                    Verdict::Choices(choices) => answers.push(choices.branches),
                    Verdict::Logits(_) => panic!("{} rewrote the rows", session.module()),
                }
            }
            assert_eq!(answers[0], answers[1], "Rust and Python, step {step}");
            assert_eq!(answers[0], answers[2], "Rust and JavaScript, step {step}");
            for (i, choice) in answers[0].iter().enumerate() {
                assert_eq!((choice.row as usize, choice.next), (i, Next::Continue));
                assert!(
                    is_the_draw(&rows, choice, min, max),
                    "step {step}: {choice:?}"
                );
                places += usize::from(choice.token != (step + (i * n) as u32 * 7) % VOCAB);
            }
        }
        assert!(
            n == 1 || places > 20,
            "more than the best is drawn: {places}"
        );
    }
}

#[test]
#[ignore = "needs examples/build.sh"]
fn samplers_in_three_languages_refuse_the_same_arguments() {
    let modules = modules();
    for (args, message) in [
        (
            r#"{"k": 0}"#,
            "k: must be a whole number from 1 to 1024, got 0",
        ),
        (
            r#"{"k": 1.5}"#,
            "k: must be a whole number from 1 to 1024, got 1.5",
        ),
        (r#"{"min": 0}"#, "min: must be between 0.01 and 100, got 0"),
        (
            r#"{"min": "x"}"#,
            "min: must be between 0.01 and 100, got \"x\"",
        ),
        (
            r#"{"min": 2, "max": 1}"#,
            "max: must be between 2 and 100, got 1",
        ),
        (
            r#"{"max": true}"#,
            "max: must be between 0.3 and 100, got true",
        ),
    ] {
        for module in &modules {
            let error = begin(module, &format!(r#"{{"sampler_args": {args}}}"#))
                .err()
                .unwrap();
            assert_eq!(error.label(), "guest_invalid_request", "{error}");
            assert!(error.to_string().contains(message), "{args}: {error}");
        }
    }
}
