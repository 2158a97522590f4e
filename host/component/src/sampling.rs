//! Sampler guests: one store per request, called without an executor.

use std::sync::Arc;

use guesthouse_engine::SamplingPlan;

use crate::answer::guest_error;
use crate::bindings::sampler::SamplerGuestPre;
use crate::bindings::sampler::exports::guesthouse::sampling::plan as wit;
use crate::store::{self, AtTick, State, StoreSpec};
use crate::{CallContext, ComponentError, Module};

mod validate;

/// What a sampler may know of the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelFacts {
    /// Size of a logits row; token ids are below it.
    pub vocab_size: u32,
    /// Tokens that end a generation.
    pub stop_tokens: Vec<u32>,
    /// Longest sequence, tokens.
    pub max_len: u32,
    /// Tokens of the request's prompt.
    pub prompt_len: u32,
    /// Most tokens that the request may generate.
    pub max_tokens: u32,
    /// Choices that the client wants.
    pub choices: u32,
}

/// A plan that was checked: ids below the vocabulary, numbers in range, something left to draw.
#[derive(Clone, Debug, PartialEq)]
pub struct PlannedSampling {
    /// For the executor.
    pub plan: SamplingPlan,
    /// None: the host draws one at admission.
    pub seed: Option<u64>,
}

/// A module as a sampler guest.
#[derive(Clone)]
pub struct SamplerModule {
    module: Arc<Module>,
    pre: SamplerGuestPre<State>,
}

impl SamplerModule {
    pub(crate) fn new(module: Arc<Module>, pre: SamplerGuestPre<State>) -> Self {
        Self { module, pre }
    }

    /// The sampling plan of one request, from its sampling fields as JSON. Takes some 20 µs, so it may be called inline
    /// on an executor's thread; that thread's stack must have 2 MiB or more (the default of tokio and of std).
    ///
    /// # Errors
    /// [`ComponentError::Guest`] for a request the sampler refuses; a trap, limit or time-out of the guest; a plan that
    /// makes no sense or wants what the host lacks; [`ComponentError::Busy`] when no place frees up in time.
    pub fn plan(
        &self,
        request: &str,
        facts: &ModelFacts,
        context: CallContext,
    ) -> Result<PlannedSampling, ComponentError> {
        let runtime = &self.module.runtime;
        let slot = runtime
            .sampler
            .acquire_within(runtime.config.wait, &self.module.name)?;
        let spec = StoreSpec {
            module: &self.module.name,
            limits: &runtime.config.sampler,
            budget: &runtime.budget,
            context,
            at_tick: AtTick::Continue,
        };
        let mut store = store::store(&runtime.engine, spec);
        let ticking = runtime.ticker.enter();
        store::begin(&mut store);
        let guest = match self.pre.instantiate(&mut store) {
            Ok(guest) => guest,
            Err(error) => return Err(store.data_mut().failure("instantiate", error)),
        };
        let samplers = guest.guesthouse_sampling_plan().sampler();
        let facts_in = wit::ModelFacts {
            vocab_size: facts.vocab_size,
            stop_tokens: facts.stop_tokens.clone(),
            max_len: facts.max_len,
            prompt_len: facts.prompt_len,
            max_tokens: facts.max_tokens,
            choices: facts.choices,
        };
        store::begin(&mut store);
        let sampler = match samplers.call_create(&mut store, request, &facts_in) {
            Ok(answer) => {
                answer.map_err(|error| guest_error(&self.module.name, "sampler.create", error))?
            }
            Err(error) => return Err(store.data_mut().failure("sampler.create", error)),
        };
        store::begin(&mut store);
        let plan = match samplers.call_plan(&mut store, sampler) {
            Ok(answer) => {
                answer.map_err(|error| guest_error(&self.module.name, "sampler.plan", error))?
            }
            Err(error) => return Err(store.data_mut().failure("sampler.plan", error)),
        };
        drop(store);
        drop((ticking, slot));
        validate::plan(&self.module.name, facts.vocab_size, plan)
    }
}
