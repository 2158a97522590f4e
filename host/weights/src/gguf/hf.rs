//! A GGUF file as the Hugging Face checkpoint that it was converted from.
//!
//! llama.cpp's converter (`convert_hf_to_gguf.py`) renames tensors, reorders or shifts some of them, and spreads
//! `config.json` and the tokenizer over metadata keys. Everything here undoes one of these. This is the one place in the
//! host that knows architectures by name, because GGUF's own names depend on them.

mod config;
mod family;
mod rope;
mod source;
mod tokenizer;

pub use config::{generation_config, hf_config};
pub use source::GgufSource;
pub use tokenizer::{GgufTokenizer, chat_template};
