//! `/admin/v1/modules`.

use super::{Admin, MAX_MODULE, blocking, from_body};
use crate::model::store::{LiveModule, ModuleName, Provenance};
use crate::openai::ApiError;
use axum::Json;
use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{Path, State};
use guesthouse_component::{ModuleDigest, builtin};
use serde::Serialize;
use sha2::{Digest, Sha256};

/// A module.
#[derive(Debug, Serialize)]
pub(super) struct ModuleCard {
    name: String,
    object: &'static str,
    /// `graph`, `chat` or `sampler`.
    role: String,
    /// `sha256:` and hexadecimal digits.
    digest: String,
    bytes: usize,
    /// `built-in`, `upload`, or the file's path.
    source: String,
    /// When it began to serve, Unix seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    since: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    imports: Option<Vec<String>>,
    /// Architectures that a graph module builds.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    builds: Vec<String>,
    /// What its check found.
    #[serde(skip_serializing_if = "Option::is_none")]
    check: Option<String>,
}

#[derive(Debug, Serialize)]
pub(super) struct ModuleList {
    object: &'static str,
    data: Vec<ModuleCard>,
    /// Files that were not taken.
    rejected: Vec<Rejected>,
}

#[derive(Debug, Serialize)]
struct Rejected {
    file: String,
    error: String,
    /// Unix seconds.
    at: u64,
}

#[derive(Debug, Serialize)]
pub(super) struct Deleted {
    pub(super) id: String,
    pub(super) object: &'static str,
    pub(super) deleted: bool,
}

fn card(name: &ModuleName, live: LiveModule) -> ModuleCard {
    ModuleCard {
        name: name.to_string(),
        object: "module",
        role: live.module.role().to_string(),
        digest: format!("sha256:{}", live.module.digest()),
        bytes: live.bytes,
        source: match live.provenance {
            Provenance::BuiltIn => "built-in".to_owned(),
            Provenance::Upload => "upload".to_owned(),
            Provenance::File(path) => path.display().to_string(),
        },
        since: Some(live.since),
        imports: Some(live.module.imports().to_vec()),
        builds: live.checked.builds,
        check: Some(live.checked.summary),
    }
}

/// Not loaded for this: only what its bytes say.
fn built_in(guest: &builtin::Builtin) -> ModuleCard {
    ModuleCard {
        name: guest.name.to_owned(),
        object: "module",
        role: guest.role.to_string(),
        digest: format!(
            "sha256:{}",
            ModuleDigest(Sha256::digest(guest.bytes).into())
        ),
        bytes: guest.bytes.len(),
        source: "built-in".to_owned(),
        since: None,
        imports: None,
        builds: Vec::new(),
        check: None,
    }
}

fn parse(name: &str) -> Result<ModuleName, ApiError> {
    ModuleName::parse(name).map_err(|error| ApiError::invalid("name", error.to_string()))
}

pub(super) async fn list(State(admin): State<Admin>) -> Json<ModuleList> {
    let store = &admin.0.modules;
    let live = store
        .live()
        .into_iter()
        .map(|(name, live)| card(&name, live));
    let rejected = store.rejected().into_iter().map(|r| Rejected {
        file: r.path.display().to_string(),
        error: r.error,
        at: r.at,
    });
    Json(ModuleList {
        object: "list",
        data: live.chain(builtin::ALL.iter().map(built_in)).collect(),
        rejected: rejected.collect(),
    })
}

pub(super) async fn get(
    State(admin): State<Admin>,
    Path(name): Path<String>,
) -> Result<Json<ModuleCard>, ApiError> {
    let name = parse(&name)?;
    match admin.0.modules.get(&name) {
        Some(live) => Ok(Json(card(&name, live))),
        None => Err(ApiError::ModuleNotFound {
            name: name.to_string(),
        }),
    }
}

pub(super) async fn put(
    State(admin): State<Admin>,
    Path(name): Path<String>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<ModuleCard>, ApiError> {
    let name = parse(&name)?;
    let body = body.map_err(|error| from_body(&error, MAX_MODULE))?;
    let _one = admin.0.checking.lock().await;
    let (store, id) = (admin.0.modules.clone(), name.clone());
    let placed = blocking(move || store.put(&id, &body, Provenance::Upload)).await?;
    placed
        .map(|live| Json(card(&name, live)))
        .map_err(|error| match error {
            error @ crate::model::store::ModuleError::Role { .. } => ApiError::Conflict {
                message: error.to_string(),
            },
            error => ApiError::Invalid {
                param: None,
                message: error.to_string(),
            },
        })
}

pub(super) async fn delete(
    State(admin): State<Admin>,
    Path(name): Path<String>,
) -> Result<Json<Deleted>, ApiError> {
    let name = parse(&name)?;
    match admin.0.modules.remove(&name) {
        Some(_) => Ok(Json(Deleted {
            id: name.to_string(),
            object: "module",
            deleted: true,
        })),
        None => Err(ApiError::ModuleNotFound {
            name: name.to_string(),
        }),
    }
}
