//! The loop.

use crate::{EngineConfig, EngineError, EventSink, Executor, Request, RequestId, Stats, SubmitError};

/// Whether a step found anything to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// No request is queued, running or in flight.
    Idle,
    /// A step was launched or collected.
    Worked,
}

/// Requests in, events out. Single-threaded and synchronous.
#[derive(Debug)]
pub struct Engine<E> {
    executor: E,
    config: EngineConfig,
}

impl<E: Executor> Engine<E> {
    /// An engine without requests.
    pub fn new(executor: E, config: EngineConfig) -> Self {
        Self { executor, config }
    }

    /// Queues a request.
    ///
    /// # Errors
    /// When it can never run, the queue is full, or the engine is dead.
    pub fn submit(&mut self, request: Request, sink: Box<dyn EventSink>) -> Result<(), SubmitError> {
        drop((request, sink));
        let _ = (&self.executor, self.config);
        Err(SubmitError::Dead)
    }

    /// Ends a request without further events; unknown ids are ignored.
    pub fn cancel(&mut self, id: RequestId) {
        let _ = id;
    }

    /// Schedules and launches one step, and collects the one before.
    ///
    /// # Errors
    /// When the device is lost. All requests were told, and the engine is dead.
    pub fn step(&mut self) -> Result<Progress, EngineError> {
        Err(EngineError::Dead)
    }

    /// Counters and gauges.
    #[must_use]
    pub fn stats(&self) -> Stats {
        Stats::default()
    }

    /// The executor.
    #[must_use]
    pub fn executor(&self) -> &E {
        &self.executor
    }
}
