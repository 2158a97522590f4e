//! What is left of limits per minute, to be told to clients.

use super::Usage;
use super::bucket::{Bucket, PARTS};
use crate::{Quotas, Tenant};
use std::time::{Duration, Instant};

/// What is left of one limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Level {
    /// Per minute.
    pub limit: u64,
    /// What would be let in now, rounded down.
    pub remaining: u64,
    /// Time until all of it is there again, if nothing more is taken.
    pub reset: Duration,
}

/// Those limits per minute that a tenant has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Levels {
    /// Of requests.
    pub requests: Option<Level>,
    /// Of tokens.
    pub tokens: Option<Level>,
}

impl Usage {
    /// What is left to a tenant.
    #[must_use]
    pub fn levels(&self, tenant: &Tenant, now: Instant) -> Levels {
        let Quotas {
            requests_per_minute,
            tokens_per_minute,
            ..
        } = tenant.policy.quotas;
        if requests_per_minute.is_none() && tokens_per_minute.is_none() {
            return Levels::default();
        }
        let account = self.account(tenant.number);
        let mut spent = account.spent();
        Levels {
            requests: requests_per_minute.map(|limit| spent.requests.level(limit.into(), now)),
            tokens: tokens_per_minute.map(|limit| spent.tokens.level(limit, now)),
        }
    }
}

impl Bucket {
    /// What is left.
    pub fn level(&mut self, per_minute: u64, now: Instant) -> Level {
        self.settle(per_minute, now);
        let owed = u64::try_from(self.spent.div_ceil(PARTS)).unwrap_or(u64::MAX);
        let nanos = match per_minute {
            0 => None,
            rate => u64::try_from(self.spent.div_ceil(rate.into())).ok(),
        };
        Level {
            limit: per_minute,
            remaining: per_minute.saturating_sub(owed),
            reset: nanos.map_or(Duration::from_secs(60), Duration::from_nanos),
        }
    }
}

#[cfg(test)]
mod tests;
