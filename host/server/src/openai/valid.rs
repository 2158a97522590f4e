//! Validation: the only way to a request that the engine may see.
//!
//! One file per type. Fields are private to their module tree and all in range; what a field's absence means is
//! settled here.

mod chat;
mod completion;
mod conversation;
mod embedding;
mod generate;
mod module;
mod params;
mod range;
mod sampler;
mod stopping;
mod structured;
mod tokenize;

pub use chat::ValidChat;
pub use completion::{Echo, ValidCompletion};
pub use conversation::ValidConversation;
pub use embedding::{EncodingFormat, ValidEmbedding};
pub use generate::ValidGenerate;
pub use params::{Delivery, MaxTokens, ModelFacts, StreamUsage, TokenNames, ValidParams};
pub use stopping::{StopText, ValidStopping};
pub use structured::Structured;
pub use tokenize::{TokenStrings, TokenizeInput, ValidTokenize};

#[cfg(test)]
mod tests;
