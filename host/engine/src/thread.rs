//! The engine on a thread of its own.

use crate::{
    Attachments, Engine, EngineError, Event, Executor, Limits, Progress, Request, RequestId, Stats,
    SubmitError, TenantShare,
};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Of the engine's thread; callers' own guests may run on it.
const STACK_BYTES: usize = 4 << 20;

/// What becomes of unfinished requests at shutdown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drain {
    /// They run to their end.
    Yes,
    /// They fail with [`EngineError::Aborted`].
    No,
}

/// Whether the engine's thread makes progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    /// Waits for requests.
    Idle,
    /// Has work; the last step ended this long ago. Whoever asks decides when that is too long.
    Working(Duration),
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
        let shared = Arc::new(Shared {
            limits: engine.limits().clone(),
            inbox: Mutex::new(Inbox::default()),
            arrived: Condvar::new(),
            report: Mutex::new(Report {
                stats: engine.stats(),
                phase: Phase::Idle,
                heartbeat: Instant::now(),
            }),
            shares: Mutex::default(),
            next_id: AtomicU64::new(0),
        });
        let inner = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("engine".to_owned())
            .stack_size(STACK_BYTES)
            .spawn(move || {
                let obituary = Obituary(inner);
                Loop { engine, obituary }.run();
            })?;
        Ok(EngineHandle {
            owner: Arc::new(Owner {
                shared,
                thread: Mutex::new(Some(thread)),
            }),
        })
    }
}

/// Talks to an engine thread; clones talk to the same one. When the last is dropped the thread drains and ends.
#[derive(Clone, Debug)]
pub struct EngineHandle {
    owner: Arc<Owner>,
}

/// Dropped with the last handle.
#[derive(Debug)]
struct Owner {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug)]
struct Shared {
    limits: Limits,
    inbox: Mutex<Inbox>,
    arrived: Condvar,
    report: Mutex<Report>,
    shares: Mutex<Vec<TenantShare>>,
    next_id: AtomicU64,
}

#[derive(Default)]
struct Inbox {
    commands: VecDeque<Command>,
    /// Of `commands`: submissions.
    submissions: usize,
    /// Whose requests fill the engine's queue: of others the engine refuses its own.
    fullest: Option<u64>,
    /// Requests waiting in the engine when it last looked.
    waiting: usize,
    shutdown: Option<Drain>,
    /// Set when the thread ends; nothing is taken any more.
    closed: Option<SubmitError>,
}

enum Command {
    Submit(Box<Request>, Attachments),
    Cancel(RequestId),
}

#[derive(Clone, Copy, Debug)]
struct Report {
    stats: Stats,
    phase: Phase,
    /// End of the last step, or the moment work arrived.
    heartbeat: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Idle,
    Working,
    Stopped,
    Dead,
}

impl std::fmt::Debug for Inbox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inbox")
            .field("submissions", &self.submissions)
            .field("shutdown", &self.shutdown)
            .finish()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl EngineHandle {
    /// An id no other call on this engine returned.
    #[must_use]
    pub fn next_id(&self) -> RequestId {
        RequestId(self.owner.shared.next_id.fetch_add(1, Ordering::Relaxed))
    }

    /// Checks requests without queueing them.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.owner.shared.limits
    }

    /// Queues a request. Does not block.
    ///
    /// # Errors
    /// When the request can never run, the queue is full, or the engine is shutting down or dead.
    pub fn submit(
        &self,
        request: Request,
        attachments: impl Into<Attachments>,
    ) -> Result<(), SubmitError> {
        let attachments = attachments.into();
        let shared = &self.owner.shared;
        shared.limits.check(&request)?;
        shared.limits.check_attachments(&request, &attachments)?;
        let mut inbox = lock(&shared.inbox);
        if let Some(reason) = &inbox.closed {
            return Err(reason.clone());
        }
        if inbox.shutdown.is_some() {
            return Err(SubmitError::ShuttingDown);
        }
        let (waiting, max_waiting) = (
            inbox.waiting + inbox.submissions,
            shared.limits.max_waiting(),
        );
        let fills = |tenant| tenant == request.owner.tenant;
        let is_full = waiting >= max_waiting && inbox.fullest.is_none_or(fills);
        if is_full || inbox.submissions >= max_waiting {
            return Err(SubmitError::QueueFull {
                waiting,
                max_waiting,
            });
        }
        inbox.submissions += 1;
        inbox
            .commands
            .push_back(Command::Submit(Box::new(request), attachments));
        drop(inbox);
        shared.arrived.notify_one();
        Ok(())
    }

    /// Ends a request without further events; unknown ids are ignored. Does not block.
    pub fn cancel(&self, id: RequestId) {
        let shared = &self.owner.shared;
        let mut inbox = lock(&shared.inbox);
        if inbox.closed.is_none() {
            inbox.commands.push_back(Command::Cancel(id));
            drop(inbox);
            shared.arrived.notify_one();
        }
    }

    /// As of the last step; requests on their way to the engine count as waiting.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let mut stats = lock(&self.owner.shared.report).stats;
        stats.waiting += lock(&self.owner.shared.inbox).submissions;
        stats
    }

    /// As of the last step: what each tenant runs, waits for and has used ([`Engine::shares`]).
    #[must_use]
    pub fn shares(&self) -> Vec<TenantShare> {
        lock(&self.owner.shared.shares).clone()
    }

    /// Whether the thread makes progress.
    #[must_use]
    pub fn health(&self) -> Health {
        let report = *lock(&self.owner.shared.report);
        match report.phase {
            Phase::Idle => Health::Idle,
            Phase::Working => Health::Working(report.heartbeat.elapsed()),
            Phase::Stopped => Health::Stopped,
            Phase::Dead => Health::Dead,
        }
    }

    /// Refuses new requests and ends the thread when the rest is done. `Drain::No` overrides an earlier `Drain::Yes`.
    /// Does not block; see [`EngineHandle::join`].
    pub fn shutdown(&self, drain: Drain) {
        self.owner.shared.shutdown(drain);
    }

    /// Waits until the thread has ended. Blocks; needs a shutdown to return.
    pub fn join(&self) {
        if let Some(thread) = lock(&self.owner.thread).take() {
            // A panic was reported where it happened, and the phase is `Dead`.
            let _ = thread.join();
        }
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.shared.shutdown(Drain::Yes);
    }
}

