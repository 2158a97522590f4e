//! A `/generate` request that may be answered.

use super::super::{ApiError, GenerateFields, RawPrompt, SamplingFields};
use super::completion::{max_tokens, prompts};
use super::params::Lengths;
use super::{MaxTokens, ModelFacts, ValidParams};

/// A validated `/generate` request.
#[derive(Clone, Debug, PartialEq)]
pub struct ValidGenerate {
    prompt: RawPrompt,
    params: ValidParams,
}

impl ValidGenerate {
    /// Checks everything that can be checked before the prompt is encoded.
    ///
    /// # Errors
    /// With the field at fault.
    pub fn new(
        sampling: SamplingFields,
        fields: GenerateFields,
        facts: &ModelFacts,
    ) -> Result<Self, ApiError> {
        let mut prompts = prompts("prompt", fields.prompt, facts)?;
        let prompt = match (prompts.pop(), prompts.is_empty()) {
            (Some(prompt), true) => prompt,
            _ => {
                return Err(ApiError::invalid(
                    "prompt",
                    "`prompt` must be one text or one list of token ids here",
                ));
            }
        };
        let max_tokens = max_tokens(sampling.max_tokens, facts)?;
        if max_tokens == MaxTokens::Exactly(0) {
            return Err(ApiError::invalid(
                "max_tokens",
                "`max_tokens` must be at least 1",
            ));
        }
        if sampling.prompt_logprobs.is_some() {
            return Err(ApiError::invalid(
                "prompt_logprobs",
                "`prompt_logprobs` is not returned here; use /v1/completions",
            ));
        }
        let lengths = Lengths {
            max_tokens,
            top_logprobs: None,
        };
        let params = ValidParams::new(sampling, &lengths, facts)?;
        params.check_sequences(1, facts)?;
        Ok(Self { prompt, params })
    }

    /// What to continue.
    #[must_use]
    pub fn prompt(&self) -> &RawPrompt {
        &self.prompt
    }

    /// Sampling and stopping.
    #[must_use]
    pub fn params(&self) -> &ValidParams {
        &self.params
    }
}
