//! How long steps wait for guests, in virtual time.

use super::*;

const MS: u64 = 1_000_000;

/// 64 sequences, steps of 10 ms.
fn bench() -> Bench {
    let info = ExecutorInfo {
        slots: 64,
        groups: vec![GroupInfo {
            kind: GroupKind::Full,
            blocks: 64 * 32,
        }],
        max_step_tokens: 1024,
        ..MockExecutor::small_info()
    };
    let latency = MockLatency {
        step: 10 * MS,
        token: 0,
        ..MockLatency::default()
    };
    Bench::new(info, EngineConfig::default(), latency)
}

fn chosen(id: u64) -> Request {
    asking(
        Draw::Candidates(asked(4, Branching::Choices)),
        request(id, vec![1, 2, id as u32 % 97], 100),
    )
}

/// Virtual nanoseconds until 63 ordinary sequences have 100 tokens, next to one with a guest.
fn next_to(answers: MockAnswers) -> u64 {
    let mut bench = bench();
    let clock = bench.engine.executor().clock();
    let chooser = bench.guests.chooser("slow", answers, greedy);
    let guest = bench.submit(chosen(99), chooser);
    let others: Vec<_> = (0..63)
        .map(|id| submit(&mut bench.engine, request(id, vec![1, 2, id as u32], 100)))
        .collect();
    let mut left = 63;
    while left > 0 {
        bench.engine.step().unwrap();
        left -= others
            .iter()
            .flat_map(|events| events.try_iter())
            .filter(|event| matches!(event, Event::Finished { .. }))
            .count();
    }
    let took = clock.now();
    run(&mut bench.engine);
    assert_eq!(Outcome::of(1, &guest).reasons, length());
    took
}

#[test]
fn one_slow_guest_costs_others_less_than_a_twentieth() {
    let alone = next_to(MockAnswers::After(0));
    assert_eq!(
        alone,
        100 * 10 * MS,
        "a guest that answers at once costs nothing"
    );
    let slow = next_to(MockAnswers::After(50 * MS));
    // Two missed graces of 0.5 ms.
    assert_eq!(slow, alone + MS);
    assert!(slow * 20 < alone * 21);
}

#[test]
fn many_guests_do_not_add_up_on_the_engines_thread() {
    let mut bench = bench();
    let clock = bench.engine.executor().clock();
    let plain = submit(&mut bench.engine, request(99, vec![1, 2, 3], 100));
    let guests: Vec<_> = (0..63)
        .map(|id| {
            let answers = MockAnswers::After(MS * 9 / 10);
            let chooser = bench.guests.chooser("slow", answers, greedy);
            bench.submit(chosen(id), chooser)
        })
        .collect();
    let mut end = None;
    let mut turns = 0;
    while bench.engine.step().unwrap() != Progress::Idle {
        bench.engine.check_integrity().unwrap();
        let finished = plain
            .try_iter()
            .any(|event| matches!(event, Event::Finished { .. }));
        end = end.or(finished.then(|| clock.now()));
        turns += 1;
    }
    assert!(turns < 10_000);
    // 63 x 0.9 ms on two workers are 28 ms per round. The ordinary sequence pays its steps and what grace there is.
    let end = end.unwrap();
    assert!(end <= 100 * (10 * MS + MS / 2), "{end}");
    assert!(bench.engine.stats().guest_wait_nanos <= 100 * MS / 2);
    for events in &guests {
        assert_eq!(Outcome::of(1, events).reasons, length());
    }
}

#[test]
fn a_guest_within_its_grace_is_in_the_next_step() {
    let mut bench = bench();
    let clock = bench.engine.executor().clock();
    let answers = MockAnswers::After(MS * 2 / 5);
    let chooser = bench.guests.chooser("quick", answers, greedy);
    let outcome = bench.finish(chosen(1), chooser);
    assert_eq!(outcome.reasons, length());
    // 100 steps of 10 ms, each with its answer's 0.4 ms.
    assert_eq!(clock.now(), 100 * (10 * MS + MS * 2 / 5));
    let stats = bench.engine.stats();
    assert_eq!((stats.steps, stats.guest_misses), (100, 0));
    assert_eq!(bench.engine.executor().most_in_flight(), 1);
}

