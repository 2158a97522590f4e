//! The engine against the mock executor.
#![allow(clippy::unwrap_used, clippy::panic)]

mod drafts;
mod grammars;
mod guests;
mod lifecycle;
mod property;
mod sharing;
mod tenants;

use crate::*;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};

/// A request for `max_tokens` greedy tokens.
fn request(id: u64, prompt: Vec<TokenId>, max_tokens: u32) -> Request {
    Request {
        id: RequestId(id),
        cache_salt: CacheSalt::default(),
        prompt,
        params: GenerationParams {
            max_tokens,
            ..GenerationParams::default()
        },
        sampling: Arc::new(SamplingPlan::greedy()),
        seed: id,
        priority: Priority::default(),
        owner: Owner::default(),
    }
}

fn submit(engine: &mut Engine<MockExecutor>, request: Request) -> Receiver<Event> {
    let (sender, receiver) = channel();
    engine.submit(request, Box::new(sender)).unwrap();
    receiver
}

/// Steps until idle, checking integrity after each.
fn run(engine: &mut Engine<MockExecutor>) {
    for _ in 0..100_000 {
        let progress = engine.step().unwrap();
        engine.check_integrity().unwrap();
        if progress == Progress::Idle {
            assert_eq!(engine.stats().blocks_used, 0);
            return;
        }
    }
    panic!("not idle after 100000 steps: {:?}", engine.stats());
}

/// What a request got.
#[derive(Clone, Debug, Default, PartialEq)]
struct Outcome {
    started: Option<(u32, u32)>,
    prompt_logprobs: Option<Vec<Sampled>>,
    tokens: Vec<Vec<Sampled>>,
    reasons: Vec<Option<FinishReason>>,
    error: Option<EngineError>,
}

impl Outcome {
    fn of(n: u32, events: &Receiver<Event>) -> Self {
        let mut outcome = Self {
            tokens: vec![Vec::new(); n as usize],
            reasons: vec![None; n as usize],
            ..Self::default()
        };
        for event in events.try_iter() {
            assert_eq!(outcome.error, None, "nothing follows a failure");
            match event {
                Event::Started {
                    prompt_tokens,
                    cached_tokens,
                } => {
                    assert_eq!(
                        outcome.started.replace((prompt_tokens, cached_tokens)),
                        None
                    );
                }
                Event::PromptLogprobs(scores) => {
                    assert!(outcome.tokens.iter().all(Vec::is_empty));
                    assert_eq!(outcome.prompt_logprobs.replace(scores), None);
                }
                Event::Token { choice, sampled } => {
                    assert_eq!(
                        outcome.reasons[choice as usize], None,
                        "no token after the end"
                    );
                    outcome.tokens[choice as usize].push(sampled);
                }
                Event::Finished { choice, reason } => {
                    assert_eq!(outcome.reasons[choice as usize].replace(reason), None);
                }
                Event::Embedding(vector) => panic!("{vector:?}"),
                Event::Failed { error, .. } => outcome.error = Some(error),
            }
        }
        outcome
    }

    fn ids(&self, choice: usize) -> Vec<TokenId> {
        self.tokens[choice]
            .iter()
            .map(|sampled| sampled.token)
            .collect()
    }

    /// Without what depends on the cache.
    fn timeless(mut self) -> Self {
        self.started = None;
        self
    }
}

/// What a request gets when its choices run one by one, alone on a large device, unchunked and without a prefix cache.
fn alone(info: &ExecutorInfo, request: &Request) -> Outcome {
    alone_in(info, MockText::Random, request)
}

/// Likewise, of a model with such text.
fn alone_in(info: &ExecutorInfo, text: MockText, request: &Request) -> Outcome {
    let events = alone_with(info, text, |engine| submit(engine, request.clone()));
    Outcome::of(request.params.n, &events).timeless()
}

/// The events of what is submitted likewise.
fn alone_with(
    info: &ExecutorInfo,
    text: MockText,
    submit: impl FnOnce(&mut Engine<MockExecutor>) -> Receiver<Event>,
) -> Receiver<Event> {
    let info = ExecutorInfo {
        groups: info
            .groups
            .iter()
            .map(|group| GroupInfo {
                blocks: 2048,
                ..*group
            })
            .collect(),
        slots: 1,
        max_step_tokens: 4096,
        ..info.clone()
    };
    let config = EngineConfig {
        prefix_cache: PrefixCaching::Off,
        ..EngineConfig::default()
    };
    let mut engine = Engine::new(MockExecutor::new(info).with_text(text), config);
    let events = submit(&mut engine);
    while engine.step().unwrap() != Progress::Idle {}
    events
}

fn engine(info: ExecutorInfo) -> Engine<MockExecutor> {
    Engine::new(MockExecutor::new(info), EngineConfig::default())
}

fn small() -> Engine<MockExecutor> {
    engine(MockExecutor::small_info())
}

/// One full group of `blocks` blocks of 4 positions.
fn tiny(blocks: u32) -> ExecutorInfo {
    ExecutorInfo {
        groups: vec![GroupInfo {
            kind: GroupKind::Full,
            blocks,
        }],
        ..MockExecutor::small_info()
    }
}

fn with_params(id: u64, prompt: Vec<TokenId>, params: GenerationParams) -> Request {
    Request {
        params,
        ..request(id, prompt, 1)
    }
}

fn finish(engine: &mut Engine<MockExecutor>, request: Request) -> Outcome {
    let n = request.params.n;
    let events = submit(engine, request);
    run(engine);
    Outcome::of(n, &events)
}

fn length() -> Vec<Option<FinishReason>> {
    vec![Some(FinishReason::Length)]
}
