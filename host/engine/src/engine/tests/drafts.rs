//! Drafts change how many steps an output takes, and nothing else.

use super::*;

fn engine_with(info: ExecutorInfo, text: MockText) -> Engine<MockExecutor> {
    let mock = MockExecutor::new(info).with_text(text);
    Engine::new(mock, EngineConfig::default())
}

fn repetitive(info: ExecutorInfo) -> Engine<MockExecutor> {
    engine_with(info, MockText::Repetitive)
}

fn drafting(mut request: Request, drafts: u32) -> Request {
    request.params.drafts = drafts;
    request
}

/// What a request without drafts gets.
fn plain(info: &ExecutorInfo, text: MockText, request: &Request) -> Outcome {
    alone_in(info, text, &drafting(request.clone(), 0))
}

fn ask(id: u64, prompt: Vec<TokenId>, max_tokens: u32, draw: Draw) -> Request {
    Request {
        sampling: Arc::new(SamplingPlan {
            stages: Vec::new(),
            draw,
        }),
        ..request(id, prompt, max_tokens)
    }
}

#[test]
fn outputs_are_those_without_drafts() {
    let info = MockExecutor::small_info();
    let mut stats = Stats::default();
    for seed in 0..40u64 {
        let text = [MockText::Repetitive, MockText::Random][seed as usize % 4 / 3];
        let draw = [Draw::Greedy, Draw::Sample][seed as usize % 2];
        let mut request = ask(seed, vec![seed as u32 % 7; 5], 20 + seed as u32, draw);
        request.params.n = 1 + seed as u32 % 3;
        request.params.top_logprobs = Some(2);
        let expected = plain(&info, text, &request);
        let mut engine = engine_with(info.clone(), text);
        let found = finish(&mut engine, drafting(request, 1 + seed as u32 % 9)).timeless();
        assert_eq!(found, expected, "seed {seed}");
        stats.drafted_tokens += engine.stats().drafted_tokens;
        stats.accepted_tokens += engine.stats().accepted_tokens;
        assert!(engine.stats().drafts <= engine.stats().drafted_tokens);
    }
    assert!(stats.accepted_tokens > 500, "{stats:?}");
    assert!(
        stats.drafted_tokens > stats.accepted_tokens + 200,
        "{stats:?}"
    );
}

#[test]
fn repetitions_take_fewer_steps() {
    let request = request(1, vec![1, 2, 3], 100);
    let mut engine = repetitive(MockExecutor::small_info());
    let expected = finish(&mut engine, request.clone());
    assert_eq!(engine.stats().steps, 100);
    let mut engine = repetitive(MockExecutor::small_info());
    let found = finish(&mut engine, drafting(request, 7));
    assert_eq!(found, expected);
    let stats = engine.stats();
    assert!(stats.steps < 60, "{stats:?}");
    // Every accepted draft saves a step.
    assert_eq!(stats.steps + stats.accepted_tokens, 100);
    assert_eq!(stats.generation_tokens, 100);
}

#[test]
fn text_that_does_not_repeat_stays_pipelined() {
    let mut engine = small();
    finish(&mut engine, drafting(request(1, vec![1, 2, 3], 100), 7));
    assert_eq!(engine.executor().most_in_flight(), 2);
    assert!(engine.stats().drafts < 20, "{:?}", engine.stats());
}

#[test]
fn accepted_drafts_are_found_in_the_prefix_cache_and_refused_ones_are_not() {
    let info = ExecutorInfo {
        max_len: 256,
        ..MockExecutor::small_info()
    };
    for seed in 0..8u64 {
        let mut engine = repetitive(info.clone());
        let first = ask(seed, vec![3, seed as u32], 60, Draw::Sample);
        let outcome = finish(&mut engine, drafting(first.clone(), 6));
        assert!(engine.stats().accepted_tokens > 10);
        let mut prompt = first.prompt.clone();
        prompt.extend(outcome.ids(0));
        prompt.push(50);
        let second = ask(100 + seed, prompt, 40, Draw::Greedy);
        let found = finish(&mut engine, drafting(second.clone(), 6));
        // All of the first output but its last token was computed: 61 positions.
        assert_eq!(found.started, Some((63, 60)));
        assert_eq!(
            found.timeless(),
            plain(&info, MockText::Repetitive, &second)
        );
    }
}

