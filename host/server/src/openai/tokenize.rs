//! `/tokenize` and `/detokenize`, with vLLM's fields.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Fields of a `/tokenize` request beside [`super::ConversationFields`].
#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
pub struct TokenizeFields {
    /// The model's id. May be left out.
    pub model: Option<String>,
    /// Raw text; a control token's literal in it is that token. Either this or `messages`.
    pub prompt: Option<String>,
    /// Adds BOS (and EOS) around a prompt as the tokenizer says; on by default for `prompt`, not used for `messages`.
    pub add_special_tokens: Option<bool>,
    /// Returns each token as the vocabulary writes it.
    pub return_token_strs: Option<bool>,
}

/// Token ids of a text or conversation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct TokenizeResponse {
    /// How many.
    pub count: usize,
    /// Longest sequence that the model takes.
    pub max_model_len: u32,
    /// The ids.
    pub tokens: Vec<u32>,
    /// If asked for.
    pub token_strs: Option<Vec<String>>,
}

/// A `/detokenize` request.
#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
pub struct DetokenizeFields {
    /// The model's id. May be left out.
    pub model: Option<String>,
    /// The ids.
    pub tokens: Vec<u32>,
}

/// The text of token ids, control tokens included.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct DetokenizeResponse {
    /// The text.
    pub prompt: String,
}
