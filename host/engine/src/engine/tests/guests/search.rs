//! Branches that fork, against plain references and under lack of memory.

use super::*;
use std::collections::BTreeMap;
use std::sync::Mutex;

const VOCAB: u32 = 97;

/// A hypothesis of a beam search.
#[derive(Clone, Debug, PartialEq)]
struct Hypothesis {
    tokens: Vec<TokenId>,
    score: f64,
}

#[derive(Clone, Copy, Debug)]
struct Beam {
    width: usize,
    max_tokens: usize,
    stop: TokenId,
}

impl Beam {
    /// Beam search that computes every row from nothing: the best `width` of all continuations go on; those that end in a stop
    /// token or at the length are kept.
    fn reference(self, info: &ExecutorInfo, prompt: &[TokenId]) -> Vec<Hypothesis> {
        let random = RandomKey {
            seed: 1,
            lineage: 0,
        };
        let mut live = vec![Hypothesis {
            tokens: Vec::new(),
            score: 0.0,
        }];
        let mut finished = Vec::new();
        while !live.is_empty() {
            let mut next = Vec::new();
            for hypothesis in &live {
                let tokens = [prompt, &hypothesis.tokens].concat();
                let logits = row_after(info, &tokens, random).logits;
                for token in 0..VOCAB {
                    next.push(Hypothesis {
                        tokens: [hypothesis.tokens.as_slice(), &[token]].concat(),
                        score: hypothesis.score + log_softmax(&logits, token),
                    });
                }
            }
            next.sort_by(|a, b| b.score.total_cmp(&a.score));
            next.truncate(self.width);
            let (done, going): (Vec<_>, _) = next.into_iter().partition(|next| {
                next.tokens.len() == self.max_tokens || next.tokens.last() == Some(&self.stop)
            });
            finished.extend(done);
            live = going;
        }
        finished.sort_by(|a, b| b.score.total_cmp(&a.score));
        finished
    }

    /// The same as a guest's function.
    fn decide(self) -> impl FnMut(MockQuestion) -> Result<Answer, ChooserError> + Send + 'static {
        let mut scores = vec![0.0];
        move |question| {
            let rows = match question {
                MockQuestion::Choose(rows) => rows,
                MockQuestion::Select(finished) => {
                    let mut order: Vec<u32> = (0..finished.scores.len() as u32).collect();
                    order.sort_by(|&a, &b| {
                        finished.scores[b as usize].total_cmp(&finished.scores[a as usize])
                    });
                    order.truncate(finished.wanted as usize);
                    return Ok(Answer::Selected(order));
                }
            };
            let Content::Candidates { log_sum_exp, .. } = &rows.content else {
                panic!("no candidates");
            };
            let mut next = Vec::new();
            for (row, &from) in rows.choices.iter().enumerate() {
                for (token, logit) in row_of(&rows.content, row) {
                    let score: f64 = scores[from as usize];
                    let score = score + f64::from(logit) - f64::from(log_sum_exp[row]);
                    next.push((score, row as u32, token));
                }
            }
            next.sort_by(|a, b| b.0.total_cmp(&a.0));
            next.truncate(self.width);
            scores = next.iter().map(|next| next.0).collect();
            let branches = next
                .into_iter()
                .map(|(score, row, token)| Choice {
                    score: score as f32,
                    ..go_on(row, token)
                })
                .collect();
            Ok(Answer::Choices(Choices { branches }))
        }
    }

    fn request(self, id: u64, prompt: &[TokenId], n: u32) -> Request {
        let params = GenerationParams {
            max_tokens: self.max_tokens as u32,
            stop_tokens: vec![self.stop],
            n,
            ..GenerationParams::default()
        };
        let asked = asked(self.width as u32, Branching::Search);
        let request = with_params(id, prompt.to_vec(), params);
        Request {
            seed: 1,
            ..asking(Draw::Candidates(asked), request)
        }
    }
}

#[track_caller]
fn equals(found: &Outcome, expected: &[Hypothesis]) {
    assert_eq!(found.error, None);
    for (choice, expected) in expected.iter().take(found.tokens.len()).enumerate() {
        assert_eq!(found.ids(choice), expected.tokens);
        let processed = found.tokens[choice].iter();
        let sum: f64 = processed
            .map(|sampled| f64::from(sampled.processed_logprob))
            .sum();
        assert!(
            (sum - expected.score).abs() < 1e-4,
            "{sum} {}",
            expected.score
        );
    }
}

