//! Single requests: how they start, stop, fail and leave.

use super::*;

#[test]
fn max_tokens_ends_a_choice() {
    for max_tokens in [1, 2, 7] {
        let mut engine = small();
        let outcome = finish(&mut engine, request(1, vec![5, 6, 7], max_tokens));
        assert_eq!(outcome.started, Some((3, 0)));
        assert_eq!(outcome.tokens[0].len(), max_tokens as usize);
        assert_eq!(outcome.reasons, length());
        // Never scheduled beyond: the prompt, and all outputs but the last.
        assert_eq!(engine.stats().step_tokens, 3 + u64::from(max_tokens) - 1);
        assert_eq!(engine.stats().generation_tokens, u64::from(max_tokens));
    }
}

#[test]
fn a_stop_token_is_emitted_and_its_overrun_is_not() {
    let full = finish(&mut small(), request(1, vec![5, 6, 7], 20)).ids(0);
    // The first token that did not occur before it, from the third on.
    let at = (2..20).find(|&at| !full[..at].contains(&full[at])).unwrap();
    let mut engine = small();
    let params = GenerationParams {
        max_tokens: 20,
        stop_tokens: vec![full[at]],
        ..GenerationParams::default()
    };
    let outcome = finish(&mut engine, with_params(1, vec![5, 6, 7], params));
    assert_eq!(outcome.ids(0), full[..=at]);
    assert_eq!(
        outcome.reasons,
        [Some(FinishReason::Stop {
            token: Some(full[at])
        })]
    );
    assert_eq!(engine.stats().generation_tokens, at as u64 + 1);
    // One row ran beyond the stop token: it was computed, and nothing else of it is left.
    assert_eq!(engine.stats().step_tokens, 3 + at as u64 + 1);
}

#[test]
fn what_can_never_run_is_refused() {
    let mut engine = engine(tiny(4));
    let refuse = |engine: &mut Engine<MockExecutor>, request: Request| {
        let (sender, receiver) = channel();
        let error = engine.submit(request, Box::new(sender)).unwrap_err();
        assert_eq!(receiver.try_iter().count(), 0);
        error
    };
    assert_eq!(
        refuse(&mut engine, request(1, vec![], 1)),
        SubmitError::EmptyPrompt
    );
    assert_eq!(
        refuse(&mut engine, request(1, vec![3, 97], 1)),
        SubmitError::TokenOutOfVocabulary {
            token: 97,
            position: 1,
            vocab: 97
        }
    );
    assert_eq!(
        refuse(&mut engine, request(1, vec![1; 100], 29)),
        SubmitError::TooLong {
            prompt_len: 100,
            max_tokens: 29,
            max_len: 128
        }
    );
    assert_eq!(
        refuse(&mut engine, request(1, vec![1; 100], u32::MAX)),
        SubmitError::TooLong {
            prompt_len: 100,
            max_tokens: u32::MAX,
            max_len: 128
        }
    );
    // 16 positions fit: the last token is never computed, so 8 + 9 tokens do, and 8 + 10 do not.
    assert_eq!(
        refuse(&mut engine, request(1, vec![1; 8], 10)),
        SubmitError::NeverFits {
            tokens: 17,
            group: GroupId(0),
            needed: 5,
            blocks: 4
        }
    );
    assert_eq!(
        refuse(&mut engine, request(1, vec![1], 0)),
        SubmitError::NothingToDo
    );
    let choices = |n| {
        with_params(
            1,
            vec![1],
            GenerationParams {
                n,
                ..GenerationParams::default()
            },
        )
    };
    assert_eq!(
        refuse(&mut engine, choices(0)),
        SubmitError::ChoicesOutOfRange {
            n: 0,
            limit: 8 * 1024
        }
    );
    assert!(matches!(
        refuse(&mut engine, choices(u32::MAX)),
        SubmitError::ChoicesOutOfRange { .. }
    ));
    assert_eq!(
        finish(&mut engine, request(1, vec![1; 8], 9)).reasons,
        length()
    );
}

#[test]
fn a_whole_prompt_that_exceeds_a_step_is_refused() {
    let info = ExecutorInfo {
        whole_prompt: true,
        max_step_tokens: 16,
        ..MockExecutor::small_info()
    };
    let error = engine(info.clone())
        .submit(request(1, vec![1; 17], 1), Box::new(channel().0))
        .unwrap_err();
    assert_eq!(
        error,
        SubmitError::PromptExceedsStep {
            prompt_len: 17,
            max_step_tokens: 16
        }
    );
    assert_eq!(
        finish(&mut engine(info), request(1, vec![1; 16], 3)).reasons,
        length()
    );
}

