//! What tenants use, from a running server into its registry, and what other processes changed there, from it.

use crate::http::AppState;
use crate::model::ModuleStore;
use guesthouse_tenants::Registry;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::task::JoinHandle;

/// How often guests' time is charged, and looked whether another process changed the file.
const LOOK: Duration = Duration::from_secs(1);

/// How often counters are written.
const FLUSH: Duration = Duration::from_secs(5);

/// The task that charges and writes what tenants used, and takes over what others wrote.
pub(super) struct Books {
    registry: Arc<Registry>,
    state: AppState,
    task: JoinHandle<()>,
}

impl Books {
    /// Starts the task.
    pub(super) fn open(
        registry: Arc<Registry>,
        state: &AppState,
        modules: &Arc<ModuleStore>,
    ) -> Self {
        let keeping = keep(Arc::clone(&registry), state.clone());
        let following = follow(Arc::clone(&registry), Arc::clone(modules));
        Self {
            task: tokio::spawn(async move {
                tokio::join!(keeping, following);
            }),
            registry,
            state: state.clone(),
        }
    }

    /// Ends the task and writes what is left.
    pub(super) async fn close(self) {
        self.task.abort();
        // A write that runs is waited for by the registry's lock.
        let (registry, state) = (self.registry, self.state);
        let written = tokio::task::spawn_blocking(move || write(&registry, &state)).await;
        if written.is_err() {
            tracing::error!("the counters of tenants were not written");
        }
    }
}

async fn keep(registry: Arc<Registry>, state: AppState) {
    let mut ticks = tokio::time::interval(LOOK);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut written = Instant::now();
    loop {
        ticks.tick().await;
        charge(&registry, &state);
        if written.elapsed() < FLUSH {
            continue;
        }
        written = Instant::now();
        let (registry, state) = (Arc::clone(&registry), state.clone());
        let done = tokio::task::spawn_blocking(move || {
            write(&registry, &state);
            state.forget_gone();
        });
        if done.await.is_err() {
            tracing::error!("the counters of tenants were not written");
        }
    }
}

/// Takes over what other processes wrote, for ever, and collects what is left of tenants that are gone. Says once what stands
/// against it.
async fn follow(registry: Arc<Registry>, modules: Arc<ModuleStore>) {
    let mut told = None;
    loop {
        tokio::time::sleep(LOOK).await;
        let (registry, modules) = (Arc::clone(&registry), Arc::clone(&modules));
        let looked = tokio::task::spawn_blocking(move || {
            let looked = registry.refresh();
            modules.forget_gone();
            looked
        });
        // A panic there ends nothing here.
        let Ok(looked) = looked.await else {
            continue;
        };
        match looked {
            Ok(true) => tracing::info!("tenants were changed by another process"),
            Ok(false) => {}
            Err(error) if told == Some(error.label()) => continue,
            Err(error) => {
                tracing::error!(%error, "changes of tenants are not seen");
                told = Some(error.label());
                continue;
            }
        }
        told = None;
    }
}

/// Charges what guests used to their tenants, whether they ask for more or not.
fn charge(registry: &Registry, state: &AppState) {
    for known in registry.list() {
        state.charge_guests(&known.tenant);
    }
}

fn write(registry: &Registry, state: &AppState) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let used = state.take_used(now.map_or(0, |since| since.as_secs()));
    if used.is_empty() {
        return;
    }
    if let Err(error) = registry.add_usage(&used) {
        tracing::error!(%error, "counters of tenants cannot be written now; they are kept");
    }
}
