//! What models compute, through every layer: against transformers' numbers, and against themselves in other circumstances.
//!
//! One program, which runs on machines without Rust too: `tests/gpu.sh` says how.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;
mod embedding;
mod golden;
mod invariance;
mod search;