#[test]
fn beam_search_equals_a_search_without_a_cache() {
    let prompt = [5, 6, 7, 8, 9];
    for (width, stop) in [(1, 96), (2, 3), (4, 20), (8, 20), (8, 96)] {
        let beam = Beam {
            width,
            max_tokens: 14,
            stop,
        };
        let expected = beam.reference(&MockExecutor::small_info(), &prompt);
        let mut bench = Bench::small();
        let chooser = bench.prompt(beam.decide());
        let n = (width as u32).min(3);
        let outcome = bench.finish(beam.request(1, &prompt, n), chooser);
        equals(&outcome, &expected);
        for (choice, reason) in outcome.reasons.iter().enumerate() {
            let expected = match outcome.ids(choice).last() {
                Some(&last) if last == stop => FinishReason::Stop { token: Some(stop) },
                _ => FinishReason::Length,
            };
            assert_eq!(*reason, Some(expected));
        }
        let emitted: usize = outcome.tokens.iter().map(Vec::len).sum();
        assert_eq!(bench.engine.stats().generation_tokens, emitted as u64);
        assert_eq!(bench.engine.stats().preemptions, 0);
    }
}

/// Runs a search between two ordinary requests.
fn crowded(info: &ExecutorInfo, config: EngineConfig, beam: Beam) -> (Outcome, Stats) {
    let mut bench = Bench::new(info.clone(), config, MockLatency::default());
    let prompt: Vec<_> = (0..10).collect();
    let first = submit(&mut bench.engine, request(2, (20..28).collect(), 20));
    let chooser = bench.prompt(beam.decide());
    let events = bench.submit(beam.request(1, &prompt, 2), chooser);
    let last = submit(&mut bench.engine, request(3, (40..46).collect(), 20));
    run(&mut bench.engine);
    for events in [first, last] {
        assert_eq!(Outcome::of(1, &events).reasons, length());
    }
    (Outcome::of(2, &events), bench.engine.stats())
}

#[test]
fn searches_get_the_same_from_ample_to_minimal_memory() {
    let prompt: Vec<_> = (0..10).collect();
    let beam = Beam {
        width: 4,
        max_tokens: 16,
        stop: 20,
    };
    let expected = beam.reference(&MockExecutor::small_info(), &prompt);
    for prefix_cache in [PrefixCaching::On, PrefixCaching::Off] {
        let config = EngineConfig {
            prefix_cache,
            ..EngineConfig::default()
        };
        let (mut least, mut preemptions) = (u32::MAX, 0);
        for blocks in (8..64).rev() {
            let (outcome, stats) = crowded(&tiny(blocks), config, beam);
            if let Some(error) = &outcome.error {
                assert_eq!(error.label(), "branches_do_not_fit");
                continue;
            }
            assert_eq!(least.min(64) - 1, blocks.max(least.min(64) - 1), "no gaps");
            least = blocks;
            preemptions += stats.preemptions;
            equals(&outcome, &expected);
        }
        // Alone, the branches' 10 + 15 positions take 7 blocks each, of which they share some.
        assert!(least < 4 * 7, "{least}");
        assert!(preemptions > 20, "{preemptions}");
    }
}

#[test]
fn searches_fork_by_computing_anew_where_nothing_is_shared() {
    let prompt: Vec<_> = (0..10).collect();
    let beam = Beam {
        width: 3,
        max_tokens: 9,
        stop: 20,
    };
    let full = GroupInfo {
        kind: GroupKind::Full,
        blocks: 40,
    };
    let window = GroupInfo {
        kind: GroupKind::Window { window: 6 },
        blocks: 24,
    };
    let recurrent = GroupInfo {
        kind: GroupKind::Recurrent,
        blocks: 8,
    };
    let groups = [
        vec![recurrent, full],
        vec![full, window],
        vec![window],
        Vec::new(),
    ];
    for (groups, whole_prompt) in groups
        .into_iter()
        .flat_map(|groups| [(groups.clone(), false), (groups, true)])
    {
        let info = ExecutorInfo {
            groups,
            whole_prompt,
            ..MockExecutor::small_info()
        };
        let expected = beam.reference(&info, &prompt);
        let (outcome, _) = crowded(&info, EngineConfig::default(), beam);
        equals(&outcome, &expected);
    }
}

