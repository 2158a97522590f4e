//! `/admin/v1/tenants`.

use super::{Admin, MAX_REQUEST, from_body};
use crate::blocking::blocking;
use crate::modules::Deleted;
use crate::openai::ApiError;
use axum::Json;
use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use guesthouse_tenants::{Counted, Policy, Registry, TenantId, TenantRecord, TenantsError, day_of};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Days that `…/usage` goes back, today with it.
const DAYS: u32 = 31;

/// A tenant.
#[derive(Debug, Serialize)]
pub(crate) struct TenantCard {
    id: String,
    object: &'static str,
    number: u64,
    /// Unix seconds.
    created: u64,
    policy: Policy,
    keys: Vec<KeyCard>,
}

/// A key, without its secret.
#[derive(Debug, Serialize)]
struct KeyCard {
    id: String,
    /// Unix seconds.
    created: u64,
    /// From then on it is refused, Unix seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    expires: Option<u64>,
}

impl From<TenantRecord> for TenantCard {
    fn from(record: TenantRecord) -> Self {
        let tenant = record.tenant;
        let keys = record.keys.iter().map(|key| KeyCard {
            id: key.id.to_string(),
            created: key.created,
            expires: key.expires,
        });
        Self {
            id: tenant.id.to_string(),
            object: "tenant",
            number: tenant.number,
            created: record.created,
            policy: tenant.policy.clone(),
            keys: keys.collect(),
        }
    }
}

#[derive(Debug, Serialize)]
pub(super) struct TenantList {
    object: &'static str,
    data: Vec<TenantCard>,
}

/// A tenant and its first key.
#[derive(Debug, Serialize)]
pub(super) struct Added {
    #[serde(flatten)]
    tenant: TenantCard,
    /// Shown this once.
    key: String,
}

/// A further key.
#[derive(Debug, Serialize)]
pub(super) struct Rotated {
    id: String,
    object: &'static str,
    /// Shown this once.
    key: String,
}

/// What a tenant used, by day.
#[derive(Debug, Serialize)]
pub(super) struct UsageList {
    object: &'static str,
    data: Vec<UsageCard>,
}

