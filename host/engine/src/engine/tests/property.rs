//! Random loads on small devices: every request gets what it gets alone, and nothing is left over.

use super::grammars::{Automaton, submit_constrained};
use super::*;
use proptest::prelude::*;
use std::cell::Cell;

/// A request, and after how many steps it is submitted and perhaps cancelled.
#[derive(Clone, Debug)]
pub(super) struct Job {
    pub(super) request: Request,
    pub(super) grammar: Option<u64>,
    pub(super) submit_at: usize,
    pub(super) cancel_after: Option<usize>,
}

#[derive(Clone, Debug)]
pub(super) struct Load {
    pub(super) info: ExecutorInfo,
    pub(super) config: EngineConfig,
    pub(super) text: MockText,
    pub(super) jobs: Vec<Job>,
}

/// Prompts over few distinct beginnings, so that they share prefixes.
fn prompt() -> impl Strategy<Value = Vec<TokenId>> {
    (
        0u32..3,
        0usize..24,
        proptest::collection::vec(0u32..97, 1..8),
    )
        .prop_map(|(family, shared, tail)| {
            (0..shared as u32)
                .map(|position| (position * 7 + family * 31) % 97)
                .chain(tail)
                .collect()
        })
}

prop_compose! {
    fn job(id: u64)(
        prompt in prompt(),
        max_tokens in 1u32..24,
        n in prop_oneof![4 => Just(1u32), 1 => 2u32..5],
        stop in prop_oneof![3 => Just(Vec::new()), 1 => proptest::collection::vec(0u32..97, 1..12)],
        scores in prop_oneof![6 => Just(None), 1 => Just(Some(2u32))],
        sample in any::<bool>(),
        grammar in prop_oneof![3 => Just(None), 1 => (0u64..5).prop_map(Some)],
        shows in any::<bool>(),
        drafts in prop_oneof![2 => Just(0u32), 1 => 1u32..9],
        seed in 0u64..4,
        salt in 0u8..2,
        priority in -1i32..2,
        submit_at in 0usize..16,
        cancel_after in prop_oneof![5 => Just(None), 1 => (0usize..20).prop_map(Some)],
    ) -> Job {
        let draw = if sample { Draw::Sample } else { Draw::Greedy };
        let request = Request {
            cache_salt: CacheSalt([salt; 32]),
            params: GenerationParams {
                task: Task::Generate,
                max_tokens, n, stop_tokens: stop, top_logprobs: shows.then_some(1), prompt_logprobs: scores, drafts,
                ..GenerationParams::default()
            },
            sampling: Arc::new(SamplingPlan { stages: Vec::new(), draw }),
            seed,
            priority: Priority(priority),
            owner: Owner::default(),
            ..request(id, prompt, max_tokens)
        };
        Job { request, grammar, submit_at, cancel_after }
    }
}

fn groups() -> impl Strategy<Value = Vec<GroupKind>> {
    let full = GroupKind::Full;
    let window = (1u32..14).prop_map(|window| GroupKind::Window { window });
    prop_oneof![
        4 => Just(vec![full]),
        2 => window.clone().prop_map(move |window| vec![full, window]),
        1 => (window.clone(), window).prop_map(|(a, b)| vec![a, b]),
        1 => Just(vec![GroupKind::Recurrent, full]),
        1 => Just(Vec::new()),
    ]
}

prop_compose! {
    pub(super) fn load()(
        kinds in groups(),
        block_size in prop_oneof![Just(1u32), Just(4), Just(5)],
        spare in 0u32..40,
        slots in 1u32..16,
        max_running in 1usize..16,
        step_tokens in 1u32..40,
        whole_prompt in prop_oneof![6 => Just(false), 1 => Just(true)],
        by_prompt_above in prop_oneof![3 => Just(None), 1 => (1u32..20).prop_map(Some)],
        anew_above in prop_oneof![2 => Just(vec![]), 1 => (1u32..50).prop_map(|above| vec![above]), 1 => Just(vec![9, 10, 30])],
        cache in prop_oneof![3 => Just(PrefixCaching::On), 1 => Just(PrefixCaching::Off)],
        text in prop_oneof![Just(MockText::Random), Just(MockText::Repetitive)],
        jobs in (1u64..28).prop_flat_map(|count| (0..count).map(job).collect::<Vec<_>>()),
    ) -> Load {
        // Just enough for the longest request alone, and some.
        let blocks = |kind| match kind {
            GroupKind::Recurrent => 1 + spare / 8,
            _ => 56u32.div_ceil(block_size) + spare / block_size,
        };
        let info = ExecutorInfo {
            block_size,
            groups: kinds.into_iter().map(|kind| GroupInfo { kind, blocks: blocks(kind) }).collect(),
            slots,
            max_step_tokens: if whole_prompt { 40 } else { step_tokens },
            step_overhead: 0,
            max_len: 56,
            vocab: 97,
            whole_prompt,
            lengths: LengthRules { by_prompt_above, anew_above },
            task: Task::Generate,
        };
        let config = EngineConfig { max_running, prefix_cache: cache, ..EngineConfig::default() };
        Load { info, config, text, jobs }
    }
}

