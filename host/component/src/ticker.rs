//! The clock of guest deadlines: one thread that advances the engine's epoch while calls are under way.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{JoinHandle, Thread};
use std::time::Duration;

use wasmtime::Engine;

use crate::ComponentError;

/// Length of a tick.
pub(crate) const TICK: Duration = Duration::from_millis(1);
/// Ticks without a call after which the thread sleeps until the next one.
const IDLE_TICKS: u32 = 50;

struct Shared {
    /// Calls under way.
    calls: AtomicUsize,
    /// The thread sleeps, or is about to.
    parked: AtomicBool,
    stop: AtomicBool,
}

/// Owns the thread; dropping it ends the thread.
pub(crate) struct Ticker {
    shared: Arc<Shared>,
    thread: Thread,
    join: Option<JoinHandle<()>>,
}

/// Ticks arrive while one of these lives.
pub(crate) struct Ticking(Arc<Shared>);

impl Ticker {
    pub(crate) fn start(engine: Engine) -> Result<Self, ComponentError> {
        let shared = Arc::new(Shared {
            calls: AtomicUsize::new(0),
            parked: AtomicBool::new(false),
            stop: AtomicBool::new(false),
        });
        let theirs = Arc::clone(&shared);
        let join = std::thread::Builder::new()
            .name("guest-ticker".into())
            .spawn(move || run(&theirs, || engine.increment_epoch()))
            .map_err(|error| ComponentError::Engine {
                reason: format!("no thread for the ticker: {error}"),
            })?;
        Ok(Self {
            shared,
            thread: join.thread().clone(),
            join: Some(join),
        })
    }

    /// A call begins.
    pub(crate) fn enter(&self) -> Ticking {
        self.shared.calls.fetch_add(1, Ordering::SeqCst);
        // Either this load sees `parked`, or the thread's own load, which follows its store, sees the call.
        if self.shared.parked.load(Ordering::SeqCst) {
            self.thread.unpark();
        }
        Ticking(Arc::clone(&self.shared))
    }

    #[cfg(test)]
    pub(crate) fn is_parked(&self) -> bool {
        self.shared.parked.load(Ordering::SeqCst)
    }
}

impl Drop for Ticking {
    fn drop(&mut self) {
        self.0.calls.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Drop for Ticker {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        self.thread.unpark();
        if let Some(join) = self.join.take() {
            // A panic of the thread has nothing left to harm.
            drop(join.join());
        }
    }
}

fn run(shared: &Shared, tick: impl Fn()) {
    let mut idle = 0;
    while !shared.stop.load(Ordering::SeqCst) {
        if shared.calls.load(Ordering::SeqCst) == 0 {
            idle += 1;
            if idle > IDLE_TICKS {
                shared.parked.store(true, Ordering::SeqCst);
                while shared.calls.load(Ordering::SeqCst) == 0
                    && !shared.stop.load(Ordering::SeqCst)
                {
                    std::thread::park();
                }
                shared.parked.store(false, Ordering::SeqCst);
                idle = 0;
                continue;
            }
        } else {
            idle = 0;
        }
        std::thread::sleep(TICK);
        tick();
    }
}

#[cfg(test)]
mod tests;