#[derive(Debug, Serialize)]
struct UsageCard {
    /// Where the day begins, UTC, Unix seconds.
    day: u64,
    requests: u64,
    prompt_tokens: u64,
    output_tokens: u64,
    guest_ms: u64,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct AddRequest {
    id: String,
    #[serde(default)]
    policy: Option<Value>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ChangeRequest {
    /// A JSON merge patch.
    policy: Value,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct RotateRequest {
    /// How long older keys stay good.
    keep_old_seconds: u64,
}

impl Admin {
    /// Does work on the registry where it may block.
    async fn tenants<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Registry) -> Result<T, TenantsError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let Some(registry) = self.0.tenants.clone() else {
            return Err(ApiError::Unavailable {
                message: "this server has no file of tenants".to_owned(),
            });
        };
        blocking(move || work(&registry)).await?.map_err(told)
    }
}

/// What clients are told of each failure.
fn told(error: TenantsError) -> ApiError {
    let message = error.to_string();
    match error {
        TenantsError::Name(_) | TenantsError::Reserved { .. } => ApiError::invalid("id", message),
        TenantsError::Policy { field, .. } => ApiError::invalid(format!("policy.{field}"), message),
        TenantsError::PolicyField { path, .. } => {
            ApiError::invalid(format!("policy.{}", path.trim_start_matches('.')), message)
        }
        TenantsError::Exists { .. } | TenantsError::TooManyKeys { .. } => {
            ApiError::Conflict { message }
        }
        TenantsError::Unknown { id } => ApiError::TenantNotFound {
            name: id.to_string(),
        },
        TenantsError::Locked { .. } | TenantsError::Full { .. } => {
            ApiError::Unavailable { message }
        }
        _ => ApiError::Internal { message },
    }
}

fn parse_id(text: &str) -> Result<TenantId, ApiError> {
    TenantId::parse(text).map_err(|error| told(error.into()))
}

fn parse<T: DeserializeOwned>(body: Result<Bytes, BytesRejection>) -> Result<T, ApiError> {
    let body = body.map_err(|error| from_body(&error, MAX_REQUEST))?;
    let read = &mut serde_json::Deserializer::from_slice(&body);
    serde_path_to_error::deserialize(read).map_err(|error| {
        let path = error.path().to_string();
        ApiError::Invalid {
            param: (path != ".").then_some(path),
            message: format!("the body is not accepted: {}", error.inner()),
        }
    })
}

fn find(registry: &Registry, id: &TenantId) -> Result<TenantCard, TenantsError> {
    let found = registry.get(id).map(TenantCard::from);
    found.ok_or_else(|| TenantsError::Unknown { id: id.clone() })
}

pub(super) async fn list(State(admin): State<Admin>) -> Result<Json<TenantList>, ApiError> {
    let data = admin
        .tenants(|registry| Ok(registry.list().into_iter().map(TenantCard::from).collect()))
        .await?;
    Ok(Json(TenantList {
        object: "list",
        data,
    }))
}

pub(super) async fn add(
    State(admin): State<Admin>,
    body: Result<Bytes, BytesRejection>,
) -> Result<(StatusCode, Json<Added>), ApiError> {
    let request: AddRequest = parse(body)?;
    let id = parse_id(&request.id)?;
    let policy = Policy::from_json(
        request
            .policy
            .unwrap_or_else(|| Value::Object(<_>::default())),
    )
    .map_err(told)?;
    let added = admin
        .tenants(move |registry| {
            let (_, key) = registry.add(&id, &policy)?;
            Ok(Added {
                tenant: find(registry, &id)?,
                key: key.reveal().to_owned(),
            })
        })
        .await?;
    Ok((StatusCode::CREATED, Json(added)))
}

pub(super) async fn get(
    State(admin): State<Admin>,
    Path(id): Path<String>,
) -> Result<Json<TenantCard>, ApiError> {
    let id = parse_id(&id)?;
    let card = admin.tenants(move |registry| find(registry, &id)).await?;
    Ok(Json(card))
}

pub(super) async fn change(
    State(admin): State<Admin>,
    Path(id): Path<String>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<TenantCard>, ApiError> {
    let id = parse_id(&id)?;
    let request: ChangeRequest = parse(body)?;
    let card = admin
        .tenants(move |registry| {
            registry.patch_policy(&id, &request.policy)?;
            find(registry, &id)
        })
        .await?;
    Ok(Json(card))
}

pub(super) async fn remove(
    State(admin): State<Admin>,
    Path(id): Path<String>,
) -> Result<Json<Deleted>, ApiError> {
    let id = parse_id(&id)?;
    let name = id.to_string();
    let modules = Arc::clone(&admin.0.modules);
    let work = move |registry: &Registry| {
        registry.remove(&id)?;
        modules.forget_gone();
        Ok(())
    };
    admin.tenants(work).await?;
    Ok(Json(Deleted {
        id: name,
        object: "tenant",
        deleted: true,
    }))
}

pub(super) async fn rotate(
    State(admin): State<Admin>,
    Path(id): Path<String>,
    body: Result<Bytes, BytesRejection>,
) -> Result<(StatusCode, Json<Rotated>), ApiError> {
    let id = parse_id(&id)?;
    let request: RotateRequest = match body {
        Ok(body) if body.is_empty() => RotateRequest::default(),
        body => parse(body)?,
    };
    let keep = Duration::from_secs(request.keep_old_seconds);
    let key = admin
        .tenants(move |registry| registry.rotate(&id, keep))
        .await?;
    let rotated = Rotated {
        id: key.id().to_string(),
        object: "tenant.key",
        key: key.reveal().to_owned(),
    };
    Ok((StatusCode::CREATED, Json(rotated)))
}

pub(super) async fn usage(
    State(admin): State<Admin>,
    Path(id): Path<String>,
) -> Result<Json<UsageList>, ApiError> {
    let id = parse_id(&id)?;
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let from = day_of(now.as_secs()).saturating_sub(DAYS - 1);
    let days = admin
        .tenants(move |registry| {
            let number = find(registry, &id)?.number;
            registry.usage(number, from)
        })
        .await?;
    let card = |day: u32, counted: Counted| UsageCard {
        day: u64::from(day) * 86_400,
        requests: counted.requests,
        prompt_tokens: counted.prompt_tokens,
        output_tokens: counted.output_tokens,
        guest_ms: counted.guest_ms,
    };
    Ok(Json(UsageList {
        object: "list",
        data: days.iter().map(|d| card(d.day, d.counted)).collect(),
    }))
}
