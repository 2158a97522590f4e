//! Calls of a guest that chooses tokens, as data.

use std::sync::Arc;

use guesthouse_engine::{Content, Finished, Rows};
use wasmtime::Store;
use wasmtime::component::ResourceAny;

use super::{Live, wit_stepping as wit};
use crate::slots::Slot;
use crate::store::{self, LongCall, State};
use crate::{ComponentError, Module};

pub(super) const STEP: &str = "stepping.step";
pub(super) const STEP_LOGITS: &str = "stepping.step-logits";
pub(super) const SELECT: &str = "stepping.select";

/// What a guest is asked. Lists move in from the engine's, they are not copied.
pub(super) enum Call {
    Step(wit::Rows, wit::Candidates),
    Logits(wit::Rows, Vec<f32>),
    Select(wit::Finished),
}

/// What it said; not checked.
pub(super) enum Said {
    Choices(wit::Choices),
    Verdict(wit::Verdict),
    Selected(Vec<u32>),
}

impl From<Rows> for Call {
    fn from(rows: Rows) -> Self {
        let lists = wit::Rows {
            branches: rows.branches,
            choices: rows.choices,
            last: rows.last,
            lengths: rows.lengths,
            uniform: rows.uniform,
            hidden: rows.hidden,
        };
        match rows.content {
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
                Self::Step(lists, candidates)
            }
            Content::Logits(logits) => Self::Logits(lists, logits),
        }
    }
}

impl From<Finished> for Call {
    fn from(finished: Finished) -> Self {
        Self::Select(wit::Finished {
            branches: finished.branches,
            scores: finished.scores,
            lengths: finished.lengths,
            wanted: finished.wanted,
        })
    }
}

impl Call {
    pub(super) fn function(&self) -> &'static str {
        match self {
            Self::Step(..) => STEP,
            Self::Logits(..) => STEP_LOGITS,
            Self::Select(_) => SELECT,
        }
    }

    /// Bytes of its longest lists.
    pub(super) fn bytes(&self) -> usize {
        let rows = |rows: &wit::Rows| 20 * rows.branches.len() + 4 * rows.hidden.len();
        match self {
            Self::Step(lists, candidates) => rows(lists) + 8 * candidates.tokens.len(),
            Self::Logits(lists, logits) => rows(lists) + 4 * logits.len(),
            Self::Select(finished) => 12 * finished.branches.len(),
        }
    }

    /// The clock has begun.
    pub(super) fn make(
        &self,
        guest: &wit::Guest,
        store: &mut Store<State>,
        sampler: ResourceAny,
    ) -> wasmtime::Result<Said> {
        match self {
            Self::Step(rows, candidates) => guest
                .call_step(store, sampler, rows, candidates)
                .map(Said::Choices),
            Self::Logits(rows, logits) => guest
                .call_step_logits(store, sampler, rows, logits)
                .map(Said::Verdict),
            Self::Select(finished) => guest
                .call_select(store, sampler, finished)
                .map(Said::Selected),
        }
    }
}

/// One request's sampler in a store of its own.
pub(super) struct Running {
    live: Live,
    guest: wit::Guest,
    sampler: ResourceAny,
    // After the store: the place is free when the store is gone.
    _slot: Slot,
}

impl Running {
    pub(super) fn new(
        module: &Module,
        mut live: Live,
        sampler: ResourceAny,
        slot: Slot,
    ) -> Result<Self, ComponentError> {
        let guest = live.stepping_guest(&module.name)?;
        store::set_limits(&mut live.store, &module.runtime.config.step);
        Ok(Self {
            live,
            guest,
            sampler,
            _slot: slot,
        })
    }

    pub(super) fn tenant(&self) -> Arc<str> {
        Arc::clone(&self.live.store.data().context.tenant)
    }

    pub(super) fn while_long(&mut self, hook: LongCall) {
        self.live.store.data_mut().long_call = Some(hook);
    }

    /// After an error the store is of no use.
    pub(super) fn call(&mut self, module: &Module, call: &Call) -> Result<Said, ComponentError> {
        let store = &mut self.live.store;
        let _ticking = module.runtime.ticker.enter();
        store::begin(store);
        let said = call.make(&self.guest, store, self.sampler);
        said.map_err(|error| store.data_mut().failure(call.function(), error))
    }
}
