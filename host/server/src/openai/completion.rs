//! `/v1/completions`: request fields beside [`super::SamplingFields`], and answers.

use super::{PromptField, Usage};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

/// Fields of a completion request alone.
#[derive(Clone, Debug, Deserialize, ToSchema)]
pub struct CompletionFields {
    /// What to continue.
    pub prompt: PromptField,
    /// Puts the prompt before the answer.
    pub echo: Option<bool>,
    /// Log-probabilities of the chosen tokens and of so many best ones.
    pub logprobs: Option<i64>,
    /// Not supported.
    pub suffix: Option<String>,
    /// Whether the tokenizer adds its BOS (and EOS) around a text prompt; on by default.
    pub add_special_tokens: Option<bool>,
}

/// Log-probabilities in the legacy format: four lists of equal length.
#[derive(Clone, Debug, Default, PartialEq, Serialize, ToSchema)]
pub struct CompletionLogprobs {
    /// Each token as text; `bytes:\xNN…` where it is not whole characters.
    pub tokens: Vec<String>,
    /// `null` for a prompt's first token, which nothing precedes.
    pub token_logprobs: Vec<Option<f32>>,
    /// The best tokens and the chosen one.
    pub top_logprobs: Vec<Option<Map<String, Value>>>,
    /// Where each token begins, in characters of the choice's text.
    pub text_offset: Vec<u32>,
}

/// One answer.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct CompletionChoice {
    /// `prompt index × n + choice`.
    pub index: u32,
    /// The text, or its next part when streaming.
    pub text: String,
    /// If asked for.
    pub logprobs: Option<CompletionLogprobs>,
    /// `stop`, `length`, or `null` while it goes on.
    pub finish_reason: Option<&'static str>,
    /// The stop string or token id that ended it; `null` for the model's own end token.
    #[schema(value_type = Option<String>)]
    pub stop_reason: Option<Value>,
    /// If asked for: per prompt token a map from token id to its entry, `null` for the first.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<Object>>)]
    pub prompt_logprobs: Option<Vec<Option<Map<String, Value>>>>,
}

/// An answer, or one chunk of it.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct CompletionResponse {
    /// `cmpl-…`
    pub id: String,
    /// `text_completion`
    pub object: &'static str,
    /// Unix seconds.
    pub created: u64,
    /// The model's id.
    pub model: String,
    /// The answers.
    pub choices: Vec<CompletionChoice>,
    /// In chunks: present only if asked for, and `null` but in the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Usage>)]
    pub usage: Option<Option<Usage>>,
}
