#![allow(clippy::unwrap_used)]
use super::*;

fn log(lines: u32, bytes: usize) -> GuestLog {
    GuestLog::new(
        "m".into(),
        &CallContext::new("r", 0),
        &Limits {
            log_lines: lines,
            log_bytes: bytes,
            ..Limits::sampler()
        },
    )
}

#[test]
fn control_characters_cannot_reach_a_terminal() {
    assert_eq!(
        escape("a\u{1b}[2Jb\r\n\u{202e}c"),
        "a\\u{1b}[2Jb\\u{d}\\u{a}\\u{202e}c"
    );
    assert_eq!(escape("naïve 日本"), "naïve 日本");
}

#[test]
fn lines_and_bytes_are_capped() {
    let left = |log: &GuestLog| {
        let quota = log.quota();
        (quota.lines, quota.bytes)
    };
    let two = log(2, 100);
    for _ in 0..5 {
        two.write(LogLevel::Info, "x");
    }
    assert_eq!(left(&two), (0, 98));

    let five = log(10, 5);
    five.write(LogLevel::Info, "éééé");
    assert_eq!(left(&five), (9, 1), "cut at a character");
}

#[test]
fn the_last_error_survives_the_quota() {
    let log = log(0, 0);
    log.write(LogLevel::Error, "panicked");
    assert_eq!(log.take_last_error().unwrap(), "panicked");
    assert_eq!(log.take_last_error(), None);
    log.write(LogLevel::Error, &"é".repeat(4000));
    assert_eq!(log.take_last_error().unwrap().len(), LAST_ERROR_BYTES);
}