#[test]
fn the_queue_is_bounded() {
    let config = EngineConfig {
        max_waiting: 2,
        ..EngineConfig::default()
    };
    let mut engine = Engine::new(MockExecutor::new(MockExecutor::small_info()), config);
    let first = submit(&mut engine, request(1, vec![1], 2));
    let second = submit(&mut engine, request(2, vec![2], 2));
    let refused = engine.submit(request(3, vec![3], 2), Box::new(channel().0));
    assert_eq!(
        refused,
        Err(SubmitError::QueueFull {
            waiting: 2,
            max_waiting: 2
        })
    );
    let duplicate = engine.submit(request(1, vec![3], 2), Box::new(channel().0));
    assert_eq!(duplicate, Err(SubmitError::DuplicateId(RequestId(1))));
    engine.step().unwrap();
    let third = submit(&mut engine, request(3, vec![3], 2));
    run(&mut engine);
    for events in [first, second, third] {
        assert_eq!(Outcome::of(1, &events).reasons, length());
    }
}

#[test]
fn cancelling_frees_everything() {
    for steps in 0..6 {
        let mut engine = small();
        let params = GenerationParams {
            max_tokens: 50,
            n: 3,
            ..GenerationParams::default()
        };
        let events = submit(&mut engine, with_params(1, vec![1; 50], params));
        let other = submit(&mut engine, request(2, vec![9; 30], 9));
        for _ in 0..steps {
            engine.step().unwrap();
        }
        events.try_iter().count();
        engine.cancel(RequestId(1));
        engine.cancel(RequestId(77));
        engine.check_integrity().unwrap();
        run(&mut engine);
        assert_eq!(events.try_iter().count(), 0);
        assert_eq!(Outcome::of(1, &other).reasons, length());
        assert_eq!(engine.stats().cancelled, 1);
    }
}

#[test]
fn a_listener_that_is_gone_cancels_its_request() {
    let mut engine = small();
    drop(submit(&mut engine, request(1, vec![1; 8], 100)));
    let other = submit(&mut engine, request(2, vec![9; 8], 9));
    run(&mut engine);
    assert_eq!(engine.stats().cancelled, 1);
    assert!(engine.stats().generation_tokens < 20);
    assert_eq!(Outcome::of(1, &other).reasons, length());
}

#[test]
fn a_choice_that_cannot_be_sampled_fails_its_request_alone() {
    let mut engine = small();
    let sampling = SamplingPlan {
        stages: vec![Stage::AllowedTokens(Vec::new())],
        draw: Draw::Greedy,
    };
    let params = GenerationParams {
        n: 2,
        ..GenerationParams::default()
    };
    let bad = Request {
        sampling: Arc::new(sampling),
        ..with_params(1, vec![1; 8], params)
    };
    let bad = submit(&mut engine, bad);
    let good = submit(&mut engine, request(2, vec![9; 8], 9));
    run(&mut engine);
    let expected = EngineError::NothingToChoose {
        choice: 0,
        message: "all tokens are masked".to_owned(),
    };
    assert_eq!(Outcome::of(2, &bad).error, Some(expected));
    assert_eq!(Outcome::of(1, &good).reasons, length());
    assert_eq!(engine.stats().failed, 1);
}

#[test]
fn a_lost_device_fails_everyone_and_the_engine() {
    let at = Ticket(3);
    for failure in [
        MockFailure::Launch(at),
        MockFailure::Sample(at),
        MockFailure::Collect(at),
    ] {
        let executor = MockExecutor::new(MockExecutor::small_info()).with_failure(failure);
        let config = EngineConfig {
            max_running: 1,
            ..EngineConfig::default()
        };
        let mut engine = Engine::new(executor, config);
        let running = submit(&mut engine, request(1, vec![1; 8], 9));
        let waiting = submit(&mut engine, request(2, vec![2; 8], 9));
        let error = loop {
            match engine.step() {
                Ok(progress) => assert_eq!(progress, Progress::Worked),
                Err(error) => break error,
            }
        };
        assert_eq!(error.label(), "executor");
        assert_eq!(Outcome::of(1, &running).error, Some(error.clone()));
        assert_eq!(Outcome::of(1, &waiting).error, Some(error));
        assert_eq!(engine.step(), Err(EngineError::Dead));
        assert_eq!(
            engine.submit(request(3, vec![1], 1), Box::new(channel().0)),
            Err(SubmitError::Dead)
        );
        assert_eq!(engine.stats().blocks_used, 0);
    }
}

