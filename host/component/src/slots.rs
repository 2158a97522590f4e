//! Places in the pool, shared between tenants.
//!
//! A tenant may take a place while it holds fewer than are free (the dynamic threshold of shared switch buffers): one alone gets half of
//! them, n that want all get 1/(n + 1) each, and whoever holds none always finds one. Calls of no tenant may take all.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;

use crate::block_on::block_on_within;
use crate::{ComponentError, Role};

/// Places of one role in the pool. An empty pool is an error of wasmtime's; waiting here comes first.
pub(crate) struct Slots {
    shared: Arc<Shared>,
    role: Role,
    size: usize,
}

struct Shared(Mutex<State>);

struct State {
    free: usize,
    /// Above 0.
    held: HashMap<Arc<str>, usize>,
    /// In order of arrival; none of them may take a place at the moment.
    waiting: VecDeque<(Arc<str>, oneshot::Sender<Slot>)>,
}

/// A place taken. Dropping it gives it back.
pub(crate) struct Slot {
    shared: Arc<Shared>,
    tenant: Arc<str>,
}

impl State {
    fn may(&self, tenant: &str) -> bool {
        let held = self.held.get(tenant).copied().unwrap_or(0);
        self.free > 0 && (tenant.is_empty() || held < self.free)
    }

    fn take(&mut self, shared: &Arc<Shared>, tenant: &Arc<str>) -> Slot {
        self.free -= 1;
        *self.held.entry(Arc::clone(tenant)).or_default() += 1;
        Slot {
            shared: Arc::clone(shared),
            tenant: Arc::clone(tenant),
        }
    }

    /// Places for those that waited and may take one now.
    fn granted(&mut self, shared: &Arc<Shared>) -> Vec<(oneshot::Sender<Slot>, Slot)> {
        let mut granted = Vec::new();
        self.waiting.retain(|(_, sender)| !sender.is_closed());
        while let Some(at) = self.waiting.iter().position(|(t, _)| self.may(t)) {
            let Some((tenant, sender)) = self.waiting.remove(at) else {
                break;
            };
            let slot = self.take(shared, &tenant);
            granted.push((sender, slot));
        }
        granted
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.free += 1;
        if let Some(held) = state.held.get_mut(&self.tenant) {
            *held -= 1;
            if *held == 0 {
                state.held.remove(&self.tenant);
            }
        }
        let granted = state.granted(&self.shared);
        drop(state);
        for (sender, slot) in granted {
            // One that waits no more gives its place back, outside of the lock.
            drop(sender.send(slot));
        }
    }
}

impl Slots {
    pub(crate) fn new(role: Role, size: usize) -> Self {
        let state = State {
            free: size,
            held: HashMap::new(),
            waiting: VecDeque::new(),
        };
        Self {
            shared: Arc::new(Shared(Mutex::new(state))),
            role,
            size,
        }
    }

    fn busy(&self, module: &str) -> ComponentError {
        ComponentError::Busy {
            module: module.into(),
            role: self.role,
            slots: self.size,
        }
    }

    fn ask(&self, tenant: &Arc<str>) -> Result<Slot, oneshot::Receiver<Slot>> {
        let mut state = self.shared.lock();
        if state.may(tenant) {
            return Ok(state.take(&self.shared, tenant));
        }
        let (sender, receiver) = oneshot::channel();
        state.waiting.push_back((Arc::clone(tenant), sender));
        Err(receiver)
    }

    /// Waits as long as it takes.
    pub(crate) async fn acquire(
        &self,
        tenant: &Arc<str>,
        module: &str,
    ) -> Result<Slot, ComponentError> {
        match self.ask(tenant) {
            Ok(slot) => Ok(slot),
            Err(waits) => waits.await.map_err(|_| self.busy(module)),
        }
    }

    /// Blocks the thread for at most `wait`.
    pub(crate) fn acquire_within(
        &self,
        wait: Duration,
        tenant: &Arc<str>,
        module: &str,
    ) -> Result<Slot, ComponentError> {
        match self.ask(tenant) {
            Ok(slot) => Ok(slot),
            Err(waits) => block_on_within(wait, waits)
                .and_then(Result::ok)
                .ok_or_else(|| self.busy(module)),
        }
    }
}

#[cfg(test)]
mod tests;
