//! Names of answers and tool calls.

use std::fmt::Write as _;
use std::time::{SystemTime, UNIX_EPOCH};

/// `prefix` and 128 random bits.
pub(super) fn random(prefix: &str) -> String {
    let mut id = prefix.to_owned();
    let _ = write!(id, "{:032x}", rand::random::<u128>());
    id
}

/// Unix seconds.
pub(super) fn now() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}
