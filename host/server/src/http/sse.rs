//! Server-sent events (WHATWG HTML, section 9.2), as OpenAI frames them.

use crate::openai::ApiError;
use axum::body::Body;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures::Stream;
use serde::Serialize;
use std::convert::Infallible;

/// One event. JSON has no line breaks of its own.
pub(super) fn data(value: &impl Serialize) -> Bytes {
    match serde_json::to_string(value) {
        Ok(json) => format!("data: {json}\n\n").into(),
        Err(error) => data(
            &ApiError::Internal {
                message: format!("the answer could not be written: {error}"),
            }
            .body(),
        ),
    }
}

/// The last event.
pub(super) fn done() -> Bytes {
    Bytes::from_static(b"data: [DONE]\n\n")
}

/// What clients pass over; it keeps proxies from closing a silent stream.
pub(super) fn comment() -> Bytes {
    Bytes::from_static(b": keep-alive\n\n")
}

/// An answer that is sent as it is made. Dropping it drops the stream.
pub(super) fn response(
    content_type: &'static str,
    stream: impl Stream<Item = Bytes> + Send + 'static,
) -> Response {
    use futures::StreamExt as _;
    let mut response = Body::from_stream(stream.map(Ok::<_, Infallible>)).into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // nginx buffers whole answers otherwise.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}
