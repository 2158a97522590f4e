//! One store: a guest's whole world, its limits, and what is left of it when it fails.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use guesthouse_graph::{GraphBuilder, GraphError};
use wasmtime::component::ResourceTable;
use wasmtime::{ResourceLimiter, Store, StoreContextMut, Trap, UpdateDeadline};
use wasmtime_wasi::WasiCtx;

use crate::guest_log::GuestLog;
use crate::meter::Meter;
use crate::{CallContext, Clock, ComponentError, LimitKind, Limits};

/// Memory that all stores of a runtime share.
pub(crate) struct Budget {
    used: AtomicUsize,
    limit: usize,
    tenants: Mutex<HashMap<Arc<str>, Arc<Account>>>,
}

/// What one tenant's stores use.
#[derive(Default)]
pub(crate) struct Account {
    /// Bytes.
    used: AtomicUsize,
    /// Nanoseconds.
    time: AtomicU64,
    /// Calls of no tenant may have all memory.
    nobody: bool,
}

impl Account {
    pub(crate) fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    pub(crate) fn time(&self) -> Duration {
        Duration::from_nanos(self.time.load(Ordering::Relaxed))
    }

    pub(crate) fn charge(&self, nanoseconds: u64) {
        self.time.fetch_add(nanoseconds, Ordering::Relaxed);
    }
}

impl Budget {
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            used: AtomicUsize::new(0),
            limit,
            tenants: Mutex::default(),
        }
    }

    /// The tenant's; made at its first use.
    pub(crate) fn account(&self, tenant: &str) -> Arc<Account> {
        let mut tenants = self.tenants.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(account) = tenants.get(tenant) {
            return Arc::clone(account);
        }
        let account = Arc::new(Account {
            nobody: tenant.is_empty(),
            ..Account::default()
        });
        tenants.insert(tenant.into(), Arc::clone(&account));
        account
    }

    pub(crate) fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// Takes `bytes`, or says how much would have been used.
    fn take(&self, bytes: usize) -> Result<(), usize> {
        let after = self
            .used
            .fetch_add(bytes, Ordering::Relaxed)
            .saturating_add(bytes);
        if after > self.limit {
            self.used.fetch_sub(bytes, Ordering::Relaxed);
            return Err(after);
        }
        Ok(())
    }
}

/// Memory of one store, charged to the budget until dropped.
pub(crate) struct Memory {
    budget: Arc<Budget>,
    account: Arc<Account>,
    /// Of the account; without one, as much as is free.
    share: Option<usize>,
    used: usize,
    limit: usize,
    /// The last refusal; explains the trap that usually follows.
    pub(crate) refused: Option<LimitKind>,
}

impl Memory {
    /// Whether a memory or table may grow by `bytes`.
    fn grow(&mut self, bytes: usize) -> bool {
        let wanted = self.used.saturating_add(bytes);
        if wanted > self.limit {
            self.refused = Some(LimitKind::Memory {
                wanted,
                limit: self.limit,
            });
            return false;
        }
        if let Err(wanted) = self.budget.take(bytes) {
            self.refused = Some(LimitKind::ProcessMemory {
                wanted,
                limit: self.budget.limit,
            });
            return false;
        }
        if let Some(refused) = self.over_share(bytes) {
            self.budget.used.fetch_sub(bytes, Ordering::Relaxed);
            self.refused = Some(refused);
            return false;
        }
        self.used = wanted;
        true
    }

    /// Takes bytes, which the budget has given, of the tenant's share; or says why not. A tenant without a share of its own
    /// may hold as much as is free then: one alone gets half, and there is always something left.
    fn over_share(&self, bytes: usize) -> Option<LimitKind> {
        let before = self.account.used.fetch_add(bytes, Ordering::Relaxed);
        let wanted = before.saturating_add(bytes);
        let free = self.budget.limit.saturating_sub(self.budget.used());
        let limit = match self.share {
            Some(share) => share,
            None if self.account.nobody => return None,
            None => free,
        };
        if wanted <= limit {
            return None;
        }
        self.account.used.fetch_sub(bytes, Ordering::Relaxed);
        Some(LimitKind::TenantMemory { wanted, limit })
    }
}

