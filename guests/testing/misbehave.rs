//! What any guest can do wrong, by name. Included by each hostile guest; `log` is the world's own import.

use std::hint::black_box;

use crate::guesthouse::common::log::{Level, log};

/// Sends panic messages to the log, as well-made guests do.
pub fn set_hook() {
    std::panic::set_hook(Box::new(|info| log(Level::Error, &info.to_string())));
}

/// Does the named thing, if it is one of these. Most do not return.
pub fn misbehave(what: &str) {
    match what {
        "loop" => loop {
            black_box(0);
        },
        "host-call-loop" => loop {
            log(Level::Debug, "again");
        },
        "allocate" => {
            let mut all = Vec::new();
            loop {
                all.push(vec![1_u8; 1 << 20]);
                black_box(&all);
            }
        }
        "recurse" => {
            black_box(recurse(black_box(1)));
        }
        "panic" => panic!("out of ideas\u{1b}[2J"),
        "divide" => {
            black_box(1 / black_box(0));
        }
        "flood-log" => {
            for i in 0..100_000 {
                log(Level::Info, &format!("line {i} \u{1b}]0;pwned\u{7}"));
            }
        }
        "huge-log" => {
            for _ in 0..4 {
                log(Level::Info, &"x".repeat(1 << 20));
            }
        }
        _ => {}
    }
}

#[allow(unconditional_recursion)]
fn recurse(n: u64) -> u64 {
    let frame = black_box([n; 32]);
    recurse(frame[7] + 1) + black_box(frame)[3]
}
