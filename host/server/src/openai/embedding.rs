//! `/v1/embeddings`.

use super::PromptField;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Fields of an embedding request.
#[derive(Clone, Debug, Deserialize, ToSchema)]
pub struct EmbeddingFields {
    /// The model's id. May be left out.
    pub model: Option<String>,
    /// What to embed: one or several prompts.
    pub input: PromptField,
    /// `float` (the default) or `base64`: the numbers' 32-bit floats, least significant byte first.
    pub encoding_format: Option<String>,
    /// Keeps so many leading numbers of each vector, scaled to length 1 again where the model's vectors have it.
    pub dimensions: Option<i64>,
    /// Whether the tokenizer adds its own tokens around texts; on by default.
    pub add_special_tokens: Option<bool>,
    /// vLLM's addition: separates prefix-cache entries.
    pub cache_salt: Option<String>,
}

/// A vector as the client asked for it.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[serde(untagged)]
pub enum EmbeddingVector {
    /// Numbers.
    Float(Vec<f32>),
    /// Their bytes, in base64.
    Base64(String),
}

/// The vector of one prompt.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct EmbeddingData {
    /// Which prompt.
    pub index: u32,
    /// `embedding`
    pub object: &'static str,
    /// The vector.
    pub embedding: EmbeddingVector,
}

/// Tokens read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct EmbeddingUsage {
    /// Of all prompts.
    pub prompt_tokens: u32,
    /// The same.
    pub total_tokens: u32,
}

/// Vectors of all prompts, in their order.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct EmbeddingResponse {
    /// `embd-…`
    pub id: String,
    /// `list`
    pub object: &'static str,
    /// Unix seconds.
    pub created: u64,
    /// The model's id.
    pub model: String,
    /// The vectors.
    pub data: Vec<EmbeddingData>,
    /// Counts.
    pub usage: EmbeddingUsage,
}
