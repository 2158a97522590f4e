//! Folders of our own.

use crate::source::SourceError;
use std::path::PathBuf;

fn set(name: &str) -> Option<PathBuf> {
    let value = std::env::var_os(name).filter(|v| !v.is_empty());
    value.map(PathBuf::from)
}

/// `$GUESTHOUSE_CACHE`, else `$XDG_CACHE_HOME/guesthouse`, else `~/.cache/guesthouse`.
///
/// # Errors
/// When none of the variables is set.
pub fn cache() -> Result<PathBuf, SourceError> {
    set("GUESTHOUSE_CACHE")
        .or_else(|| set("XDG_CACHE_HOME").map(|p| p.join("guesthouse")))
        .or_else(|| set("HOME").map(|p| p.join(".cache").join("guesthouse")))
        .ok_or(SourceError::NoCacheFolder)
}

/// The registry of tenants: `$XDG_DATA_HOME/guesthouse/state.db`, else `~/.local/share/guesthouse/state.db`.
///
/// # Errors
/// When neither variable is set.
pub fn state() -> Result<PathBuf, SourceError> {
    let data = set("XDG_DATA_HOME")
        .or_else(|| set("HOME").map(|p| p.join(".local").join("share")))
        .ok_or(SourceError::NoDataFolder)?;
    Ok(data.join("guesthouse").join("state.db"))
}

/// GGUF files taken out of packages.
///
/// # Errors
/// Like [`cache`].
pub fn models() -> Result<PathBuf, SourceError> {
    Ok(cache()?.join("models"))
}

/// Compiled GPU kernels and choices of algorithms.
///
/// # Errors
/// Like [`cache`].
pub fn kernels() -> Result<PathBuf, SourceError> {
    Ok(cache()?.join("kernels"))
}

/// Compiled guests.
///
/// # Errors
/// Like [`cache`].
pub fn modules() -> Result<PathBuf, SourceError> {
    Ok(cache()?.join("modules"))
}
