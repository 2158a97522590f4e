//! A completion request that may be answered.

use super::super::{ApiError, CompletionFields, PromptField, RawPrompt, SamplingFields};
use super::params::Lengths;
use super::range::count;
use super::sampler::check_ids;
use super::{MaxTokens, ModelFacts, ValidParams};
use guesthouse_tokenizer::AddSpecial;

/// Whether the prompt stands before the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Echo {
    /// It does.
    Prompt,
    /// It does not.
    Nothing,
}

/// A validated `/v1/completions` request.
#[derive(Clone, Debug, PartialEq)]
pub struct ValidCompletion {
    prompts: Vec<RawPrompt>,
    params: ValidParams,
    echo: Echo,
    add_special: AddSpecial,
}

/// OpenAI's default.
pub(super) const DEFAULT_MAX_TOKENS: u32 = 16;

impl ValidCompletion {
    /// Checks everything that can be checked before the prompts are encoded.
    ///
    /// # Errors
    /// With the field at fault.
    pub fn new(
        sampling: SamplingFields,
        fields: CompletionFields,
        facts: &ModelFacts,
    ) -> Result<Self, ApiError> {
        if fields.suffix.is_some_and(|suffix| !suffix.is_empty()) {
            return Err(ApiError::invalid(
                "suffix",
                "`suffix` is not supported; leave it out",
            ));
        }
        let prompts = prompts("prompt", fields.prompt, facts)?;
        let top_logprobs = count("logprobs", fields.logprobs, 0, facts.max_logprobs)?;
        let echo = if fields.echo == Some(true) {
            Echo::Prompt
        } else {
            Echo::Nothing
        };
        let scores =
            sampling.prompt_logprobs.is_some() || (echo == Echo::Prompt && top_logprobs.is_some());
        let max_tokens = max_tokens(sampling.max_tokens, facts)?;
        if max_tokens == MaxTokens::Exactly(0) && !scores {
            return Err(ApiError::invalid(
                "max_tokens",
                "`max_tokens` must be at least 1; 0 is for scoring a prompt, with `echo` and `logprobs`",
            ));
        }
        let lengths = Lengths {
            max_tokens,
            top_logprobs,
        };
        let add_special = if fields.add_special_tokens == Some(false) {
            AddSpecial::No
        } else {
            AddSpecial::Yes
        };
        let params = ValidParams::new(sampling, &lengths, facts)?;
        params.check_sequences(prompts.len(), facts)?;
        Ok(Self {
            prompts,
            params,
            echo,
            add_special,
        })
    }

    /// Prompts times answers made of each.
    #[must_use]
    pub fn sequences(&self) -> u64 {
        self.prompts.len() as u64 * u64::from(self.params.sequences())
    }

    /// At least one; none is the empty list, ids are in the vocabulary.
    #[must_use]
    pub fn prompts(&self) -> &[RawPrompt] {
        &self.prompts
    }

    /// Sampling and stopping.
    #[must_use]
    pub fn params(&self) -> &ValidParams {
        &self.params
    }

    /// Whether the prompt stands before the answer.
    #[must_use]
    pub fn echo(&self) -> Echo {
        self.echo
    }

    /// Whether the tokenizer adds its own tokens around texts.
    #[must_use]
    pub fn add_special(&self) -> AddSpecial {
        self.add_special
    }

    /// Alternatives per token of the prompt that the engine must report, for either of the two fields that ask.
    #[must_use]
    pub fn scored_prompt(&self) -> Option<u32> {
        let echoed = if self.echo == Echo::Prompt {
            self.params.top_logprobs
        } else {
            None
        };
        echoed.max(self.params.prompt_logprobs)
    }
}

pub(super) fn max_tokens(given: Option<i64>, facts: &ModelFacts) -> Result<MaxTokens, ApiError> {
    Ok(
        match (
            count("max_tokens", given, 0, u32::MAX)?,
            facts.defaults.max_tokens,
        ) {
            (Some(max), _) => MaxTokens::Exactly(max),
            (None, default) => MaxTokens::AtMost(default.unwrap_or(DEFAULT_MAX_TOKENS)),
        },
    )
}

/// Prompts of the field `param`.
pub(super) fn prompts(
    param: &str,
    field: PromptField,
    facts: &ModelFacts,
) -> Result<Vec<RawPrompt>, ApiError> {
    let prompts = match field {
        PromptField::Empty => {
            return Err(ApiError::invalid(
                param,
                format!("`{param}` is an empty list; it needs at least one prompt"),
            ));
        }
        PromptField::One(prompt) => vec![prompt],
        PromptField::Many(prompts) => prompts,
    };
    if prompts.len() > facts.max_prompts {
        let (found, most) = (prompts.len(), facts.max_prompts);
        return Err(ApiError::invalid(
            param,
            format!("`{param}` has {found} prompts, at most {most} are allowed"),
        ));
    }
    for prompt in &prompts {
        match prompt {
            RawPrompt::Ids(ids) if ids.is_empty() => {
                return Err(ApiError::invalid(
                    param,
                    format!("`{param}` has an empty list of token ids; it needs at least one"),
                ));
            }
            RawPrompt::Ids(ids) => check_ids(param, ids, facts.vocab)?,
            // Whether an empty text has tokens (a BOS) is known once it is encoded.
            RawPrompt::Text(_) => {}
        }
    }
    Ok(prompts)
}
