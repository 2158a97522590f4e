//! The golden models through every layer: guest, graph, passes, plan, device, engine. References are transformers'
//! (`tests/golden/make.py`); `mutations.md` of each shows that each feature counts.

use crate::common::{Ask, Got, Setup, Where, assert_idle, cases, engine, golden, run};
use guesthouse_device::{CudaDtype, CudaGraphs, Numerics};
use serde_json::Value;

fn reference(name: &str) -> Value {
    serde_json::from_str(&std::fs::read_to_string(golden(name).join("golden.json")).unwrap())
        .unwrap()
}

fn ids(value: &Value) -> Vec<u32> {
    value
        .as_array()
        .unwrap()
        .iter()
        .map(|x| x.as_u64().unwrap() as u32)
        .collect()
}

fn numbers(value: &Value) -> Vec<f64> {
    value
        .as_array()
        .unwrap()
        .iter()
        .map(|x| x.as_f64().unwrap())
        .collect()
}

fn log_softmax(logits: &[f64]) -> Vec<f64> {
    let most = logits.iter().copied().fold(f64::MIN, f64::max);
    let sum: f64 = logits.iter().map(|x| (x - most).exp()).sum();
    logits.iter().map(|x| x - most - sum.ln()).collect()
}

/// A golden model on a device: every recorded row, as log-probabilities of the whole vocabulary, and the greedy steps.
/// Returns what is wrong.
fn compare(name: &str, device: Where) -> Vec<String> {
    let (reference, tolerance) = (reference(name), device.tolerance(name));
    let prompts = reference["prompts"].as_array().unwrap();
    let vocab = prompts[0]["logits"][0].as_array().unwrap().len() as u32;
    let asks: Vec<Ask> = prompts
        .iter()
        .map(|p| {
            let mut ask = Ask::greedy(ids(&p["ids"]), p["greedy"].as_array().unwrap().len() as u32);
            ask.params.top_logprobs = Some(vocab);
            ask.params.prompt_logprobs = Some(vocab);
            ask
        })
        .collect();
    let setup = Setup {
        device,
        ..Setup::default()
    };
    let mut engine = engine(&golden(name), setup);
    let got = run(&mut engine, &asks);
    assert_idle(&engine.stats());
    let (mut rows, mut worst, mut sum, mut count) = (0, 0.0f64, 0.0, 0);
    let mut wrong = Vec::new();
    for (prompt, got) in prompts.iter().zip(&got) {
        wrong.extend(greedy_steps(
            got,
            &ids(&prompt["greedy"]),
            device,
            tolerance.each,
        ));
        let length = prompt["ids"].as_array().unwrap().len();
        for (position, logits) in ids(&prompt["positions"])
            .iter()
            .zip(prompt["logits"].as_array().unwrap())
        {
            let p = *position as usize;
            let row = if p + 1 < length {
                &got.prompt[p]
            } else {
                &got.tokens[0][0]
            };
            assert_eq!(
                row.top.len(),
                vocab as usize,
                "{name}: position {p} of {length}"
            );
            let expected = log_softmax(&numbers(logits));
            for &(token, logprob) in &row.top {
                let error = (f64::from(logprob) - expected[token as usize]).abs();
                worst = if error.is_nan() {
                    f64::INFINITY
                } else {
                    worst.max(error)
                };
                sum += error;
                count += 1;
            }
            rows += 1;
        }
    }
    let recorded = |p: &Value| p["positions"].as_array().unwrap().len();
    let expected: usize = prompts.iter().map(recorded).sum();
    assert!(
        rows == expected && rows > 0,
        "{name}: {rows} of {expected} rows compared"
    );
    let mean = sum / f64::from(count);
    if worst > tolerance.each || mean > tolerance.mean {
        wrong.push(format!(
            "log-probabilities are up to {worst:.2e} off, on average {mean:.1e}; {tolerance:?}"
        ));
    }
    println!(
        "{name} on {device:?}: {worst:.2e} of {:.2e}, mean {mean:.1e} of {:.1e}",
        tolerance.each, tolerance.mean
    );
    wrong
        .into_iter()
        .map(|what| format!("{name} on {device:?}: {what}"))
        .collect()
}

/// The steps are the reference's, up to one where the device finds two tokens about equally good.
fn greedy_steps(got: &Got, expected: &[u32], device: Where, tolerance: f64) -> Option<String> {
    let found = got.ids(0);
    let at = (0..expected.len()).find(|&i| found.get(i) != Some(&expected[i]))?;
    let lead = got.tokens[0].get(at).map_or(f64::INFINITY, |step| {
        let logprob = |token| {
            let entry = step.top.iter().find(|(t, _)| *t == token);
            entry.map_or(f64::NEG_INFINITY, |(_, l)| f64::from(*l))
        };
        logprob(step.token) - logprob(expected[at])
    });
    let tie = device != Where::Cpu && lead <= 2.0 * tolerance;
    (!tie).then(|| format!("greedy step {at}: {found:?} instead of {expected:?}, by {lead:.1e}"))
}

fn compare_all(devices: &[Where]) {
    let mut wrong = Vec::new();
    for device in devices {
        for name in cases() {
            wrong.extend(compare(name, *device));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn logits_and_greedy_steps_are_those_of_transformers() {
    compare_all(&[Where::Cpu]);
}

/// Captured and eager, in both modes.
fn modes(dtype: CudaDtype) -> [Where; 3] {
    [
        Where::cuda(dtype, Numerics::Fast),
        Where::Cuda {
            dtype,
            numerics: Numerics::Fast,
            graphs: CudaGraphs::Eager,
        },
        Where::cuda(dtype, Numerics::BatchInvariant),
    ]
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn cuda_float32() {
    compare_all(&modes(CudaDtype::F32));
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn cuda_bfloat16() {
    compare_all(&modes(CudaDtype::Bf16));
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn cuda_float16() {
    compare_all(&modes(CudaDtype::F16));
}
