//! Requests whose tokens guests choose.

mod faults;
mod grammars;
mod property;
mod search;
mod time;

use super::*;

/// An engine with a pool of guests on its virtual clock.
pub(super) struct Bench {
    pub(super) engine: Engine<MockExecutor>,
    pub(super) guests: MockGuests,
}

impl Bench {
    pub(super) fn new(info: ExecutorInfo, config: EngineConfig, latency: MockLatency) -> Self {
        let executor = MockExecutor::new(info).with_latency(latency);
        let guests = MockGuests::new(executor.clock(), 2);
        let engine = Engine::new(executor, config).with_clock(Arc::new(guests.clone()));
        Self { engine, guests }
    }

    fn small() -> Self {
        let info = MockExecutor::small_info();
        Self::new(info, EngineConfig::default(), MockLatency::default())
    }

    pub(super) fn submit(
        &mut self,
        request: Request,
        chooser: Box<dyn Chooser>,
    ) -> Receiver<Event> {
        let (sender, receiver) = channel();
        let attachments = Attachments {
            chooser: Some(chooser),
            ..Attachments::from(Box::new(sender))
        };
        self.engine.submit(request, attachments).unwrap();
        receiver
    }

    fn finish(&mut self, request: Request, chooser: Box<dyn Chooser>) -> Outcome {
        let n = request.params.n;
        let events = self.submit(request, chooser);
        run(&mut self.engine);
        Outcome::of(n, &events)
    }

    /// One that answers at once.
    pub(super) fn prompt(
        &self,
        decide: impl FnMut(MockQuestion) -> Result<Answer, ChooserError> + Send + 'static,
    ) -> Box<dyn Chooser> {
        self.guests.chooser("test", MockAnswers::After(0), decide)
    }
}

pub(super) fn asking(draw: Draw, request: Request) -> Request {
    Request {
        sampling: Arc::new(SamplingPlan {
            stages: Vec::new(),
            draw,
        }),
        ..request
    }
}

pub(super) fn asked(candidates: u32, branching: Branching) -> Asked {
    Asked {
        candidates,
        branching,
        hidden: Hidden::Kept,
    }
}

/// Tokens and logits of one row of candidates.
pub(super) fn row_of(content: &Content, row: usize) -> Vec<(TokenId, f32)> {
    match content {
        Content::Candidates {
            n, tokens, logits, ..
        } => {
            let range = row * *n as usize..(row + 1) * *n as usize;
            tokens[range.clone()]
                .iter()
                .copied()
                .zip(logits[range].iter().copied())
                .filter(|(_, logit)| *logit > f32::NEG_INFINITY)
                .collect()
        }
        Content::Logits(logits) => {
            let vocab = MockExecutor::small_info().vocab as usize;
            (0..)
                .zip(logits[row * vocab..][..vocab].iter().copied())
                .collect()
        }
    }
}

pub(super) fn go_on(row: u32, token: TokenId) -> Choice {
    Choice {
        row,
        token,
        next: Next::Continue,
        score: 0.0,
    }
}

/// Takes the best token of each row.
pub(super) fn greedy(question: MockQuestion) -> Result<Answer, ChooserError> {
    let MockQuestion::Choose(rows) = question else {
        return Ok(Answer::Selected(vec![0]));
    };
    let branches = (0..rows.branches.len())
        .map(|row| {
            let best = row_of(&rows.content, row)
                .into_iter()
                .max_by(|a, b| a.1.total_cmp(&b.1).then(b.0.cmp(&a.0)))
                .unwrap();
            go_on(row as u32, best.0)
        })
        .collect();
    Ok(Answer::Choices(Choices { branches }))
}

/// Draws one of the row's best five with the row's uniform number.
fn drawn(rows: &Rows, row: usize) -> TokenId {
    let mut best = row_of(&rows.content, row);
    best.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    best[(rows.uniform[row] * 5.0) as usize].0
}

fn draws(question: MockQuestion) -> Result<Answer, ChooserError> {
    let MockQuestion::Choose(rows) = question else {
        return Ok(Answer::Selected(vec![0]));
    };
    let branches = (0..rows.branches.len())
        .map(|row| go_on(row as u32, drawn(&rows, row)))
        .collect();
    Ok(Answer::Choices(Choices { branches }))
}

