//! Random loads of which some requests have guests: quick and late ones, that fork, finish, end, fail and answer nonsense.

use super::super::grammars::Automaton;
use super::super::property::{Head, Job, Load, load, submit_job};
use super::super::tenants::shared_load;
use super::*;
use proptest::prelude::*;
use std::cell::Cell;

#[derive(Clone, Copy, Debug)]
struct Guest {
    branching: Branching,
    whole_rows: bool,
    seed: u64,
    /// Length at which its answers become bad.
    fails_at: Option<u32>,
    answers: MockAnswers,
}

prop_compose! {
    fn guest()(
        search in any::<bool>(),
        whole_rows in any::<bool>(),
        seed in any::<u64>(),
        fails_at in prop_oneof![6 => Just(None), 1 => (0u32..20).prop_map(Some)],
        answers in prop_oneof![
            3 => Just(MockAnswers::After(0)),
            3 => (0u64..1_500_000).prop_map(MockAnswers::After),
            2 => (0u64..3_000_000).prop_map(MockAnswers::Apart),
            1 => (0u64..50_000_000).prop_map(MockAnswers::Never),
        ],
    ) -> Guest {
        let branching = if search { Branching::Search } else { Branching::Choices };
        Guest { branching, whole_rows, seed, fails_at, answers }
    }
}

