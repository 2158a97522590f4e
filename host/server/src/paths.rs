//! Folders of our own.

use crate::source::SourceError;
use std::path::PathBuf;

/// `$GUESTHOUSE_CACHE`, else `$XDG_CACHE_HOME/guesthouse`, else `~/.cache/guesthouse`.
///
/// # Errors
/// When none of the variables is set.
pub fn cache() -> Result<PathBuf, SourceError> {
    let set = |name: &str| {
        std::env::var_os(name)
            .filter(|v| !v.is_empty())
            .map(PathBuf::from)
    };
    set("GUESTHOUSE_CACHE")
        .or_else(|| set("XDG_CACHE_HOME").map(|p| p.join("guesthouse")))
        .or_else(|| set("HOME").map(|p| p.join(".cache").join("guesthouse")))
        .ok_or(SourceError::NoCacheFolder)
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
