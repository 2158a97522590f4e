//! How much tenants use right now, against their limits. Knows neither clocks nor the network: callers pass the time.

mod bucket;
mod level;
#[cfg(test)]
mod tests;

pub use bucket::Bucket;
pub use level::{Level, Levels};

use crate::{Quotas, Tenant};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Over a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("over the limit {limit}")]
pub struct Refused {
    /// Its name in [`Quotas`].
    pub limit: &'static str,
    /// When it is worth trying again.
    pub retry_after: Duration,
}

/// When sequences end is not known.
const SEQUENCES_RETRY: Duration = Duration::from_secs(1);

/// What each tenant uses right now. One per server; as many entries as tenants that asked for anything and were not
/// removed.
#[derive(Debug, Default)]
pub struct Usage(Mutex<HashMap<u64, Arc<Account>>>);

/// One tenant's.
#[derive(Debug, Default)]
struct Account(Mutex<Spent>);

#[derive(Debug, Default)]
struct Spent {
    requests: Bucket,
    tokens: Bucket,
    guest_ms: Bucket,
    /// Sequences accepted and not finished.
    sequences: u32,
}

impl Account {
    fn spent(&self) -> MutexGuard<'_, Spent> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Usage {
    /// Counts a request that begins, before anything is done for it.
    ///
    /// # Errors
    /// When its tenant made too many within a minute, or its guests took too much time; then it is not counted.
    pub fn begin(&self, tenant: &Tenant, now: Instant) -> Result<(), Refused> {
        let account = self.account(tenant.number);
        let mut spent = account.spent();
        let Quotas {
            requests_per_minute,
            guest_ms_per_minute,
            ..
        } = tenant.policy.quotas;
        if let Some(limit) = guest_ms_per_minute {
            let wait = spent.guest_ms.wait(0, limit, now);
            refuse_if("guest_ms_per_minute", wait)?;
        }
        if let Some(limit) = requests_per_minute {
            let took = spent.requests.take(1, limit.into(), now);
            refuse_if("requests_per_minute", took.err())?;
        }
        Ok(())
    }

    /// Takes place for so many sequences, and the tokens that they use at most: prompts and answers. Those that were not
    /// used come back when the reservation is dropped.
    ///
    /// # Errors
    /// When there is no place; then nothing is taken.
    pub fn reserve(
        &self,
        tenant: &Tenant,
        sequences: u32,
        tokens: u64,
        now: Instant,
    ) -> Result<Reservation, Refused> {
        let account = self.account(tenant.number);
        let mut spent = account.spent();
        let Quotas {
            tokens_per_minute,
            concurrent_sequences,
            ..
        } = tenant.policy.quotas;
        let running = spent.sequences.checked_add(sequences);
        let fits = running.filter(|n| concurrent_sequences.is_none_or(|most| *n <= most));
        let Some(running) = fits else {
            return Err(Refused {
                limit: "concurrent_sequences",
                retry_after: SEQUENCES_RETRY,
            });
        };
        let mut reserved = 0;
        if let Some(limit) = tokens_per_minute {
            let took = spent.tokens.take(tokens, limit, now);
            refuse_if("tokens_per_minute", took.err())?;
            reserved = tokens;
        }
        spent.sequences = running;
        drop(spent);
        Ok(Reservation {
            account,
            sequences,
            reserved,
            used: AtomicU64::new(0),
        })
    }

    /// Counts CPU time that guests took; further requests wait until it fits the limit.
    pub fn charge_guest_ms(&self, tenant: &Tenant, ms: u64, now: Instant) {
        if let Some(limit) = tenant.policy.quotas.guest_ms_per_minute {
            let account = self.account(tenant.number);
            account.spent().guest_ms.charge(ms, limit, now);
        }
    }

    /// Sequences of a tenant that are accepted and not finished.
    #[must_use]
    pub fn sequences(&self, tenant: u64) -> u32 {
        let accounts = self.accounts();
        accounts.get(&tenant).map_or(0, |a| a.spent().sequences)
    }

    /// Forgets tenants that are gone.
    pub fn retain(&self, keep: impl Fn(u64) -> bool) {
        self.accounts().retain(|number, _| keep(*number));
    }

    fn account(&self, tenant: u64) -> Arc<Account> {
        Arc::clone(self.accounts().entry(tenant).or_default())
    }

    fn accounts(&self) -> MutexGuard<'_, HashMap<u64, Arc<Account>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn refuse_if(limit: &'static str, wait: Option<Duration>) -> Result<(), Refused> {
    match wait {
        Some(retry_after) => Err(Refused { limit, retry_after }),
        None => Ok(()),
    }
}

/// Place that a request holds. Dropping it gives back its sequences, and the tokens that were not used.
#[derive(Debug)]
#[must_use]
pub struct Reservation {
    account: Arc<Account>,
    sequences: u32,
    /// Tokens taken from the bucket.
    reserved: u64,
    used: AtomicU64,
}

impl Reservation {
    /// Counts tokens that were really used: of the prompt once it is computed, of answers as they come.
    pub fn used(&self, tokens: u64) {
        let add = |used: u64| Some(used.saturating_add(tokens));
        // Never fails: the new value is always given.
        let _ = self
            .used
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let mut spent = self.account.spent();
        spent.sequences = spent.sequences.saturating_sub(self.sequences);
        let unused = self.reserved.saturating_sub(*self.used.get_mut());
        spent.tokens.give_back(unused);
    }
}
