//! API keys.

use super::AppState;
use crate::openai::ApiError;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, Method, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

/// Open to everyone: what probes, scrapers and newcomers read, as in vLLM.
const OPEN: &[&str] = &["/health", "/ping", "/metrics", "/docs", "/openapi.json"];

pub(super) async fn check_key(State(state): State<AppState>, request: Request, next: Next) -> Response {
    let keys = &state.config().api_keys;
    let open = keys.is_open() || request.method() == Method::OPTIONS || OPEN.contains(&request.uri().path());
    if open || bearer(request.headers()).is_some_and(|key| keys.accepts(key)) {
        return next.run(request).await;
    }
    ApiError::Unauthorized.into_response()
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, key) = headers.get(header::AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then_some(key.trim())
}
