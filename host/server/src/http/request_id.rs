//! Names of requests: the client's `x-request-id`, or one of our own.

use super::ids;
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use std::sync::Arc;

/// The header that names a request and its answer.
pub(super) const HEADER: HeaderName = HeaderName::from_static("x-request-id");

/// Most characters of a client's name for a request.
const MAX_LEN: usize = 128;

/// `[A-Za-z0-9._-]{1,128}`: safe in a log, a header and a file name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RequestId(Arc<str>);

impl RequestId {
    /// The client's, where it sent one that is allowed; one that is not is passed over.
    pub(super) fn of(headers: &HeaderMap) -> Self {
        let sent = headers.get(HEADER).and_then(|value| value.to_str().ok());
        match sent.filter(|id| allowed(id)) {
            Some(id) => Self(id.into()),
            None => Self(ids::random("req-").into()),
        }
    }

    pub(super) fn as_str(&self) -> &str {
        &self.0
    }

    /// For whoever does not know this type.
    pub(super) fn shared(&self) -> Arc<str> {
        Arc::clone(&self.0)
    }

    /// As the answer's header.
    pub(super) fn header(&self) -> Option<HeaderValue> {
        HeaderValue::from_str(&self.0).ok()
    }
}

fn allowed(id: &str) -> bool {
    (1..=MAX_LEN).contains(&id.len())
        && id
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'))
}

#[cfg(test)]
mod tests;
