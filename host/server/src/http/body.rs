//! Reading a request's body: its type, its size, its time.

use super::AppState;
use crate::openai::ApiError;
use axum::body::Body;
use axum::extract::{FromRequest, Request};
use axum::http::{HeaderMap, header};
use bytes::Bytes;
use futures::StreamExt as _;

/// A whole body that is said to be JSON.
pub(super) struct JsonBytes(pub(super) Bytes);

impl FromRequest<AppState> for JsonBytes {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &AppState) -> Result<Self, ApiError> {
        check_type(request.headers())?;
        let config = state.config();
        let limit = config.max_body_bytes;
        // Refused before any of it is read.
        let announced = request
            .headers()
            .get(header::CONTENT_LENGTH)
            .and_then(|value| value.to_str().ok()?.parse().ok());
        if announced.is_some_and(|length: u64| length > limit as u64) {
            return Err(ApiError::BodyTooLarge { limit });
        }
        let read = tokio::time::timeout(config.body_timeout, collect(request.into_body(), limit));
        match read.await {
            Ok(body) => {
                let body = body?;
                if let Some(characters) = config.log_bodies {
                    log(&body, characters);
                }
                Ok(Self(body))
            }
            Err(_) => Err(ApiError::BodyTimeout {
                seconds: config.body_timeout.as_secs(),
            }),
        }
    }
}

/// For who asked for it: `--enable-log-requests`.
fn log(body: &[u8], characters: usize) {
    // A character has at most four bytes.
    let head = &body[..body.len().min(characters.saturating_mul(4))];
    let text: String = String::from_utf8_lossy(head)
        .chars()
        .take(characters)
        .collect();
    tracing::info!(bytes = body.len(), body = ?text, "received");
}

/// Type and subtype in lower case, if there are any.
pub(crate) fn media_type(headers: &HeaderMap) -> Option<String> {
    let value = String::from_utf8_lossy(headers.get(header::CONTENT_TYPE)?.as_bytes());
    let essence = value.split(';').next().unwrap_or_default();
    Some(essence.trim().to_ascii_lowercase())
}

/// A missing type is taken for JSON; what forms send is not.
fn check_type(headers: &HeaderMap) -> Result<(), ApiError> {
    let Some(found) = media_type(headers) else {
        return Ok(());
    };
    let is_json = found == "application/json"
        || (found.starts_with("application/") && found.ends_with("+json"));
    if is_json {
        Ok(())
    } else {
        Err(ApiError::ContentType { found })
    }
}

/// Compressed bodies are not taken: their real size is known only once they are unpacked.
pub(super) fn check_encoding(headers: &HeaderMap) -> Result<(), ApiError> {
    let found = headers
        .get_all(header::CONTENT_ENCODING)
        .iter()
        .map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned())
        .find(|value| !value.trim().eq_ignore_ascii_case("identity"));
    match found {
        None => Ok(()),
        Some(found) => Err(ApiError::ContentEncoding { found }),
    }
}

async fn collect(body: Body, limit: usize) -> Result<Bytes, ApiError> {
    let mut stream = body.into_data_stream();
    let mut whole = Vec::new();
    while let Some(part) = stream.next().await {
        let part = part.map_err(|error| ApiError::BodyRead {
            message: error.to_string(),
        })?;
        if whole.len() + part.len() > limit {
            return Err(ApiError::BodyTooLarge { limit });
        }
        whole.extend_from_slice(&part);
    }
    Ok(whole.into())
}
