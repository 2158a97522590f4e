//! One module of one tenant.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::pool::Job;
use crate::store::Account;
use crate::{Origin, Stepping};

/// Lanes kept for their counters when no request uses them.
const LANES: usize = 4096;
/// Weight of a call in the average: 1 / 8.
const AVERAGE_SHIFT: u32 = 3;

/// What a module's calls cost a tenant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaneUsage {
    /// [`CallContext::tenant`](crate::CallContext::tenant); "*" for all that were forgotten.
    pub tenant: Arc<str>,
    /// Module name; "*" for all that were forgotten.
    pub module: Arc<str>,
    /// Calls that ended.
    pub calls: u64,
    /// Their CPU time.
    pub cpu: Duration,
    /// Running average of it.
    pub average: Duration,
    /// Whether it has a thread of its own.
    pub slow: bool,
}

/// See [`LaneUsage`].
pub(super) struct Lane {
    tenant: Arc<str>,
    module: Arc<str>,
    /// Its tenant's: who pays.
    account: Arc<Account>,
    origin: Origin,
    calls: AtomicU64,
    cpu: AtomicU64,
    /// Nanoseconds.
    average: AtomicU64,
    slow: AtomicBool,
    /// Locked after the pool's state, never the other way round.
    own: Mutex<Own>,
}

/// Calls of a slow lane.
#[derive(Default)]
pub(super) struct Own {
    pub(super) jobs: VecDeque<Box<Job>>,
    /// A thread serves it, or it waits for one.
    pub(super) served: bool,
}

impl Lane {
    fn new(stepping: &Stepping, average: u64) -> Self {
        Self {
            tenant: stepping.tenant(),
            module: stepping.module_name(),
            account: stepping.account(),
            origin: stepping.origin(),
            calls: AtomicU64::new(0),
            cpu: AtomicU64::new(0),
            average: AtomicU64::new(average),
            slow: AtomicBool::new(false),
            own: Mutex::default(),
        }
    }

    pub(super) fn own(&self) -> MutexGuard<'_, Own> {
        self.own.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether nobody but a tenant vouches for the module.
    pub(super) fn is_foreign(&self) -> bool {
        self.origin == Origin::Tenant
    }

    /// Expected nanoseconds of a call.
    pub(super) fn cost(&self) -> u64 {
        self.average.load(Ordering::Relaxed)
    }

    pub(super) fn is_slow(&self) -> bool {
        self.slow.load(Ordering::Relaxed)
    }

    pub(super) fn set_slow(&self) {
        self.slow.store(true, Ordering::Relaxed);
    }

    /// A call ended. Slow above `slow` nanoseconds on average, and until half of that.
    pub(super) fn charge(&self, cpu: u64, slow: u64) {
        self.calls.fetch_add(1, Ordering::Relaxed);
        self.cpu.fetch_add(cpu, Ordering::Relaxed);
        self.account.charge(cpu);
        let before = self.cost();
        // Several threads may charge at once; a lost update of an average does no harm.
        let average = before - (before >> AVERAGE_SHIFT) + (cpu >> AVERAGE_SHIFT);
        self.average.store(average, Ordering::Relaxed);
        if average > slow {
            self.set_slow();
        } else if average < slow / 2 {
            self.slow.store(false, Ordering::Relaxed);
        }
    }

    fn usage(&self) -> LaneUsage {
        LaneUsage {
            tenant: Arc::clone(&self.tenant),
            module: Arc::clone(&self.module),
            calls: self.calls.load(Ordering::Relaxed),
            cpu: Duration::from_nanos(self.cpu.load(Ordering::Relaxed)),
            average: Duration::from_nanos(self.cost()),
            slow: self.is_slow(),
        }
    }
}

type Key = (Arc<str>, Arc<str>, Origin);

/// All lanes, by tenant and module.
pub(super) struct Lanes {
    /// What a call of an unknown module is expected to cost, nanoseconds.
    unknown: u64,
    all: Mutex<All>,
}

#[derive(Default)]
struct All {
    lanes: HashMap<Key, Arc<Lane>>,
    forgotten_calls: u64,
    forgotten_cpu: Duration,
}

impl Lanes {
    pub(super) fn new(unknown: u64) -> Self {
        Self {
            unknown,
            all: Mutex::default(),
        }
    }

    fn all(&self) -> MutexGuard<'_, All> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The lane of a request's guest.
    pub(super) fn lane(&self, stepping: &Stepping) -> Arc<Lane> {
        let key = (stepping.tenant(), stepping.module_name(), stepping.origin());
        let mut all = self.all();
        if let Some(lane) = all.lanes.get(&key) {
            return Arc::clone(lane);
        }
        if all.lanes.len() >= LANES {
            all.forget_unused();
        }
        let lane = Arc::new(Lane::new(stepping, self.unknown));
        all.lanes.insert(key, Arc::clone(&lane));
        lane
    }

    pub(super) fn usage(&self) -> Vec<LaneUsage> {
        let all = self.all();
        let mut usage: Vec<_> = all.lanes.values().map(|lane| lane.usage()).collect();
        if all.forgotten_calls > 0 {
            usage.push(LaneUsage {
                tenant: "*".into(),
                module: "*".into(),
                calls: all.forgotten_calls,
                cpu: all.forgotten_cpu,
                average: Duration::ZERO,
                slow: false,
            });
        }
        usage
    }
}

impl All {
    fn forget_unused(&mut self) {
        let (mut calls, mut cpu) = (0, Duration::ZERO);
        self.lanes.retain(|_, lane| {
            let used = Arc::strong_count(lane) > 1;
            if !used {
                let usage = lane.usage();
                calls += usage.calls;
                cpu += usage.cpu;
            }
            used
        });
        self.forgotten_calls += calls;
        self.forgotten_cpu += cpu;
    }
}