/// The first running sequence, how far it is, and for how many turns it has not moved.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Head {
    sequence: Option<SequenceId>,
    computed: u32,
    turns: u32,
}

impl Head {
    /// Blocks that steps in flight still use may cost it a turn or two, never more.
    pub(super) fn check(&mut self, engine: &Engine<MockExecutor>) {
        let id = engine.state.running.values().next();
        let head = id
            .map(|id| &engine.state.sequences[id])
            .filter(|sequence| sequence.remaining() > 0);
        let now = (
            head.map(|head| head.id),
            head.map_or(0, |head| head.computed),
        );
        let stands = now == (self.sequence, self.computed) && head.is_some();
        *self = Head {
            sequence: now.0,
            computed: now.1,
            turns: if stands { self.turns + 1 } else { 0 },
        };
        assert!(
            self.turns < 5,
            "{self:?} does not advance: {:?}",
            engine.stats()
        );
    }
}

pub(super) fn submit_job(
    engine: &mut Engine<MockExecutor>,
    request: &Request,
    grammar: Option<u64>,
) -> Receiver<Event> {
    match grammar {
        None => submit(engine, request.clone()),
        Some(salt) => submit_constrained(engine, request.clone(), Automaton::forcing(salt)),
    }
}

/// Runs a load, checks every outcome, and returns what was exercised.
fn check(load: &Load) -> Stats {
    let mock = MockExecutor::new(load.info.clone()).with_text(load.text);
    let mut engine = Engine::new(mock, load.config);
    let mut receivers: Vec<Option<Receiver<Event>>> = load.jobs.iter().map(|_| None).collect();
    let mut head = Head::default();
    for turn in 0..20_000 {
        for (job, receiver) in load.jobs.iter().zip(&mut receivers) {
            if turn == job.submit_at {
                *receiver = Some(submit_job(&mut engine, &job.request, job.grammar));
            }
            if job
                .cancel_after
                .is_some_and(|after| turn == job.submit_at + after)
            {
                engine.cancel(job.request.id);
            }
        }
        let progress = engine.step().unwrap();
        engine.check_integrity().unwrap();
        if !load.info.whole_prompt {
            head.check(&engine);
        }
        if progress == Progress::Idle && turn > 50 {
            break;
        }
    }
    assert!(engine.is_idle(), "{:?}", engine.stats());
    assert_eq!(engine.stats().blocks_used, 0);
    for (job, receiver) in load.jobs.iter().zip(&receivers) {
        let found = Outcome::of(job.request.params.n, receiver.as_ref().unwrap()).timeless();
        let mut plain = job.request.clone();
        plain.params.drafts = 0;
        let expected = alone_with(&load.info, load.text, |engine| {
            submit_job(engine, &plain, job.grammar)
        });
        let expected = Outcome::of(plain.params.n, &expected).timeless();
        if job.cancel_after.is_none() {
            assert_eq!(found, expected);
        } else {
            for (found, expected) in found.tokens.iter().zip(&expected.tokens) {
                assert_eq!(found[..], expected[..found.len()]);
            }
        }
    }
    engine.stats()
}

#[test]
fn every_request_gets_what_it_gets_alone() {
    let (preempted, hits, batch) = (Cell::new(0), Cell::new(0), Cell::new(0.0f64));
    let (accepted, forced) = (Cell::new(0), Cell::new(0));
    proptest!(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() }, |(load in load())| {
        let stats = check(&load);
        preempted.set(preempted.get() + stats.preemptions);
        hits.set(hits.get() + stats.prefix_cache_hits);
        forced.set(forced.get() + stats.forced_tokens);
        accepted.set(accepted.get() + stats.accepted_tokens);
        batch.set(batch.get().max(stats.mean_decode_batch()));
    });
    println!(
        "preemptions {}, hit tokens {}, decode batch {}",
        preempted.get(),
        hits.get(),
        batch.get()
    );
    assert!(preempted.get() > 100, "{} preemptions", preempted.get());
    assert!(hits.get() > 1000, "{} hit tokens", hits.get());
    assert!(forced.get() > 1000, "{} tokens forced", forced.get());
    assert!(accepted.get() > 1000, "{} drafts accepted", accepted.get());
    assert!(batch.get() > 4.0, "mean decode batch {}", batch.get());
}
