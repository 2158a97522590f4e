//! How many modules tenants have compiled.

use super::{ModuleError, lock};
use std::collections::{HashMap, VecDeque};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Compilations per hour of a tenant whose policy says nothing of them.
const DEFAULT: u32 = 20;
const HOUR: Duration = Duration::from_secs(3600);

/// When each tenant's compilations of the last hour began.
#[derive(Default)]
pub(super) struct Compilations(Mutex<HashMap<u64, VecDeque<Instant>>>);

impl Compilations {
    /// Counts one that begins `now`.
    pub(super) fn begin(
        &self,
        tenant: u64,
        limit: Option<u32>,
        now: Instant,
    ) -> Result<(), ModuleError> {
        let limit = limit.unwrap_or(DEFAULT);
        let mut all = lock(&self.0);
        let begun = all.entry(tenant).or_default();
        while begun
            .front()
            .is_some_and(|at| now.saturating_duration_since(*at) >= HOUR)
        {
            begun.pop_front();
        }
        if begun.len() >= limit as usize {
            let passed = begun.front().map(|at| now.saturating_duration_since(*at));
            return Err(ModuleError::Compilations {
                limit,
                retry_after: HOUR.saturating_sub(passed.unwrap_or_default()),
            });
        }
        begun.push_back(now);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use super::*;

    #[test]
    fn an_hour_later_there_is_room_again() {
        let (all, start) = (Compilations::default(), Instant::now());
        let at = |minutes: u64| start + Duration::from_secs(60 * minutes);
        all.begin(1, Some(2), at(0)).unwrap();
        all.begin(1, Some(2), at(10)).unwrap();
        let Err(ModuleError::Compilations { retry_after, .. }) = all.begin(1, Some(2), at(15))
        else {
            panic!("expected a refusal");
        };
        assert_eq!(retry_after, Duration::from_secs(45 * 60));
        all.begin(2, Some(2), at(15)).unwrap();
        all.begin(1, Some(2), at(60)).unwrap();
        assert!(all.begin(1, Some(2), at(69)).is_err());
        all.begin(1, Some(2), at(70)).unwrap();
    }
}
