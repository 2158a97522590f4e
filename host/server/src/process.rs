//! What a server asks of its own process: that nothing its clients wrote leaves it by accident, and one TLS for all of it.

use rustix::process::{DumpableBehavior, Resource, Rlimit, set_dumpable_behavior, setrlimit};
use std::panic::PanicHookInfo;

/// No core dumps, of this process or of those it starts, and no panic messages in the log: both may hold prompts. For the
/// whole process, until its end.
pub(crate) fn keep_memory_private() {
    let none = Rlimit {
        current: Some(0),
        maximum: Some(0),
    };
    if let Err(error) = setrlimit(Resource::Core, none) {
        tracing::warn!(%error, "core dumps cannot be limited");
    }
    // Where cores are piped to a program the limit does not count; this does.
    if let Err(error) = set_dumpable_behavior(DumpableBehavior::NotDumpable) {
        tracing::warn!(%error, "the process cannot be made undumpable");
    }
    std::panic::set_hook(Box::new(panicked));
}

/// The TLS of HTTP clients that are told of none is ring's, as everywhere else here. For the whole process.
pub(crate) fn use_ring() {
    // Fails where one is set already, which is this one.
    let _ = rustls::crypto::ring::default_provider().install_default();
}

/// Tells where, never what.
fn panicked(info: &PanicHookInfo<'_>) {
    let thread = std::thread::current();
    let thread = thread.name().unwrap_or("unnamed");
    match info.location() {
        Some(place) => tracing::error!(thread, place = %place, "panicked"),
        None => tracing::error!(thread, "panicked"),
    }
}

#[cfg(test)]
mod tests;