#[test]
fn priorities_go_before_arrival() {
    let config = EngineConfig {
        max_running: 1,
        ..EngineConfig::default()
    };
    let mut engine = Engine::new(MockExecutor::new(MockExecutor::small_info()), config);
    let late = submit(&mut engine, request(1, vec![1; 4], 8));
    let soon = submit(
        &mut engine,
        Request {
            priority: Priority(-1),
            owner: Owner::default(),
            ..request(2, vec![2; 4], 8)
        },
    );
    while Outcome::of(1, &soon).reasons != length() {
        engine.step().unwrap();
    }
    assert_eq!(late.try_iter().count(), 0);
    run(&mut engine);
}

#[test]
fn two_steps_are_under_way_while_the_host_works() {
    let latency = MockLatency {
        step: 1000,
        token: 0,
        ..MockLatency::default()
    };
    let executor = MockExecutor::new(MockExecutor::small_info()).with_latency(latency);
    let clock = executor.clock();
    let mut engine = Engine::new(executor, EngineConfig::default());
    let events = submit(&mut engine, request(1, vec![1; 4], 100));
    loop {
        let progress = engine.step().unwrap();
        if progress == Progress::Idle {
            break;
        }
        clock.advance(900);
    }
    assert_eq!(Outcome::of(1, &events).reasons, length());
    assert_eq!(engine.executor().most_in_flight(), 2);
    // 100 steps back to back: the host's 900 ns between them are hidden.
    assert_eq!(clock.now(), 100 * 1000);
}

#[test]
fn a_prompt_is_embedded_by_chunks_in_one_vector() {
    let info = ExecutorInfo {
        task: Task::Embed,
        ..MockExecutor::small_info()
    };
    let embed = |max_step_tokens, len: u32| {
        let config = EngineConfig {
            max_step_tokens,
            ..EngineConfig::default()
        };
        let mut engine = Engine::new(MockExecutor::new(info.clone()), config);
        let params = GenerationParams {
            task: Task::Embed,
            max_tokens: 0,
            ..GenerationParams::default()
        };
        let events: Vec<_> = (1..=3u64)
            .map(|id| {
                let prompt = (0..len).map(|i| (i * id as u32) % 97).collect();
                submit(&mut engine, with_params(id, prompt, params.clone()))
            })
            .collect();
        run(&mut engine);
        let one = |events: &Receiver<Event>| {
            let events: Vec<_> = events.try_iter().collect();
            let [
                Event::Started { .. },
                Event::Embedding(vector),
                Event::Finished { .. },
            ] = &events[..]
            else {
                panic!("{events:?}");
            };
            assert_eq!(engine.stats().generation_tokens, 0);
            assert_eq!(vector[2], len as f32);
            vector.clone()
        };
        events.iter().map(one).collect::<Vec<_>>()
    };
    let whole = embed(64, 20);
    assert_ne!(whole[0], whole[1]);
    assert_eq!(embed(3, 20), whole);
    // As long as the context: nothing follows.
    assert_eq!(embed(64, 128).len(), 3);
}

#[test]
fn each_model_takes_requests_of_its_task() {
    let refusal = |info: &ExecutorInfo, params: GenerationParams| {
        let mut engine = engine(info.clone());
        let request = with_params(1, vec![1, 2], params);
        engine.submit(request, Box::new(channel().0)).unwrap_err()
    };
    let generates = MockExecutor::small_info();
    let embeds = ExecutorInfo {
        task: Task::Embed,
        ..generates.clone()
    };
    let embed = GenerationParams {
        task: Task::Embed,
        max_tokens: 0,
        ..GenerationParams::default()
    };
    let wrong = SubmitError::WrongTask;
    assert_eq!(refusal(&generates, embed.clone()), wrong(Task::Generate));
    let generate = GenerationParams::default();
    assert_eq!(refusal(&embeds, generate), wrong(Task::Embed));
    let two = GenerationParams { n: 2, ..embed };
    assert_eq!(refusal(&embeds, two), SubmitError::EmbeddingParams);
}
