//! A `/tokenize` request that may be answered.

use super::super::{ApiError, ConversationFields, TokenizeFields};
use super::ValidConversation;
use guesthouse_tokenizer::AddSpecial;

/// What to encode.
#[derive(Clone, Debug, PartialEq)]
pub enum TokenizeInput {
    /// Raw text.
    Prompt {
        /// The text.
        text: String,
        /// Whether the tokenizer adds its own tokens.
        add_special: AddSpecial,
    },
    /// A conversation, through the template.
    Chat(ValidConversation),
}

/// Whether tokens are written out beside their ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenStrings {
    /// As the vocabulary writes them.
    Wanted,
    /// Not.
    Unwanted,
}

/// A validated `/tokenize` request.
#[derive(Clone, Debug, PartialEq)]
pub struct ValidTokenize {
    input: TokenizeInput,
    strings: TokenStrings,
}

impl ValidTokenize {
    /// Checks that there is one thing to encode.
    ///
    /// # Errors
    /// With the field at fault.
    pub fn new(fields: TokenizeFields, conversation: ConversationFields) -> Result<Self, ApiError> {
        let input = match (fields.prompt, &conversation.messages) {
            (Some(text), None) => {
                let add_special = if fields.add_special_tokens == Some(false) {
                    AddSpecial::No
                } else {
                    AddSpecial::Yes
                };
                TokenizeInput::Prompt { text, add_special }
            }
            (None, Some(_)) => TokenizeInput::Chat(ValidConversation::new(conversation)?),
            (Some(_), Some(_)) => {
                return Err(ApiError::invalid(
                    "prompt",
                    "`prompt` and `messages` exclude each other; send one of them",
                ));
            }
            (None, None) => {
                return Err(ApiError::invalid(
                    "prompt",
                    "either `prompt` or `messages` is needed",
                ));
            }
        };
        let strings = if fields.return_token_strs == Some(true) {
            TokenStrings::Wanted
        } else {
            TokenStrings::Unwanted
        };
        Ok(Self { input, strings })
    }

    /// What to encode.
    #[must_use]
    pub fn input(&self) -> &TokenizeInput {
        &self.input
    }

    /// Whether tokens are written out.
    #[must_use]
    pub fn strings(&self) -> TokenStrings {
        self.strings
    }
}
