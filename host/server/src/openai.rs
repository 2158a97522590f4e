//! OpenAI's HTTP types, field for field, with vLLM's extensions under their names.
//!
//! A request is read as `*Fields`, which hold what came, and becomes one of the `Valid*` types, which alone lead to the
//! engine. Answers are the `*Response` and `*Chunk` types.

mod chat;
mod completion;
mod embedding;
mod error;
mod generate;
mod models;
mod parse;
mod prompt;
mod sampling;
mod tokenize;
mod usage;
mod valid;

pub use chat::*;
pub use completion::*;
pub use embedding::*;
pub use error::*;
pub use generate::*;
pub use models::*;
pub use parse::parse;
pub use prompt::*;
pub use sampling::*;
pub use tokenize::*;
pub use usage::*;
pub use valid::*;
