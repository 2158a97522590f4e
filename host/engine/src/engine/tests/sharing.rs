//! Blocks that several sequences use, and prompts that are computed in parts.

use super::*;

#[test]
fn an_overrun_row_is_not_cached() {
    // Blocks of one position: every computed and collected position is a block.
    let info = ExecutorInfo {
        block_size: 1,
        ..MockExecutor::small_info()
    };
    let first = finish(&mut engine(info.clone()), request(1, vec![5, 6], 3)).ids(0);
    let mut engine = engine(info);
    let params = GenerationParams {
        max_tokens: 9,
        stop_tokens: vec![first[0]],
        ..GenerationParams::default()
    };
    finish(&mut engine, with_params(1, vec![5, 6], params));
    let mut prompt = vec![5, 6, first[0], first[1]];
    prompt.push(first[2]);
    // Positions 0 and 1 were collected; position 2, the stop token's, belongs to the overrun.
    assert_eq!(
        finish(&mut engine, request(2, prompt, 1)).started,
        Some((5, 2))
    );
}

#[test]
fn a_window_needs_no_more_blocks_than_it_sees() {
    // 100 positions through 4 blocks of 4: a query sees 9 positions, in at most 3 blocks.
    let info = ExecutorInfo {
        groups: vec![GroupInfo {
            kind: GroupKind::Window { window: 9 },
            blocks: 4,
        }],
        ..MockExecutor::small_info()
    };
    let request = request(1, (0..70).collect(), 30);
    let expected = alone(&info, &request);
    assert_eq!(finish(&mut engine(info), request).timeless(), expected);
}

#[test]
fn choices_share_the_prompt_and_differ() {
    // 10 positions: two full blocks, and a third that each choice but one copies.
    let mut engine = small();
    let params = GenerationParams {
        max_tokens: 9,
        n: 4,
        ..GenerationParams::default()
    };
    let sampling = Arc::new(SamplingPlan {
        stages: Vec::new(),
        draw: Draw::Sample,
    });
    let request = Request {
        sampling,
        ..with_params(1, (0..10).collect(), params)
    };
    let events = submit(&mut engine, request.clone());
    engine.step().unwrap();
    assert_eq!(engine.stats().running, 4);
    assert_eq!(
        engine.stats().blocks_used,
        3,
        "nothing is copied before it is written"
    );
    engine.step().unwrap();
    assert_eq!(engine.stats().blocks_used, 2 + 4);
    run(&mut engine);
    let outcome = Outcome::of(4, &events);
    assert_eq!(
        engine.stats().step_tokens,
        10 + 4 * 8,
        "the prompt is computed once"
    );
    assert_eq!(outcome.reasons, [Some(FinishReason::Length); 4]);
    for a in 0..4 {
        for b in 0..a {
            assert_ne!(outcome.ids(a), outcome.ids(b));
        }
        // A choice is a function of seed and lineage, not of its siblings.
        let random = |lineage| Request {
            params: GenerationParams {
                n: lineage + 1,
                ..request.params.clone()
            },
            ..request.clone()
        };
        assert_eq!(
            finish(&mut small(), random(a as u32)).ids(a),
            outcome.ids(a)
        );
    }
}

#[test]
fn more_choices_than_slots_run_one_after_the_other() {
    let mut engine = engine(ExecutorInfo {
        slots: 3,
        ..MockExecutor::small_info()
    });
    let params = GenerationParams {
        max_tokens: 6,
        n: 8,
        ..GenerationParams::default()
    };
    let outcome = finish(&mut engine, with_params(1, (0..10).collect(), params));
    assert_eq!(outcome.reasons, [Some(FinishReason::Length); 8]);
    // Greedy choices are equal.
    assert!((1..8).all(|choice| outcome.ids(choice) == outcome.ids(0)));
}