#[test]
fn guesses_leave_tokens_to_a_prompt_that_waits() {
    let info = ExecutorInfo {
        max_step_tokens: 2,
        ..MockExecutor::small_info()
    };
    let mut engine = repetitive(info);
    let _first = submit(&mut engine, drafting(request(1, vec![1, 2, 3], 100), 1));
    while engine.stats().accepted_tokens < 3 {
        engine.step().unwrap();
    }
    let second = submit(&mut engine, request(2, vec![5; 6], 1));
    let before = engine.stats().steps;
    while !second
        .try_iter()
        .any(|event| matches!(event, Event::Token { .. }))
    {
        engine.step().unwrap();
    }
    // One token of each step is the first sequence's, one the prompt's. Two steps may be under way at each end.
    let took = engine.stats().steps - before;
    assert!(took <= 6 + 4, "{took} steps");
}

#[test]
fn drafts_shrink_where_blocks_and_tokens_are_short() {
    let info = MockExecutor::small_info();
    let (mut preempted, mut accepted) = (0, 0);
    for (blocks, step_tokens) in [(14, 64), (16, 9), (20, 7), (64, 12)] {
        let mut engine = repetitive(ExecutorInfo {
            max_step_tokens: step_tokens,
            ..tiny(blocks)
        });
        let requests: Vec<_> = (0..7u64)
            .map(|id| {
                let draw = [Draw::Greedy, Draw::Sample][id as usize % 2];
                let mut request = ask(id, vec![id as u32 % 3; 4], 40, draw);
                request.params.n = 1 + id as u32 % 2;
                request
            })
            .collect();
        let events: Vec<_> = requests
            .iter()
            .map(|request| {
                let drafts = 8 * u32::from(request.id.0 % 3 > 0);
                submit(&mut engine, drafting(request.clone(), drafts))
            })
            .collect();
        run(&mut engine);
        for (request, events) in requests.iter().zip(&events) {
            let found = Outcome::of(request.params.n, events).timeless();
            assert_eq!(found, plain(&info, MockText::Repetitive, request));
        }
        preempted += engine.stats().preemptions;
        accepted += engine.stats().accepted_tokens;
    }
    assert!(preempted > 5, "{preempted} preemptions");
    assert!(accepted > 100, "{accepted} drafts accepted");
}

#[test]
fn windows_and_lengths_at_which_values_change_are_respected() {
    let window = GroupInfo {
        kind: GroupKind::Window { window: 6 },
        blocks: 12,
    };
    let full = GroupInfo {
        kind: GroupKind::Full,
        blocks: 64,
    };
    let info = ExecutorInfo {
        groups: vec![full, window],
        lengths: LengthRules {
            by_prompt_above: Some(5),
            anew_above: vec![20, 41],
        },
        ..MockExecutor::small_info()
    };
    let mut engine = repetitive(info.clone());
    let requests: Vec<_> = (0..6)
        .map(|id| ask(id, vec![id as u32; 3 + id as usize], 50, Draw::Sample))
        .collect();
    let events: Vec<_> = requests
        .iter()
        .map(|request| submit(&mut engine, drafting(request.clone(), 5)))
        .collect();
    run(&mut engine);
    for (request, events) in requests.iter().zip(&events) {
        let found = Outcome::of(1, events).timeless();
        assert_eq!(found, plain(&info, MockText::Repetitive, request));
    }
    assert!(engine.stats().accepted_tokens > 50);
}

