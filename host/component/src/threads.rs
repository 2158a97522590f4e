//! Threads that run the samplers which choose tokens: the engine asks, and goes on.
//!
//! Shared threads take calls of the cheapest modules first. A call that takes too long costs its thread its place: another
//! takes over what waits, and the module is slow from then on. Slow modules have threads of their own, so they
//! delay each other at most. Long calls of modules that tenants brought, *foreign* ones, run at low priority and few at once.
//!
//! - `lane`: one module of one tenant: what its calls cost, and whether it is slow;
//! - `pool`: what waits, and who serves;
//! - `worker`: the threads;
//! - `session`: one request's guest, as the engine's [`Chooser`](guesthouse_engine::Chooser).

use std::sync::Arc;
use std::time::Duration;

use guesthouse_engine::{Chooser, RandomKey, TokenId};

use crate::Stepping;

mod lane;
mod pool;
mod session;
mod worker;

pub use lane::LaneUsage;
use pool::Pool;

/// The token that a plain draw takes from processed logits `[vocab]`, for this key at this position; or why there is none.
pub type RowDraw = fn(&[f32], RandomKey, u32) -> Result<TokenId, String>;

/// Settings of [`SamplerThreads`].
#[derive(Clone, Copy, Debug)]
pub struct ThreadsConfig {
    /// Shared threads; at least 1.
    pub shared: usize,
    /// Most threads beside them, for slow modules and calls; at least 1.
    pub own: usize,
    /// Average CPU time of a call above which a module is slow.
    pub slow: Duration,
    /// Draws from rows that a guest rewrote.
    pub draw: RowDraw,
}

impl ThreadsConfig {
    /// As many shared threads as processors, at most 8.
    #[must_use]
    pub fn new(draw: RowDraw) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            shared: cores.min(8),
            own: 64,
            slow: Duration::from_millis(1),
            draw,
        }
    }
}

/// One per process. Dropping it lets calls under way end and forgets those that wait.
pub struct SamplerThreads {
    pool: Arc<Pool>,
}

impl SamplerThreads {
    /// Threads start with the first calls.
    #[must_use]
    pub fn new(config: ThreadsConfig) -> Self {
        Self {
            pool: Arc::new(Pool::new(config)),
        }
    }

    /// The guest as the engine sees it.
    #[must_use]
    pub fn chooser(&self, stepping: Stepping) -> Box<dyn Chooser> {
        Box::new(session::Pooled::new(Arc::clone(&self.pool), stepping))
    }

    /// What each module's calls cost each tenant so far.
    #[must_use]
    pub fn usage(&self) -> Vec<LaneUsage> {
        self.pool.lanes.usage()
    }
}

impl Drop for SamplerThreads {
    fn drop(&mut self) {
        self.pool.stop();
    }
}
