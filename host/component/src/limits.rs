//! What a guest may use, and how many may run.

use std::path::PathBuf;
use std::time::Duration;

use crate::Compiler;

/// Limits of one store. A store serves one request (chat, sampler) or one build (graph).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of linear memory and tables.
    pub memory: usize,
    /// Bytes that may cross between guest and host in one call, either way.
    pub transfer: usize,
    /// Live resource handles, as the guest sees them.
    pub handles: usize,
    /// Live host resources.
    pub resources: usize,
    /// Log lines kept; further ones are dropped.
    pub log_lines: u32,
    /// Bytes of log text kept.
    pub log_bytes: usize,
    /// CPU time of one call.
    pub cpu: Duration,
    /// Time of one call, waiting for a processor included: a thread that gives way to others gets a tenth of one where all are
    /// busy.
    pub wall: Duration,
}

impl Limits {
    /// For a graph build: seconds, as it happens once per load, and constants may be large.
    #[must_use]
    pub fn graph() -> Self {
        Self {
            memory: 256 << 20,
            transfer: 64 << 20,
            handles: 10_000,
            resources: 10_000,
            log_lines: 1_000,
            log_bytes: 256 << 10,
            cpu: Duration::from_secs(5),
            wall: Duration::from_secs(30),
        }
    }

    /// For a chat request.
    #[must_use]
    pub fn chat() -> Self {
        Self {
            memory: 64 << 20,
            transfer: 16 << 20,
            handles: 1_000,
            resources: 1_000,
            log_lines: 100,
            log_bytes: 16 << 10,
            cpu: Duration::from_millis(200),
            wall: Duration::from_secs(5),
        }
    }

    /// For a sampler request.
    #[must_use]
    pub fn sampler() -> Self {
        Self {
            memory: 16 << 20,
            transfer: 4 << 20,
            handles: 100,
            resources: 100,
            log_lines: 100,
            log_bytes: 16 << 10,
            cpu: Duration::from_millis(20),
            wall: Duration::from_secs(5),
        }
    }

    /// For a sampler that chooses tokens itself, once its plan is made. Whole rows of a large vocabulary are 0.6 MB each.
    #[must_use]
    pub fn step() -> Self {
        Self {
            memory: 128 << 20,
            transfer: 64 << 20,
            cpu: Duration::from_millis(50),
            ..Self::sampler()
        }
    }
}

/// How many guests of each role may be alive at once. Each place reserves 4 GiB of address space, no memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolSizes {
    /// Graph builds at once.
    pub graph: usize,
    /// Chat sessions at once; one lives as long as its request streams.
    pub chat: usize,
    /// Plans made at once.
    pub sampler: usize,
    /// Samplers that choose tokens themselves at once; one lives as long as its request.
    pub step: usize,
}

impl Default for PoolSizes {
    fn default() -> Self {
        Self {
            graph: 4,
            chat: 1024,
            sampler: 128,
            step: 1024,
        }
    }
}

impl PoolSizes {
    /// All places.
    pub(crate) fn total(&self) -> usize {
        self.graph + self.chat + self.sampler + self.step
    }
}

/// What ends a call that does not end itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clock {
    /// Processor time and wall time: for serving.
    Time,
    /// A count of instructions; floats are computed the same on every machine, too: for recording and replay.
    Fuel,
}

/// Instructions that stand for a nanosecond of processor time where fuel is counted.
const FUEL_PER_NANOSECOND: u64 = 4;

impl Limits {
    /// Instructions of one call, where they are counted.
    pub(crate) fn fuel(&self) -> u64 {
        let nanoseconds = u64::try_from(self.cpu.as_nanos()).unwrap_or(u64::MAX);
        nanoseconds.saturating_mul(FUEL_PER_NANOSECOND)
    }

    /// The time that so many instructions stand for.
    pub(crate) fn cpu_of(fuel: u64) -> Duration {
        Duration::from_nanos(fuel / FUEL_PER_NANOSECOND)
    }
}

/// Settings of a [`crate::Runtime`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuntimeConfig {
    /// Folder for compiled code, mode 0700 and ours; made if it is missing. None compiles at every load.
    pub cache_dir: Option<PathBuf>,
    /// Where modules are compiled that are not part of this binary.
    pub compiler: Compiler,
    /// Places.
    pub pool: PoolSizes,
    /// Linear memory of all guests together, bytes.
    pub process_memory: usize,
    /// What ends a call that does not end itself.
    pub clock: Clock,
    /// How long a synchronous call may wait for a place.
    pub wait: Duration,
    /// Per graph build.
    pub graph: Limits,
    /// Per chat session.
    pub chat: Limits,
    /// Per sampler request, until its plan is made.
    pub sampler: Limits,
    /// Per sampler request whose guest chooses tokens itself, from its plan on.
    pub step: Limits,
}

impl Default for RuntimeConfig {
    fn default() -> Self {
        Self {
            cache_dir: None,
            compiler: Compiler::InProcess,
            pool: PoolSizes::default(),
            process_memory: 4 << 30,
            clock: Clock::Time,
            wait: Duration::from_secs(1),
            graph: Limits::graph(),
            chat: Limits::chat(),
            sampler: Limits::sampler(),
            step: Limits::step(),
        }
    }
}

impl RuntimeConfig {
    /// Largest linear memory of any role.
    pub(crate) fn max_memory(&self) -> usize {
        self.graph
            .memory
            .max(self.chat.memory)
            .max(self.sampler.memory)
            .max(self.step.memory)
    }
}
