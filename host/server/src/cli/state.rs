//! The file of tenants.

use anyhow::{Result, bail};
use clap::Args;
use guesthouse_tenants::{Registry, TenantsError};
use std::path::PathBuf;

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
    pub(super) fn open_or_make(&self) -> Result<Registry> {
        Ok(Registry::open(&self.path()?)?)
    }

    /// Opens the file. One that was named must be there: an empty one in its place has no keys, and would let all come in.
    pub(super) fn open(&self) -> Result<Registry> {
        if let Some(path) = &self.state
            && path.try_exists().is_ok_and(|is| !is)
        {
            let path = path.display();
            bail!(
                "there is no file of tenants at {path}, where --state or GUESTHOUSE_STATE has it: give the file's place if it was \
                 moved; a new one is made by `guesthouse tenant add ID --state {path}`, or `guesthouse tenant init --state \
                 {path}` for one without tenants"
            );
        }
        self.open_or_make()
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

#[cfg(test)]
mod tests;