/// What a device without a history gives for the token after these.
fn row_after(info: &ExecutorInfo, tokens: &[TokenId], random: RandomKey) -> LogitsRow {
    let info = ExecutorInfo {
        max_step_tokens: 1024,
        lengths: LengthRules::default(),
        groups: info
            .groups
            .iter()
            .map(|group| GroupInfo {
                blocks: 1024,
                ..*group
            })
            .collect(),
        ..info.clone()
    };
    let blocks = |kind| match kind {
        GroupKind::Recurrent => 1,
        _ => (tokens.len() as u32).div_ceil(info.block_size),
    };
    let new_blocks = info
        .groups
        .iter()
        .zip(0..)
        .flat_map(|(group, id)| {
            (0..blocks(group.kind)).map(move |block| (GroupId(id), BlockId(block)))
        })
        .collect();
    let draw = Draw::Row(asked(1, Branching::Search));
    let plan = StepPlan {
        ticket: Ticket(0),
        released: Vec::new(),
        admitted: vec![Admission {
            slot: Slot(0),
            tokens: tokens.to_vec(),
            prompt_len: tokens.len() as u32,
            sampling: Arc::new(SamplingPlan {
                stages: Vec::new(),
                draw,
            }),
            random,
            mu: None,
            blocks: vec![Vec::new(); info.groups.len()],
        }],
        copies: Vec::new(),
        rows: vec![Row {
            slot: Slot(0),
            start: 0,
            len: tokens.len() as u32,
            input: Input::History,
            new_blocks,
            prompt_logprobs: None,
        }],
        samples: vec![SampleTask {
            row: 0,
            back: 0,
            slot: Slot(0),
            top_logprobs: 0,
            logprobs: LogprobsMode::Raw,
        }],
    };
    let mut mock = MockExecutor::new(info);
    mock.launch(plan).unwrap();
    mock.sample(Ticket(0), Masks::default()).unwrap();
    match mock.collect(Ticket(0)).unwrap().samples.remove(0) {
        SampleOutcome::Row(row) => *row,
        other => panic!("{other:?}"),
    }
}

/// Natural logarithm of the softmax, by its definition.
fn log_softmax(logits: &[f32], token: TokenId) -> f64 {
    let sum: f64 = logits.iter().map(|&logit| f64::from(logit).exp()).sum();
    f64::from(logits[token as usize]) - sum.ln()
}

#[test]
fn a_guest_that_takes_the_best_is_greedy() {
    let params = GenerationParams {
        max_tokens: 20,
        top_logprobs: Some(3),
        ..GenerationParams::default()
    };
    let plain = with_params(1, (0..9).collect(), params);
    let expected = finish(&mut small(), plain.clone());
    let (one, row) = (asked(1, Branching::Choices), asked(1, Branching::Choices));
    for draw in [Draw::Candidates(one), Draw::Row(row)] {
        let mut bench = Bench::small();
        let chooser = bench.prompt(greedy);
        let found = bench.finish(asking(draw, plain.clone()), chooser);
        assert_eq!(found.reasons, expected.reasons);
        assert_eq!(found.ids(0), expected.ids(0));
        let mut tokens = plain.prompt.clone();
        for (found, expected) in found.tokens[0].iter().zip(&expected.tokens[0]) {
            let random = RandomKey {
                seed: 1,
                lineage: 0,
            };
            let logits = row_after(&MockExecutor::small_info(), &tokens, random).logits;
            let processed = log_softmax(&logits, found.token);
            assert!((f64::from(found.processed_logprob) - processed).abs() < 1e-5);
            assert_eq!((found.rank, &found.top), (expected.rank, &expected.top));
            tokens.push(found.token);
        }
        let stats = bench.engine.stats();
        assert_eq!(
            (
                stats.generation_tokens,
                stats.guest_calls,
                stats.guest_misses
            ),
            (20, 20, 0)
        );
    }
}

