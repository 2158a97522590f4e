//! The engine over a tiny Llama: drafts and forced tokens save steps and change no bit.

#![allow(clippy::unwrap_used, clippy::panic, unreachable_pub)]

mod support;

use std::sync::Arc;
use std::sync::mpsc::channel;

use guesthouse_device::{CpuDevice, CpuOptions, KvBudget};
use guesthouse_engine::{
    Attachments, CacheSalt, Constraint, ConstraintError, Draw, Engine, EngineConfig, Event,
    GenerationParams, Owner, Priority, Progress, Request, RequestId, SamplingPlan, Stage, Stats,
    TokenId,
};
use guesthouse_graph::PassOptions;
use guesthouse_weights::{DType, Scheme};
use support::llama::Llama;

const VOCAB: u32 = 300;

fn request(id: u32, plan: &SamplingPlan, params: &GenerationParams) -> Request {
    Request {
        id: RequestId(u64::from(id)),
        cache_salt: CacheSalt::default(),
        prompt: (0..30).map(|i| (i % 6 * 37 + id * 11) % VOCAB).collect(),
        params: params.clone(),
        sampling: Arc::new(plan.clone()),
        seed: 5,
        priority: Priority::default(),
        owner: Owner::default(),
    }
}

/// Per request and choice: each token, and the bits of its log-probability.
type Outputs = Vec<Vec<Vec<(TokenId, u32)>>>;

/// Runs three requests at once.
#[allow(clippy::needless_pass_by_value)] // None or a value, as it is written where it is asked for.
fn run(
    plan: &SamplingPlan,
    params: &GenerationParams,
    constraint: Option<Skipping>,
) -> (Outputs, Stats) {
    let model = Llama {
        window: Some(20),
        ..Llama::tiny()
    };
    let source = model.weights(Scheme::Plain(DType::F32), 3);
    let compiled = model.plan(Arc::clone(&source) as _, &PassOptions::default());
    let options = CpuOptions {
        threads: 2,
        kv: KvBudget::Blocks(64),
        block_size: 16,
        max_step_tokens: 64,
        max_slots: 8,
        max_len: 512,
    };
    let executor = CpuDevice::load(&compiled, source.as_ref(), &options, &mut |_| {}).unwrap();
    let mut engine = Engine::new(executor, EngineConfig::default());
    let mut receivers = Vec::new();
    for id in 0..3 {
        let (sender, receiver) = channel();
        let attachments = Attachments {
            constraint: constraint.clone().map(|own| Box::new(own) as _),
            ..Attachments::from(Box::new(sender))
        };
        engine
            .submit(request(id, plan, params), attachments)
            .unwrap();
        receivers.push(receiver);
    }
    while engine.step().unwrap() == Progress::Worked {
        engine.check_integrity().unwrap();
    }
    let outputs = receivers.iter().map(|events| {
        let mut choices = vec![Vec::new(); params.n as usize];
        for event in events.try_iter() {
            match event {
                Event::Token { choice, sampled } => {
                    choices[choice as usize].push((sampled.token, sampled.logprob.to_bits()));
                }
                Event::Failed { error, .. } => panic!("{error}"),
                _ => {}
            }
        }
        choices
    });
    (outputs.collect(), engine.stats())
}

fn plans() -> [SamplingPlan; 3] {
    // Of so few tokens n-grams soon repeat.
    let few = Stage::AllowedTokens(vec![7, 90, 211]);
    let penalties = Stage::Penalties {
        repetition: 0.8,
        presence: -0.2,
        frequency: 0.0,
    };
    [
        SamplingPlan::greedy(),
        SamplingPlan {
            stages: vec![few.clone(), Stage::Temperature(0.4), Stage::TopP(0.9)],
            draw: Draw::Sample,
        },
        // Depends on all of the history; likes to repeat.
        SamplingPlan {
            stages: vec![few, penalties, Stage::Temperature(0.5)],
            draw: Draw::Sample,
        },
    ]
}

#[test]
fn drafts_change_no_bit() {
    for plan in plans() {
        let params = GenerationParams {
            max_tokens: 80,
            n: 2,
            ..GenerationParams::default()
        };
        let (expected, plain) = run(&plan, &params, None);
        let drafting = GenerationParams {
            drafts: 6,
            ..params
        };
        let (found, stats) = run(&plan, &drafting, None);
        assert_eq!(found, expected);
        assert!(stats.accepted_tokens > 20, "{stats:?}");
        assert!(stats.drafted_tokens > stats.accepted_tokens, "{stats:?}");
        assert!(stats.steps < plain.steps, "{stats:?}");
    }
}

/// Of every ten tokens, six are certain.
#[derive(Clone, Debug, Default)]
struct Skipping {
    place: u32,
}

impl Skipping {
    fn only(&self) -> Option<TokenId> {
        (self.place % 10 >= 4).then_some(self.place * 13 % VOCAB)
    }
}

impl Constraint for Skipping {
    fn mask(&mut self, words: &mut [u32]) -> Result<(), ConstraintError> {
        words.fill(if self.only().is_some() { 0 } else { u32::MAX });
        if let Some(token) = self.only() {
            words[token as usize / 32] = 1 << (token % 32);
        }
        Ok(())
    }

    fn accept(&mut self, token: TokenId) -> Result<(), ConstraintError> {
        match self.only() {
            Some(only) if only != token => Err(ConstraintError(format!("{token} for {only}"))),
            _ => {
                self.place += 1;
                Ok(())
            }
        }
    }

    fn forced(&mut self) -> Vec<TokenId> {
        let mut ahead = self.clone();
        std::iter::from_fn(|| {
            let only = ahead.only();
            ahead.place += 1;
            only
        })
        .collect()
    }

    fn fork(&self) -> Box<dyn Constraint> {
        Box::new(self.clone())
    }
}

#[test]
fn forced_tokens_change_no_bit_of_the_others() {
    for plan in [SamplingPlan::greedy()] {
        let params = GenerationParams {
            max_tokens: 57,
            n: 2,
            ..GenerationParams::default()
        };
        let sampled = GenerationParams {
            top_logprobs: Some(0),
            ..params.clone()
        };
        let (expected, plain) = run(&plan, &sampled, Some(Skipping::default()));
        // Two steps for the prompts, whose tokens are more than one step takes.
        assert_eq!((plain.forced_tokens, plain.steps), (0, 58));
        let (found, stats) = run(&plan, &params, Some(Skipping::default()));
        // Five runs of six, and the beginning of one.
        assert!(stats.forced_tokens > 3 * 2 * 30, "{stats:?}");
        assert!(stats.steps < 58 - 25, "{stats:?}");
        for (found, expected) in found.iter().flatten().zip(expected.iter().flatten()) {
            assert_eq!(found.len(), expected.len());
            for (place, (found, expected)) in found.iter().zip(expected).enumerate() {
                let certain = (expected.0, 0f32.to_bits());
                assert_eq!(*found, if place % 10 >= 4 { certain } else { *expected });
            }
        }
    }
}
