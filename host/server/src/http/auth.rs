//! Who asks: the key that a request shows.

use super::access::{Access, Caller, Sees};
use super::{AppState, HttpConfig};
use crate::openai::ApiError;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, Method, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use guesthouse_tenants::Tenant;
use std::sync::Arc;

/// Open to everyone: what probes and newcomers read.
const OPEN: &[&str] = &["/health", "/ping", "/docs", "/openapi.json"];

/// What the administrator's key opens.
const ADMIN: &[&str] = &["/metrics", "/health", "/ping"];

/// Refuses who shows no key where one is needed; tells handlers whose it was, as a [`Caller`] and an `Arc<Tenant>` among
/// the request's extensions.
pub(super) async fn check_key(
    State(state): State<AppState>,
    mut request: Request,
    next: Next,
) -> Response {
    let Some(caller) = caller(state.config(), &request) else {
        return ApiError::Unauthorized.into_response();
    };
    if let Err(error) = super::body::check_encoding(request.headers()) {
        return error.into_response();
    }
    let extensions = request.extensions_mut();
    extensions.insert(Arc::clone(&caller.tenant));
    extensions.insert(caller);
    next.run(request).await
}

/// None where a key is needed, and none that fits was shown.
fn caller(config: &HttpConfig, request: &Request) -> Option<Caller> {
    let directory = config.directory.as_ref();
    let path = request.uri().path();
    let keyed = config.access == Access::Keys
        && (!config.api_keys.is_empty() || directory.is_some_and(|d| d.requires_key()));
    let shown = shown_key(request.headers());
    let known = shown.and_then(|key| {
        let listed = directory.and_then(|directory| directory.authenticate(key));
        listed.or_else(|| config.api_keys.tenant(key))
    });
    if let Some(tenant) = known {
        let sees = if keyed { Sees::Own } else { Sees::All };
        return Some(Caller { tenant, sees });
    }
    let admin =
        ADMIN.contains(&path) && shown.is_some_and(|key| config.admin_keys.tenant(key).is_some());
    let open = !keyed || OPEN.contains(&path) || request.method() == Method::OPTIONS;
    let tenant = Tenant::anonymous();
    match (admin || !keyed, open) {
        (true, _) => Some(Caller {
            tenant,
            sees: Sees::All,
        }),
        (false, true) => Some(Caller {
            tenant,
            sees: Sees::Own,
        }),
        (false, false) => None,
    }
}

/// The key of `Authorization: Bearer`, else of `x-api-key`.
pub(crate) fn shown_key(headers: &HeaderMap) -> Option<&str> {
    bearer(headers).or_else(|| headers.get("x-api-key")?.to_str().ok())
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, key) = headers
        .get(header::AUTHORIZATION)?
        .to_str()
        .ok()?
        .split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then_some(key.trim())
}
