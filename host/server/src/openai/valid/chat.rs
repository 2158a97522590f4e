//! A chat request that may be answered.

use super::super::{ApiError, ChatFields, ConversationFields, SamplingFields};
use super::params::Lengths;
use super::range::count;
use super::{MaxTokens, ModelFacts, ValidConversation, ValidParams};

/// A validated `/v1/chat/completions` request.
#[derive(Clone, Debug, PartialEq)]
pub struct ValidChat {
    conversation: ValidConversation,
    params: ValidParams,
    echo: String,
}

impl ValidChat {
    /// Checks everything that can be checked before the prompt is rendered.
    ///
    /// # Errors
    /// With the field at fault.
    pub fn new(
        sampling: SamplingFields,
        chat: &ChatFields,
        conversation: ConversationFields,
        facts: &ModelFacts,
    ) -> Result<Self, ApiError> {
        for (param, field, instead) in [
            ("functions", &chat.functions, "tools"),
            ("function_call", &chat.function_call, "tool_choice"),
        ] {
            if field.is_some() {
                return Err(ApiError::invalid(
                    param,
                    format!("`{param}` is not supported; use `{instead}`"),
                ));
            }
        }
        let wants = chat.logprobs.unwrap_or(false);
        let top = count("top_logprobs", chat.top_logprobs, 0, facts.max_logprobs)?;
        if !wants && top.is_some_and(|top| top > 0) {
            return Err(ApiError::invalid(
                "top_logprobs",
                "`top_logprobs` needs `logprobs` to be true",
            ));
        }
        let lengths = Lengths {
            max_tokens: max_tokens(&sampling, chat, facts)?,
            top_logprobs: wants.then(|| top.unwrap_or(0)),
        };
        let conversation = ValidConversation::new(conversation)?;
        let echo = match chat.echo {
            Some(true) => conversation
                .last_assistant_text()
                .unwrap_or_default()
                .to_owned(),
            _ => String::new(),
        };
        let params = ValidParams::new(sampling, &lengths, facts)?;
        params.check_sequences(1, facts)?;
        Ok(Self {
            params,
            conversation,
            echo,
        })
    }

    /// The conversation.
    #[must_use]
    pub fn conversation(&self) -> &ValidConversation {
        &self.conversation
    }

    /// Sampling and stopping.
    #[must_use]
    pub fn params(&self) -> &ValidParams {
        &self.params
    }

    /// What stands before each answer; usually nothing.
    #[must_use]
    pub fn echo(&self) -> &str {
        &self.echo
    }
}

/// The newer name wins. 0 is as if not given, as common guides send it.
fn max_tokens(
    sampling: &SamplingFields,
    chat: &ChatFields,
    facts: &ModelFacts,
) -> Result<MaxTokens, ApiError> {
    let old = count("max_tokens", sampling.max_tokens, 0, u32::MAX)?;
    let new = count(
        "max_completion_tokens",
        chat.max_completion_tokens,
        0,
        u32::MAX,
    )?;
    Ok(
        match (
            new.filter(|&max| max > 0).or(old.filter(|&max| max > 0)),
            facts.defaults.max_tokens,
        ) {
            (Some(max), _) => MaxTokens::Exactly(max),
            (None, Some(default)) => MaxTokens::AtMost(default),
            (None, None) => MaxTokens::Rest,
        },
    )
}
