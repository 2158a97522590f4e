//! A guest that chooses tokens: what is left of a request's sampler after its plan.

use std::sync::Arc;

use guesthouse_engine::{Asked, Branching, Choices, Content, Finished, Rows};
use wasmtime::component::ResourceAny;

use super::answers::{self, Tokens};
use super::{Live, wit_stepping as wit};
use crate::record::{Recording, encode};
use crate::runtime::Slot;
use crate::store::{self, LongCall};
use crate::{ComponentError, Module};

const STEP: &str = "stepping.step";
const STEP_LOGITS: &str = "stepping.step-logits";
const SELECT: &str = "stepping.select";

/// One request's sampler, in the store that made its plan. Calls are synchronous: the thread's stack must have 2 MiB or
/// more.
///
/// A call that fails, with a trap or with an answer that makes no sense, ends the session and frees its store; later calls
/// answer [`ComponentError::Ended`].
pub struct Stepping {
    module: Arc<Module>,
    tenant: Arc<str>,
    branching: Branching,
    vocab: u32,
    recording: Option<Arc<Recording>>,
    live: Option<Box<Running>>,
}

struct Running {
    live: Live,
    guest: wit::Guest,
    sampler: ResourceAny,
    // After the store: the place is free when the store is gone.
    _slot: Slot,
}

/// What a guest makes of rows.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// Tokens.
    Choices(Choices),
    /// `[rows, vocab]`: the host draws one token per row from these. No NaN, no +inf, in each row one above -inf.
    Logits(Vec<f32>),
}

impl Stepping {
    pub(super) fn new(
        module: Arc<Module>,
        asked: (Asked, u32),
        mut live: Live,
        sampler: ResourceAny,
        slot: Slot,
    ) -> Result<Self, ComponentError> {
        let Some(guest) = live.stepping.take() else {
            return Err(ComponentError::Ended {
                module: module.name.to_string(),
                function: STEP,
            });
        };
        store::set_limits(&mut live.store, &module.runtime.config.step);
        Ok(Self {
            tenant: Arc::clone(&live.store.data().context.tenant),
            branching: asked.0.branching,
            vocab: asked.1,
            recording: live.recording.take().map(Arc::new),
            live: Some(Box::new(Running {
                live,
                guest,
                sampler,
                _slot: slot,
            })),
            module,
        })
    }

    /// The module's name.
    #[must_use]
    pub fn module(&self) -> &str {
        &self.module.name
    }

    pub(crate) fn module_name(&self) -> Arc<str> {
        Arc::clone(&self.module.name)
    }

    /// Whose request it is.
    pub(crate) fn tenant(&self) -> Arc<str> {
        Arc::clone(&self.tenant)
    }

    /// Has `hook` called, with the CPU time so far, once or more in each call that takes longer than a tick or two.
    pub(crate) fn while_long(&mut self, hook: LongCall) {
        if let Some(running) = &mut self.live {
            running.live.store.data_mut().long_call = Some(hook);
        }
    }

    /// Ends the session because of what its last answer led to.
    pub(crate) fn refused(&mut self, reason: String) -> ComponentError {
        self.live = None;
        ComponentError::InvalidAnswer {
            module: self.module.name.to_string(),
            function: STEP_LOGITS,
            reason,
        }
    }

    /// Lets the guest choose for all rows of the request.
    ///
    /// # Errors
    /// A trap, limit or time-out of the guest; an answer that makes no sense.
    pub fn step(&mut self, rows: Rows) -> Result<Verdict, ComponentError> {
        let Some(recording) = self.recording.clone() else {
            return self.step_call(rows);
        };
        let function = match rows.content {
            Content::Candidates { .. } => STEP,
            Content::Logits(_) => STEP_LOGITS,
        };
        let input = encode::rows(&rows);
        let answer = self.step_call(rows);
        recording.call(function, input, &answer, encode::verdict);
        answer
    }

