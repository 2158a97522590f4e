//! Token counts of a request.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Details of the prompt's count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PromptTokensDetails {
    /// Tokens whose KV blocks were found in the prefix cache.
    pub cached_tokens: u32,
}

/// Tokens read and written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Usage {
    /// Tokens of all prompts, each counted once whatever `n` is.
    pub prompt_tokens: u32,
    /// Tokens of all choices, end tokens included.
    pub completion_tokens: u32,
    /// Their sum.
    pub total_tokens: u32,
    /// Details.
    pub prompt_tokens_details: PromptTokensDetails,
}

impl Usage {
    /// Counts of one request.
    #[must_use]
    pub fn new(prompt: u32, completion: u32, cached: u32) -> Self {
        Self {
            prompt_tokens: prompt,
            completion_tokens: completion,
            total_tokens: prompt.saturating_add(completion),
            prompt_tokens_details: PromptTokensDetails {
                cached_tokens: cached,
            },
        }
    }
}
