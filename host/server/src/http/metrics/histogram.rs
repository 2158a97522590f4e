//! A histogram that many threads write.

use std::sync::atomic::{AtomicU64, Ordering};

pub(super) struct Histogram {
    /// Upper bounds, inclusive, ascending; what is above all of them counts in the last place of `counts`.
    bounds: &'static [f64],
    counts: Box<[AtomicU64]>,
    /// Bits of an f64.
    sum: AtomicU64,
}

/// A histogram at one moment.
pub(super) struct Snapshot {
    /// (upper bound, observations at or below it).
    pub(super) buckets: Vec<(f64, u64)>,
    pub(super) count: u64,
    pub(super) sum: f64,
}

impl Histogram {
    pub(super) fn new(bounds: &'static [f64]) -> Self {
        let counts = (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect();
        Self {
            bounds,
            counts,
            sum: AtomicU64::new(0f64.to_bits()),
        }
    }

    pub(super) fn observe(&self, value: f64) {
        let bucket = self.bounds.partition_point(|bound| *bound < value);
        self.counts[bucket].fetch_add(1, Ordering::Relaxed);
        self.add(value);
    }

    /// Adds what another one of the same bounds has seen.
    pub(super) fn absorb(&self, other: &Self) {
        for (into, from) in self.counts.iter().zip(&other.counts) {
            into.fetch_add(from.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        self.add(f64::from_bits(other.sum.load(Ordering::Relaxed)));
    }

    fn add(&self, value: f64) {
        // The closure always gives a value, so the update succeeds.
        let _ = self
            .sum
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |bits| {
                Some((f64::from_bits(bits) + value).to_bits())
            });
    }

    pub(super) fn snapshot(&self) -> Snapshot {
        let mut below = 0;
        let mut cumulated = self.counts.iter().map(|count| {
            below += count.load(Ordering::Relaxed);
            below
        });
        let buckets = self
            .bounds
            .iter()
            .copied()
            .zip(cumulated.by_ref())
            .collect();
        let count = cumulated.last().unwrap_or(0);
        Snapshot {
            buckets,
            count,
            sum: f64::from_bits(self.sum.load(Ordering::Relaxed)),
        }
    }
}