#[test]
fn choices_outlive_the_one_that_computed_the_prompt() {
    // A pool in which the shared partial block is missing at the end: 3 prompt blocks, 4 in all.
    let mut engine = engine(tiny(4));
    let params = GenerationParams {
        max_tokens: 7,
        n: 3,
        ..GenerationParams::default()
    };
    let outcome = finish(&mut engine, with_params(1, (0..10).collect(), params));
    assert_eq!(outcome.reasons, [Some(FinishReason::Length); 3]);
    assert!((1..3).all(|choice| outcome.ids(choice) == outcome.ids(0)));
    assert!(engine.stats().preemptions > 0);
}

#[test]
fn prompt_logprobs_do_not_depend_on_chunks_or_cache() {
    let prompt: Vec<TokenId> = (0..30).map(|position| position * 5 % 97).collect();
    let params = GenerationParams {
        max_tokens: 3,
        prompt_logprobs: Some(2),
        ..GenerationParams::default()
    };
    let request = with_params(1, prompt.clone(), params);
    let expected = alone(&MockExecutor::small_info(), &request);
    let scores = expected.prompt_logprobs.clone().unwrap();
    assert_eq!(
        scores.iter().map(|score| score.token).collect::<Vec<_>>(),
        prompt[1..]
    );
    assert!(scores.iter().all(|score| score.top.len() == 2));
    for max_step_tokens in [1, 3, 7, 29, 30, 64] {
        let config = EngineConfig {
            max_step_tokens,
            ..EngineConfig::default()
        };
        let mut engine = Engine::new(MockExecutor::new(MockExecutor::small_info()), config);
        for id in [1, 2] {
            let again = finish(
                &mut engine,
                Request {
                    id: RequestId(id),
                    ..request.clone()
                },
            );
            assert_eq!(
                again.started,
                Some((30, 0)),
                "prompt log-probabilities bypass hits"
            );
            assert_eq!(again.timeless(), expected);
        }
        let plain = finish(&mut engine, super::request(3, prompt.clone(), 1));
        assert_eq!(plain.started, Some((30, 28)), "but their blocks can be hit");
    }
}

#[test]
fn scoring_alone_generates_nothing() {
    for (prompt, max_step_tokens) in [
        (vec![4], 64),
        ((0..10).collect(), 64),
        ((0..10).collect(), 3),
    ] {
        let config = EngineConfig {
            max_step_tokens,
            ..EngineConfig::default()
        };
        let mut engine = Engine::new(MockExecutor::new(MockExecutor::small_info()), config);
        let params = GenerationParams {
            max_tokens: 0,
            n: 2,
            prompt_logprobs: Some(0),
            ..GenerationParams::default()
        };
        let outcome = finish(&mut engine, with_params(1, prompt.clone(), params));
        assert_eq!(outcome.prompt_logprobs.unwrap().len(), prompt.len() - 1);
        assert_eq!(outcome.tokens, [vec![], vec![]]);
        assert_eq!(outcome.reasons, [Some(FinishReason::Length); 2]);
        assert_eq!(engine.stats().step_tokens, prompt.len() as u64);
    }
}

#[test]
fn a_prefix_is_found_and_leaves_a_token_to_compute() {
    let mut engine = small();
    let prompt: Vec<TokenId> = (0..16).collect();
    let first = finish(&mut engine, request(1, prompt.clone(), 4));
    assert_eq!(first.started, Some((16, 0)));
    // All 16 positions are cached, but the last block is computed again.
    let second = finish(&mut engine, request(2, prompt.clone(), 4));
    assert_eq!(second.started, Some((16, 12)));
    assert_eq!(second.ids(0), first.ids(0));
    let salted = Request {
        cache_salt: CacheSalt([1; 32]),
        ..request(3, prompt.clone(), 4)
    };
    assert_eq!(finish(&mut engine, salted).started, Some((16, 0)));
    // 19 positions of the first were computed: 4 blocks.
    let longer: Vec<TokenId> = prompt.into_iter().chain(first.ids(0)).collect();
    assert_eq!(
        finish(&mut engine, request(4, longer, 4)).started,
        Some((20, 16))
    );
    assert_eq!(
        (
            engine.stats().prefix_cache_queries,
            engine.stats().prefix_cache_hits
        ),
        (16 + 16 + 16 + 20, 12 + 16)
    );
}

