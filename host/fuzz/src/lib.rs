//! What is fuzzed: functions that take any bytes and must neither panic, nor hang, nor take memory that the bytes do not
//! justify.
//!
//! `fuzz/` runs them under libFuzzer; this crate's test runs them over the corpora of `fuzz/corpus` and seeded mutations of
//! them, which takes seconds and needs no special compiler. Must not know how either works.
//!
//! ```
//! guesthouse_fuzz::http_body(b"\x00{\"prompt\": 7}");
//! guesthouse_fuzz::record(b"{}");
//! ```

mod admin;
mod chat;
mod component;
mod files;
mod grammar;
mod http;

pub use admin::admin_body;
pub use chat::chat_parsers;
pub use component::component;
pub use files::{gguf, record, safetensors, tiktoken, tokenizer};
pub use grammar::grammar;
pub use http::http_body;

/// A target's name and function.
pub type Target = (&'static str, fn(&[u8]));

/// All of them, by the names of their corpora.
pub const TARGETS: [Target; 10] = [
    ("http_body", http_body),
    ("gguf", gguf),
    ("safetensors", safetensors),
    ("tokenizer", tokenizer),
    ("record", record),
    ("grammar", grammar),
    ("tiktoken", tiktoken),
    ("component", component),
    ("chat_parsers", chat_parsers),
    ("admin_body", admin_body),
];