impl ResourceLimiter for Memory {
    fn memory_growing(
        &mut self,
        current: usize,
        desired: usize,
        _: Option<usize>,
    ) -> wasmtime::Result<bool> {
        Ok(self.grow(desired.saturating_sub(current)))
    }

    fn table_growing(
        &mut self,
        current: usize,
        desired: usize,
        _: Option<usize>,
    ) -> wasmtime::Result<bool> {
        let elements = desired.saturating_sub(current);
        Ok(self.grow(elements.saturating_mul(size_of::<usize>())))
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.budget.used.fetch_sub(self.used, Ordering::Relaxed);
        self.account.used.fetch_sub(self.used, Ordering::Relaxed);
    }
}

/// Data of a store, of whichever role.
pub(crate) struct State {
    pub(crate) memory: Memory,
    pub(crate) log: GuestLog,
    pub(crate) meter: Arc<Meter>,
    pub(crate) table: ResourceTable,
    /// Made when a guest that imports WASI first asks for it.
    pub(crate) wasi: Option<Box<WasiCtx>>,
    pub(crate) context: CallContext,
    /// Of a graph build.
    pub(crate) builder: Option<GraphBuilder>,
    /// See [`LongCall`].
    pub(crate) long_call: Option<LongCall>,
    clock: Clock,
    limits: Limits,
}

/// Told at each tick of a call but the first: the call's CPU time so far. Runs on the call's thread, inside it.
pub(crate) type LongCall = Arc<dyn Fn(Duration) + Send + Sync>;

/// Why the epoch callback ended a call.
#[derive(Debug, thiserror::Error)]
#[error("deadline")]
struct Overdue {
    cpu: Duration,
    wall: Duration,
}

/// The builder's finding, on its way through a trap.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct GraphFailure(pub(crate) GraphError);

/// What a store does at each tick of a long call.
#[derive(Clone, Copy, Debug)]
pub(crate) enum AtTick {
    /// Goes on: synchronous calls.
    Continue,
    /// Lets the executor's other tasks run first.
    Yield,
}

/// What a new store needs to know.
pub(crate) struct StoreSpec<'a> {
    pub(crate) module: &'a Arc<str>,
    pub(crate) limits: &'a Limits,
    pub(crate) budget: &'a Arc<Budget>,
    pub(crate) context: CallContext,
    pub(crate) at_tick: AtTick,
    pub(crate) clock: Clock,
}

/// A store with every limit set.
pub(crate) fn store(engine: &wasmtime::Engine, spec: StoreSpec<'_>) -> Store<State> {
    let limits = spec.limits;
    let mut table = ResourceTable::new();
    table.set_max_capacity(limits.resources);
    let account = spec.budget.account(&spec.context.tenant);
    let state = State {
        memory: Memory {
            budget: Arc::clone(spec.budget),
            account: Arc::clone(&account),
            share: spec.context.memory,
            used: 0,
            limit: limits.memory,
            refused: None,
        },
        log: GuestLog::new(Arc::clone(spec.module), &spec.context, limits),
        meter: Arc::new(Meter::new(account)),
        table,
        wasi: None,
        context: spec.context,
        builder: None,
        long_call: None,
        clock: spec.clock,
        limits: limits.clone(),
    };
    if state.context.recorder.is_some() {
        state.log.keep_lines();
    }
    let mut store = Store::new(engine, state);
    store.limiter(|state| &mut state.memory);
    store.set_hostcall_fuel(limits.transfer);
    store.set_max_component_handles(limits.handles);
    let at_tick = spec.at_tick;
    store.epoch_deadline_callback(move |context| at_deadline(&context, at_tick));
    store
}

