//! Sampler guests: one store per request, called without an executor.
//!
//! - [`SamplerModule::plan`], [`SamplerModule::begin`]: the plan, and what is left to call after it;
//! - [`Stepping`]: a guest that chooses tokens itself; `answers` checks what it says;
//! - `call`: its calls as data; `shared`: one store for the requests of a trusted module;
//! - `validate`: checks plans.

use std::sync::Arc;

use guesthouse_engine::SamplingPlan;
use serde_json::Value;
use wasmtime::Store;
use wasmtime::component::{InstancePre, ResourceAny};

use crate::answer::guest_error;
use crate::bindings::sampler::SamplerGuestPre;
use crate::bindings::sampler::exports::guesthouse::sampling::plan as wit;
use crate::bindings::step_sampler::StepSamplerGuestPre;
use crate::bindings::step_sampler::exports::guesthouse::sampling::stepping as wit_stepping;
use crate::meter::Charge;
use crate::record::{Recording, encode};
use crate::store::{self, AtTick, State, StoreSpec};
use crate::{CallContext, ComponentError, Module};

mod answers;
mod call;
mod shared;
mod stepping;
mod validate;

use call::Running;
use shared::{Failure, Member, SharedStore};
use stepping::Home;
pub use stepping::{Stepping, Verdict};

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
    /// What the output must follow; not checked here.
    pub grammar: Option<Grammar>,
}

/// The grammar of a plan, as the guest wrote it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grammar {
    /// Name of the syntax.
    pub syntax: String,
    /// The grammar.
    pub source: String,
}

/// What a sampler exports.
#[derive(Clone)]
pub(crate) struct SamplerExports {
    pre: InstancePre<State>,
    plan: wit::GuestIndices,
    stepping: Option<wit_stepping::GuestIndices>,
}

impl SamplerExports {
    pub(crate) fn new(pre: InstancePre<State>, steps: bool) -> wasmtime::Result<Self> {
        // These compare the types of all exports; calls go through the interfaces alone.
        SamplerGuestPre::new(pre.clone())?;
        let stepping = if steps {
            StepSamplerGuestPre::new(pre.clone())?;
            Some(wit_stepping::GuestIndices::new(&pre)?)
        } else {
            None
        };
        Ok(Self {
            plan: wit::GuestIndices::new(&pre)?,
            stepping,
            pre,
        })
    }
}

/// A module as a sampler guest.
#[derive(Clone)]
pub struct SamplerModule {
    module: Arc<Module>,
    exports: SamplerExports,
    shared: Option<Arc<SharedStore>>,
}

/// An instance in a store of its own.
struct Live {
    store: Store<State>,
    plan: wit::Guest,
    stepping: Option<wit_stepping::Guest>,
    recording: Option<Recording>,
}

impl Live {
    /// Plans that ask a guest were refused where it is missing.
    fn stepping_guest(&self, module: &str) -> Result<wit_stepping::Guest, ComponentError> {
        self.stepping.clone().ok_or_else(|| ComponentError::Ended {
            module: module.to_owned(),
            function: call::STEP,
        })
    }
}

impl SamplerModule {
    pub(crate) fn new(module: Arc<Module>, exports: SamplerExports) -> Self {
        Self {
            module,
            exports,
            shared: None,
        }
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
        let tenant = Arc::clone(&context.tenant);
        let _charge = Charge::begin(runtime.budget.account(&tenant));
        let _slot =
            runtime
                .sampler
                .acquire_within(runtime.config.wait, &tenant, &self.module.name)?;
        let mut live = self.instantiate(context)?;
        let (plan, _) = self.planned(&mut live, request, facts)?;
        Ok(plan)
    }

    /// The same module, whose requests that choose tokens share one store: cheaper, and for modules that the caller trusts, as
    /// requests could read each other's data there. Clones share it; a trap costs the request that it is due to, and
    /// the others some time.
    #[must_use]
    pub fn trusted(&self) -> Self {
        Self {
            shared: Some(Arc::default()),
            ..self.clone()
        }
    }

