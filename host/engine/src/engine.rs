//! The loop.

use crate::constrain::{self, Masker};
use crate::limits::Limits;
use crate::scheduler::Scheduler;
use crate::state::State;
use crate::stepping::{Clock, Guests};
use crate::{
    Attachments, EngineConfig, EngineError, Executor, Request, RequestId, Stats, SubmitError,
    TenantShare, admit, batch, collect, fair, integrity, speculate, stepping,
};
use std::sync::Arc;

/// Steps under way at once.
const DEPTH: usize = 2;

/// Whether a step found anything to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// No request is queued, running or in flight.
    Idle,
    /// There was work.
    Worked,
}

/// Requests in, events out. Single-threaded and synchronous.
#[derive(Debug)]
pub struct Engine<E> {
    executor: E,
    state: State,
    scheduler: Scheduler,
    masker: Masker,
    /// Calls of [`Engine::step`] in a row that could do nothing although requests are there.
    stalls: u32,
    dead: bool,
}

impl<E: Executor> Engine<E> {
    /// An engine without requests.
    pub fn new(executor: E, config: EngineConfig) -> Self {
        let state = State::new(executor.info(), &config);
        Self {
            executor,
            state,
            scheduler: Scheduler::default(),
            masker: Masker::default(),
            stalls: 0,
            dead: false,
        }
    }

    /// Measures the patience for guests with another clock.
    #[must_use]
    pub fn with_clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.state.guests = Guests::new(clock);
        self
    }

    /// Queues a request.
    ///
    /// # Errors
    /// When it can never run, the queue is full, or the engine is dead.
    pub fn submit(
        &mut self,
        request: Request,
        attachments: impl Into<Attachments>,
    ) -> Result<(), SubmitError> {
        self.check(&request)?;
        let attachments = attachments.into();
        self.state
            .limits
            .check_attachments(&request, &attachments)?;
        self.state.enqueue(request, attachments)
    }

    /// What [`Engine::submit`] would answer.
    ///
    /// # Errors
    /// As there.
    pub fn check(&self, request: &Request) -> Result<(), SubmitError> {
        if self.dead {
            Err(SubmitError::Dead)
        } else {
            self.state.admissible(request)
        }
    }

    /// Ends a request without further events; unknown ids are ignored.
    pub fn cancel(&mut self, id: RequestId) {
        self.state.cancel(id);
    }

    /// Schedules and launches a step, then collects the one before it: two are under way while the device works. The step
    /// is sampled after that if grammars mask it, before it if not.
    ///
    /// # Errors
    /// When the device is lost. All requests were told, and the engine is dead.
    pub fn step(&mut self) -> Result<Progress, EngineError> {
        if self.dead {
            return Err(EngineError::Dead);
        }
        let result = self.turn();
        if let Err(error) = &result {
            tracing::error!(label = error.label(), %error, "the engine stops");
            self.abandon(error);
            self.dead = true;
        }
        result
    }

    fn turn(&mut self) -> Result<Progress, EngineError> {
        while speculate::is_due(&self.state) || stepping::is_due(&self.state) {
            self.collect()?;
        }
        stepping::hear(&mut self.state);
        let admission = self.scheduler.admission(&self.state);
        admit::admit(&mut self.state, admission);
        let advances = self.scheduler.schedule(&mut self.state);
        let launches = !advances.is_empty();
        if launches {
            let ticket = self
                .executor
                .launch(batch::build(&mut self.state, advances))?;
            // A mask needs the tokens before it; it is made while the device computes what will be masked.
            while constrain::must_collect(&self.state) {
                self.collect()?;
            }
            let masks = self.masker.masks(&mut self.state);
            self.executor.sample(ticket, masks)?;
        }
        let due = if launches { DEPTH } else { 1 };
        let collects = self.state.in_flight.len() >= due;
        if collects {
            self.collect()?;
        }
        self.state.cancel_gone();
        let works = launches || collects || stepping::pause(&self.state);
        self.watch(works);
        Ok(if self.state.is_idle() {
            Progress::Idle
        } else {
            Progress::Worked
        })
    }

    /// Waits for the oldest step in flight and applies what it brought.
    fn collect(&mut self) -> Result<(), EngineError> {
        if let Some(step) = self.state.in_flight.front() {
            let output = self.executor.collect(step.ticket)?;
            collect::apply(&mut self.state, output)?;
        }
        Ok(())
    }

    /// Fails the first request if nothing can be done for anyone. A preemption may cost one turn.
    fn watch(&mut self, did_something: bool) {
        self.stalls = if did_something || self.state.is_idle() {
            0
        } else {
            self.stalls + 1
        };
        if self.stalls > 3 {
            let State {
                running, waiting, ..
            } = &self.state;
            let first = running
                .first_key_value()
                .or(waiting.first_key_value())
                .map(|(_, id)| id)
                .and_then(|id| self.state.sequences.get(id))
                .map(|sequence| sequence.request);
            if let Some(request) = first {
                self.state
                    .fail(request, None, EngineError::Unschedulable(request));
            }
        }
    }

    /// Ends all requests with an error.
    pub(crate) fn abandon(&mut self, error: &EngineError) {
        self.state.abandon(error);
    }

    /// Waiting sequences that never ran.
    pub(crate) fn queued(&self) -> usize {
        self.state.queued()
    }

    /// Whose requests fill the queue, if it is half full.
    pub(crate) fn fills_queue(&self) -> Option<u64> {
        let is_filling = self.queued() >= self.limits().max_waiting() / 2;
        is_filling.then(|| fair::fullest(&self.state)).flatten()
    }

    /// Whether nothing is queued, running or in flight.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.state.is_idle()
    }

    /// Checks requests without queueing them.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.state.limits
    }

    /// Counters and gauges.
    #[must_use]
    pub fn stats(&self) -> Stats {
        Stats {
            running: self.state.running.len(),
            waiting: self.state.waiting.len(),
            blocks_used: self.state.pool.used(),
            ..self.state.stats
        }
    }

    /// What each tenant runs, waits for and has used, by number; those with nothing left for a while are left out.
    #[must_use]
    pub fn shares(&self) -> Vec<TenantShare> {
        let mut shares = Vec::new();
        self.report_shares(&mut shares);
        shares
    }

    /// [`Engine::shares`] in place of what is there.
    pub(crate) fn report_shares(&self, shares: &mut Vec<TenantShare>) {
        shares.clear();
        let tenants = self.state.shares.tokens();
        shares.extend(tenants.map(|(tenant, tokens)| TenantShare {
            tenant,
            running: self.state.running.count(tenant),
            waiting: self.state.waiting.count(tenant),
            tokens,
        }));
    }

    /// Proves that blocks, slots and sequences agree. Costs time in proportion to all of them.
    ///
    /// # Errors
    /// What disagrees.
    pub fn check_integrity(&self) -> Result<(), EngineError> {
        integrity::check(&self.state)
    }

    /// The executor.
    #[must_use]
    pub fn executor(&self) -> &E {
        &self.executor
    }
}

#[cfg(test)]
mod tests;
