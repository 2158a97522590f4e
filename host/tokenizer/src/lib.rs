//! Text to token ids and back, for tokenizers of Hugging Face folders and of GGUF files.
//!
//! It must not know about requests, templates, weights or devices: it takes bytes and plain data and gives ids and strings.
//!
//! - `hf` reads `tokenizer.json` and what the files beside it say about special tokens;
//! - `files` finds the vocabulary of a folder that has none, `sentencepiece` and `tiktoken` read it;
//! - `gguf` builds the same from a GGUF file's vocabulary, `gguf::pre` knows its pre-tokenizers by name;
//! - `spm` merges pieces by score, as SentencePiece does;
//! - `added` finds added tokens in text; `encode` is the way from text or segments to ids;
//! - `decode` is the way back for whole sequences, `detokenizer` token by token.
//!
//! A **control token** is an added token with `special: true`. [`Tokenizer::encode_text`] never recognises one, whatever the
//! text says; [`Tokenizer::encode_segments`] has them only where the caller put them; [`Tokenizer::encode_raw`] recognises all.
//!
//! ```
//! use std::sync::Arc;
//! use guesthouse_tokenizer::{Detokenizer, GgufVocab, Segment, SkipSpecial, Tokenizer};
//!
//! let tokens = ["<|end|>", "h", "i", "hi", "Ġ", "<", "|", ">", "e", "n", "d"];
//! let mut token_types = vec![1; tokens.len()];
//! token_types[0] = 3; // control
//! let tokenizer = Arc::new(Tokenizer::from_gguf(GgufVocab {
//!     model: "gpt2".into(),
//!     pre: Some("gpt-2".into()),
//!     tokens: tokens.iter().map(|t| t.to_string()).collect(),
//!     token_types: Some(token_types),
//!     merges: Some(vec!["h i".into()]),
//!     eos: Some(0),
//!     ..GgufVocab::default()
//! })?);
//!
//! assert_eq!(tokenizer.encode_text("hi")?, [3]);
//! assert_eq!(tokenizer.encode_text("<|end|>")?, [5, 6, 8, 9, 10, 6, 7]);
//! let segments = [Segment::Text("hi".into()), Segment::Control(0)];
//! assert_eq!(tokenizer.encode_segments(&segments)?, [3, 0]);
//!
//! let mut stream = Detokenizer::new(&tokenizer, SkipSpecial::Yes);
//! assert_eq!(stream.push(3), "hi");
//! assert_eq!(stream.push(0), "");
//! # Ok::<(), guesthouse_tokenizer::TokenizerError>(())
//! ```

mod added;
mod decode;
mod detokenizer;
mod encode;
mod error;
mod files;
mod gguf;
mod hf;
mod sentencepiece;
mod spm;
mod tiktoken;
mod tokenizer;
mod words;

pub use detokenizer::Detokenizer;
pub use encode::{AddSpecial, Segment};
pub use error::TokenizerError;
pub use gguf::GgufVocab;
pub use tokenizer::{SkipSpecial, Tokenizer};