#[test]
fn choices_are_asked_for_together_and_stream() {
    let params = GenerationParams {
        max_tokens: 12,
        n: 4,
        ..GenerationParams::default()
    };
    let prompt: Vec<_> = (0..10).collect();
    let mut bench = Bench::small();
    let mut calls = 0;
    let chooser = bench.prompt(move |question| {
        let MockQuestion::Choose(rows) = &question else {
            panic!("a selection of choices");
        };
        assert_eq!(rows.branches, [0, 1, 2, 3]);
        assert_eq!(rows.choices, [0, 1, 2, 3]);
        assert_eq!(rows.lengths, [calls; 4]);
        assert_eq!(
            rows.random[2],
            (
                RandomKey {
                    seed: 1,
                    lineage: 2
                },
                10 + calls
            )
        );
        calls += 1;
        draws(question)
    });
    let request = asking(
        Draw::Candidates(asked(8, Branching::Choices)),
        with_params(1, prompt.clone(), params),
    );
    let events = bench.submit(request, chooser);
    for _ in 0..5 {
        bench.engine.step().unwrap();
    }
    let streamed = events
        .try_iter()
        .filter(|event| matches!(event, Event::Token { .. }));
    assert_eq!(streamed.count(), 4 * 4);
    run(&mut bench.engine);
    let outcome = Outcome::of(4, &events);
    assert_eq!(outcome.reasons, [Some(FinishReason::Length); 4]);
    assert_eq!(
        bench.engine.stats().step_tokens,
        10 + 4 * 11,
        "the prompt is computed once"
    );
}

#[test]
fn choices_draw_what_they_draw_alone() {
    let params = GenerationParams {
        max_tokens: 12,
        n: 3,
        ..GenerationParams::default()
    };
    let prompt: Vec<_> = (0..10).collect();
    let request = asking(
        Draw::Candidates(asked(8, Branching::Choices)),
        with_params(1, prompt.clone(), params),
    );
    let mut bench = Bench::small();
    let chooser = bench.prompt(draws);
    let outcome = bench.finish(request, chooser);
    for choice in 0..3 {
        let mut tokens = prompt.clone();
        let random = RandomKey {
            seed: 1,
            lineage: choice,
        };
        for _ in 0..12 {
            let row = row_after(&MockExecutor::small_info(), &tokens, random);
            let rows = Rows {
                uniform: vec![row.uniform],
                content: Content::Logits(row.logits),
                ..Rows::default()
            };
            tokens.push(drawn(&rows, 0));
        }
        assert_eq!(outcome.ids(choice as usize), tokens[10..]);
    }
    assert_ne!(outcome.ids(0), outcome.ids(1));
}

#[test]
fn choices_end_one_by_one() {
    // Choice 0 at a stop token, 1 by the guest's word, 2 without a choice, 3 at its length.
    let stop = greedy_token(&[3, 1, 4]);
    let params = GenerationParams {
        max_tokens: 4,
        n: 4,
        stop_tokens: vec![stop],
        ..GenerationParams::default()
    };
    let mut bench = Bench::small();
    let chooser = bench.prompt(move |question| {
        let MockQuestion::Choose(rows) = &question else {
            panic!("a selection of choices");
        };
        let branches = rows
            .branches
            .iter()
            .zip(0..)
            .filter_map(|(&branch, row)| {
                let candidates = row_of(&rows.content, row as usize);
                let other = candidates
                    .iter()
                    .find(|(token, _)| *token != stop)
                    .unwrap()
                    .0;
                let length = rows.lengths[row as usize];
                let choice = match (branch, length) {
                    (0, 0) => go_on(row, stop),
                    (1, 1) => Choice {
                        next: Next::Finish,
                        ..go_on(row, other)
                    },
                    (2, 2) => return None,
                    _ => go_on(row, other),
                };
                Some(choice)
            })
            .collect();
        let expected: &[u32] = match rows.lengths[0] {
            0 => &[0, 1, 2, 3],
            1 => &[1, 2, 3],
            // Choice 1 was the first of the answer before.
            2 => &[2, 3],
            _ => &[3],
        };
        assert_eq!(rows.branches, expected);
        Ok(Answer::Choices(Choices { branches }))
    });
    let request = asking(
        Draw::Candidates(asked(3, Branching::Choices)),
        with_params(1, vec![3, 1, 4], params),
    );
    let outcome = bench.finish(request, chooser);
    let lengths: Vec<_> = outcome.tokens.iter().map(Vec::len).collect();
    assert_eq!(lengths, [1, 2, 2, 4]);
    assert_eq!(
        outcome.reasons,
        [
            Some(FinishReason::Stop { token: Some(stop) }),
            Some(FinishReason::Stop { token: None }),
            Some(FinishReason::Stop { token: None }),
            Some(FinishReason::Length)
        ]
    );
}

