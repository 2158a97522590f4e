//! API keys, and a line of log per request.

use super::{AppState, Tenant};
use crate::openai::ApiError;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, Method, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use std::time::Instant;

/// Open to everyone: what probes, scrapers and newcomers read, as in vLLM.
const OPEN: &[&str] = &["/health", "/ping", "/metrics", "/docs", "/openapi.json"];

/// Refuses who shows no key; tells handlers whose key it was, as a [`Tenant`] among the request's extensions.
pub(super) async fn check_key(
    State(state): State<AppState>,
    mut request: Request,
    next: Next,
) -> Response {
    let keys = &state.config().api_keys;
    let shown = bearer(request.headers()).and_then(|key| keys.tenant(key));
    let open = keys.is_open()
        || request.method() == Method::OPTIONS
        || OPEN.contains(&request.uri().path());
    match shown {
        None if !open => return ApiError::Unauthorized.into_response(),
        tenant => request
            .extensions_mut()
            .insert::<Tenant>(tenant.unwrap_or_default()),
    };
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let began = Instant::now();
    let response = next.run(request).await;
    let (status, ms) = (response.status().as_u16(), began.elapsed().as_millis());
    tracing::debug!(%method, path, status, ms, "answered");
    response
}

pub(crate) fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, key) = headers
        .get(header::AUTHORIZATION)?
        .to_str()
        .ok()?
        .split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then_some(key.trim())
}
