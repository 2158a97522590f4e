#![allow(clippy::unwrap_used)]

use super::{spelled, whole_seconds};
use std::time::Duration;

/// The first two are the examples of OpenAI's guide to rate limits.
#[test]
fn times_are_spelled_as_openai_does() {
    for (ms, text) in [
        (1_000, "1s"),
        (360_000, "6m0s"),
        (0, "0ms"),
        (20, "20ms"),
        (999, "999ms"),
        (1_250, "1.25s"),
        (61_500, "1m1.5s"),
    ] {
        assert_eq!(spelled(Duration::from_millis(ms)), text);
    }
    assert_eq!(spelled(Duration::from_nanos(1)), "1ms");
}

#[test]
fn seconds_to_wait_are_rounded_up() {
    for (ms, seconds) in [(0, 1), (1, 1), (1000, 1), (1001, 2), (59_999, 60)] {
        assert_eq!(whole_seconds(Duration::from_millis(ms)), seconds);
    }
}