#[test]
fn forks_wait_for_slots_and_younger_ones_make_room() {
    let prompt: Vec<_> = (0..10).collect();
    let beam = Beam {
        width: 4,
        max_tokens: 12,
        stop: 20,
    };
    let info = ExecutorInfo {
        slots: 4,
        ..MockExecutor::small_info()
    };
    let expected = beam.reference(&info, &prompt);
    let mut bench = Bench::new(info, EngineConfig::default(), MockLatency::default());
    let chooser = bench.prompt(beam.decide());
    let events = bench.submit(beam.request(1, &prompt, 2), chooser);
    let others: Vec<_> = (2..5)
        .map(|id| submit(&mut bench.engine, request(id, vec![id as u32; 3], 100)))
        .collect();
    let mut turns = 0;
    let outcome = loop {
        bench.engine.step().unwrap();
        bench.engine.check_integrity().unwrap();
        turns += 1;
        if bench.engine.stats().finished >= 2 {
            break Outcome::of(2, &events);
        }
    };
    assert!(turns < 40, "it does not wait for 100 tokens of others");
    equals(&outcome, &expected);
    run(&mut bench.engine);
    assert!(bench.engine.stats().preemptions >= 3);
    for events in &others {
        assert_eq!(Outcome::of(1, events).reasons, length());
    }
}

#[test]
fn a_search_that_fits_in_no_way_fails_alone_with_numbers() {
    let beam = Beam {
        width: 8,
        max_tokens: 40,
        stop: 96,
    };
    let mut bench = Bench::new(tiny(20), EngineConfig::default(), MockLatency::default());
    let chooser = bench.prompt(beam.decide());
    let events = bench.submit(beam.request(1, &[1, 2, 3], 1), chooser);
    let other = submit(&mut bench.engine, request(2, vec![5], 30));
    run(&mut bench.engine);
    let error = Outcome::of(1, &events).error.unwrap();
    let EngineError::BranchesDoNotFit {
        branches,
        tokens,
        group,
        blocks,
    } = error
    else {
        panic!("{error}");
    };
    assert_eq!((branches, group, blocks), (8, GroupId(0), 20));
    assert!((8..44).contains(&tokens), "{tokens}");
    assert_eq!(Outcome::of(1, &other).reasons, length());
}

/// What a branch computed, by its guest's calls.
#[derive(Debug, Default)]
struct Trace {
    /// Tokens of each choice of the last answer, prompt included.
    chosen: Vec<Vec<TokenId>>,
    rows: Vec<(Vec<TokenId>, RandomKey, u32)>,
}

/// Takes three tokens of each row by its uniform number, keeps five branches, and checks rows against each branch alone.
fn forking(
    info: ExecutorInfo,
    prompt: Vec<TokenId>,
    trace: Arc<Mutex<Trace>>,
) -> impl FnMut(MockQuestion) -> Result<Answer, ChooserError> + Send + 'static {
    trace.lock().unwrap().chosen = vec![prompt];
    move |question| {
        let rows = match question {
            MockQuestion::Choose(rows) => rows,
            MockQuestion::Select(finished) => {
                return Ok(Answer::Selected((0..finished.wanted).collect()));
            }
        };
        let mut trace = trace.lock().unwrap();
        let mut answer = Choices::default();
        let mut chosen = Vec::new();
        for row in 0..rows.branches.len() {
            let tokens = trace.chosen[rows.choices[row] as usize].clone();
            let (random, position) = rows.random[row];
            assert_eq!(position as usize, tokens.len());
            assert_eq!(Some(&rows.last[row]), tokens.last());
            let alone = row_after(&info, &tokens, random);
            assert_eq!(rows.uniform[row], alone.uniform);
            for (token, logit) in row_of(&rows.content, row) {
                assert_eq!(logit, alone.logits[token as usize]);
            }
            let first = (rows.uniform[row] * 80.0) as u32;
            for token in [first, first + 7, first + 15] {
                if answer.branches.len() < 5 {
                    answer.branches.push(go_on(row as u32, token));
                    chosen.push([tokens.as_slice(), &[token]].concat());
                }
            }
            trace.rows.push((tokens, random, rows.branches[row]));
        }
        trace.chosen = chosen;
        Ok(Answer::Choices(answer))
    }
}

