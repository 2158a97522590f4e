//! Counters of what tenants used, by day.

use super::{Registry, from_db, number_to_db, to_db};
use crate::TenantsError;
use rusqlite::params;
use std::collections::BTreeMap;

/// Counters that are not on the disk yet, by tenant and day: as many as tenants were active and days passed.
pub(super) type Unwritten = BTreeMap<(u64, u32), Counted>;

/// What was used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// Requests begun.
    pub requests: u64,
    /// Tokens of prompts.
    pub prompt_tokens: u64,
    /// Tokens of answers.
    pub output_tokens: u64,
    /// CPU time of guests, milliseconds.
    pub guest_ms: u64,
}

impl Counted {
    /// Adds, up to the largest number.
    pub fn add(&mut self, more: &Self) {
        self.requests = self.requests.saturating_add(more.requests);
        self.prompt_tokens = self.prompt_tokens.saturating_add(more.prompt_tokens);
        self.output_tokens = self.output_tokens.saturating_add(more.output_tokens);
        self.guest_ms = self.guest_ms.saturating_add(more.guest_ms);
    }
}

/// What a tenant used on one day.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UsageDay {
    /// The tenant's number; 0 is of requests without a key.
    pub tenant: u64,
    /// Days since 1970-01-01, UTC.
    pub day: u32,
    /// How much.
    pub counted: Counted,
}

/// The day of a time in Unix seconds.
#[must_use]
pub fn day_of(unix_seconds: u64) -> u32 {
    u32::try_from(unix_seconds / 86_400).unwrap_or(u32::MAX)
}

impl Registry {
    /// Adds to the counters, all in one write. What cannot be written is kept and written by the next call. Blocks.
    ///
    /// # Errors
    /// When the file cannot be written; do not add the same again.
    pub fn add_usage(&self, more: &[UsageDay]) -> Result<(), TenantsError> {
        let mut store = self.store();
        for entry in more {
            let place = store.unwritten.entry((entry.tenant, entry.day));
            place.or_default().add(&entry.counted);
        }
        if store.unwritten.is_empty() {
            return Ok(());
        }
        let unwritten = std::mem::take(&mut store.unwritten);
        let written = store.transaction(|write| {
            write.sql(|tx| {
                // Sums stay integers: SQLite's would turn into floating point where they overflow.
                let mut add = tx.prepare(
                    "INSERT INTO usage VALUES(?1, ?2, ?3, ?4, ?5, ?6) ON CONFLICT DO UPDATE SET
                     requests = min(requests, ?7 - excluded.requests) + excluded.requests,
                     prompt_tokens = min(prompt_tokens, ?7 - excluded.prompt_tokens) + excluded.prompt_tokens,
                     output_tokens = min(output_tokens, ?7 - excluded.output_tokens) + excluded.output_tokens,
                     guest_ms = min(guest_ms, ?7 - excluded.guest_ms) + excluded.guest_ms",
                )?;
                for ((tenant, day), counted) in &unwritten {
                    add.execute(params![
                        number_to_db(*tenant),
                        day,
                        to_db(counted.requests),
                        to_db(counted.prompt_tokens),
                        to_db(counted.output_tokens),
                        to_db(counted.guest_ms),
                        i64::MAX,
                    ])?;
                }
                Ok(())
            })
        });
        if written.is_err() {
            store.unwritten = unwritten;
        }
        written
    }

    /// Counters of a tenant from a day on, by day; those that wait to be written are not in it. Blocks.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn usage(&self, tenant: u64, from: u32) -> Result<Vec<UsageDay>, TenantsError> {
        self.read(|connection| {
            let mut rows = connection.prepare(
                "SELECT day, requests, prompt_tokens, output_tokens, guest_ms FROM usage
                 WHERE tenant = ?1 AND day >= ?2 ORDER BY day",
            )?;
            let rows = rows.query_map(params![number_to_db(tenant), from], |row| {
                let number = |index| row.get(index).map(from_db);
                Ok(UsageDay {
                    tenant,
                    day: row.get(0)?,
                    counted: Counted {
                        requests: number(1)?,
                        prompt_tokens: number(2)?,
                        output_tokens: number(3)?,
                        guest_ms: number(4)?,
                    },
                })
            })?;
            rows.collect()
        })
    }
}
