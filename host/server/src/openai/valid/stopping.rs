//! When an answer ends, beside its length.

use super::super::{ApiError, OneOrMany};

/// Strings and their bytes together, so that matching stays cheap.
const MAX_STRINGS: usize = 64;
const MAX_STRING_BYTES: usize = 4096;
const MAX_TOKENS: usize = 1024;

/// Whether a stop string, or a stop token's text, stays in the answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StopText {
    /// It is cut off.
    #[default]
    Cut,
    /// It stays.
    Keep,
}

/// Stop strings and tokens of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ValidStopping {
    pub(super) strings: Vec<String>,
    pub(super) tokens: Vec<u32>,
    pub(super) text: StopText,
    pub(super) ignores_eos: bool,
}

/// The fields as they came.
pub(super) struct StopFields {
    pub(super) stop: Option<OneOrMany>,
    pub(super) stop_token_ids: Option<Vec<u32>>,
    pub(super) include_stop: Option<bool>,
    pub(super) ignore_eos: Option<bool>,
    /// Size of the vocabulary.
    pub(super) vocab: u32,
}

impl ValidStopping {
    pub(super) fn new(fields: StopFields) -> Result<Self, ApiError> {
        let strings = fields.stop.map(OneOrMany::into_vec).unwrap_or_default();
        if strings.len() > MAX_STRINGS {
            let found = strings.len();
            return Err(ApiError::invalid(
                "stop",
                format!("`stop` has {found} strings, at most {MAX_STRINGS} are allowed"),
            ));
        }
        for string in &strings {
            if string.is_empty() {
                return Err(ApiError::invalid(
                    "stop",
                    "`stop` has an empty string, which would stop everywhere; leave it out",
                ));
            }
            if string.len() > MAX_STRING_BYTES {
                let found = string.len();
                return Err(ApiError::invalid(
                    "stop",
                    format!(
                        "a string of `stop` has {found} bytes, at most {MAX_STRING_BYTES} are allowed"
                    ),
                ));
            }
        }
        let mut tokens = fields.stop_token_ids.unwrap_or_default();
        if let Some(bad) = tokens.iter().find(|&&id| id >= fields.vocab) {
            let vocab = fields.vocab;
            return Err(ApiError::invalid(
                "stop_token_ids",
                format!(
                    "`stop_token_ids` has {bad}, which is outside the vocabulary of {vocab} tokens"
                ),
            ));
        }
        if tokens.len() > MAX_TOKENS {
            let found = tokens.len();
            return Err(ApiError::invalid(
                "stop_token_ids",
                format!("`stop_token_ids` has {found} ids, at most {MAX_TOKENS} are allowed"),
            ));
        }
        tokens.sort_unstable();
        tokens.dedup();
        let text = if fields.include_stop == Some(true) {
            StopText::Keep
        } else {
            StopText::Cut
        };
        Ok(Self {
            strings,
            tokens,
            text,
            ignores_eos: fields.ignore_eos == Some(true),
        })
    }

    /// Stop strings; none is empty.
    #[must_use]
    pub fn strings(&self) -> &[String] {
        &self.strings
    }

    /// The request's own stop tokens, ascending.
    #[must_use]
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// What becomes of the matched text.
    #[must_use]
    pub fn text(&self) -> StopText {
        self.text
    }

    /// All tokens that end the answer: the request's, and the model's unless it ignores them.
    #[must_use]
    pub fn all_tokens(&self, model: &[u32]) -> Vec<u32> {
        let mut all = self.tokens.clone();
        if !self.ignores_eos {
            all.extend_from_slice(model);
        }
        all.sort_unstable();
        all.dedup();
        all
    }
}
