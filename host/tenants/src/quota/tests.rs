#![allow(clippy::unwrap_used)]

use super::{Bucket, Refused, Usage};
use crate::{Policy, Quotas, Tenant, TenantId};
use proptest::prelude::*;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A bucket filled millisecond by millisecond. Its unit is 1/60,000 of a token: a limit of N per minute fills N of them in
/// a millisecond.
struct Slow {
    level: i128,
    limit: u64,
}

impl Slow {
    fn new(limit: u64) -> Self {
        let level = i128::from(limit) * 60_000;
        Self { level, limit }
    }

    fn millisecond(&mut self) {
        self.level += i128::from(self.limit);
        self.clip();
    }

    fn clip(&mut self) {
        self.level = self.level.min(i128::from(self.limit) * 60_000);
    }

    fn has(&self, amount: u64) -> bool {
        self.limit > 0 && self.level >= (i128::from(amount.min(self.limit)) * 60_000).max(1)
    }
}

#[derive(Clone, Debug)]
enum Step {
    Pass { ms: u64 },
    Take { amount: u64 },
    Charge { amount: u64 },
    GiveBack { amount: u64 },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (0..9_000_u64).prop_map(|ms| Step::Pass { ms }),
        6 => (0..50_u64).prop_map(|amount| Step::Take { amount }),
        1 => (0..50_u64).prop_map(|amount| Step::Charge { amount }),
        1 => (0..50_u64).prop_map(|amount| Step::GiveBack { amount }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_bucket_is_the_slow_one(limit in 0..30_u64, steps in prop::collection::vec(step(), 1..60)) {
        let mut now = Instant::now();
        let (mut fast, mut slow) = (Bucket::default(), Slow::new(limit));
        for step in steps {
            match step {
                Step::Pass { ms } => {
                    now += Duration::from_millis(ms);
                    (0..ms).for_each(|_| slow.millisecond());
                }
                Step::Take { amount } => {
                    let took = fast.take(amount, limit, now);
                    prop_assert_eq!(took.is_ok(), slow.has(amount), "take {}", amount);
                    match took {
                        Ok(()) => slow.level -= i128::from(amount) * 60_000,
                        Err(wait) if limit > 0 => {
                            // The slow one has it from the first whole millisecond after the wait on.
                            let mut later = Slow { ..slow };
                            let ms = wait.as_nanos().div_ceil(1_000_000);
                            (1..ms).for_each(|_| later.millisecond());
                            prop_assert!(!later.has(amount), "too long: {:?}", wait);
                            later.millisecond();
                            prop_assert!(later.has(amount), "too short: {:?}", wait);
                        }
                        Err(wait) => prop_assert_eq!(wait, Duration::from_secs(60)),
                    }
                }
                Step::Charge { amount } => {
                    fast.charge(amount, limit, now);
                    slow.level -= i128::from(amount) * 60_000;
                }
                Step::GiveBack { amount } => {
                    fast.give_back(amount);
                    slow.level += i128::from(amount) * 60_000;
                    slow.clip();
                }
            }
        }
    }
}

#[test]
fn the_largest_numbers_do_not_overflow() {
    let now = Instant::now();
    let mut bucket = Bucket::default();
    assert_eq!(bucket.take(u64::MAX, u64::MAX, now), Ok(()));
    assert!(bucket.take(1, u64::MAX, now).is_err());
    bucket.charge(u64::MAX, 1, now);
    // 2^65 minutes are more than a Duration's nanoseconds in 64 bits: told is the most.
    let wait = bucket.take(1, 1, now).unwrap_err();
    assert_eq!(wait, Duration::from_nanos(u64::MAX));
    let later = now + Duration::from_secs(1 << 32);
    assert_eq!(bucket.take(u64::MAX, u64::MAX, later), Ok(()));
}

#[test]
fn time_that_runs_backwards_gives_nothing() {
    let later = Instant::now() + Duration::from_secs(100);
    let mut bucket = Bucket::default();
    assert_eq!(bucket.take(60, 60, later), Ok(()));
    let before = later - Duration::from_secs(90);
    assert_eq!(bucket.take(1, 60, before), Err(Duration::from_secs(1)));
    assert_eq!(bucket.take(1, 60, later), Err(Duration::from_secs(1)));
    assert_eq!(bucket.take(1, 60, later + Duration::from_secs(1)), Ok(()));
}

#[test]
fn a_limit_may_change_at_any_time() {
    let now = Instant::now();
    let mut bucket = Bucket::default();
    assert_eq!(bucket.take(10, 10, now), Ok(()));
    // Raised to 30: 20 are left. Lowered to 5: 10 are owed, and 5 come back in a minute.
    assert_eq!(bucket.take(20, 30, now), Ok(()));
    bucket.give_back(20);
    assert_eq!(bucket.take(1, 5, now), Err(Duration::from_secs(72)));
}

fn tenant(quotas: Quotas) -> Tenant {
    Tenant {
        id: TenantId::parse("acme").unwrap(),
        number: 7,
        policy: Policy {
            quotas,
            ..Policy::default()
        },
    }
}

fn limit<T>(answer: Result<T, Refused>) -> Option<(&'static str, u64)> {
    let refused = answer.err()?;
    Some((refused.limit, refused.retry_after.as_secs()))
}

#[test]
fn requests_are_counted_by_the_minute() {
    let (usage, now) = (Usage::default(), Instant::now());
    let few = tenant(Quotas {
        requests_per_minute: Some(2),
        ..Quotas::default()
    });
    assert_eq!(usage.begin(&few, now), Ok(()));
    assert_eq!(usage.begin(&few, now), Ok(()));
    let over = Some(("requests_per_minute", 30));
    assert_eq!(limit(usage.begin(&few, now)), over);
    // What was refused was not counted.
    assert_eq!(limit(usage.begin(&few, now)), over);
    assert_eq!(usage.begin(&few, now + Duration::from_secs(30)), Ok(()));
    let other = Tenant {
        number: 8,
        ..few.clone()
    };
    assert_eq!(usage.begin(&other, now), Ok(()));
}

#[test]
fn tokens_that_were_not_used_come_back() {
    let (usage, now) = (Usage::default(), Instant::now());
    let some = tenant(Quotas {
        tokens_per_minute: Some(600),
        ..Quotas::default()
    });
    let reservation = usage.reserve(&some, 1, 500, now).unwrap();
    assert_eq!(
        limit(usage.reserve(&some, 1, 200, now)),
        Some(("tokens_per_minute", 10))
    );
    reservation.used(100);
    reservation.used(50);
    drop(reservation);
    // 150 of 600 are owed.
    let rest = usage.reserve(&some, 1, 450, now).unwrap();
    assert_eq!(
        limit(usage.reserve(&some, 1, 1, now)),
        Some(("tokens_per_minute", 0))
    );
    // More than was reserved is never given back.
    rest.used(u64::MAX);
    rest.used(u64::MAX);
    drop(rest);
    assert!(usage.reserve(&some, 1, 1, now).is_err());
    // A larger request than the limit is let in once nothing is owed.
    let later = now + Duration::from_secs(60);
    assert!(usage.reserve(&some, 1, 100_000, later).is_ok());
}

#[test]
fn places_come_back_when_reservations_end() {
    let (usage, now) = (Usage::default(), Instant::now());
    let three = tenant(Quotas {
        concurrent_sequences: Some(3),
        tokens_per_minute: Some(10),
        ..Quotas::default()
    });
    let two = usage.reserve(&three, 2, 1, now).unwrap();
    let over = Some(("concurrent_sequences", 1));
    assert_eq!(limit(usage.reserve(&three, 2, 1, now)), over);
    assert_eq!(limit(usage.reserve(&three, u32::MAX, 1, now)), over);
    // A place that tokens stood against is not taken.
    assert_eq!(
        limit(usage.reserve(&three, 1, 10, now)),
        Some(("tokens_per_minute", 6))
    );
    let one = usage.reserve(&three, 1, 1, now).unwrap();
    assert_eq!(usage.sequences(7), 3);
    drop((two, one));
    assert_eq!(usage.sequences(7), 0);
    usage.retain(|number| number != 7);
    assert!(usage.accounts().is_empty());
}

#[test]
fn guest_time_is_charged_afterwards() {
    let (usage, now) = (Usage::default(), Instant::now());
    let slow = tenant(Quotas {
        guest_ms_per_minute: Some(1_000),
        ..Quotas::default()
    });
    usage.charge_guest_ms(&slow, 999, now);
    assert_eq!(usage.begin(&slow, now), Ok(()));
    usage.charge_guest_ms(&slow, 1_001, now);
    // 2,000 of 1,000 are owed: something is free after more than a minute.
    assert_eq!(
        limit(usage.begin(&slow, now)),
        Some(("guest_ms_per_minute", 60))
    );
    assert_eq!(usage.begin(&slow, now + Duration::from_secs(61)), Ok(()));
}

#[test]
fn threads_never_get_more_than_there_is() {
    let (usage, now) = (Arc::new(Usage::default()), Instant::now());
    let tenant = Arc::new(tenant(Quotas {
        requests_per_minute: Some(100),
        ..Quotas::default()
    }));
    let threads: Vec<_> = (0..8)
        .map(|_| {
            let (usage, tenant) = (Arc::clone(&usage), Arc::clone(&tenant));
            std::thread::spawn(move || {
                (0..50)
                    .filter(|_| usage.begin(&tenant, now).is_ok())
                    .count()
            })
        })
        .collect();
    let began: usize = threads.into_iter().map(|t| t.join().unwrap()).sum();
    assert_eq!(began, 100);
}
