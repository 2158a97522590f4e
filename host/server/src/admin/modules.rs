//! `/admin/v1/modules`. With `?tenant=ID`, that tenant's own.

use super::Admin;
use crate::http::media_type;
use crate::model::store::ModuleOwner;
use crate::modules::{Deleted, Fetch, ModuleCard, ModuleDesk, ModuleHistory, ModuleList, Rollback};
use crate::openai::ApiError;
use axum::Json;
use axum::body::{Body, Bytes, to_bytes};
use axum::extract::rejection::{BytesRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::http::HeaderMap;
use serde::Deserialize;

/// Whose modules are meant.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Whose {
    tenant: Option<String>,
}

type Asked = Result<Query<Whose>, QueryRejection>;

fn meant(admin: &Admin, asked: Asked) -> Result<(&ModuleDesk, ModuleOwner), ApiError> {
    let Query(whose) = asked.map_err(|error| ApiError::invalid("tenant", error.body_text()))?;
    let desk = &admin.0.desk;
    Ok((desk, desk.owner(whose.tenant.as_deref())?))
}

pub(super) async fn list(
    State(admin): State<Admin>,
    asked: Asked,
) -> Result<Json<ModuleList>, ApiError> {
    let (desk, owner) = meant(&admin, asked)?;
    Ok(Json(desk.list(&owner)))
}

pub(super) async fn get(
    State(admin): State<Admin>,
    Path(name): Path<String>,
    asked: Asked,
) -> Result<Json<ModuleCard>, ApiError> {
    let (desk, owner) = meant(&admin, asked)?;
    desk.get(&owner, &name).map(Json)
}

pub(super) async fn put(
    State(admin): State<Admin>,
    Path(name): Path<String>,
    asked: Asked,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<ModuleCard>, ApiError> {
    let (desk, owner) = meant(&admin, asked)?;
    // JSON says where the module is; anything else is the module.
    if media_type(&headers).as_deref() != Some("application/json") {
        return desk.put(owner, &name, &headers, body).await.map(Json);
    }
    let body = to_bytes(body, super::MAX_REQUEST).await.map_err(|_| {
        let limit = super::MAX_REQUEST;
        ApiError::invalid(
            "source",
            format!("the JSON did not arrive whole, or is larger than {limit} bytes"),
        )
    })?;
    let fetch = Fetch::from_body(&body)?;
    desk.fetch(owner, &name, fetch).await.map(Json)
}

pub(super) async fn delete(
    State(admin): State<Admin>,
    Path(name): Path<String>,
    asked: Asked,
) -> Result<Json<Deleted>, ApiError> {
    let (desk, owner) = meant(&admin, asked)?;
    desk.delete(owner, &name).await.map(Json)
}

pub(super) async fn history(
    State(admin): State<Admin>,
    Path(name): Path<String>,
    asked: Asked,
) -> Result<Json<ModuleHistory>, ApiError> {
    let (desk, owner) = meant(&admin, asked)?;
    desk.history(owner, &name).await.map(Json)
}

pub(super) async fn roll_back(
    State(admin): State<Admin>,
    Path(name): Path<String>,
    asked: Asked,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<ModuleCard>, ApiError> {
    let body = body.map_err(|error| super::from_body(&error, super::MAX_REQUEST))?;
    let request = Rollback::from_body(&body)?;
    let (desk, owner) = meant(&admin, asked)?;
    desk.roll_back(owner, &name, request).await.map(Json)
}
