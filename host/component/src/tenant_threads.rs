//! Threads for calls of modules that tenants brought ([`Origin::Tenant`](crate::Origin::Tenant)).
//!
//! Nobody vouches for what these do with a processor. So they have threads of their own, of low priority and fewer than there are
//! cores: those of the device, for which all tenants wait, come first. A tenant has no more calls on them at once than
//! there are threads; calls that take long let others run at each tick, so tenants take turns.

use std::future::Future;
use std::sync::Arc;

use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinHandle;

use crate::ComponentError;
use crate::block_on::block_on;
use crate::give_way::{give_way, most_at_once};
use crate::turns::Turns;

/// See the module. Dropping it ends what runs at its next tick.
pub struct TenantThreads {
    /// There until it is dropped.
    runtime: Option<Runtime>,
    turns: Turns,
}

/// Ends the task when dropped.
struct Task<T>(JoinHandle<T>);

impl<T> Drop for Task<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

fn lost(reason: impl std::fmt::Display) -> ComponentError {
    ComponentError::Engine {
        reason: format!("a thread for tenants' guests failed: {reason}"),
    }
}

impl TenantThreads {
    /// Half as many threads as cores, at least one; as many again for calls that block.
    pub(crate) fn start() -> std::io::Result<Self> {
        let most = most_at_once();
        let runtime = Builder::new_multi_thread()
            .worker_threads(most)
            .max_blocking_threads(most)
            .thread_name("tenant-guest")
            .on_thread_start(give_way)
            // WASI's clocks ask for timers, before the guest that waits is ended.
            .enable_time()
            .build()?;
        Ok(Self {
            runtime: Some(runtime),
            turns: Turns::new(most),
        })
    }

    /// Runs a call there that lets others run meanwhile. Dropping the future ends the call.
    ///
    /// # Errors
    /// [`ComponentError::Engine`] when the call panics.
    pub async fn run<F>(&self, tenant: &Arc<str>, call: F) -> Result<F::Output, ComponentError>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        let turn = self.turns.of(tenant).await.map_err(lost)?;
        let runtime = self.runtime.as_ref().ok_or_else(|| lost("it is gone"))?;
        let mut task = Task(runtime.spawn(async move {
            let answer = call.await;
            drop(turn);
            answer
        }));
        (&mut task.0).await.map_err(lost)
    }

    /// Runs a call there that blocks, and blocks until it ends.
    ///
    /// # Errors
    /// As [`TenantThreads::run`].
    pub fn run_blocking<T: Send + 'static>(
        &self,
        tenant: &Arc<str>,
        call: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, ComponentError> {
        let runtime = self.runtime.as_ref().ok_or_else(|| lost("it is gone"))?;
        block_on(async {
            let turn = self.turns.of(tenant).await.map_err(lost)?;
            let task = runtime.spawn_blocking(move || {
                let answer = call();
                drop(turn);
                answer
            });
            task.await.map_err(lost)
        })
    }
}

impl Drop for TenantThreads {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // Waiting is not allowed wherever this may happen.
            runtime.shutdown_background();
        }
    }
}

#[cfg(test)]
mod tests;
