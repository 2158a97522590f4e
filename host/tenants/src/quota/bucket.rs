//! A token bucket that holds a minute's worth.

use std::time::{Duration, Instant};

/// Parts of a token that are counted: those that one per minute gives in a nanosecond.
pub(super) const PARTS: u128 = 60_000_000_000;

/// What was taken and has not come back. It comes back at the limit's rate, so that the limit itself may change at any
/// time. Exact: counted in parts of 1/60,000,000,000, which a limit of N per minute gives back N of per nanosecond.
#[derive(Clone, Copy, Debug, Default)]
pub struct Bucket {
    pub(super) spent: u128,
    at: Option<Instant>,
}

impl Bucket {
    /// Takes `amount`, or says how long to wait. One that is larger than the limit is let in when nothing is owed, and
    /// owed in full: a large request waits, and is not shut out. A limit of 0 lets nothing in.
    ///
    /// # Errors
    /// The time until it would be let in, if nobody else comes; a minute for a limit of 0.
    pub fn take(&mut self, amount: u64, per_minute: u64, now: Instant) -> Result<(), Duration> {
        match self.wait(amount, per_minute, now) {
            Some(wait) => Err(wait),
            None => {
                self.spent = self.spent.saturating_add(parts(amount));
                Ok(())
            }
        }
    }

    /// How long to wait before `amount` is let in; none where it would be now. An amount of 0 is let in when less than the
    /// limit is owed.
    pub fn wait(&mut self, amount: u64, per_minute: u64, now: Instant) -> Option<Duration> {
        self.settle(per_minute, now);
        if per_minute == 0 {
            return Some(Duration::from_secs(60));
        }
        let room = parts(per_minute) - parts(amount.min(per_minute)).max(1);
        let over = self.spent.checked_sub(room).filter(|over| *over > 0)?;
        let nanos = over.div_ceil(per_minute.into());
        Some(Duration::from_nanos(
            u64::try_from(nanos).unwrap_or(u64::MAX),
        ))
    }

    /// Takes `amount` whatever is owed.
    pub fn charge(&mut self, amount: u64, per_minute: u64, now: Instant) {
        self.settle(per_minute, now);
        self.spent = self.spent.saturating_add(parts(amount));
    }

    /// Undoes a part of what was taken.
    pub fn give_back(&mut self, amount: u64) {
        self.spent = self.spent.saturating_sub(parts(amount));
    }

    /// Forgets what came back since the last call. A `now` before that one counts as that one.
    pub(super) fn settle(&mut self, per_minute: u64, now: Instant) {
        let before = *self.at.get_or_insert(now);
        let elapsed = now.saturating_duration_since(before);
        self.at = Some(before.max(now));
        let back = elapsed.as_nanos().saturating_mul(per_minute.into());
        self.spent = self.spent.saturating_sub(back);
    }
}

fn parts(amount: u64) -> u128 {
    u128::from(amount) * PARTS
}
