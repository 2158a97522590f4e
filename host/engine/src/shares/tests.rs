#![allow(clippy::unwrap_used)]

use super::*;
use crate::{CacheSalt, GenerationParams, Priority, RequestId, SamplingPlan};
use std::sync::Arc;

fn request(tenant: u64, weight: u32) -> Request {
    Request {
        id: RequestId(0),
        cache_salt: CacheSalt::default(),
        prompt: vec![1, 2, 3],
        params: GenerationParams::default(),
        sampling: Arc::new(SamplingPlan::greedy()),
        seed: 0,
        priority: Priority::default(),
        owner: Owner {
            tenant,
            weight,
            ..Owner::default()
        },
    }
}

#[test]
fn service_is_tokens_by_weight() {
    let mut shares = Shares::default();
    shares.join(&request(1, 1), 0);
    shares.join(&request(2, 4), 0);
    shares.charge(1, 100, 0);
    shares.charge(2, 400, 0);
    let service = |tenant| shares.service(tenant);
    assert_eq!(service(1), 100 * TOKEN);
    assert_eq!(service(1), service(2));
}

#[test]
fn time_away_saves_nothing_up() {
    let mut shares = Shares::default();
    shares.join(&request(1, 1), 0);
    shares.join(&request(2, 1), 0);
    shares.charge(2, 10, 0);
    shares.leave(2, 5);
    shares.charge(1, 1_000_000, 0);
    shares.join(&request(2, 1), 6);
    let service = |tenant| shares.service(tenant);
    assert_eq!(service(2), service(1));
    // One that never was here likewise.
    shares.join(&request(3, 1), 7);
    assert_eq!(shares.service(3), shares.service(1));
}

#[test]
fn who_had_more_is_not_forgiven_by_leaving() {
    let mut shares = Shares::default();
    shares.join(&request(1, 1), 0);
    shares.join(&request(2, 1), 0);
    shares.charge(2, 1000, 0);
    shares.leave(2, 1);
    shares.join(&request(3, 1), 2 * LINGER);
    shares.join(&request(2, 1), 2 * LINGER + 1);
    assert_eq!(shares.service(2), 1000 * TOKEN);
}

#[test]
fn nobody_waits_for_all_that_others_did_not_want() {
    let mut shares = Shares::default();
    for tenant in [1, 2, 3] {
        shares.join(&request(tenant, 1), 0);
    }
    shares.charge(1, 1_000_000, 0);
    assert_eq!(shares.service(1) - shares.service(2), LAG);
    shares.charge(2, 1, 0);
    assert_eq!(shares.service(2) - shares.service(3), TOKEN);
}

#[test]
fn those_who_are_away_are_forgotten() {
    let mut shares = Shares::default();
    for tenant in 0..1000 {
        let step = tenant * (LINGER + 1);
        shares.join(&request(tenant, 1), step);
        shares.charge(tenant, 7, 0);
        shares.leave(tenant, step);
    }
    assert!(shares.accounts.len() < 3, "{}", shares.accounts.len());
}

#[test]
fn nothing_overflows() {
    let mut shares = Shares::default();
    shares.join(&request(1, u32::MAX), 0);
    shares.join(&request(2, 0), 0);
    for tenant in [1, 2] {
        for _ in 0..1 << 18 {
            shares.charge(tenant, u32::MAX, 0);
        }
    }
    assert_eq!(shares.service(2), u64::MAX);
    assert_eq!(shares.start(2, usize::MAX), u64::MAX);
    // The heaviest weight pays a token's 65536th part.
    assert_eq!(shares.get(1).unwrap().cost(3), 3);
}
