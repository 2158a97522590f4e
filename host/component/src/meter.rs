//! Time used by one guest call.
//!
//! A call is charged the CPU time of the threads it runs on, so that a busy machine does not end an honest guest. The
//! first tick arms the meter: a call's limits are looked at from the second on. Of synchronous calls the meter knows only what
//! ticks see; whoever makes them charges them ([`Charge`]).

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::Poll;
use std::time::{Duration, Instant};

use crate::store::Account;

/// `slice` of a meter that no tick has reached.
const UNARMED: u64 = u64::MAX;

/// Shared by a store, its epoch callback and the future of its current call. Only one thread at a time runs the call;
/// the atomics make the sharing safe, not concurrent.
pub(crate) struct Meter {
    base: Instant,
    /// Nanoseconds from `base` to the beginning of the call.
    began: AtomicU64,
    /// CPU nanoseconds of finished slices (polls), from the first tick on.
    spent: AtomicU64,
    /// CPU nanoseconds of all polls of an asynchronous call.
    polled: AtomicU64,
    /// The thread's CPU clock when the current slice began, or [`UNARMED`].
    slice: AtomicU64,
    /// The current poll ends because the deadline callback lets others run.
    yields: AtomicBool,
    /// Who pays.
    account: Arc<Account>,
}

/// What a call has used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Used {
    pub(crate) cpu: Duration,
    pub(crate) wall: Duration,
}

/// CPU time of the calling thread, nanoseconds.
pub(crate) fn thread_cpu() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    u64::try_from(now.tv_sec)
        .unwrap_or(0)
        .saturating_mul(1_000_000_000)
        + u64::try_from(now.tv_nsec).unwrap_or(0)
}

impl Meter {
    pub(crate) fn new(account: Arc<Account>) -> Self {
        Self {
            account,
            base: Instant::now(),
            began: AtomicU64::new(0),
            spent: AtomicU64::new(0),
            polled: AtomicU64::new(0),
            slice: AtomicU64::new(UNARMED),
            yields: AtomicBool::new(false),
        }
    }

    fn since_base(&self) -> u64 {
        u64::try_from(self.base.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// A call begins on this thread.
    pub(crate) fn begin(&self) {
        self.began.store(self.since_base(), Ordering::Relaxed);
        self.spent.store(0, Ordering::Relaxed);
        self.polled.store(0, Ordering::Relaxed);
        self.slice.store(UNARMED, Ordering::Relaxed);
    }

    /// A tick reached the call. Returns what it used, or nothing at the first tick.
    pub(crate) fn tick(&self) -> Option<Used> {
        let slice = self.slice.load(Ordering::Relaxed);
        let cpu = thread_cpu();
        if slice == UNARMED {
            self.slice.store(cpu, Ordering::Relaxed);
            return None;
        }
        let cpu = self.spent.load(Ordering::Relaxed) + cpu.saturating_sub(slice);
        let wall = self
            .since_base()
            .saturating_sub(self.began.load(Ordering::Relaxed));
        Some(Used {
            cpu: Duration::from_nanos(cpu),
            wall: Duration::from_nanos(wall),
        })
    }

    /// The call is about to let others run.
    pub(crate) fn yields(&self) {
        self.yields.store(true, Ordering::Relaxed);
    }

    fn resume(&self) {
        if self.slice.load(Ordering::Relaxed) != UNARMED {
            self.slice.store(thread_cpu(), Ordering::Relaxed);
        }
    }

    fn suspend(&self) {
        let slice = self.slice.load(Ordering::Relaxed);
        if slice != UNARMED {
            self.spent
                .fetch_add(thread_cpu().saturating_sub(slice), Ordering::Relaxed);
        }
    }
}

/// A guest waits for something: a sleep, a poll. There is nothing worth waiting for in here, and it would hold its
/// place in real time.
#[derive(Debug, thiserror::Error)]
#[error("the guest sleeps or polls, which guests may not")]
struct Waits;

/// Runs a guest call, charging each of its polls to its meter, on whichever thread it happens.
pub(crate) async fn metered<T>(
    meter: &Meter,
    call: impl Future<Output = wasmtime::Result<T>>,
) -> wasmtime::Result<T> {
    let mut call = pin!(call);
    // Charged also when nobody waits for the answer any more.
    let _bill = Bill(meter);
    poll_fn(|context| {
        let before = thread_cpu();
        meter.resume();
        let answer = call.as_mut().poll(context);
        meter.suspend();
        let took = thread_cpu().saturating_sub(before);
        meter.polled.fetch_add(took, Ordering::Relaxed);
        let yields = meter.yields.swap(false, Ordering::Relaxed);
        if answer.is_pending() && !yields {
            Poll::Ready(Err(wasmtime::Error::new(Waits)))
        } else {
            answer
        }
    })
    .await
}

/// Charges the polls of a call when dropped.
struct Bill<'a>(&'a Meter);

impl Drop for Bill<'_> {
    fn drop(&mut self) {
        let polled = self.0.polled.swap(0, Ordering::Relaxed);
        self.0.account.charge(polled);
    }
}

/// Charges an account the calling thread's CPU time until it is dropped.
pub(crate) struct Charge {
    account: Arc<Account>,
    from: u64,
}

impl Charge {
    pub(crate) fn begin(account: Arc<Account>) -> Self {
        Self {
            account,
            from: thread_cpu(),
        }
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.account.charge(thread_cpu().saturating_sub(self.from));
    }
}

#[cfg(test)]
mod tests;
