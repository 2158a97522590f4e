//! The golden models through every layer: guest, graph, passes, plan, CPU device, engine. References are transformers'
//! (`tests/golden/make.py`); `tests/golden/mutations.md` shows that each feature counts.
#![allow(clippy::unwrap_used, clippy::panic, missing_docs)]

mod common;

use common::{Ask, CASES, Setup, assert_idle, engine, golden, run};
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

/// Every recorded row, as log-probabilities of the whole vocabulary, and the greedy steps.
#[test]
fn logits_and_greedy_steps_are_those_of_transformers() {
    for name in CASES {
        let reference = reference(name);
        let tolerance = reference["tolerance"].as_f64().unwrap();
        let prompts = reference["prompts"].as_array().unwrap();
        let vocab = prompts[0]["logits"][0].as_array().unwrap().len() as u32;
        let asks: Vec<Ask> = prompts
            .iter()
            .map(|p| {
                let mut ask =
                    Ask::greedy(ids(&p["ids"]), p["greedy"].as_array().unwrap().len() as u32);
                ask.params.top_logprobs = Some(vocab);
                ask.params.prompt_logprobs = Some(vocab);
                ask
            })
            .collect();
        let mut engine = engine(&golden(name), Setup::default());
        let got = run(&mut engine, &asks);
        assert_idle(&engine.stats());
        let (mut rows, mut worst) = (0, 0.0f64);
        for (prompt, got) in prompts.iter().zip(&got) {
            assert_eq!(got.ids(0), ids(&prompt["greedy"]), "{name}: greedy steps");
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
                    worst = worst.max((f64::from(logprob) - expected[token as usize]).abs());
                }
                rows += 1;
            }
        }
        assert_eq!(rows, 12, "{name}: rows compared");
        assert!(
            worst <= tolerance,
            "{name}: a log-probability is {worst} off, tolerance {tolerance}"
        );
        println!("{name}: {worst:.2e} of {tolerance:.2e}");
    }
}
