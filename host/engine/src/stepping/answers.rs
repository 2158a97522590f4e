//! Guests' answers on their way to the engine, and how the engine waits for them.

use crate::{Answer, Answers, ChooserError, RequestId};
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The time as an engine with choosers sees it.
pub trait Clock: Send + Sync {
    /// Since some fixed moment.
    fn now(&self) -> Duration;

    /// Returns when `answers` has one, or at `until`; at once if that has passed.
    fn wait(&self, answers: &AnswerQueue, until: Duration);
}

/// Real time, since its making.
#[derive(Clone, Copy, Debug)]
pub struct SystemClock {
    start: Instant,
}

impl Default for SystemClock {
    fn default() -> Self {
        Self {
            start: Instant::now(),
        }
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    fn wait(&self, answers: &AnswerQueue, until: Duration) {
        let mut arrived = answers.lock();
        while arrived.is_empty() {
            let left = until.saturating_sub(self.now());
            if left.is_zero() {
                return;
            }
            (arrived, _) = answers
                .arrival
                .wait_timeout(arrived, left)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Answers that the engine has not looked at.
pub struct AnswerQueue {
    clock: Arc<dyn Clock>,
    arrived: Mutex<VecDeque<Arrived>>,
    arrival: Condvar,
}

/// An answer and when it came.
#[derive(Debug)]
pub(crate) struct Arrived {
    pub(crate) request: RequestId,
    pub(crate) answer: Result<Answer, ChooserError>,
    pub(crate) at: Duration,
}

impl AnswerQueue {
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Self {
        Self {
            clock,
            arrived: Mutex::default(),
            arrival: Condvar::new(),
        }
    }

    /// Whether nothing has arrived.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    pub(crate) fn take(&self) -> VecDeque<Arrived> {
        std::mem::take(&mut self.lock())
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Arrived>> {
        self.arrived.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Answers for AnswerQueue {
    fn put(&self, request: RequestId, answer: Result<Answer, ChooserError>) {
        let at = self.clock.now();
        self.lock().push_back(Arrived {
            request,
            answer,
            at,
        });
        self.arrival.notify_one();
    }
}

impl std::fmt::Debug for AnswerQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("AnswerQueue").field(&self.lock()).finish()
    }
}
