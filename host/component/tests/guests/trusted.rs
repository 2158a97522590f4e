//! Requests of a trusted module share a store; a trap costs one of them.

use guesthouse_component::{ModelFacts, SamplerModule, Stepping, Verdict};
use guesthouse_engine::{Content, RandomKey, Rows};

use crate::common::{context, load};

const N: u32 = 8;

fn module() -> SamplerModule {
    load("step_sampler").sampler().unwrap()
}

fn begin(module: &SamplerModule, request: &str) -> Stepping {
    let facts = ModelFacts {
        vocab_size: N,
        stop_tokens: vec![],
        max_len: 64,
        prompt_len: 4,
        max_tokens: 16,
        choices: 1,
    };
    module.begin(request, &facts, context()).unwrap().1.unwrap()
}

fn rows(uniform: f32) -> Rows {
    let key = RandomKey {
        seed: 7,
        lineage: 0,
    };
    Rows {
        branches: vec![0],
        choices: vec![0],
        last: vec![1],
        lengths: vec![3],
        uniform: vec![uniform],
        random: vec![(key, 8)],
        content: Content::Candidates {
            n: N,
            tokens: (0..N).rev().collect(),
            logits: (0..N).map(|i| -(i as f32) / 4.0).collect(),
            log_sum_exp: vec![1.5],
            entropy: vec![1.9],
        },
        hidden: Vec::new(),
    }
}

fn token(verdict: Verdict) -> u32 {
    match verdict {
        Verdict::Choices(choices) => choices.branches[0].token,
        Verdict::Logits(_) => panic!("{verdict:?}"),
    }
}

#[test]
fn one_store_answers_as_many_do() {
    let (own, trusted) = (module(), module().trusted());
    let mut alone: Vec<_> = (0..4).map(|_| begin(&own, "{}")).collect();
    let mut shared: Vec<_> = (0..4).map(|_| begin(&trusted, "{}")).collect();
    let mut seen = std::collections::BTreeSet::new();
    for step in 0..40_u16 {
        for (alone, shared) in alone.iter_mut().zip(&mut shared) {
            let uniform = (f32::from(step) + 0.5) / 40.0;
            let expected = token(alone.step(rows(uniform)).unwrap());
            assert_eq!(token(shared.step(rows(uniform)).unwrap()), expected);
            seen.insert(expected);
        }
    }
    // Weights e^(-i / 4): the first seven of eight reach 0.9 of their sum.
    assert_eq!(seen.into_iter().collect::<Vec<_>>(), [1, 2, 3, 4, 5, 6, 7]);
}

#[test]
fn a_trap_ends_its_own_request_and_the_others_keep_their_state() {
    let trusted = module().trusted();
    let mut good: Vec<_> = (0..3)
        .map(|_| begin(&trusted, r#"{"rotate":true}"#))
        .collect();
    let mut bad = begin(&trusted, r#"{"rotate":true,"panic_at":2}"#);
    for step in 0..6 {
        for good in &mut good {
            // The n-th step takes candidate n.
            assert_eq!(token(good.step(rows(0.5)).unwrap()), N - 1 - step);
        }
        let answer = bad.step(rows(0.5));
        match step {
            0 | 1 => assert_eq!(token(answer.unwrap()), N - 1 - step),
            2 => {
                let error = answer.unwrap_err();
                assert_eq!(error.label(), "trap");
                let text = error.to_string();
                let start = "module step_sampler: stepping.step failed: ";
                assert!(
                    text.starts_with(start) && text.contains("step 2 is the last"),
                    "{text}"
                );
            }
            _ => assert_eq!(answer.unwrap_err().label(), "ended"),
        }
    }
    drop((good, bad));
    // The store begins anew.
    let mut next = begin(&trusted, r#"{"rotate":true}"#);
    assert_eq!(token(next.step(rows(0.5)).unwrap()), N - 1);
}
