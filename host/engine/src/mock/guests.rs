//! Choosers whose answers take virtual time.

use super::MockClock;
use crate::{Answer, AnswerQueue, Chooser, ChooserError, Clock, Finished, Reply, Rows};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A pool of threads that guests run on, and the engine's clock; clones are the same pool.
///
/// A chooser decides when it is asked, but its answer arrives when a worker has spent the chooser's latency on it. Questions
/// are worked on in the order in which they are put.
#[derive(Clone)]
pub struct MockGuests(Arc<Inner>);

struct Inner {
    clock: MockClock,
    pool: Mutex<Pool>,
    /// When the answer being delivered arrived, nanoseconds; `u64::MAX` between deliveries.
    delivering: AtomicU64,
}

struct Pool {
    /// When each worker is free.
    workers: Vec<u64>,
    answers: Vec<Due>,
}

struct Due {
    at: u64,
    reply: Reply,
    answer: Result<Answer, ChooserError>,
}

/// What a chooser is asked.
#[derive(Clone, Debug, PartialEq)]
pub enum MockQuestion {
    /// [`Chooser::choose`].
    Choose(Rows),
    /// [`Chooser::select`].
    Select(Finished),
}

/// When a chooser answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MockAnswers {
    /// After this many nanoseconds of a worker.
    After(u64),
    /// After this many nanoseconds, on a thread of its own.
    Apart(u64),
    /// Never: it is ended after this many nanoseconds.
    Never(u64),
}

impl MockGuests {
    /// So many workers on this clock.
    #[must_use]
    pub fn new(clock: MockClock, workers: usize) -> Self {
        Self(Arc::new(Inner {
            clock,
            pool: Mutex::new(Pool {
                workers: vec![0; workers.max(1)],
                answers: Vec::new(),
            }),
            delivering: AtomicU64::new(u64::MAX),
        }))
    }

    /// A chooser of a module, by a function.
    #[must_use]
    pub fn chooser(
        &self,
        module: &str,
        answers: MockAnswers,
        decide: impl FnMut(MockQuestion) -> Result<Answer, ChooserError> + Send + 'static,
    ) -> Box<dyn Chooser> {
        Box::new(MockChooser {
            module: module.to_owned(),
            answers,
            guests: self.clone(),
            decide,
        })
    }

    fn pool(&self) -> MutexGuard<'_, Pool> {
        self.0.pool.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The earliest answer, if it is due by then.
    fn next(&self, until: u64) -> Option<Due> {
        let mut pool = self.pool();
        let (index, due) = pool
            .answers
            .iter()
            .map(|answer| answer.at)
            .enumerate()
            .min_by_key(|(_, at)| *at)?;
        (due <= until).then(|| pool.answers.remove(index))
    }
}

impl Clock for MockGuests {
    fn now(&self) -> Duration {
        let delivering = self.0.delivering.load(Ordering::SeqCst);
        Duration::from_nanos(self.0.clock.now().min(delivering))
    }

    fn wait(&self, answers: &AnswerQueue, until: Duration) {
        let until = u64::try_from(until.as_nanos()).unwrap_or(u64::MAX);
        loop {
            let limit = if answers.is_empty() { until } else { 0 };
            let Some(due) = self.next(limit.max(self.0.clock.now())) else {
                return self.0.clock.wait_until(limit);
            };
            self.0.clock.wait_until(due.at);
            self.0.delivering.store(due.at, Ordering::SeqCst);
            due.reply.send(due.answer);
            self.0.delivering.store(u64::MAX, Ordering::SeqCst);
        }
    }
}

struct MockChooser<F> {
    module: String,
    answers: MockAnswers,
    guests: MockGuests,
    decide: F,
}

impl<F: FnMut(MockQuestion) -> Result<Answer, ChooserError> + Send> MockChooser<F> {
    fn put(&mut self, question: MockQuestion, reply: Reply) {
        let answer = match self.answers {
            MockAnswers::Never(_) => Err(ChooserError(format!(
                "sampler module {}: stepping.step did not answer in time",
                self.module
            ))),
            _ => (self.decide)(question),
        };
        let now = self.guests.0.clock.now();
        let mut pool = self.guests.pool();
        let at = match self.answers {
            MockAnswers::Apart(nanoseconds) | MockAnswers::Never(nanoseconds) => now + nanoseconds,
            MockAnswers::After(nanoseconds) => match pool.workers.iter_mut().min() {
                Some(free) => {
                    *free = now.max(*free) + nanoseconds;
                    *free
                }
                None => now,
            },
        };
        pool.answers.push(Due { at, reply, answer });
    }
}

impl<F: FnMut(MockQuestion) -> Result<Answer, ChooserError> + Send> Chooser for MockChooser<F> {
    fn module(&self) -> &str {
        &self.module
    }

    fn choose(&mut self, rows: Rows, reply: Reply) {
        self.put(MockQuestion::Choose(rows), reply);
    }

    fn select(&mut self, finished: Finished, reply: Reply) {
        self.put(MockQuestion::Select(finished), reply);
    }
}

impl std::fmt::Debug for MockGuests {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MockGuests").finish_non_exhaustive()
    }
}