fn greedy_token(prompt: &[TokenId]) -> TokenId {
    finish(&mut small(), request(1, prompt.to_vec(), 1)).ids(0)[0]
}

#[test]
fn hidden_states_come_as_asked() {
    let mut bench = Bench::small();
    let chooser = bench.prompt(|question| {
        let MockQuestion::Choose(rows) = &question else {
            panic!("a selection of choices");
        };
        // The mock's hidden size is 3; its last entry is the length.
        assert_eq!(rows.hidden.len(), 2 * 3);
        assert_eq!(rows.hidden[5], (4 + rows.lengths[1]) as f32);
        greedy(question)
    });
    let params = GenerationParams {
        n: 2,
        ..GenerationParams::default()
    };
    let draw = Draw::Candidates(Asked {
        hidden: Hidden::Shown,
        ..asked(2, Branching::Choices)
    });
    let outcome = bench.finish(asking(draw, with_params(1, vec![1; 4], params)), chooser);
    assert_eq!(outcome.error, None);
}

#[test]
fn preempted_choices_get_the_same() {
    let params = GenerationParams {
        max_tokens: 24,
        n: 3,
        ..GenerationParams::default()
    };
    let request = |id| {
        asking(
            Draw::Candidates(asked(8, Branching::Choices)),
            with_params(id, (0..10).collect(), params.clone()),
        )
    };
    let mut ample = Bench::small();
    let chooser = ample.prompt(draws);
    let expected = ample.finish(request(1), chooser);
    for prefix_cache in [PrefixCaching::On, PrefixCaching::Off] {
        let config = EngineConfig {
            prefix_cache,
            ..EngineConfig::default()
        };
        let mut bench = Bench::new(tiny(28), config, MockLatency::default());
        let first = submit(&mut bench.engine, super::request(2, (20..30).collect(), 30));
        let chooser = bench.prompt(draws);
        let events = bench.submit(request(1), chooser);
        run(&mut bench.engine);
        assert!(bench.engine.stats().preemptions > 0);
        assert_eq!(Outcome::of(1, &first).reasons, length());
        assert_eq!(
            Outcome::of(3, &events).timeless(),
            expected.clone().timeless()
        );
    }
}

#[test]
fn plans_and_choosers_go_together() {
    let mut bench = Bench::small();
    let draw = Draw::Candidates(asked(4, Branching::Search));
    let refuse = |bench: &mut Bench, request: Request, chooser: Option<Box<dyn Chooser>>| {
        let attachments = Attachments {
            chooser,
            ..Attachments::from(Box::new(channel().0))
        };
        bench.engine.submit(request, attachments).unwrap_err()
    };
    let chooser = bench.prompt(greedy);
    assert_eq!(
        refuse(&mut bench, request(1, vec![1], 1), Some(chooser)),
        SubmitError::ChooserUnused
    );
    assert_eq!(
        refuse(&mut bench, asking(draw, request(1, vec![1], 1)), None),
        SubmitError::ChooserMissing
    );
    let none = Draw::Candidates(asked(0, Branching::Search));
    let chooser = bench.prompt(greedy);
    assert_eq!(
        refuse(
            &mut bench,
            asking(none, request(1, vec![1], 1)),
            Some(chooser)
        ),
        SubmitError::NoCandidates
    );
    let params = GenerationParams {
        n: 9,
        ..GenerationParams::default()
    };
    let many = asking(
        Draw::Candidates(asked(4, Branching::Choices)),
        with_params(1, vec![1], params),
    );
    let chooser = bench.prompt(greedy);
    assert_eq!(
        refuse(&mut bench, many, Some(chooser)),
        SubmitError::ChoicesOutOfRange { n: 9, limit: 8 }
    );
}
