//! One store for all requests of a module that its tenant trusts: calls follow each other without changing stores.
//!
//! A trap ends everything in a store. Each request therefore keeps what its guest was asked. The request whose call trapped is
//! rebuilt in a store of its own and asked again there; if it traps again, it alone ends. The others are rebuilt, when
//! they are asked next, in the shared store's successor.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use wasmtime::component::ResourceAny;

use super::call::{Call, Running, Said};
use super::{Live, ModelFacts, PlannedSampling, SamplerModule, wit_stepping as wit};
use crate::guest_log::GuestLog;
use crate::slots::Slot;
use crate::store::{self, LongCall};
use crate::{CallContext, ComponentError, Limits};

/// Bytes of calls that a request keeps; with more it moves to a store of its own.
const HISTORY_BYTES: usize = 4 << 20;
/// Resource handles of a shared store.
const HANDLES: usize = 100_000;

/// The store, while requests are in it.
#[derive(Default)]
pub(super) struct SharedStore(Mutex<Shared>);

#[derive(Default)]
struct Shared {
    open: Option<Box<Open>>,
    /// Number of the store that is open, or will be.
    generation: u64,
    members: usize,
}

struct Open {
    live: Live,
    guest: wit::Guest,
    // After the store: the place is free when the store is gone.
    _slot: Slot,
}

/// One request in a shared store.
pub(super) struct Member {
    shared: Arc<SharedStore>,
    /// Makes stores of one request.
    module: SamplerModule,
    request: String,
    facts: ModelFacts,
    context: CallContext,
    log: GuestLog,
    hook: Option<LongCall>,
    /// Its sampler, in the store of that generation.
    here: Option<(u64, ResourceAny)>,
    history: Vec<Call>,
    bytes: usize,
}

/// Why a member has no answer.
pub(super) enum Failure {
    /// The shared store is gone; to be asked again in a store of its own.
    Alone,
    /// The request is over.
    Over(ComponentError),
}

impl SharedStore {
    fn lock(&self) -> MutexGuard<'_, Shared> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shared {
    /// The store, made if there is none.
    fn enter(&mut self, module: &SamplerModule) -> Result<&mut Open, ComponentError> {
        if self.open.is_none() {
            let runtime = &module.module.runtime;
            let name = &module.module.name;
            let slot = runtime
                .step
                .acquire_within(runtime.config.wait, &"".into(), name)?;
            let mut live = module.instantiate(CallContext::new("shared", 0))?;
            let limits = Limits {
                memory: runtime.config.max_memory(),
                handles: HANDLES,
                ..runtime.config.step.clone()
            };
            store::set_limits(&mut live.store, &limits);
            let guest = live.stepping_guest(name)?;
            self.open = Some(Box::new(Open {
                live,
                guest,
                _slot: slot,
            }));
        }
        self.open
            .as_deref_mut()
            .ok_or_else(|| ComponentError::Ended {
                module: module.module.name.to_string(),
                function: "instantiate",
            })
    }

    fn close(&mut self) {
        self.open = None;
        self.generation += 1;
    }
}

impl Member {
    /// Makes a sampler in the shared store and asks it for its plan.
    pub(super) fn join(
        shared: &Arc<SharedStore>,
        module: SamplerModule,
        request: &str,
        facts: &ModelFacts,
        context: CallContext,
    ) -> Result<(PlannedSampling, Self), Failure> {
        let step = &module.module.runtime.config.step;
        let name = Arc::clone(&module.module.name);
        let mut member = Self {
            log: GuestLog::new(name, &context, step),
            shared: Arc::clone(shared),
            request: request.to_owned(),
            facts: facts.clone(),
            context,
            module,
            hook: None,
            here: None,
            history: Vec::new(),
            bytes: 0,
        };
        let mut state = shared.lock();
        // Taken back when the member is dropped.
        state.members += 1;
        let planned = member.create(&mut state);
        drop(state);
        let planned = planned?;
        Ok((planned, member))
    }

    pub(super) fn tenant(&self) -> Arc<str> {
        Arc::clone(&self.context.tenant)
    }