#[test]
fn forks_compute_what_each_branch_computes_alone() {
    let mut traces = Vec::new();
    for (blocks, others) in [(64, 0), (22, 3)] {
        let info = tiny(blocks);
        let trace = Arc::new(Mutex::new(Trace::default()));
        let prompt: Vec<_> = (0..9).collect();
        let mut bench = Bench::new(
            info.clone(),
            EngineConfig::default(),
            MockLatency::default(),
        );
        let ordinary: Vec<_> = (0..others)
            .map(|id| submit(&mut bench.engine, request(10 + id, vec![id as u32; 9], 30)))
            .collect();
        let chooser = bench.prompt(forking(info, prompt.clone(), Arc::clone(&trace)));
        let params = GenerationParams {
            max_tokens: 12,
            n: 5,
            ..GenerationParams::default()
        };
        let draw = Draw::Row(asked(1, Branching::Search));
        let events = bench.submit(asking(draw, with_params(1, prompt, params)), chooser);
        run(&mut bench.engine);
        let outcome = Outcome::of(5, &events).timeless();
        assert_eq!(outcome.error, None);
        assert_eq!(outcome.reasons, [Some(FinishReason::Length); 5]);
        assert_eq!(bench.engine.stats().preemptions > 0, others > 0);
        for events in &ordinary {
            assert_eq!(Outcome::of(1, events).reasons, length());
        }
        let trace = std::mem::take(&mut *trace.lock().unwrap());
        // No two branches draw with the same numbers at a position.
        let mut keys = BTreeMap::new();
        for (tokens, random, branch) in &trace.rows {
            let other = keys.insert((random.lineage, tokens.len()), *branch);
            assert!(other.is_none_or(|other| other == *branch));
        }
        traces.push((outcome, trace.rows));
    }
    assert_eq!(traces[0], traces[1], "preempted or not");
}

#[test]
fn missing_choices_of_a_search_end_without_tokens() {
    let mut bench = Bench::small();
    let chooser = bench.prompt(|question| match question {
        MockQuestion::Choose(_) => Ok(Answer::Choices(Choices {
            branches: vec![Choice {
                next: Next::Finish,
                score: 0.5,
                ..go_on(0, 9)
            }],
        })),
        MockQuestion::Select(finished) => {
            assert_eq!((finished.branches, finished.scores), (vec![0], vec![0.5]));
            Ok(Answer::Selected(vec![0]))
        }
    });
    let params = GenerationParams {
        n: 3,
        ..GenerationParams::default()
    };
    let draw = Draw::Row(asked(1, Branching::Search));
    let outcome = bench.finish(asking(draw, with_params(1, vec![1], params)), chooser);
    let stop = Some(FinishReason::Stop { token: None });
    assert_eq!(outcome.reasons, [stop; 3]);
    assert_eq!(outcome.ids(0), [9]);
    assert!(outcome.tokens[1].is_empty() && outcome.tokens[2].is_empty());
}

#[test]
fn nothing_streams_before_a_search_ends() {
    let beam = Beam {
        width: 3,
        max_tokens: 10,
        stop: 96,
    };
    let mut bench = Bench::small();
    let chooser = bench.prompt(beam.decide());
    let events = bench.submit(beam.request(1, &[4, 5], 1), chooser);
    for _ in 0..8 {
        bench.engine.step().unwrap();
    }
    let early: Vec<_> = events.try_iter().collect();
    assert!(matches!(early[..], [Event::Started { .. }]), "{early:?}");
    run(&mut bench.engine);
    assert_eq!(events.try_iter().count(), 10 + 1);
}

#[test]
fn a_search_that_cannot_be_sampled_names_its_only_choice() {
    let mut bench = Bench::small();
    let chooser = bench.prompt(greedy);
    let draw = Draw::Row(asked(1, Branching::Search));
    let sampling = SamplingPlan {
        stages: vec![Stage::AllowedTokens(Vec::new())],
        draw,
    };
    let request = Request {
        sampling: Arc::new(sampling),
        ..request(1, vec![1, 2], 5)
    };
    let error = bench.finish(request, chooser).error.unwrap();
    assert_eq!(
        error.to_string(),
        "no token can be chosen for choice 0: all tokens are masked"
    );
}
