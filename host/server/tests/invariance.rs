//! On the CPU an answer is the same, bit for bit, whatever else is in the batch, however the prompt is cut, whether the
//! prefix cache had it, and whether the sequence was preempted. The reference is the same request alone.
#![allow(clippy::unwrap_used, clippy::panic, missing_docs)]

mod common;

use common::{Ask, CASES, Got, Setup, alone, assert_idle, engine, golden, run};
use guesthouse_engine::{Draw, GenerationParams, PrefixCaching, SamplingPlan, Stage};
use std::sync::Arc;

/// A fixed pseudo-random sequence (Lehmer's generator).
struct Random(u64);

impl Random {
    fn below(&mut self, n: u32) -> u32 {
        self.0 = self.0 * 48_271 % 0x7fff_ffff;
        (self.0 % u64::from(n)) as u32
    }

    fn ids(&mut self, n: u32) -> Vec<u32> {
        (0..n).map(|_| self.below(190)).collect()
    }
}

/// `count` requests: prompts of up to `longest` tokens, half greedy, half sampled with every standard stage, log-probabilities
/// on some, two choices on some.
fn asks(count: usize, longest: u32, max_tokens: u32) -> Vec<Ask> {
    let mut random = Random(7);
    let sampled = SamplingPlan {
        stages: vec![
            Stage::Penalties {
                repetition: 1.1,
                presence: 0.2,
                frequency: 0.1,
            },
            Stage::Temperature(0.9),
            Stage::MinP(0.01),
            Stage::TopK(50),
            Stage::TopP(0.95),
        ],
        draw: Draw::Sample,
    };
    let (greedy, sampled) = (Arc::new(SamplingPlan::greedy()), Arc::new(sampled));
    let ask = |i: usize| {
        let length = 1 + random.below(longest);
        let params = GenerationParams {
            max_tokens: max_tokens - random.below(max_tokens / 2),
            n: if i.is_multiple_of(5) { 2 } else { 1 },
            top_logprobs: i.is_multiple_of(3).then_some(3),
            prompt_logprobs: i.is_multiple_of(4).then_some(2),
            ..GenerationParams::default()
        };
        let sampling = Arc::clone(if i.is_multiple_of(2) {
            &greedy
        } else {
            &sampled
        });
        Ask {
            prompt: random.ids(length),
            params,
            sampling,
            seed: i as u64,
        }
    };
    (0..count).map(ask).collect()
}

fn assert_equal(name: &str, what: &str, got: &[Got], expected: &[Got]) {
    for (i, (a, b)) in got.iter().zip(expected).enumerate() {
        assert_eq!(a, b, "{name}: request {i} differs {what}");
    }
}

#[test]
fn a_batch_of_64_equals_each_alone() {
    for name in CASES {
        let (model, asks) = (golden(name), asks(64, 100, 24));
        let mut engine = engine(
            &model,
            Setup {
                step_tokens: 2048,
                ..Setup::default()
            },
        );
        let together = run(&mut engine, &asks);
        let stats = engine.stats();
        assert!(
            stats.mean_decode_batch() >= 16.0,
            "{name}: mean decode batch {}",
            stats.mean_decode_batch()
        );
        assert_idle(&stats);
        assert_equal(name, "in a batch", &together, &alone(&model, &asks));
    }
}

#[test]
fn chunks_equal_the_whole_prompt() {
    for name in CASES {
        let (model, asks) = (golden(name), asks(12, 100, 8));
        let expected = alone(&model, &asks);
        for step_tokens in [1, 7, 33] {
            let mut engine = engine(
                &model,
                Setup {
                    step_tokens,
                    ..Setup::default()
                },
            );
            let got = run(&mut engine, &asks);
            let stats = engine.stats();
            assert!(
                stats.steps > 12,
                "{name}: only {} steps: nothing was cut",
                stats.steps
            );
            assert_equal(
                name,
                &format!("in chunks of {step_tokens}"),
                &got,
                &expected,
            );
        }
    }
}

#[test]
fn thread_counts_do_not_show() {
    for name in CASES {
        let (model, asks) = (golden(name), asks(8, 100, 8));
        let expected = alone(&model, &asks);
        for threads in [1, 3] {
            let got = run(
                &mut engine(
                    &model,
                    Setup {
                        threads,
                        ..Setup::default()
                    },
                ),
                &asks,
            );
            assert_equal(name, &format!("on {threads} threads"), &got, &expected);
        }
    }
}

#[test]
fn cached_prefixes_equal_computed_ones() {
    for name in CASES {
        let model = golden(name);
        let mut random = Random(11);
        let shared = random.ids(70);
        let ask = |tail: Vec<u32>| Ask::greedy([shared.clone(), tail].concat(), 12);
        let asks: Vec<Ask> = (0..12).map(|i| ask(random.ids(i))).collect();
        let expected = alone(&model, &asks);
        let mut engine = engine(
            &model,
            Setup {
                prefix_cache: PrefixCaching::On,
                ..Setup::default()
            },
        );
        for round in 0..2 {
            let got: Vec<Got> = asks
                .iter()
                .map(|a| run(&mut engine, std::slice::from_ref(a)).remove(0))
                .collect();
            assert_equal(
                name,
                &format!("with a prefix cache, round {round}"),
                &got,
                &expected,
            );
        }
        let stats = engine.stats();
        assert!(
            stats.prefix_cache_hits > 12 * 64,
            "{name}: {} tokens hit",
            stats.prefix_cache_hits
        );
        assert_idle(&stats);
    }
}

#[test]
fn preempted_sequences_equal_undisturbed_ones() {
    // Mistral's layers all have a window: its sequences stop growing, and what was admitted always fits.
    for name in CASES.iter().filter(|name| **name != "mistral") {
        let (model, asks) = (golden(name), asks(24, 60, 60));
        let mut engine = engine(
            &model,
            Setup {
                kv_positions: Some(600),
                prefix_cache: PrefixCaching::On,
                ..Setup::default()
            },
        );
        let got = run(&mut engine, &asks);
        let stats = engine.stats();
        assert!(stats.preemptions > 0, "{name}: nothing was preempted");
        assert_idle(&stats);
        assert_equal(name, "after preemption", &got, &alone(&model, &asks));
    }
}
