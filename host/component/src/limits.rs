//! What a guest may use, and how many may run.

use std::path::PathBuf;
use std::time::Duration;

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
    /// Time of one call, waiting for a processor included.
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
            wall: Duration::from_secs(1),
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
            wall: Duration::from_secs(1),
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
    /// Sampler calls at once.
    pub sampler: usize,
}

impl Default for PoolSizes {
    fn default() -> Self {
        Self {
            graph: 4,
            chat: 1024,
            sampler: 128,
        }
    }
}

impl PoolSizes {
    /// All places.
    pub(crate) fn total(&self) -> usize {
        self.graph + self.chat + self.sampler
    }
}

/// Settings of a [`crate::Runtime`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuntimeConfig {
    /// Folder for compiled code, mode 0700 and ours; made if it is missing. None compiles at every load.
    pub cache_dir: Option<PathBuf>,
    /// Places.
    pub pool: PoolSizes,
    /// Linear memory of all guests together, bytes.
    pub process_memory: usize,
    /// How long a synchronous call may wait for a place.
    pub wait: Duration,
    /// Per graph build.
    pub graph: Limits,
    /// Per chat session.
    pub chat: Limits,
    /// Per sampler call.
    pub sampler: Limits,
}

impl Default for RuntimeConfig {
    fn default() -> Self {
        Self {
            cache_dir: None,
            pool: PoolSizes::default(),
            process_memory: 4 << 30,
            wait: Duration::from_secs(1),
            graph: Limits::graph(),
            chat: Limits::chat(),
            sampler: Limits::sampler(),
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
    }
}
