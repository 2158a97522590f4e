#![allow(clippy::unwrap_used)]

use super::{Level, Levels};
use crate::{Bucket, Policy, Quotas, Tenant, TenantId, Usage};
use std::time::{Duration, Instant};

/// 60 per minute come back at one per second.
#[test]
fn what_is_left_follows_the_clock() {
    let (mut bucket, start) = (Bucket::default(), Instant::now());
    bucket.take(10, 60, start).unwrap();
    let level = |remaining, reset| Level {
        limit: 60,
        remaining,
        reset: Duration::from_millis(reset),
    };
    assert_eq!(bucket.level(60, start), level(50, 10_000));
    let later = start + Duration::from_millis(1_500);
    assert_eq!(bucket.level(60, later), level(51, 8_500));
    let all = start + Duration::from_secs(11);
    assert_eq!(bucket.level(60, all), level(60, 0));
    assert_eq!(bucket.level(0, all).remaining, 0);
}

#[test]
fn only_limits_that_there_are_are_told() {
    let (usage, now) = (Usage::default(), Instant::now());
    let mut tenant = Tenant {
        id: TenantId::parse("a").unwrap(),
        number: 1,
        policy: Policy::default(),
    };
    assert_eq!(usage.levels(&tenant, now), Levels::default());
    tenant.policy.quotas = Quotas {
        tokens_per_minute: Some(100),
        ..Quotas::default()
    };
    let held = usage.reserve(&tenant, 1, 30, now).unwrap();
    let levels = usage.levels(&tenant, now);
    assert_eq!(levels.requests, None);
    assert_eq!(levels.tokens.unwrap().remaining, 70);
    held.used(10);
    drop(held);
    assert_eq!(usage.levels(&tenant, now).tokens.unwrap().remaining, 90);
}
