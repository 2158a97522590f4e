//! Errors as HTTP answers, and where they come from.

use super::trace::ErrorLabel;
use crate::openai::ApiError;
use crate::serving::GuestError;
use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use guesthouse_engine::{EngineError, SubmitError};
use guesthouse_tokenizer::TokenizerError;

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let status =
            StatusCode::from_u16(self.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        if status.is_server_error() {
            tracing::warn!(label = self.label(), error = %self, "request failed");
        } else {
            // The text may quote what the client sent.
            tracing::debug!(label = self.label(), "request refused");
        }
        let mut response = (status, Json(self.body())).into_response();
        response.extensions_mut().insert(ErrorLabel(self.label()));
        match self {
            Self::Overloaded { retry_after, .. } => {
                response
                    .headers_mut()
                    .insert(header::RETRY_AFTER, HeaderValue::from(retry_after));
            }
            Self::Limited { retry_after, .. } | Self::OverLimit { retry_after, .. } => {
                response
                    .headers_mut()
                    .insert(header::RETRY_AFTER, HeaderValue::from(retry_after));
            }
            Self::Unauthorized => {
                response
                    .headers_mut()
                    .insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            // Whatever of the body is still under way cannot be told from a next request.
            Self::BodyTooLarge { .. } | Self::BodyTimeout { .. } | Self::BodyRead { .. } => {
                response
                    .headers_mut()
                    .insert(header::CONNECTION, HeaderValue::from_static("close"));
            }
            _ => {}
        }
        response
    }
}

/// `field` is what the guest was asked about, if that is one field.
pub(super) fn from_guest(error: GuestError, field: Option<&'static str>) -> ApiError {
    match error {
        GuestError::UnknownModule { .. } => ApiError::invalid("sampler", error.to_string()),
        GuestError::InvalidRequest(message) | GuestError::Unsupported(message) => {
            ApiError::Invalid {
                param: field.map(str::to_owned).or_else(|| named_field(&message)),
                message,
            }
        }
        GuestError::Busy(message) => ApiError::Overloaded {
            message,
            retry_after: 1,
        },
        GuestError::NoPinned { .. } => ApiError::Guest {
            message: error.to_string(),
        },
        GuestError::Failed(message) => ApiError::Guest { message },
    }
}

/// Samplers begin their refusals with the field's name and a colon.
fn named_field(message: &str) -> Option<String> {
    let (field, _) = message.split_once(": ")?;
    let is_name = |c: char| c.is_ascii_lowercase() || c == '_' || c == '.';
    (!field.is_empty() && field.chars().all(is_name)).then(|| field.to_owned())
}

impl From<GuestError> for ApiError {
    fn from(error: GuestError) -> Self {
        from_guest(error, None)
    }
}

/// `field` is where the prompt came from.
pub(super) fn from_submit(error: &SubmitError, field: &'static str, retry_after: u32) -> ApiError {
    let message = error.to_string();
    match error {
        SubmitError::EmptyPrompt | SubmitError::TokenOutOfVocabulary { .. } => {
            ApiError::invalid(field, message)
        }
        SubmitError::TooLong { .. }
        | SubmitError::NeverFits { .. }
        | SubmitError::OverQuota { .. }
        | SubmitError::PromptExceedsStep { .. } => ApiError::ContextLength {
            param: field,
            message,
        },
        SubmitError::WrongTask(_) | SubmitError::EmbeddingParams => {
            ApiError::invalid("model", message)
        }
        SubmitError::NothingToDo => ApiError::invalid("max_tokens", message),
        SubmitError::ChoicesOutOfRange { .. } => ApiError::invalid("n", message),
        SubmitError::NoCandidates => ApiError::invalid("sampler", message),
        SubmitError::QueueFull { .. } => ApiError::Overloaded {
            message,
            retry_after,
        },
        SubmitError::ShuttingDown | SubmitError::Dead => ApiError::Unavailable { message },
        SubmitError::DuplicateId(_) | SubmitError::ChooserMissing | SubmitError::ChooserUnused => {
            ApiError::Internal { message }
        }
    }
}

/// An accepted request that failed.
pub(super) fn from_engine(error: &EngineError, field: &'static str, retry_after: u32) -> ApiError {
    match error {
        EngineError::Refused(refusal) => from_submit(refusal, field, retry_after),
        EngineError::Executor(_) | EngineError::Aborted | EngineError::Dead => {
            ApiError::Unavailable {
                message: error.to_string(),
            }
        }
        EngineError::Chooser(_) => ApiError::Guest {
            message: error.to_string(),
        },
        // Which field asked for the grammar, for so many branches, or took the tokens away is known no more.
        EngineError::Constraint { .. }
        | EngineError::BranchesDoNotFit { .. }
        | EngineError::NothingToChoose { .. }
        | EngineError::OverQuota { .. } => ApiError::Invalid {
            param: None,
            message: error.to_string(),
        },
        other => ApiError::Internal {
            message: other.to_string(),
        },
    }
}

/// `field` is where the text came from.
pub(super) fn from_tokenizer(error: &TokenizerError, field: &'static str) -> ApiError {
    match error {
        TokenizerError::Encode { .. }
        | TokenizerError::ControlFromText { .. }
        | TokenizerError::UnknownToken { .. } => ApiError::invalid(field, error.to_string()),
        other => ApiError::Internal {
            message: other.to_string(),
        },
    }
}
