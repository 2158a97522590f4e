//! `/generate`, vLLM's early endpoint.

use super::PromptField;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Fields of a `/generate` request alone.
#[derive(Clone, Debug, Deserialize, ToSchema)]
pub struct GenerateFields {
    /// What to continue: one string, or one list of token ids.
    pub prompt: PromptField,
}

/// Prompt and answer of each choice; when streaming, as far as they have come.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct GenerateResponse {
    /// One per choice.
    pub text: Vec<String>,
}
