//! `/v1/modules`: a tenant's own chat and sampler modules.

use super::super::AppState;
use super::super::body::JsonBytes;
use crate::model::store::ModuleOwner;
use crate::modules::{Deleted, ModuleCard, ModuleDesk, ModuleHistory, ModuleList, Rollback};
use crate::openai::{ApiError, ErrorBody};
use axum::Json;
use axum::body::Body;
use axum::extract::{FromRequestParts, Path};
use axum::http::HeaderMap;
use axum::http::request::Parts;
use guesthouse_tenants::Tenant;
use std::sync::Arc;

/// A tenant that may bring modules, and where it brings them.
pub(in crate::http) struct Uploader {
    desk: ModuleDesk,
    owner: ModuleOwner,
}

impl FromRequestParts<AppState> for Uploader {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &AppState) -> Result<Self, ApiError> {
        let Some(desk) = state.modules().cloned() else {
            return Err(ApiError::NotFound {
                path: parts.uri.path().to_owned(),
            });
        };
        let tenant = parts.extensions.get::<Arc<Tenant>>().cloned();
        let owner = desk.uploader(&tenant.unwrap_or_else(Tenant::anonymous))?;
        Ok(Self { desk, owner })
    }
}

/// Lists the tenant's modules.
#[utoipa::path(
    get,
    path = "/v1/modules",
    tag = "modules",
    responses((status = 200, body = ModuleList), (status = 403, body = ErrorBody))
)]
pub(in crate::http) async fn list_modules(caller: Uploader) -> Json<ModuleList> {
    Json(caller.desk.list(&caller.owner))
}

/// Describes one of the tenant's modules.
#[utoipa::path(
    get,
    path = "/v1/modules/{name}",
    tag = "modules",
    params(("name" = String, Path, description = "The module's name")),
    responses((status = 200, body = ModuleCard), (status = 403, body = ErrorBody), (status = 404, body = ErrorBody))
)]
pub(in crate::http) async fn retrieve_module(
    caller: Uploader,
    Path(name): Path<String>,
) -> Result<Json<ModuleCard>, ApiError> {
    caller.desk.get(&caller.owner, &name).map(Json)
}

/// Takes a chat or sampler module: a WebAssembly component. It serves the tenant once it passed its checks; requests in
/// flight end on the version with which they began.
#[utoipa::path(
    put,
    path = "/v1/modules/{name}",
    tag = "modules",
    params(("name" = String, Path, description = "1 to 64 of a-z, 0-9 and '-'")),
    request_body(content = Vec<u8>, content_type = "application/wasm"),
    responses(
        (status = 200, body = ModuleCard),
        (status = 400, body = ErrorBody, description = "It failed a check; what had its name before serves on"),
        (status = 403, body = ErrorBody),
        (status = 409, body = ErrorBody, description = "The name is of a module of another role"),
        (status = 413, body = ErrorBody, description = "Larger than 32 MiB"),
        (status = 429, body = ErrorBody, description = "Over `module_bytes` or `compilations_per_hour`, or a module is being brought already")
    )
)]
pub(in crate::http) async fn put_module(
    caller: Uploader,
    Path(name): Path<String>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<ModuleCard>, ApiError> {
    let Uploader { desk, owner } = caller;
    desk.put(owner, &name, &headers, body).await.map(Json)
}

/// Takes one of the tenant's modules away; its versions stay for a rollback.
#[utoipa::path(
    delete,
    path = "/v1/modules/{name}",
    tag = "modules",
    params(("name" = String, Path, description = "The module's name")),
    responses((status = 200, body = Deleted), (status = 403, body = ErrorBody), (status = 404, body = ErrorBody))
)]
pub(in crate::http) async fn delete_module(
    caller: Uploader,
    Path(name): Path<String>,
) -> Result<Json<Deleted>, ApiError> {
    let Uploader { desk, owner } = caller;
    desk.delete(owner, &name).await.map(Json)
}

/// Lists the versions of a module that are kept, newest first.
#[utoipa::path(
    get,
    path = "/v1/modules/{name}/history",
    tag = "modules",
    params(("name" = String, Path, description = "The module's name")),
    responses((status = 200, body = ModuleHistory), (status = 403, body = ErrorBody), (status = 404, body = ErrorBody))
)]
pub(in crate::http) async fn module_history(
    caller: Uploader,
    Path(name): Path<String>,
) -> Result<Json<ModuleHistory>, ApiError> {
    let Uploader { desk, owner } = caller;
    desk.history(owner, &name).await.map(Json)
}

/// Lets an earlier version serve again: `{"digest": "sha256:…"}`.
#[utoipa::path(
    post,
    path = "/v1/modules/{name}/rollback",
    tag = "modules",
    params(("name" = String, Path, description = "The module's name")),
    request_body(content = Object),
    responses((status = 200, body = ModuleCard), (status = 400, body = ErrorBody), (status = 403, body = ErrorBody))
)]
pub(in crate::http) async fn roll_back_module(
    caller: Uploader,
    Path(name): Path<String>,
    JsonBytes(body): JsonBytes,
) -> Result<Json<ModuleCard>, ApiError> {
    let request = Rollback::from_body(&body)?;
    let Uploader { desk, owner } = caller;
    desk.roll_back(owner, &name, request).await.map(Json)
}