/// Sets the limits of the calls that follow, and of all memory.
pub(crate) fn set_limits(store: &mut Store<State>, limits: &Limits) {
    store.set_hostcall_fuel(limits.transfer);
    store.set_max_component_handles(limits.handles);
    let state = store.data_mut();
    state.memory.limit = limits.memory;
    state.table.set_max_capacity(limits.resources);
    state.limits = limits.clone();
}

/// Starts the clock of the next call.
pub(crate) fn begin(store: &mut Store<State>) {
    store.set_epoch_deadline(1);
    store.data().meter.begin();
    let state = store.data();
    if state.clock == Clock::Fuel {
        let fuel = state.limits.fuel();
        // Fails only in an engine that does not count.
        drop(store.set_fuel(fuel));
    }
}

fn at_deadline(
    store: &StoreContextMut<'_, State>,
    at_tick: AtTick,
) -> wasmtime::Result<UpdateDeadline> {
    let state = store.data();
    let used = state.meter.tick();
    if let (Some(used), Some(hook)) = (&used, &state.long_call) {
        hook(used.cpu);
    }
    match used {
        None => Ok(UpdateDeadline::Continue(1)),
        Some(used) if used.cpu > state.limits.cpu || used.wall > state.limits.wall => {
            Err(wasmtime::Error::new(Overdue {
                cpu: used.cpu,
                wall: used.wall,
            }))
        }
        Some(_) => Ok(match at_tick {
            AtTick::Continue => UpdateDeadline::Continue(1),
            AtTick::Yield => {
                state.meter.yields();
                UpdateDeadline::Yield(1)
            }
        }),
    }
}

impl State {
    /// Turns a failed call into an error that names module, function and cause.
    pub(crate) fn failure(
        &mut self,
        function: &'static str,
        error: wasmtime::Error,
    ) -> ComponentError {
        let module = self.log.module().to_owned();
        let error = match error.downcast::<GraphFailure>() {
            Ok(GraphFailure(source)) => {
                return ComponentError::Graph {
                    module,
                    source: Box::new(source),
                };
            }
            Err(error) => error,
        };
        if let Some(overdue) = error.downcast_ref::<Overdue>() {
            return ComponentError::Timeout {
                module,
                function,
                cpu: overdue.cpu,
                cpu_budget: self.limits.cpu,
                wall: overdue.wall,
                wall_budget: self.limits.wall,
            };
        }
        let trap = error.downcast_ref::<Trap>().copied();
        let text = format!("{:#}", error.root_cause());
        if let Some(limit) = self.limit_of(trap, &text) {
            return ComponentError::Limit {
                module,
                function,
                limit,
            };
        }
        let cause = match (self.log.take_last_error(), trap) {
            (Some(panic), _) => panic,
            (None, Some(Trap::UnreachableCodeReached)) => {
                "unreachable code reached (a panic without message)".into()
            }
            (None, Some(trap)) => trap.to_string(),
            (None, None) => text,
        };
        ComponentError::Trap {
            module,
            function,
            cause,
        }
    }

    /// The limit behind a trap, if it was one. Wasmtime has no types for the two it checks itself, only texts.
    fn limit_of(&mut self, trap: Option<Trap>, text: &str) -> Option<LimitKind> {
        if trap == Some(Trap::OutOfFuel) {
            return Some(LimitKind::Instructions {
                limit: self.limits.fuel(),
            });
        }
        if trap == Some(Trap::StackOverflow) {
            return Some(LimitKind::Stack);
        }
        if text.contains("fuel allocated for hostcalls") {
            return Some(LimitKind::Transfer {
                limit: self.limits.transfer,
            });
        }
        if text.contains("store handle limit exceeded") {
            return Some(LimitKind::Handles {
                limit: self.limits.handles,
            });
        }
        // A guest that cannot grow its memory gives up with `unreachable`, with or without a message.
        if trap == Some(Trap::UnreachableCodeReached) {
            return self.memory.refused.take();
        }
        None
    }
}

#[cfg(test)]
mod tests;