    /// As [`SamplerModule::plan`]; where the plan's draw asks the guest to choose tokens, the guest stays alive for it.
    ///
    /// # Errors
    /// As [`SamplerModule::plan`].
    pub fn begin(
        &self,
        request: &str,
        facts: &ModelFacts,
        context: CallContext,
    ) -> Result<(PlannedSampling, Option<Stepping>), ComponentError> {
        let runtime = &self.module.runtime;
        let _charge = Charge::begin(runtime.budget.account(&context.tenant));
        let module = Arc::clone(&self.module);
        let vocab = facts.vocab_size;
        // A record holds one request's calls, from the store's first on.
        if let (Some(shared), None) = (&self.shared, &context.recorder) {
            match Member::join(shared, self.clone(), request, facts, context.clone()) {
                Ok((planned, member)) => {
                    let stepping = planned.plan.draw.asked().map(|asked| {
                        let home = Home::Shared(Box::new(member));
                        Stepping::new(module, asked, vocab, None, home)
                    });
                    return Ok((planned, stepping));
                }
                Err(Failure::Over(error)) => return Err(error),
                Err(Failure::Alone) => {}
            }
        }
        let tenant = Arc::clone(&context.tenant);
        let slot =
            runtime
                .sampler
                .acquire_within(runtime.config.wait, &tenant, &self.module.name)?;
        let mut live = self.instantiate(context)?;
        let (planned, sampler) = self.planned(&mut live, request, facts)?;
        let Some(asked) = planned.plan.draw.asked() else {
            return Ok((planned, None));
        };
        // Among the places of steps before this one is given back: the pool counts both.
        let place = runtime
            .step
            .acquire_within(runtime.config.wait, &tenant, &self.module.name)?;
        drop(slot);
        let recording = live.recording.take();
        let running = Running::new(&self.module, live, sampler, place)?;
        let home = Home::Own(Box::new(running));
        let module = Arc::clone(&self.module);
        let stepping = Stepping::new(module, asked, vocab, recording, home);
        Ok((planned, Some(stepping)))
    }

    fn instantiate(&self, context: CallContext) -> Result<Live, ComponentError> {
        let runtime = &self.module.runtime;
        let spec = StoreSpec {
            module: &self.module.name,
            limits: &runtime.config.sampler,
            budget: &runtime.budget,
            context,
            at_tick: AtTick::Continue,
            clock: runtime.config.clock,
        };
        let mut store = store::store(&runtime.engine, spec);
        let _ticking = runtime.ticker.enter();
        store::begin(&mut store);
        let exports = &self.exports;
        let load = |store: &mut Store<State>| -> wasmtime::Result<_> {
            let instance = exports.pre.instantiate(&mut *store)?;
            let plan = exports.plan.load(&mut *store, &instance)?;
            let stepping = exports.stepping.as_ref();
            let stepping = stepping.map(|indices| indices.load(&mut *store, &instance));
            Ok((plan, stepping.transpose()?))
        };
        let loaded = load(&mut store);
        match loaded {
            Ok((plan, stepping)) => Ok(Live {
                recording: {
                    let state = store.data();
                    Recording::of(&state.context, &state.log, &self.module)
                },
                store,
                plan,
                stepping,
            }),
            Err(error) => Err(store.data_mut().failure("instantiate", error)),
        }
    }

    /// Makes the sampler and asks it for its plan.
    fn planned(
        &self,
        live: &mut Live,
        request: &str,
        facts: &ModelFacts,
    ) -> Result<(PlannedSampling, ResourceAny), ComponentError> {
        let _ticking = self.module.runtime.ticker.enter();
        let sampler = self.create(live, request, facts);
        if let Some(recording) = &live.recording {
            let input = encode::create(request, facts);
            recording.call("sampler.create", input, &sampler, |_| Value::Null);
        }
        let sampler = sampler?;
        let planned = self.checked_plan(live, sampler, facts.vocab_size);
        if let Some(recording) = &live.recording {
            recording.call("sampler.plan", Value::Null, &planned, encode::plan);
        }
        Ok((planned?, sampler))
    }

    fn create(
        &self,
        live: &mut Live,
        request: &str,
        facts: &ModelFacts,
    ) -> Result<ResourceAny, ComponentError> {
        let facts = wit::ModelFacts {
            vocab_size: facts.vocab_size,
            stop_tokens: facts.stop_tokens.clone(),
            max_len: facts.max_len,
            prompt_len: facts.prompt_len,
            max_tokens: facts.max_tokens,
            choices: facts.choices,
        };
        let store = &mut live.store;
        store::begin(store);
        let created = live
            .plan
            .sampler()
            .call_create(&mut *store, request, &facts);
        match created {
            Ok(answer) => {
                answer.map_err(|error| guest_error(&self.module.name, "sampler.create", error))
            }
            Err(error) => Err(store.data_mut().failure("sampler.create", error)),
        }
    }

    fn checked_plan(
        &self,
        live: &mut Live,
        sampler: ResourceAny,
        vocab: u32,
    ) -> Result<PlannedSampling, ComponentError> {
        let name = &self.module.name;
        let store = &mut live.store;
        store::begin(store);
        let planned = live.plan.sampler().call_plan(&mut *store, sampler);
        let plan = match planned {
            Ok(answer) => answer.map_err(|error| guest_error(name, "sampler.plan", error))?,
            Err(error) => return Err(store.data_mut().failure("sampler.plan", error)),
        };
        let facts = validate::Facts {
            module: name,
            vocab,
            stepping: if live.stepping.is_some() {
                validate::Stepping::Exported
            } else {
                validate::Stepping::Missing
            },
        };
        validate::plan(&facts, plan)
    }
}