impl Shared {
    fn shutdown(&self, drain: Drain) {
        let mut inbox = lock(&self.inbox);
        if inbox.shutdown != Some(Drain::No) {
            inbox.shutdown = Some(drain);
        }
        drop(inbox);
        self.arrived.notify_one();
    }

    /// Refuses what is in the inbox and all that would come.
    fn close(&self, reason: &SubmitError, phase: Phase) {
        let mut inbox = lock(&self.inbox);
        inbox.closed.get_or_insert_with(|| reason.clone());
        inbox.submissions = 0;
        let commands = std::mem::take(&mut inbox.commands);
        drop(inbox);
        lock(&self.report).phase = phase;
        for command in commands {
            refuse(command, reason);
        }
    }
}

fn refuse(command: Command, reason: &SubmitError) {
    if let Command::Submit(_, mut attachments) = command {
        // Whoever is gone needs no answer.
        let _ = attachments.sink.send(Event::Failed {
            choice: None,
            error: EngineError::Refused(reason.clone()),
        });
    }
}

/// Marks the engine dead unless its thread ended in good order.
#[derive(Debug)]
struct Obituary(Arc<Shared>);

impl Drop for Obituary {
    fn drop(&mut self) {
        if lock(&self.0.report).phase != Phase::Stopped {
            self.0.close(&SubmitError::Dead, Phase::Dead);
        }
    }
}

/// What runs on the thread.
struct Loop<E> {
    engine: Engine<E>,
    obituary: Obituary,
}

impl<E: Executor> Loop<E> {
    fn run(mut self) {
        loop {
            let (commands, shutdown) = self.receive();
            for command in commands {
                self.apply(command);
            }
            match shutdown {
                Some(Drain::No) => break self.engine.abandon(&EngineError::Aborted),
                Some(Drain::Yes) if self.engine.is_idle() => break,
                _ => {}
            }
            let Ok(progress) = self.engine.step() else {
                return self.report(Phase::Dead);
            };
            if cfg!(debug_assertions)
                && progress == Progress::Idle
                && let Err(error) = self.engine.check_integrity()
            {
                tracing::error!(%error, "integrity");
                return self.report(Phase::Dead);
            }
            self.report(if progress == Progress::Idle {
                Phase::Idle
            } else {
                Phase::Working
            });
        }
        self.report(Phase::Stopped);
        self.obituary
            .0
            .close(&SubmitError::ShuttingDown, Phase::Stopped);
    }

    /// Takes what has arrived; sleeps while there is nothing at all to do.
    fn receive(&self) -> (VecDeque<Command>, Option<Drain>) {
        let shared = &self.obituary.0;
        let mut inbox = lock(&shared.inbox);
        while inbox.commands.is_empty() && inbox.shutdown.is_none() && self.engine.is_idle() {
            inbox = shared
                .arrived
                .wait(inbox)
                .unwrap_or_else(PoisonError::into_inner);
        }
        inbox.waiting = self.engine.queued() + inbox.submissions;
        inbox.submissions = 0;
        let commands = std::mem::take(&mut inbox.commands);
        let shutdown = inbox.shutdown;
        drop(inbox);
        let mut report = lock(&shared.report);
        if report.phase == Phase::Idle {
            report.phase = Phase::Working;
            report.heartbeat = Instant::now();
        }
        (commands, shutdown)
    }

    fn apply(&mut self, command: Command) {
        match command {
            Command::Submit(request, attachments) => self.submit(*request, attachments),
            Command::Cancel(id) => self.engine.cancel(id),
        }
    }

    fn submit(&mut self, request: Request, attachments: Attachments) {
        // A refused request would take the sink with it, unanswered.
        match self.engine.check(&request) {
            Ok(()) => self.engine.submit(request, attachments).unwrap_or_default(),
            Err(reason) => refuse(Command::Submit(Box::new(request), attachments), &reason),
        }
    }

    fn report(&self, phase: Phase) {
        let stats = self.engine.stats();
        *lock(&self.obituary.0.report) = Report {
            stats,
            phase,
            heartbeat: Instant::now(),
        };
        self.engine
            .report_shares(&mut lock(&self.obituary.0.shares));
        let mut inbox = lock(&self.obituary.0.inbox);
        inbox.waiting = self.engine.queued();
        inbox.fullest = self.engine.fills_queue();
    }
}

#[cfg(test)]
mod tests;
