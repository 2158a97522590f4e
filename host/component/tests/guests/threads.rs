//! Guests that choose tokens on the sampler threads: who misbehaves costs itself.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use guesthouse_component::{CallContext, Origin, SamplerThreads, ThreadsConfig};
use guesthouse_engine::{
    Answer, Answers, Choices, Chooser, ChooserError, Finished, Reply, RequestId,
};

use crate::common::{bytes, context, runtime};
use crate::stepping::{MODULE, candidates, facts, first_of_each, whole};

/// Request, answer, name of the thread that gave it.
type Told = (RequestId, Result<Answer, ChooserError>, String);

struct Inbox(Mutex<Sender<Told>>);

impl Answers for Inbox {
    fn put(&self, request: RequestId, answer: Result<Answer, ChooserError>) {
        // Nobody may listen any more.
        let thread = std::thread::current().name().unwrap_or_default().to_owned();
        let _ = self.0.lock().unwrap().send((request, answer, thread));
    }
}

struct Threads {
    threads: SamplerThreads,
    inbox: Arc<Inbox>,
    answers: Receiver<Told>,
}

impl Threads {
    fn new() -> Self {
        Self::with(|config| config)
    }

    fn with(change: impl Fn(ThreadsConfig) -> ThreadsConfig) -> Self {
        // The most likely token; draws of the device have their own tests.
        let config = ThreadsConfig::new(|logits, _, _| {
            let best = (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b]));
            best.map(|token| token as u32)
                .ok_or_else(|| "an empty row".to_owned())
        });
        let (sender, answers) = channel();
        Self {
            threads: SamplerThreads::new(change(config)),
            inbox: Arc::new(Inbox(Mutex::new(sender))),
            answers,
        }
    }

    fn open(&self, request: &str, tenant: &str) -> Box<dyn Chooser> {
        let context = CallContext {
            tenant: tenant.into(),
            ..context()
        };
        let (_, stepping) = MODULE.begin(request, &facts(), context).unwrap();
        self.threads.chooser(stepping.unwrap())
    }

    fn reply(&self, id: u64) -> Reply {
        Reply::new(RequestId(id), Arc::clone(&self.inbox) as Arc<dyn Answers>)
    }

    /// The next answer of whichever request.
    fn next(&self) -> (u64, Result<Answer, ChooserError>) {
        let (id, answer, _) = self.told();
        (id, answer)
    }

    fn told(&self) -> (u64, Result<Answer, ChooserError>, String) {
        let (id, answer, thread) = self.answers.recv_timeout(Duration::from_secs(60)).unwrap();
        (id.0, answer, thread)
    }

    #[track_caller]
    fn serves(&self) {
        let mut chooser = self.open("step:", "after");
        chooser.choose(candidates(2), self.reply(1_000));
        assert_eq!(self.next(), (1_000, first(2)));
    }
}

fn first(rows: u32) -> Result<Answer, ChooserError> {
    Ok(Answer::Choices(Choices {
        branches: first_of_each(rows),
    }))
}

#[test]
fn many_requests_step_many_times() {
    let threads = Threads::new();
    let mut choosers: Vec<_> = (0..64)
        .map(|i| threads.open("step:", if i % 2 == 0 { "even" } else { "odd" }))
        .collect();
    for step in 0..20 {
        for (id, chooser) in choosers.iter_mut().enumerate() {
            chooser.choose(candidates(1 + step % 3), threads.reply(id as u64));
        }
        let mut answered = [false; 64];
        for _ in 0..64 {
            let (id, answer) = threads.next();
            assert_eq!(answer, first(1 + step % 3));
            assert!(!std::mem::replace(&mut answered[id as usize], true));
        }
    }
    assert_eq!(choosers[0].module(), "hostile_sampler");
    drop(choosers);
    // The last calls may be charged a little later.
    let usage = loop {
        let usage = threads.threads.usage();
        if usage.iter().map(|lane| lane.calls).sum::<u64>() == 64 * 20 {
            break usage;
        }
        std::thread::sleep(Duration::from_millis(1));
    };
    assert_eq!(usage.len(), 2);
    for lane in usage {
        assert_eq!(lane.calls, 32 * 20);
        assert!(lane.cpu > Duration::ZERO);
        assert!(["even", "odd"].contains(&&*lane.tenant));
    }
}

#[test]
fn whoever_misbehaves_ends_alone() {
    let threads = Threads::new();
    let bad = [
        ("step:panic", "stepping.step failed: "),
        ("step:loop", "stepping.step did not finish in time"),
        (
            "step:no-such-row",
            "stepping.step gave an invalid answer: row 2 of 2 rows",
        ),
        ("step:nan-score", "score NaN"),
        ("step:divide", "divide by zero"),
        (
            "step:host-call-loop",
            "stepping.step did not finish in time",
        ),
    ];
    let mut choosers: Vec<_> = (0..24)
        .map(|i| {
            let request = bad.get(i).map_or("step:", |bad| bad.0);
            threads.open(request, "mixed")
        })
        .collect();
    for round in 0..3 {
        for (id, chooser) in choosers.iter_mut().enumerate() {
            chooser.choose(candidates(2), threads.reply(id as u64));
        }
        for _ in 0..24 {
            let (id, answer) = threads.next();
            match bad.get(id as usize) {
                None => assert_eq!(answer, first(2)),
                Some((_, says)) => {
                    let text = answer.unwrap_err().to_string();
                    let says = if round == 0 { says } else { "earlier call" };
                    assert!(
                        text.contains("module hostile_sampler: stepping.step"),
                        "{text}"
                    );
                    assert!(text.contains(says), "{text}");
                }
            }
        }
    }
    drop(choosers);
    threads.serves();
}

