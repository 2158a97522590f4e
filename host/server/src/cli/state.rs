//! The file of tenants.

use anyhow::Result;
use clap::Args;
use guesthouse_tenants::{Registry, TenantsError};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// How often a server looks whether another process changed the file.
const LOOK: Duration = Duration::from_secs(1);

/// Where tenants are kept.
#[derive(Debug, Args)]
pub(super) struct StateFile {
    /// The file of tenants, keys and counters (default: guesthouse/state.db in $XDG_DATA_HOME or ~/.local/share).
    #[arg(long, value_name = "FILE", env = "GUESTHOUSE_STATE")]
    state: Option<PathBuf>,
}

impl StateFile {
    fn path(&self) -> Result<PathBuf> {
        Ok(match &self.state {
            Some(path) => path.clone(),
            None => crate::paths::state()?,
        })
    }

    /// Where modules are kept that were brought: beside the file.
    pub(super) fn modules(&self) -> Result<PathBuf> {
        Ok(self.path()?.with_file_name("modules"))
    }

    /// Opens the file, and makes it where there is none.
    pub(super) fn open(&self) -> Result<Registry> {
        Ok(Registry::open(&self.path()?)?)
    }

    /// Likewise. Where nobody named a file, and there is none and none can be made, there are no tenants; a file that is
    /// there and cannot be read never means that all may come in.
    pub(super) fn open_for_serving(&self) -> Result<Option<Registry>> {
        if self.state.is_some() {
            return self.open().map(Some);
        }
        let path = match crate::paths::state() {
            Ok(path) => path,
            Err(error) => {
                tracing::warn!(%error, "there are no tenants");
                return Ok(None);
            }
        };
        match Registry::open(&path) {
            Ok(registry) => Ok(Some(registry)),
            Err(error @ TenantsError::Access { .. }) if path.try_exists().is_ok_and(|is| !is) => {
                tracing::warn!(%error, "there are no tenants");
                Ok(None)
            }
            Err(error) => Err(error.into()),
        }
    }
}

/// Takes over what other processes write, for ever. Says once what stands against it.
pub(super) async fn follow(tenants: Arc<Registry>) {
    let mut told = None;
    loop {
        tokio::time::sleep(LOOK).await;
        let registry = Arc::clone(&tenants);
        // A panic there ends nothing here.
        let Ok(looked) = tokio::task::spawn_blocking(move || registry.refresh()).await else {
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