#[test]
fn late_answers_do_not_change_the_result() {
    let mut bench = bench();
    let answers = MockAnswers::Apart(23 * MS);
    let chooser = bench.guests.chooser("slow", answers, greedy);
    let events = bench.submit(chosen(1), chooser);
    let other = submit(&mut bench.engine, request(2, vec![7, 8], 100));
    run(&mut bench.engine);
    assert_eq!(
        bench.engine.executor().most_in_flight(),
        2,
        "without grace steps overlap as ever"
    );
    assert_eq!(Outcome::of(1, &other).reasons, length());
    let expected = finish(&mut small(), request(1, vec![1, 2, 1], 100)).ids(0);
    assert_eq!(Outcome::of(1, &events).ids(0), expected);
}

#[test]
fn grace_comes_back_with_punctuality() {
    let mut bench = bench();
    let module = "learning";
    // Two requests of one module: one late for its first two answers, one quick.
    let late = bench
        .guests
        .chooser(module, MockAnswers::Apart(30 * MS), greedy);
    let first = bench.submit(
        Request {
            params: GenerationParams {
                max_tokens: 2,
                ..GenerationParams::default()
            },
            ..chosen(1)
        },
        late,
    );
    run(&mut bench.engine);
    assert_eq!(Outcome::of(1, &first).reasons, length());
    assert_eq!(bench.engine.stats().guest_misses, 2);
    let waited = bench.engine.stats().guest_wait_nanos;
    assert_eq!(waited, MS, "two graces");
    // Without grace its first answer is not waited for; it is on time, and the next ones are.
    let quick = bench
        .guests
        .chooser(module, MockAnswers::Apart(MS / 5), greedy);
    let second = bench.submit(chosen(2), quick);
    run(&mut bench.engine);
    assert_eq!(Outcome::of(1, &second).reasons, length());
    assert_eq!(bench.engine.stats().guest_misses, 2);
    assert_eq!(bench.engine.stats().guest_wait_nanos, waited + 99 * MS / 5);
}

#[test]
fn a_guest_that_never_answers_ends_its_own_request() {
    let mut bench = bench();
    let clock = bench.engine.executor().clock();
    let chooser = bench
        .guests
        .chooser("stuck", MockAnswers::Never(1000 * MS), greedy);
    let stuck = bench.submit(chosen(1), chooser);
    let chooser = bench.prompt(greedy);
    let quick = bench.submit(chosen(2), chooser);
    let other = submit(&mut bench.engine, request(3, vec![7, 8], 100));
    run(&mut bench.engine);
    // Asked after the first step.
    assert_eq!(clock.now(), (10 + 1000) * MS);
    let error = Outcome::of(1, &stuck).error.unwrap();
    assert_eq!(error.label(), "chooser");
    assert_eq!(
        error.to_string(),
        "sampler module stuck: stepping.step did not answer in time"
    );
    assert_eq!(Outcome::of(1, &quick).reasons, length());
    assert_eq!(Outcome::of(1, &other).reasons, length());
    assert_eq!(bench.engine.stats().failed, 1);
}

#[test]
fn waiting_for_guests_is_no_stall_and_sees_commands() {
    let mut bench = bench();
    let clock = bench.engine.executor().clock();
    let chooser = bench
        .guests
        .chooser("stuck", MockAnswers::Never(1000 * MS), greedy);
    let events = bench.submit(chosen(1), chooser);
    for _ in 0..50 {
        let before = clock.now();
        assert_eq!(bench.engine.step().unwrap(), Progress::Worked);
        assert!(clock.now() - before <= 10 * MS + MS / 2 + MS);
    }
    assert_eq!(Outcome::of(1, &events).error, None);
    bench.engine.cancel(RequestId(1));
    assert_eq!(bench.engine.step().unwrap(), Progress::Idle);
    bench.engine.check_integrity().unwrap();
    // Its answer comes too late for anything.
    clock.advance(1000 * MS);
    let chooser = bench.prompt(greedy);
    assert_eq!(bench.finish(chosen(2), chooser).reasons, length());
    assert_eq!(bench.engine.stats().cancelled, 1);
}

#[test]
fn a_slow_selection_is_waited_for() {
    let mut bench = bench();
    let clock = bench.engine.executor().clock();
    let answers = MockAnswers::Apart(40 * MS);
    let chooser = bench.guests.chooser("slow", answers, greedy);
    let draw = Draw::Candidates(asked(2, Branching::Search));
    let events = bench.submit(asking(draw, request(1, vec![1, 2], 3)), chooser);
    run(&mut bench.engine);
    assert_eq!(Outcome::of(1, &events).reasons, length());
    assert_eq!(
        clock.now(),
        (3 * 10 + 4 * 40) * MS,
        "three steps, four answers"
    );
}