#[test]
fn stop_tokens_and_limits_end_an_output_inside_its_drafts() {
    let info = MockExecutor::small_info();
    let mut inside = 0;
    for seed in 0..30u64 {
        // Much of what is generated is in the prompt.
        let earlier = ask(seed, vec![seed as u32; 3], 40, Draw::Sample);
        let prompt = plain(&info, MockText::Repetitive, &earlier).ids(0);
        let long = ask(seed, prompt, 60, Draw::Sample);
        let full = plain(&info, MockText::Repetitive, &long).ids(0);
        let mut stopping = long.clone();
        stopping.params.stop_tokens = vec![full[3 + seed as usize]];
        let limited = ask(seed, long.prompt.clone(), 7 + seed as u32, Draw::Sample);
        for request in [stopping, limited] {
            let mut engine = repetitive(info.clone());
            let found = finish(&mut engine, drafting(request.clone(), 8)).timeless();
            assert_eq!(found, plain(&info, MockText::Repetitive, &request));
            let emitted = found.ids(0).len() as u64;
            let stats = engine.stats();
            assert_eq!(stats.generation_tokens, emitted);
            // The last row's own sample was not needed.
            inside += u32::from(stats.steps + stats.accepted_tokens == emitted + 1);
        }
    }
    assert!(inside > 5, "{inside} outputs ended with an accepted draft");
}

#[test]
fn what_cannot_be_taken_back_is_not_drafted() {
    let recurrent = ExecutorInfo {
        groups: vec![GroupInfo {
            kind: GroupKind::Recurrent,
            blocks: 4,
        }],
        ..MockExecutor::small_info()
    };
    let mirostat = SamplingPlan {
        stages: vec![Stage::Mirostat2 { tau: 5.0, eta: 0.1 }],
        draw: Draw::Sample,
    };
    let plain = request(1, vec![4; 6], 30);
    let learning = Request {
        sampling: Arc::new(mirostat),
        ..plain.clone()
    };
    for (info, request) in [
        (recurrent, plain.clone()),
        (MockExecutor::small_info(), learning),
    ] {
        let mut engine = repetitive(info);
        finish(&mut engine, drafting(request, 5));
        assert_eq!(engine.stats().drafts, 0);
        assert_eq!(engine.executor().most_in_flight(), 2);
    }
    let mut engine = repetitive(MockExecutor::small_info());
    finish(&mut engine, drafting(plain, 5));
    assert!(engine.stats().drafts > 0);
}

#[test]
fn cancelled_requests_leave_nothing_behind() {
    let mut engine = repetitive(MockExecutor::small_info());
    for id in 0..12u64 {
        let request = drafting(ask(id, vec![1; 4], 60, Draw::Greedy), 6);
        let _events = submit(&mut engine, request);
        for _ in 0..id {
            engine.step().unwrap();
            engine.check_integrity().unwrap();
        }
        engine.cancel(RequestId(id));
        engine.check_integrity().unwrap();
    }
    run(&mut engine);
    assert_eq!(engine.stats().cancelled, 12);
}

#[test]
fn scored_prompts_are_cut() {
    let info = ExecutorInfo {
        max_len: 1024,
        max_step_tokens: 1024,
        groups: vec![GroupInfo {
            kind: GroupKind::Full,
            blocks: 256,
        }],
        ..MockExecutor::small_info()
    };
    let prompt: Vec<TokenId> = (0..600).map(|i| i * 7 % 97).collect();
    let params = |scores| GenerationParams {
        max_tokens: 1,
        prompt_logprobs: scores,
        ..GenerationParams::default()
    };
    let mut engine = engine(info.clone());
    let outcome = finish(&mut engine, with_params(1, prompt.clone(), params(Some(1))));
    assert_eq!(outcome.prompt_logprobs.unwrap().len(), 599);
    // 256 + 256 + 88 positions.
    assert_eq!(engine.stats().steps, 3);
    let mut engine = self::engine(info);
    finish(&mut engine, with_params(1, prompt, params(None)));
    assert_eq!(engine.stats().steps, 1);
}
