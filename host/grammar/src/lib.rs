//! Grammars that a model's output must follow: JSON schemas, regular expressions, choices, Lark, GBNF and structural tags.
//!
//! It knows a tokenizer and the engine's [`Constraint`](guesthouse_engine::Constraint), but nothing of HTTP, guests or devices.
//! The matching itself is the `llguidance` crate's.
//!
//! - `vocabulary`: the bytes of all tokens; control tokens never match text;
//! - `syntax`: from a source to what the matcher reads; `schema`, `regex`, `gbnf`, `structural` are its parts;
//! - `compile`: work bounded in time, stack and size; `cache` keeps what was compiled within a bound of bytes;
//! - `follow`: one sequence in its grammar.
//!
//! ```
//! use guesthouse_grammar::{GrammarCompiler, Limits};
//! use guesthouse_tokenizer::{GgufVocab, Tokenizer};
//! use std::sync::Arc;
//!
//! let tokens = ["<|end|>", "a", "b", "c"];
//! let tokenizer = Arc::new(Tokenizer::from_gguf(GgufVocab {
//!     model: "gpt2".into(),
//!     pre: Some("gpt-2".into()),
//!     tokens: tokens.iter().map(|t| t.to_string()).collect(),
//!     token_types: Some(vec![3, 1, 1, 1]), // the first is a control token
//!     merges: Some(Vec::new()),
//!     eos: Some(0),
//!     ..GgufVocab::default()
//! })?);
//! let compiler = GrammarCompiler::new(tokenizer, 4, Limits::default());
//! let mut follower = compiler.compile("regex", "a[bc]?", &[0])?;
//!
//! let mut words = [0];
//! follower.mask(&mut words)?;
//! assert_eq!(words, [0b0010]); // only "a"
//! follower.accept(1)?;
//! follower.mask(&mut words)?;
//! assert_eq!(words, [0b1101]); // "b", "c", or the end
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod cache;
mod compile;
mod error;
mod follow;
mod gbnf;
mod guard;
mod limits;
mod regex;
mod schema;
mod structural;
mod syntax;
#[cfg(test)]
mod testing;
mod vocabulary;

pub use compile::GrammarCompiler;
pub use error::{GrammarError, Place};
pub use limits::Limits;
pub use syntax::Syntax;
