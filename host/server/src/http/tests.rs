#![allow(clippy::unwrap_used, clippy::panic, clippy::needless_pass_by_value)]
//! The API as clients see it, over an engine whose device says what the test tells it to.
//!
//! Expected answers are written by hand after OpenAI's API reference and vLLM's documentation.

mod chat;
mod completions;
mod connections;
mod dashboard;
mod embeddings;
mod grammars;
mod limits;
mod logs;
mod operations;
mod refusals;
mod support;
mod tenants;
mod tls;
mod tokens;
mod traces;
