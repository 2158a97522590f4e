//! An answer is the same whatever else is in the batch, however the prompt is cut, whether the prefix cache had it, and
//! whether the sequence was preempted: bit for bit on the CPU and in a GPU's batch-invariant mode, within tolerance in its
//! fast mode. The reference is the same request alone on the same device.

use crate::common::{
    Ask, Got, Setup, Where, alone, assert_idle, cases, engine, golden, has_states, request, run,
    sees_all,
};
use guesthouse_device::{CudaDtype, CudaGraphs, Numerics};
use guesthouse_engine::{
    Draw, Executor, GenerationParams, PrefixCaching, Sampled, SamplingPlan, Stage, SubmitError,
};
use std::path::Path;
use std::sync::Arc;

/// A fixed pseudo-random sequence (Lehmer's generator).
struct Random(u64);

impl Random {
    fn below(&mut self, n: u32) -> u32 {
        self.0 = self.0 * 48_271 % 0x7fff_ffff;
        (self.0 % u64::from(n)) as u32
    }

    fn ids(&mut self, n: u32) -> Vec<u32> {
        // Below the smallest vocabulary of the cases.
        (0..n).map(|_| self.below(120)).collect()
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

/// What is compared with what.
struct Case<'a> {
    name: &'a str,
    device: Where,
    what: String,
}

impl Case<'_> {
    /// Bit for bit, or in a GPU's fast mode within tolerance.
    fn assert_same(&self, asks: &[Ask], got: &[Got], expected: &[Got]) {
        let Self { name, device, what } = self;
        let fast = matches!(
            device,
            Where::Cuda {
                numerics: Numerics::Fast,
                ..
            }
        );
        let mut parted = 0;
        for (i, ((ask, a), b)) in asks.iter().zip(got).zip(expected).enumerate() {
            if !fast {
                assert_eq!(a, b, "{name} on {device:?}: request {i} differs {what}");
                continue;
            }
            // Both runs are that far from the exact answer.
            let tolerance = 2.0 * device.tolerance(name).each;
            let close = |p: usize, a: &Sampled, b: &Sampled| {
                let apart = f64::from(a.logprob - b.logprob).abs();
                assert!(
                    apart <= tolerance,
                    "{name} on {device:?}: request {i} {what}, position {p}: {} and {}, tolerance {tolerance}",
                    a.logprob,
                    b.logprob
                );
            };
            for (p, (a, b)) in a.prompt.iter().zip(&b.prompt).enumerate() {
                close(p, a, b);
            }
            for (a, b) in a.tokens.iter().zip(&b.tokens) {
                for (p, (a, b)) in a.iter().zip(b).enumerate() {
                    // Where greedy choices part, both found two tokens about equally good.
                    if a.token == b.token || ask.sampling.draw == Draw::Greedy {
                        close(p, a, b);
                    }
                    if a.token != b.token {
                        parted += 1;
                        break;
                    }
                }
            }
        }
        if fast {
            println!(
                "{name} on {device:?} {what}: {parted} of {} parted",
                got.len()
            );
        }
    }
}

fn batch_of_64(device: Where) {
    for name in cases() {
        let (model, asks) = (golden(name), asks(64, 60, 12));
        let setup = Setup {
            step_tokens: 2048,
            device,
            ..Setup::default()
        };
        let mut engine = engine(&model, setup);
        let together = run(&mut engine, &asks);
        let stats = engine.stats();
        assert!(
            stats.mean_decode_batch() >= 16.0,
            "{name}: mean decode batch {}",
            stats.mean_decode_batch()
        );
        assert_idle(&stats);
        let case = Case {
            name,
            device,
            what: "in a batch".to_owned(),
        };
        case.assert_same(&asks, &together, &alone(&model, &asks, device));
    }
}

fn chunks(device: Where) {
    for name in cases() {
        let (model, asks) = (golden(name), asks(6, 100, 8));
        if whole_prompts(&model, device) {
            uncut(name, device);
            continue;
        }
        let expected = alone(&model, &asks, device);
        for step_tokens in [1, 7, 33] {
            let setup = Setup {
                step_tokens,
                device,
                ..Setup::default()
            };
            let mut engine = engine(&model, setup);
            let got = run(&mut engine, &asks);
            let stats = engine.stats();
            assert!(
                stats.steps > 12,
                "{name}: only {} steps: nothing was cut",
                stats.steps
            );
            let case = Case {
                name,
                device,
                what: format!("in chunks of {step_tokens}"),
            };
            case.assert_same(&asks, &got, &expected);
        }
    }
}

/// Whether a model's prompts cannot be cut, since their tokens see those that follow.
fn whole_prompts(model: &Path, device: Where) -> bool {
    let setup = Setup {
        device,
        ..Setup::default()
    };
    engine(model, setup).executor().info().whole_prompt
}

/// A prompt that fits a step runs in one, whatever else waits; a longer one is refused.
fn uncut(name: &str, device: Where) {
    let model = golden(name);
    let setup = Setup {
        step_tokens: 40,
        device,
        ..Setup::default()
    };
    let mut random = Random(5);
    let asks: Vec<Ask> = (0..9).map(|i| Ask::greedy(random.ids(40 - i), 5)).collect();
    let mut engine = engine(&model, setup);
    let got = run(&mut engine, &asks);
    let case = Case {
        name,
        device,
        what: "in steps that hold one prompt".to_owned(),
    };
    case.assert_same(&asks, &got, &alone(&model, &asks, device));
    let error = engine
        .limits()
        .check(&request(&Ask::greedy(random.ids(41), 1), 1));
    assert!(matches!(
        error,
        Err(SubmitError::PromptExceedsStep {
            prompt_len: 41,
            max_step_tokens: 40
        })
    ));
}

