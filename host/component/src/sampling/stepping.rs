//! A guest that chooses tokens: what is left of a request's sampler after its plan.

use std::sync::Arc;

use guesthouse_engine::{Asked, Branching, Choices, Finished, Rows};

use super::answers::{self, Tokens};
use super::call::{Call, Running, SELECT, STEP_LOGITS, Said};
use super::shared::{Failure, Member};
use super::wit_stepping as wit;
use crate::record::{Recording, encode};
use crate::store::{Account, LongCall};
use crate::{ComponentError, Module, Origin};

/// One request's sampler, after its plan. Calls are synchronous: the thread's stack must have 2 MiB or more.
///
/// A call that fails, with a trap or with an answer that makes no sense, ends the session and frees its store; later calls
/// answer [`ComponentError::Ended`].
pub struct Stepping {
    module: Arc<Module>,
    tenant: Arc<str>,
    branching: Branching,
    vocab: u32,
    recording: Option<Arc<Recording>>,
    home: Option<Home>,
}

/// Where its sampler lives.
pub(super) enum Home {
    Own(Box<Running>),
    Shared(Box<Member>),
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
    /// `vocab` is the size of a logits row.
    pub(super) fn new(
        module: Arc<Module>,
        asked: Asked,
        vocab: u32,
        recording: Option<Recording>,
        home: Home,
    ) -> Self {
        Self {
            tenant: match &home {
                Home::Own(running) => running.tenant(),
                Home::Shared(member) => member.tenant(),
            },
            branching: asked.branching,
            vocab,
            recording: recording.map(Arc::new),
            home: Some(home),
            module,
        }
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

    /// What that tenant's guests use.
    pub(crate) fn account(&self) -> Arc<Account> {
        self.module.runtime.budget.account(&self.tenant)
    }

    /// Who brought its module.
    pub(crate) fn origin(&self) -> Origin {
        self.module.origin()
    }

    /// Has `hook` called, with the CPU time so far, once or more in each call that takes longer than a tick or two.
    pub(crate) fn while_long(&mut self, hook: LongCall) {
        match &mut self.home {
            Some(Home::Own(running)) => running.while_long(hook),
            Some(Home::Shared(member)) => member.while_long(hook),
            None => {}
        }
    }

    /// Ends the session because of what its last answer led to.
    pub(crate) fn refused(&mut self, reason: String) -> ComponentError {
        self.end(STEP_LOGITS, reason)
    }

    /// Lets the guest choose for all rows of the request.
    ///
    /// # Errors
    /// A trap, limit or time-out of the guest; an answer that makes no sense.
    pub fn step(&mut self, rows: Rows) -> Result<Verdict, ComponentError> {
        let Some(recording) = self.recording.clone() else {
            return self.step_call(Call::from(rows));
        };
        let input = encode::rows(&rows);
        let call = Call::from(rows);
        let function = call.function();
        let answer = self.step_call(call);
        recording.call(function, input, &answer, encode::verdict);
        answer
    }

    fn step_call(&mut self, call: Call) -> Result<Verdict, ComponentError> {
        let said = self.call(&call)?;
        match self.verdict(&call, said) {
            Ok(verdict) => {
                self.remember(call)?;
                Ok(verdict)
            }
            Err(reason) => Err(self.end(call.function(), reason)),
        }
    }

    fn verdict(&self, call: &Call, said: Said) -> Result<Verdict, String> {
        let choices = |rows: &wit::Rows, tokens, answer: &wit::Choices| {
            let asked = answers::Asked {
                branching: self.branching,
                rows: rows.branches.len(),
                tokens,
            };
            answers::choices(&asked, answer).map(Verdict::Choices)
        };
        match (call, said) {
            (Call::Step(rows, candidates), Said::Choices(answer)) => {
                let tokens = Tokens::Candidates {
                    n: candidates.n as usize,
                    tokens: &candidates.tokens,
                    logits: &candidates.logits,
                };
                choices(rows, tokens, &answer)
            }
            (Call::Logits(rows, _), Said::Verdict(wit::Verdict::Choices(answer))) => {
                choices(rows, Tokens::Below(self.vocab), &answer)
            }
            (Call::Logits(rows, _), Said::Verdict(wit::Verdict::Logits(logits))) => {
                answers::logits(rows.branches.len(), self.vocab, &logits)?;
                Ok(Verdict::Logits(logits))
            }
            _ => Err("an answer to another question".to_owned()),
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
        let (count, wanted) = (finished.branches.len(), finished.wanted);
        let call = Call::from(finished);
        let Said::Selected(indices) = self.call(&call)? else {
            return Err(self.end(SELECT, "an answer to another question".to_owned()));
        };
        if let Err(reason) = answers::selected(count, wanted, &indices) {
            return Err(self.end(SELECT, reason));
        }
        self.remember(call)?;
        Ok(indices)
    }

    fn call(&mut self, call: &Call) -> Result<Said, ComponentError> {
        let answer = match &mut self.home {
            None => {
                return Err(ComponentError::Ended {
                    module: self.module.name.to_string(),
                    function: call.function(),
                });
            }
            Some(Home::Own(running)) => running.call(&self.module, call),
            Some(Home::Shared(member)) => match member.call(call) {
                Ok(said) => return Ok(said),
                Err(Failure::Over(error)) => Err(error),
                Err(Failure::Alone) => self.alone(Some(call)),
            },
        };
        if answer.is_err() {
            self.home = None;
        }
        answer
    }

    /// Leaves a shared store, and asks there what the shared store did not answer.
    fn alone(&mut self, call: Option<&Call>) -> Result<Said, ComponentError> {
        let Some(Home::Shared(member)) = &self.home else {
            return Ok(Said::Selected(Vec::new()));
        };
        let mut running = member.alone()?;
        let said = match call {
            Some(call) => running.call(&self.module, call)?,
            None => Said::Selected(Vec::new()),
        };
        self.home = Some(Home::Own(Box::new(running)));
        Ok(said)
    }

    /// Keeps a call that was answered, where it may be needed again.
    fn remember(&mut self, call: Call) -> Result<(), ComponentError> {
        if let Some(Home::Shared(member)) = &mut self.home
            && !member.remember(call)
        {
            self.alone(None).inspect_err(|_| self.home = None)?;
        }
        Ok(())
    }

    fn end(&mut self, function: &'static str, reason: String) -> ComponentError {
        self.home = None;
        ComponentError::InvalidAnswer {
            module: self.module.name.to_string(),
            function,
            reason,
        }
    }
}