#[test]
fn a_slow_module_gets_a_thread_of_its_own() {
    let threads = Threads::with(|config| ThreadsConfig {
        shared: 1,
        ..config
    });
    let mut slow = threads.open("step:burn-20", "slow");
    let mut quick = threads.open("step:", "quick");
    slow.choose(candidates(1), threads.reply(1));
    quick.choose(candidates(1), threads.reply(2));
    // The only shared thread may be held by the first until a tick finds it out; then another takes over.
    let mut both = [threads.next().0, threads.next().0];
    both.sort_unstable();
    assert_eq!(both, [1, 2]);
    let is_slow = |tenant: &str| {
        let usage = threads.threads.usage();
        usage
            .iter()
            .any(|lane| &*lane.tenant == tenant && lane.slow)
    };
    // One call may be over before its second tick, on a fast machine; the average of several is slow all the same.
    while !is_slow("slow") {
        slow.choose(candidates(1), threads.reply(1));
        assert_eq!(threads.next(), (1, first(1)));
    }
    assert!(!is_slow("quick"));
    slow.choose(candidates(1), threads.reply(1));
    quick.choose(candidates(1), threads.reply(2));
    for _ in 0..2 {
        let (id, answer, thread) = threads.told();
        assert_eq!(answer, first(1));
        let expected = if id == 1 { "sampler-slow" } else { "sampler" };
        assert_eq!(thread, expected);
    }
}

#[test]
fn rewritten_rows_are_drawn_from_and_finished_branches_selected() {
    let threads = Threads::new();
    let mut chooser = threads.open("logits:", "t");
    chooser.choose(whole(2), threads.reply(1));
    // The guest negates its rows, whose best token was the last.
    let (_, answer) = threads.next();
    let Ok(Answer::Choices(choices)) = answer else {
        panic!("{answer:?}")
    };
    let tokens: Vec<_> = choices.branches.iter().map(|b| (b.row, b.token)).collect();
    assert_eq!(tokens, [(0, 0), (1, 0)]);
    let mut chooser = threads.open("search:", "t");
    let finished = Finished {
        branches: vec![3, 5],
        scores: vec![0.0; 2],
        lengths: vec![1; 2],
        wanted: 1,
    };
    chooser.select(finished, threads.reply(2));
    assert_eq!(threads.next(), (2, Ok(Answer::Selected(vec![1]))));
}

#[test]
fn whoever_leaves_gets_an_answer_or_none_and_blocks_nobody() {
    let threads = Threads::with(|config| ThreadsConfig {
        shared: 1,
        ..config
    });
    for id in 0..50 {
        let mut chooser = threads.open("step:", "gone");
        chooser.choose(candidates(1), threads.reply(id));
        drop(chooser);
    }
    for _ in 0..50 {
        let (_, answer) = threads.next();
        if let Err(error) = answer {
            assert!(error.to_string().contains("without an answer"), "{error}");
        }
    }
    threads.serves();
    let mut late = threads.open("step:", "late");
    drop(threads.threads);
    late.choose(candidates(1), Reply::new(RequestId(7), threads.inbox));
    let (id, answer, _) = threads.answers.recv().unwrap();
    assert_eq!(id, RequestId(7));
    assert!(answer.is_err());
}

#[test]
fn a_foreign_module_is_served_too_and_its_tenant_pays_for_its_plans_and_steps() {
    let tenant = "brought it";
    let module = runtime()
        .load("foreign", &bytes("hostile_sampler"), Origin::Tenant)
        .unwrap();
    assert_eq!(module.origin(), Origin::Tenant);
    let sampler = module.sampler().unwrap();
    let threads = Threads::with(|config| ThreadsConfig {
        shared: 1,
        ..config
    });
    let open = |request| {
        let context = CallContext {
            tenant: tenant.into(),
            ..context()
        };
        let (_, stepping) = sampler.begin(request, &facts(), context).unwrap();
        threads.threads.chooser(stepping.unwrap())
    };
    let mut choosers: Vec<_> = (0..6).map(|_| open("step:burn-5")).collect();
    let planned = runtime().guest_time(tenant);
    assert!(planned > Duration::ZERO);
    for _ in 0..4 {
        for (id, chooser) in choosers.iter_mut().enumerate() {
            chooser.choose(candidates(1), threads.reply(id as u64));
        }
        for _ in 0..6 {
            assert_eq!(threads.next().1, first(1));
        }
        // Whoever gave way for it serves nobody else.
        threads.serves();
    }
    drop(choosers);
    let steps = || {
        let usage = threads.threads.usage();
        let own = usage.into_iter().filter(|lane| &*lane.tenant == tenant);
        own.map(|lane| (lane.calls, lane.cpu)).next().unwrap()
    };
    // The last calls may be charged a little later.
    while steps().0 < 24 || runtime().guest_time(tenant) < planned + steps().1 {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(runtime().guest_time(tenant), planned + steps().1);
}