fn cached_prefixes(device: Where) {
    for name in cases() {
        let model = golden(name);
        let mut random = Random(11);
        let shared = random.ids(70);
        let ask = |tail: Vec<u32>| Ask::greedy([shared.clone(), tail].concat(), 12);
        let asks: Vec<Ask> = (0..12).map(|i| ask(random.ids(i))).collect();
        let expected = alone(&model, &asks, device);
        let setup = Setup {
            prefix_cache: PrefixCaching::On,
            device,
            ..Setup::default()
        };
        let mut engine = engine(&model, setup);
        for round in 0..2 {
            let got: Vec<Got> = asks
                .iter()
                .map(|a| run(&mut engine, std::slice::from_ref(a)).remove(0))
                .collect();
            let case = Case {
                name,
                device,
                what: format!("with a prefix cache, round {round}"),
            };
            case.assert_same(&asks, &got, &expected);
        }
        let stats = engine.stats();
        let hits = stats.prefix_cache_hits;
        if has_states(&model) || whole_prompts(&model, device) {
            // A state is that of its own sequence, and a whole prompt's tokens see those after them.
            assert_eq!(hits, 0, "{name}: {hits} tokens hit");
        } else {
            assert!(hits > 12 * 64, "{name}: {hits} tokens hit");
        }
        assert_idle(&stats);
    }
}

fn preempted(device: Where) {
    // Where all layers have a window sequences stop growing, and what was admitted always fits.
    for name in cases() {
        if !sees_all(&golden(name)) {
            continue;
        }
        let (model, asks) = (golden(name), asks(24, 60, 60));
        let setup = Setup {
            kv_positions: Some(600),
            prefix_cache: PrefixCaching::On,
            device,
            ..Setup::default()
        };
        let mut engine = engine(&model, setup);
        let got = run(&mut engine, &asks);
        let stats = engine.stats();
        assert!(stats.preemptions > 0, "{name}: nothing was preempted");
        assert_idle(&stats);
        let case = Case {
            name,
            device,
            what: "after preemption".to_owned(),
        };
        case.assert_same(&asks, &got, &alone(&model, &asks, device));
    }
}

#[test]
fn a_batch_of_64_equals_each_alone() {
    batch_of_64(Where::Cpu);
}

#[test]
fn chunks_equal_the_whole_prompt() {
    chunks(Where::Cpu);
}

#[test]
fn cached_prefixes_equal_computed_ones() {
    cached_prefixes(Where::Cpu);
}

#[test]
fn preempted_sequences_equal_undisturbed_ones() {
    preempted(Where::Cpu);
}

#[test]
fn thread_counts_do_not_show() {
    for name in cases() {
        let (model, asks) = (golden(name), asks(4, 100, 8));
        let expected = alone(&model, &asks, Where::Cpu);
        for threads in [1, 3] {
            let setup = Setup {
                threads,
                ..Setup::default()
            };
            let got = run(&mut engine(&model, setup), &asks);
            let case = Case {
                name,
                device: Where::Cpu,
                what: format!("on {threads} threads"),
            };
            case.assert_same(&asks, &got, &expected);
        }
    }
}

const EXACT: [Where; 2] = [
    Where::Cuda {
        dtype: CudaDtype::Bf16,
        numerics: Numerics::BatchInvariant,
        graphs: CudaGraphs::Captured,
    },
    Where::Cuda {
        dtype: CudaDtype::F32,
        numerics: Numerics::BatchInvariant,
        graphs: CudaGraphs::Captured,
    },
];

const FAST: [Where; 2] = [
    Where::Cuda {
        dtype: CudaDtype::Bf16,
        numerics: Numerics::Fast,
        graphs: CudaGraphs::Captured,
    },
    Where::Cuda {
        dtype: CudaDtype::F32,
        numerics: Numerics::Fast,
        graphs: CudaGraphs::Captured,
    },
];

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn cuda_batch_invariant_batches() {
    EXACT.into_iter().for_each(batch_of_64);
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn cuda_batch_invariant_chunks() {
    EXACT.into_iter().for_each(chunks);
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn cuda_batch_invariant_prefixes() {
    EXACT.into_iter().for_each(cached_prefixes);
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn cuda_batch_invariant_preemption() {
    EXACT.into_iter().for_each(preempted);
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn cuda_fast_batches() {
    FAST.into_iter().for_each(batch_of_64);
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn cuda_fast_chunks() {
    FAST.into_iter().for_each(chunks);
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn cuda_fast_prefixes() {
    FAST.into_iter().for_each(cached_prefixes);
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn cuda_fast_preemption() {
    FAST.into_iter().for_each(preempted);
}

/// A captured step is the eager one: bit for bit where results do not depend on the batch, to which graphs add empty rows.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn cuda_graphs_equal_eager_steps() {
    for device in EXACT.into_iter().chain(FAST) {
        let Where::Cuda {
            dtype, numerics, ..
        } = device
        else {
            continue;
        };
        let eager = Where::Cuda {
            dtype,
            numerics,
            graphs: CudaGraphs::Eager,
        };
        for name in cases() {
            let (model, asks) = (golden(name), asks(12, 40, 12));
            let run_on = |device| {
                let setup = Setup {
                    device,
                    ..Setup::default()
                };
                run(&mut engine(&model, setup), &asks)
            };
            let case = Case {
                name,
                device,
                what: "in CUDA graphs".to_owned(),
            };
            case.assert_same(&asks, &run_on(device), &run_on(eager));
        }
    }
}
