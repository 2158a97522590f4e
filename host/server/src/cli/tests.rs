//! The command line parses as its users type it.
#![allow(clippy::unwrap_used)]

use super::Cli;
use clap::{CommandFactory, Parser};

#[test]
fn definitions_are_consistent() {
    Cli::command().debug_assert();
}

#[test]
fn vllm_flags_are_taken() {
    let line = "guesthouse serve smollm2 --host 0.0.0.0 --port 8001 --max-model-len 2048 --max-num-seqs 8 --max-num-batched-tokens 512 \
                --served-model-name a b --api-key k --no-enable-prefix-caching --kv-cache-memory-bytes 1000000";
    Cli::try_parse_from(line.split_whitespace()).unwrap();
}

#[test]
fn a_model_is_needed() {
    assert!(Cli::try_parse_from(["guesthouse", "serve"]).is_err());
}