    pub(super) fn while_long(&mut self, hook: LongCall) {
        self.hook = Some(hook);
    }

    fn create(&mut self, shared: &mut Shared) -> Result<PlannedSampling, Failure> {
        let generation = shared.generation;
        let open = shared.enter(&self.module).map_err(Failure::Over)?;
        let state = open.live.store.data_mut();
        state.log = self.log.clone();
        state.long_call = self.hook.clone();
        match self
            .module
            .planned(&mut open.live, &self.request, &self.facts)
        {
            Ok((planned, sampler)) => {
                self.here = Some((generation, sampler));
                Ok(planned)
            }
            Err(error) if is_answer(&error) => Err(Failure::Over(error)),
            Err(_) => {
                shared.close();
                Err(Failure::Alone)
            }
        }
    }

    /// Makes a call, in the store that is open.
    pub(super) fn call(&mut self, call: &Call) -> Result<Said, Failure> {
        let shared = Arc::clone(&self.shared);
        let mut shared = shared.lock();
        let sampler = match self.here {
            Some((generation, sampler)) if generation == shared.generation => sampler,
            _ => self.rebuild(&mut shared)?,
        };
        let open = shared.enter(&self.module).map_err(Failure::Over)?;
        let state = open.live.store.data_mut();
        state.log = self.log.clone();
        state.long_call = self.hook.clone();
        let _ticking = self.module.module.runtime.ticker.enter();
        store::begin(&mut open.live.store);
        call.make(&open.guest, &mut open.live.store, sampler)
            .map_err(|_| {
                shared.close();
                Failure::Alone
            })
    }

    /// Makes its sampler anew in the store that is open, with all that it was asked.
    fn rebuild(&mut self, shared: &mut Shared) -> Result<ResourceAny, Failure> {
        self.here = None;
        self.create(shared)?;
        let open = shared.enter(&self.module).map_err(Failure::Over)?;
        let Some((_, sampler)) = self.here else {
            return Err(Failure::Alone);
        };
        let _ticking = self.module.module.runtime.ticker.enter();
        for call in &self.history {
            store::begin(&mut open.live.store);
            let said = call.make(&open.guest, &mut open.live.store, sampler);
            if said.is_err() {
                shared.close();
                return Err(Failure::Alone);
            }
        }
        Ok(sampler)
    }

    /// A call was answered. Whether the request may stay.
    pub(super) fn remember(&mut self, call: Call) -> bool {
        self.bytes += call.bytes();
        self.history.push(call);
        self.bytes <= HISTORY_BYTES
    }

    /// The same request in a store of its own.
    pub(super) fn alone(&self) -> Result<Running, ComponentError> {
        let runtime = &self.module.module.runtime;
        let name = &self.module.module.name;
        let slot = runtime
            .step
            .acquire_within(runtime.config.wait, &self.context.tenant, name)?;
        let mut live = self.module.instantiate(self.context.clone())?;
        let (_, sampler) = self.module.planned(&mut live, &self.request, &self.facts)?;
        let mut running = Running::new(&self.module.module, live, sampler, slot)?;
        if let Some(hook) = &self.hook {
            running.while_long(Arc::clone(hook));
        }
        for call in &self.history {
            running.call(&self.module.module, call)?;
        }
        Ok(running)
    }
}

/// The guest's own words, after which its store is as usable as before.
fn is_answer(error: &ComponentError) -> bool {
    matches!(
        error,
        ComponentError::Guest { .. }
            | ComponentError::InvalidAnswer { .. }
            | ComponentError::Unsupported { .. }
    )
}

impl Drop for Member {
    fn drop(&mut self) {
        let mut shared = self.shared.lock();
        shared.members = shared.members.saturating_sub(1);
        if shared.members == 0 {
            // What the guest leaked goes too.
            shared.close();
            return;
        }
        let generation = shared.generation;
        if let (Some((of, sampler)), Some(open)) = (self.here, &mut shared.open)
            && of == generation
        {
            let _ticking = self.module.module.runtime.ticker.enter();
            store::begin(&mut open.live.store);
            if sampler.resource_drop(&mut open.live.store).is_err() {
                shared.close();
            }
        }
    }
}