    fn step_call(&mut self, rows: Rows) -> Result<Verdict, ComponentError> {
        let count = rows.branches.len();
        let (rows, content) = split(rows);
        match content {
            Content::Candidates {
                n,
                tokens,
                logits,
                log_sum_exp,
                entropy,
            } => {
                let candidates = wit::Candidates {
                    n,
                    tokens,
                    logits,
                    log_sum_exp,
                    entropy,
                };
                let answer = self.call(STEP, |running| {
                    running.guest.call_step(
                        &mut running.live.store,
                        running.sampler,
                        &rows,
                        &candidates,
                    )
                })?;
                let tokens = Tokens::Candidates {
                    n: n as usize,
                    tokens: &candidates.tokens,
                    logits: &candidates.logits,
                };
                self.choices(STEP, count, tokens, &answer)
                    .map(Verdict::Choices)
            }
            Content::Logits(logits) => {
                let answer = self.call(STEP_LOGITS, |running| {
                    running.guest.call_step_logits(
                        &mut running.live.store,
                        running.sampler,
                        &rows,
                        &logits,
                    )
                })?;
                match answer {
                    wit::Verdict::Choices(answer) => self
                        .choices(STEP_LOGITS, count, Tokens::Below(self.vocab), &answer)
                        .map(Verdict::Choices),
                    wit::Verdict::Logits(logits) => {
                        let checked = answers::logits(count, self.vocab, &logits);
                        self.checked(STEP_LOGITS, checked)?;
                        Ok(Verdict::Logits(logits))
                    }
                }
            }
        }
    }

    /// Lets the guest pick and order the finished branches of a search.
    ///
    /// # Errors
    /// As [`Stepping::step`].
    pub fn select(&mut self, finished: Finished) -> Result<Vec<u32>, ComponentError> {
        let Some(recording) = self.recording.clone() else {
            return self.select_call(finished);
        };
        let input = encode::finished(&finished);
        let answer = self.select_call(finished);
        recording.call(SELECT, input, &answer, |indices| encode::selected(indices));
        answer
    }

    fn select_call(&mut self, finished: Finished) -> Result<Vec<u32>, ComponentError> {
        let finished = wit::Finished {
            branches: finished.branches,
            scores: finished.scores,
            lengths: finished.lengths,
            wanted: finished.wanted,
        };
        let answer = self.call(SELECT, |running| {
            running
                .guest
                .call_select(&mut running.live.store, running.sampler, &finished)
        })?;
        let checked = answers::selected(finished.branches.len(), finished.wanted, &answer);
        self.checked(SELECT, checked)?;
        Ok(answer)
    }

    fn call<T>(
        &mut self,
        function: &'static str,
        call: impl FnOnce(&mut Running) -> wasmtime::Result<T>,
    ) -> Result<T, ComponentError> {
        let Some(running) = &mut self.live else {
            return Err(ComponentError::Ended {
                module: self.module.name.to_string(),
                function,
            });
        };
        let ticking = self.module.runtime.ticker.enter();
        store::begin(&mut running.live.store);
        let answer = call(running);
        drop(ticking);
        match answer {
            Ok(answer) => Ok(answer),
            Err(error) => {
                let error = running.live.store.data_mut().failure(function, error);
                self.live = None;
                Err(error)
            }
        }
    }

    fn choices(
        &mut self,
        function: &'static str,
        rows: usize,
        tokens: Tokens<'_>,
        answer: &wit::Choices,
    ) -> Result<Choices, ComponentError> {
        let asked = answers::Asked {
            branching: self.branching,
            rows,
            tokens,
        };
        let checked = answers::choices(&asked, answer);
        self.checked(function, checked)
    }

    fn checked<T>(
        &mut self,
        function: &'static str,
        checked: Result<T, String>,
    ) -> Result<T, ComponentError> {
        checked.map_err(|reason| {
            self.live = None;
            ComponentError::InvalidAnswer {
                module: self.module.name.to_string(),
                function,
                reason,
            }
        })
    }
}

/// Lists move, they are not copied.
fn split(rows: Rows) -> (wit::Rows, Content) {
    let lists = wit::Rows {
        branches: rows.branches,
        choices: rows.choices,
        last: rows.last,
        lengths: rows.lengths,
        uniform: rows.uniform,
        hidden: rows.hidden,
    };
    (lists, rows.content)
}
