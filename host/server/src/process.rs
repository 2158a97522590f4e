//! What a server asks of its own process: that nothing its clients wrote leaves it by accident, and one TLS for all of it.

use rustix::process::{
    DumpableBehavior, Resource, Rlimit, Signal, getrlimit, set_dumpable_behavior, setrlimit,
};
use std::panic::PanicHookInfo;
use tokio::signal::unix::{SignalKind, signal};

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

/// A file that may not grow (a limit of the process) fails the write, as a full disk does, and does not end the process.
/// Must be called in a runtime; holds until the end of the process.
pub(crate) fn survive_file_limits() {
    let kind = SignalKind::from_raw(Signal::XFSZ.as_raw());
    if let Err(error) = signal(kind) {
        tracing::warn!(%error, "a file that grows beyond this process's limit will end it");
    }
}

/// Descriptors that are not connections.
const OTHER_FILES: u64 = 256;

/// Lets this process have as many open files as `connections` need, as far as the system allows; the connections that it
/// can have then.
pub(crate) fn allow_connections(connections: usize) -> usize {
    let limit = getrlimit(Resource::Nofile);
    let wanted = (connections as u64).saturating_add(OTHER_FILES);
    // None is unlimited.
    let (current, maximum) = (
        limit.current.unwrap_or(u64::MAX),
        limit.maximum.unwrap_or(u64::MAX),
    );
    if current >= wanted {
        return connections;
    }
    let raised = wanted.min(maximum);
    let set = setrlimit(
        Resource::Nofile,
        Rlimit {
            current: Some(raised),
            maximum: limit.maximum,
        },
    );
    let allowed = if set.is_ok() { raised } else { current };
    if allowed == wanted {
        return connections;
    }
    let fewer = allowed.saturating_sub(OTHER_FILES).max(1);
    tracing::warn!(
        wanted = connections,
        taken = fewer,
        "the limit of open files allows fewer connections than --max-connections; raise it (ulimit -n)"
    );
    usize::try_from(fewer).unwrap_or(connections)
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