#[test]
fn a_dense_load_preempts_hits_and_batches() {
    // 64 requests over 4 beginnings; together they want about three times the blocks there are.
    let info = ExecutorInfo {
        groups: vec![GroupInfo {
            kind: GroupKind::Full,
            blocks: 300,
        }],
        slots: 64,
        max_step_tokens: 96,
        ..MockExecutor::small_info()
    };
    let requests: Vec<Request> = (0..64u32)
        .map(|id| {
            let prompt = (0..20)
                .map(|position| position * 3 + id % 4)
                .chain([id])
                .collect();
            let draw = if id % 2 == 0 {
                Draw::Greedy
            } else {
                Draw::Sample
            };
            let sampling = Arc::new(SamplingPlan {
                stages: Vec::new(),
                draw,
            });
            Request {
                sampling,
                ..request(u64::from(id), prompt, 30 + id % 9)
            }
        })
        .collect();
    let mut engine = engine(info.clone());
    let events: Vec<_> = requests
        .iter()
        .map(|request| submit(&mut engine, request.clone()))
        .collect();
    run(&mut engine);
    for (request, events) in requests.iter().zip(&events) {
        assert_eq!(Outcome::of(1, events).timeless(), alone(&info, request));
    }
    let stats = engine.stats();
    assert!(stats.mean_decode_batch() >= 16.0, "{stats:?}");
    assert!(stats.preemptions > 0, "{stats:?}");
    assert!(stats.prefix_cache_hits > 0, "{stats:?}");
}

#[test]
fn a_sequence_that_outgrows_a_length_is_computed_anew() {
    let info = ExecutorInfo {
        lengths: LengthRules {
            anew_above: vec![10],
            ..LengthRules::default()
        },
        ..MockExecutor::small_info()
    };
    // 6 + 9 tokens; the last is never computed. The mock refuses rows beyond 10 of a sequence admitted with fewer.
    let mut engine = engine(info.clone());
    let grows = request(0, (1..7).collect(), 9);
    let events = submit(&mut engine, grows.clone());
    run(&mut engine);
    let outcome = Outcome::of(1, &events).timeless();
    assert_eq!(outcome, alone(&MockExecutor::small_info(), &grows));
    assert_eq!(engine.stats().preemptions, 1);

    // A longer prompt finds only what was computed above 10: the whole first three blocks of four.
    let mut longer: Vec<u32> = (1..7).collect();
    longer.extend(outcome.tokens[0].iter().map(|sampled| sampled.token));
    let events = submit(&mut engine, request(1, longer[..14].to_vec(), 1));
    run(&mut engine);
    assert_eq!(Outcome::of(1, &events).started.unwrap().1, 12);
    // A shorter one, only what was computed below: two blocks.
    let events = submit(&mut engine, request(2, longer[..10].to_vec(), 1));
    run(&mut engine);
    assert_eq!(Outcome::of(1, &events).started.unwrap().1, 8);
    assert_eq!(engine.stats().preemptions, 1);
}

#[test]
fn prompts_whose_length_counts_share_blocks_with_their_equals_alone() {
    let info = ExecutorInfo {
        lengths: LengthRules {
            by_prompt_above: Some(10),
            ..LengthRules::default()
        },
        ..MockExecutor::small_info()
    };
    let mut engine = engine(info);
    let mut cached = |id, len| {
        let events = submit(&mut engine, request(id, (1..=len).collect(), 1));
        run(&mut engine);
        Outcome::of(1, &events).started.unwrap().1
    };
    assert_eq!(cached(0, 13), 0);
    assert_eq!(cached(1, 13), 12);
    assert_eq!(cached(2, 14), 0);
    assert_eq!(cached(3, 10), 0);
    assert_eq!(cached(4, 9), 8);
}
