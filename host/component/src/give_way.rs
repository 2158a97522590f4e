//! Threads that run what nobody vouches for let others go first.

/// Added to the nice value: such a thread gets about a tenth of a core that an ordinary one wants too (weights 110 and 1024 in
/// Linux's `sched_prio_to_weight`), and all of one that nobody wants.
#[cfg(target_os = "linux")]
const NICE: i32 = 10;

/// Lowers the calling thread's priority, for good: raising it takes a privilege.
#[cfg(target_os = "linux")]
pub(crate) fn give_way() {
    if let Err(error) = rustix::process::nice(NICE) {
        tracing::debug!(%error, "a thread's priority cannot be lowered");
    }
}

/// Elsewhere priorities are those of processes.
#[cfg(not(target_os = "linux"))]
pub(crate) fn give_way() {}

/// How many calls of modules that tenants brought run at once, of a kind: fewer than there are cores, but one.
pub(crate) fn most_at_once() -> usize {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    (cores / 2).max(1)
}