fn mix(a: u64, b: u64) -> u64 {
    let mixed = (a ^ b.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ (mixed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 3
}

impl Guest {
    /// Depends on nothing but what the rows say.
    fn decide(
        self,
        cap: usize,
    ) -> impl FnMut(MockQuestion) -> Result<Answer, ChooserError> + Send + 'static {
        move |question| {
            let rows = match question {
                MockQuestion::Choose(rows) => rows,
                MockQuestion::Select(finished) => {
                    let mut order: Vec<u32> = (0..finished.scores.len() as u32).collect();
                    order.sort_by(|&a, &b| {
                        let (a, b) = (finished.scores[a as usize], finished.scores[b as usize]);
                        b.total_cmp(&a)
                    });
                    order.truncate(finished.wanted as usize);
                    return Ok(Answer::Selected(order));
                }
            };
            if self.fails_at.is_some_and(|at| rows.lengths[0] >= at) {
                let nonsense = go_on(rows.branches.len() as u32 + self.seed as u32 % 2, 500);
                return match self.seed % 3 {
                    0 => Err(ChooserError("trapped".to_owned())),
                    1 => Ok(Answer::Selected(Vec::new())),
                    _ => Ok(Answer::Choices(Choices {
                        branches: vec![nonsense],
                    })),
                };
            }
            let mut branches = Vec::new();
            let mut live = 0;
            for row in 0..rows.branches.len() {
                let candidates = row_of(&rows.content, row);
                let (random, position) = rows.random[row];
                let state = [
                    u64::from(random.lineage),
                    u64::from(position),
                    u64::from(rows.last[row]),
                    u64::from(rows.uniform[row].to_bits()),
                    u64::from(rows.branches[row]),
                ]
                .into_iter()
                .fold(self.seed, mix);
                let children = match self.branching {
                    Branching::Choices => u64::from(!state.is_multiple_of(29)),
                    Branching::Search => [1, 1, 2, 1, 3, 0, 1, 2][(state % 8) as usize],
                };
                for child in 0..children {
                    let hash = mix(state, child + 1);
                    let (token, _) = candidates[hash as usize % candidates.len()];
                    let next = if (hash >> 20).is_multiple_of(11) {
                        Next::Finish
                    } else {
                        Next::Continue
                    };
                    if next == Next::Finish || live < cap {
                        live += usize::from(next == Next::Continue);
                        branches.push(Choice {
                            next,
                            score: ((hash >> 30) % 1000) as f32,
                            ..go_on(row as u32, token)
                        });
                    }
                }
            }
            Ok(Answer::Choices(Choices { branches }))
        }
    }

    fn request(self, request: &Request, most: u32) -> Request {
        let asked = asked(7, self.branching);
        let draw = if self.whole_rows {
            Draw::Row(asked)
        } else {
            Draw::Candidates(asked)
        };
        let mut request = asking(draw, request.clone());
        request.params.n = request.params.n.min(most);
        request
    }

    fn submit(self, bench: &mut Bench, job: &Job, cap: u32) -> Receiver<Event> {
        let (sender, receiver) = channel();
        let module = ["a", "b", "c"][(self.seed % 3) as usize];
        let chooser = bench
            .guests
            .chooser(module, self.answers, self.decide(cap as usize));
        let constraint = job.grammar.map(Automaton::forcing);
        let attachments = Attachments {
            chooser: Some(chooser),
            constraint: constraint.map(|constraint| Box::new(constraint) as Box<dyn Constraint>),
            ..Attachments::from(Box::new(sender))
        };
        let request = self.request(&job.request, cap);
        bench.engine.submit(request, attachments).unwrap();
        receiver
    }

    /// On a large device, with nothing else and no prefix cache.
    fn alone(self, load: &Load, job: &Job, cap: u32) -> Outcome {
        let info = ExecutorInfo {
            groups: load
                .info
                .groups
                .iter()
                .map(|group| GroupInfo {
                    blocks: 2048,
                    ..*group
                })
                .collect(),
            slots: 16,
            max_step_tokens: 4096,
            ..load.info.clone()
        };
        let config = EngineConfig {
            prefix_cache: PrefixCaching::Off,
            ..EngineConfig::default()
        };
        let executor = MockExecutor::new(info).with_text(load.text);
        let guests = MockGuests::new(executor.clock(), 1);
        let engine = Engine::new(executor, config).with_clock(Arc::new(guests.clone()));
        let mut bench = Bench { engine, guests };
        let events = self.submit(&mut bench, job, cap);
        while bench.engine.step().unwrap() != Progress::Idle {}
        Outcome::of(job.request.params.n.min(cap), &events).timeless()
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    stats: Stats,
    too_large: usize,
    finished: usize,
}

fn check(load: &Load, guests: &[Option<Guest>]) -> Seen {
    let latency = MockLatency {
        step: 1_000_000,
        token: 1000,
        ..MockLatency::default()
    };
    let executor = MockExecutor::new(load.info.clone())
        .with_text(load.text)
        .with_latency(latency);
    let pool = MockGuests::new(executor.clock(), 2);
    let engine = Engine::new(executor, load.config).with_clock(Arc::new(pool.clone()));
    let cap = engine.limits().max_branches().min(5);
    let mut bench = Bench {
        engine,
        guests: pool,
    };
    let mut receivers: Vec<Option<Receiver<Event>>> = load.jobs.iter().map(|_| None).collect();
    let is_one_tenant = load.jobs.iter().all(|job| job.request.owner.tenant == 0);
    let mut head = Head::default();
    for turn in 0..50_000 {
        for ((job, guest), receiver) in load.jobs.iter().zip(guests).zip(&mut receivers) {
            if turn == job.submit_at {
                *receiver = Some(match guest {
                    None => submit_job(&mut bench.engine, &job.request, job.grammar),
                    Some(guest) => guest.submit(&mut bench, job, cap),
                });
            }
            if job
                .cancel_after
                .is_some_and(|after| turn == job.submit_at + after)
            {
                bench.engine.cancel(job.request.id);
            }
        }
        let progress = bench.engine.step().unwrap();
        bench.engine.check_integrity().unwrap();
        if !load.info.whole_prompt && is_one_tenant {
            head.check(&bench.engine);
        }
        if progress == Progress::Idle && turn > 50 {
            break;
        }
    }
    assert!(bench.engine.is_idle(), "{:?}", bench.engine.stats());
    assert_eq!(bench.engine.stats().blocks_used, 0);
    let mut seen = Seen {
        stats: bench.engine.stats(),
        ..Seen::default()
    };
    for ((job, guest), receiver) in load.jobs.iter().zip(guests).zip(&receivers) {
        let events = receiver.as_ref().unwrap();
        let n = job.request.params.n;
        let (found, expected) = match guest {
            None => {
                let alone = alone_with(&load.info, load.text, |engine| {
                    submit_job(engine, &job.request, job.grammar)
                });
                let expected = Outcome::of(n, &alone).timeless();
                (Outcome::of(n, events).timeless(), expected)
            }
            Some(guest) => (
                Outcome::of(n.min(cap), events).timeless(),
                guest.alone(load, job, cap),
            ),
        };
        let too_large = matches!(found.error, Some(EngineError::BranchesDoNotFit { .. }));
        seen.too_large += usize::from(too_large);
        seen.finished += usize::from(guest.is_some() && found.error.is_none());
        if job.cancel_after.is_none() && !too_large {
            assert_eq!(found, expected);
        } else {
            for (found, expected) in found.tokens.iter().zip(&expected.tokens) {
                assert_eq!(found[..], expected[..found.len()]);
            }
        }
    }
    seen
}

#[test]
fn guests_of_several_tenants_get_what_they_get_alone() {
    let config = ProptestConfig {
        failure_persistence: None,
        max_shrink_iters: 64,
        cases: 48,
        ..ProptestConfig::default()
    };
    let guests = proptest::collection::vec(proptest::option::weighted(0.6, guest()), 28);
    proptest!(config, |(mut load in shared_load(), guests in guests)| {
        // A search has no more branches than its tenant has places.
        for job in &mut load.jobs {
            job.request.owner.max_running = None;
        }
        check(&load, &guests);
    });
}

#[test]
fn every_guest_gets_what_it_gets_alone() {
    let seen = Cell::new(Seen::default());
    let config = ProptestConfig {
        failure_persistence: None,
        max_shrink_iters: 64,
        cases: 96,
        ..ProptestConfig::default()
    };
    let guests = proptest::collection::vec(proptest::option::weighted(0.6, guest()), 28);
    proptest!(config, |(load in load(), guests in guests)| {
        let found = check(&load, &guests);
        let mut all = seen.get();
        all.stats.preemptions += found.stats.preemptions;
        all.stats.guest_calls += found.stats.guest_calls;
        all.stats.guest_misses += found.stats.guest_misses;
        all.too_large += found.too_large;
        all.finished += found.finished;
        seen.set(all);
    });
    let Seen {
        stats,
        too_large,
        finished,
    } = seen.get();
    println!(
        "preemptions {}, calls {}, misses {}, finished {finished}, too large {too_large}",
        stats.preemptions, stats.guest_calls, stats.guest_misses
    );
    assert!(stats.preemptions > 100, "{} preemptions", stats.preemptions);
    assert!(stats.guest_calls > 1000, "{} calls", stats.guest_calls);
    assert!(stats.guest_misses > 100, "{} misses", stats.guest_misses);
    assert!(finished > 300, "{finished} requests finished");
    assert!(too_large * 4 < finished, "{too_large} were too large");
}
