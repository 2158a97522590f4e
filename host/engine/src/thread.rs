//! The engine on a thread of its own.

use crate::{Engine, EventSink, Executor, Request, RequestId, Stats, SubmitError};
use std::sync::Arc;
use std::time::Duration;

/// What becomes of unfinished requests at shutdown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drain {
    /// They run to their end.
    Yes,
    /// They fail with [`crate::EngineError::Aborted`].
    No,
}

/// Whether the engine's thread makes progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    /// Idle, or stepping.
    Alive,
    /// Has work, but no step ended for this long.
    Busy(Duration),
    /// Ended by shutdown.
    Stopped,
    /// Ended by a failure.
    Dead,
}

/// Starts engine threads.
#[derive(Debug)]
pub struct EngineThread;

impl EngineThread {
    /// Moves the engine to a new thread.
    ///
    /// # Errors
    /// When the system has no more threads.
    pub fn spawn<E: Executor + 'static>(engine: Engine<E>) -> std::io::Result<EngineHandle> {
        drop(engine);
        Ok(EngineHandle { shared: Arc::new(()) })
    }
}

/// Talks to an engine thread; clones talk to the same one. When the last is dropped the thread drains and ends.
#[derive(Clone, Debug)]
pub struct EngineHandle {
    shared: Arc<()>,
}

impl EngineHandle {
    /// An id no other call on this engine returned.
    #[must_use]
    pub fn next_id(&self) -> RequestId {
        RequestId(0)
    }

    /// Queues a request. Does not block.
    ///
    /// # Errors
    /// When the request can never run, the queue is full, or the engine is shutting down or dead.
    pub fn submit(&self, request: Request, sink: Box<dyn EventSink>) -> Result<(), SubmitError> {
        drop((request, sink));
        Err(SubmitError::Dead)
    }

    /// Ends a request without further events; unknown ids are ignored. Does not block.
    pub fn cancel(&self, id: RequestId) {
        let _ = id;
    }

    /// As of the last step.
    #[must_use]
    pub fn stats(&self) -> Stats {
        Stats::default()
    }

    /// Whether the thread makes progress.
    #[must_use]
    pub fn health(&self) -> Health {
        let _ = &self.shared;
        Health::Dead
    }

    /// Refuses new requests and ends the thread when the rest is done. Does not block.
    pub fn shutdown(&self, drain: Drain) {
        let _ = drain;
    }

    /// Waits until the thread has ended. Blocks.
    pub fn join(&self) {}
}
