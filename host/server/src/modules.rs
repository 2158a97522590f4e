//! Modules as the HTTP APIs see them: tenants bring, list and take away their own under `/v1/modules`, the administrator
//! everyone's under `/admin/v1/modules`.
//!
//! - [`ModuleDesk`]: what both do;
//! - `body`: a component on its way from a client to memory;
//! - `cards`: answers.

mod body;
mod cards;

use crate::blocking::blocking;
use crate::model::ModuleStore;
use crate::model::store::{ModuleError, ModuleName, ModuleOwner, Provenance};
use crate::oci::{OciError, PinnedReference, Registries};
use crate::openai::ApiError;
use axum::body::Body;
use axum::http::HeaderMap;
use guesthouse_component::ModuleDigest;
use guesthouse_tenants::{Tenant, TenantId, TenantsError};
use serde::Deserialize;
use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

pub use cards::{Deleted, ModuleCard, ModuleHistory, ModuleList, VersionCard};

/// Largest module of a tenant, bytes.
pub const TENANT_BYTES: u64 = 32 << 20;
/// Largest module of the administrator's, bytes.
pub const ADMIN_BYTES: u64 = 128 << 20;

/// Where a module is to be had.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fetch {
    /// In a registry.
    pub source: PinnedReference,
}

impl Fetch {
    /// From a request's body, `{"source": "oci://…@sha256:…"}`.
    ///
    /// # Errors
    /// When it is something else.
    pub fn from_body(body: &[u8]) -> Result<Self, ApiError> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Body {
            source: String,
        }
        let Body { source } = serde_json::from_slice(body).map_err(|error| {
            let message = format!(
                "the body is JSON, and does not say where the module is: {error}; expected \
                 {{\"source\": \"oci://registry/repository@sha256:DIGEST\"}}, or the module itself as application/wasm"
            );
            ApiError::invalid("source", message)
        })?;
        let source = source
            .parse()
            .map_err(|error: OciError| ApiError::invalid("source", error.to_string()))?;
        Ok(Self { source })
    }
}

/// Which version is to serve again.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rollback {
    /// 64 hexadecimal digits, with or without `sha256:`.
    pub digest: String,
}

impl Rollback {
    /// From a request's body.
    ///
    /// # Errors
    /// When it is something else.
    pub fn from_body(body: &[u8]) -> Result<Self, ApiError> {
        serde_json::from_slice(body).map_err(|error| {
            ApiError::invalid("digest", format!("the body is no rollback: {error}"))
        })
    }
}

/// Cheap to clone.
#[derive(Clone)]
pub struct ModuleDesk(Arc<Desk>);

struct Desk {
    store: Arc<ModuleStore>,
    /// Where the administrator may have modules fetched from.
    registries: Registries,
    /// Tenants' numbers, while they bring a module.
    bringing: Mutex<HashSet<u64>>,
}

/// An owner's turn to bring a module. Dropping it gives it back.
struct Bringing {
    desk: Arc<Desk>,
    tenant: u64,
}

impl Bringing {
    /// Blocks.
    fn place(
        self,
        owner: &ModuleOwner,
        name: &ModuleName,
        bytes: &[u8],
        provenance: Provenance,
    ) -> Result<ModuleCard, ApiError> {
        let placed = self.desk.store.put_for(owner, name, bytes, provenance);
        placed
            .map(|live| cards::card(name, live))
            .map_err(|error| refused(&error))
    }
}

impl Drop for Bringing {
    fn drop(&mut self) {
        self.desk.lock().remove(&self.tenant);
    }
}

impl Desk {
    fn lock(&self) -> std::sync::MutexGuard<'_, HashSet<u64>> {
        self.bringing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One upload of each owner at once, its compilation included.
    fn begin(self: &Arc<Self>, owner: &ModuleOwner) -> Result<Bringing, ApiError> {
        let tenant = owner.number();
        if !self.lock().insert(tenant) {
            return Err(ApiError::Limited {
                limit: "concurrent_uploads",
                message: "a module is being brought already; bring one at a time".to_owned(),
                retry_after: 1,
            });
        }
        Ok(Bringing {
            desk: Arc::clone(self),
            tenant,
        })
    }
}

impl ModuleDesk {
    /// Works on this store. Nothing is fetched from anywhere.
    #[must_use]
    pub fn new(store: Arc<ModuleStore>) -> Self {
        Self::fetching(store, Registries::default())
    }

    /// Likewise; the administrator may have modules fetched from these registries.
    #[must_use]
    pub fn fetching(store: Arc<ModuleStore>, registries: Registries) -> Self {
        Self(Arc::new(Desk {
            store,
            registries,
            bringing: Mutex::default(),
        }))
    }

    /// What it works on.
    #[must_use]
    pub fn store(&self) -> &Arc<ModuleStore> {
        &self.0.store
    }

    /// The tenant whose own modules a request is about.
    ///
    /// # Errors
    /// When its policy does not let it bring modules.
    pub fn uploader(&self, tenant: &Arc<Tenant>) -> Result<ModuleOwner, ApiError> {
        if !tenant.policy.uploads || tenant.number == 0 {
            return Err(ApiError::Forbidden {
                message: "this key's tenant may not bring modules; the administrator can let it (`uploads` of its policy)"
                    .to_owned(),
            });
        }
        Ok(ModuleOwner::Tenant(Arc::clone(tenant)))
    }

    /// Whose modules the administrator means: a tenant's, or the server's.
    ///
    /// # Errors
    /// When there is no such tenant.
    pub fn owner(&self, tenant: Option<&str>) -> Result<ModuleOwner, ApiError> {
        let Some(text) = tenant else {
            return Ok(ModuleOwner::Server);
        };
        let id = TenantId::parse(text);
        let id = id.map_err(|error| ApiError::invalid("tenant", error.to_string()))?;
        let found = self.0.store.tenant(&id);
        found
            .map(ModuleOwner::Tenant)
            .ok_or_else(|| ApiError::invalid("tenant", TenantsError::Unknown { id }.to_string()))
    }

    /// Takes a component from a request's body; it serves once it passed its checks. Goes on to its end when the client
    /// leaves after its last byte.
    ///
    /// # Errors
    /// When the module does not do; what had its name before serves on.
    pub async fn put(
        &self,
        owner: ModuleOwner,
        name: &str,
        headers: &HeaderMap,
        body: Body,
    ) -> Result<ModuleCard, ApiError> {
        let name = parse(name)?;
        let limit = limit(&owner);
        body::check(headers, limit)?;
        let bringing = self.0.begin(&owner)?;
        let mut file = body::receive(body, limit).await?;
        // The turn goes with the work, which goes on when this future is dropped.
        blocking(move || {
            let bytes = body::read(&mut file)?;
            drop(file);
            bringing.place(&owner, &name, &bytes, Provenance::Upload)
        })
        .await?
    }

    /// Likewise from a registry, for the administrator. Ends when the client leaves before all has arrived.
    ///
    /// # Errors
    /// When it cannot be had, or does not do; what had its name before serves on.
    pub async fn fetch(
        &self,
        owner: ModuleOwner,
        name: &str,
        fetch: Fetch,
    ) -> Result<ModuleCard, ApiError> {
        let name = parse(name)?;
        let bringing = self.0.begin(&owner)?;
        let Fetch { source } = fetch;
        let pulled = self.0.registries.pull(&source, limit(&owner)).await;
        let bytes = pulled.map_err(|error| {
            tracing::warn!(%name, %error, "a module is not fetched");
            ApiError::invalid("source", error.to_string())
        })?;
        let from = Provenance::Oci(source.to_string());
        blocking(move || bringing.place(&owner, &name, &bytes, from)).await?
    }

    /// One live module.
    ///
    /// # Errors
    /// When there is none of this name.
    pub fn get(&self, owner: &ModuleOwner, name: &str) -> Result<ModuleCard, ApiError> {
        let name = parse(name)?;
        let store = &self.0.store;
        if let Some(live) = store.get_for(owner, &name) {
            return Ok(cards::card(&name, live));
        }
        let mut unusable = store.unusable_of(owner).into_iter();
        let found = unusable.find(|(other, _)| *other == name);
        found
            .map(|(_, module)| cards::unusable(&name, module))
            .ok_or_else(|| unknown(&name))
    }

    /// An owner's live modules; for the server also built-in ones, and files that were not taken.
    #[must_use]
    pub fn list(&self, owner: &ModuleOwner) -> ModuleList {
        cards::list(&self.0.store, owner)
    }

    /// Takes a live module away.
    ///
    /// # Errors
    /// When there is none of this name.
    pub async fn delete(&self, owner: ModuleOwner, name: &str) -> Result<Deleted, ApiError> {
        let name = parse(name)?;
        let store = Arc::clone(&self.0.store);
        blocking(move || match store.remove_for(&owner, &name) {
            Ok(true) => Ok(Deleted::module(name.as_str())),
            Ok(false) => Err(unknown(&name)),
            Err(error) => Err(refused(&error)),
        })
        .await?
    }

    /// The versions of a name that are kept.
    ///
    /// # Errors
    /// When there are none.
    pub async fn history(&self, owner: ModuleOwner, name: &str) -> Result<ModuleHistory, ApiError> {
        let name = parse(name)?;
        let store = Arc::clone(&self.0.store);
        blocking(move || {
            let versions = store
                .history(&owner, &name)
                .map_err(|error| refused(&error))?;
            if versions.is_empty() {
                return Err(unknown(&name));
            }
            Ok(cards::history(&name, versions))
        })
        .await?
    }

    /// Lets an earlier version serve again.
    ///
    /// # Errors
    /// When it is not kept, or does not load any more.
    pub async fn roll_back(
        &self,
        owner: ModuleOwner,
        name: &str,
        request: Rollback,
    ) -> Result<ModuleCard, ApiError> {
        let name = parse(name)?;
        let text = request.digest.as_str();
        let digest = ModuleDigest::parse(text.strip_prefix("sha256:").unwrap_or(text));
        let digest = digest.ok_or_else(|| {
            ApiError::invalid(
                "digest",
                "expected sha256: and 64 hexadecimal digits, as the history has them",
            )
        })?;
        let desk = self.clone();
        blocking(move || {
            let _bringing = desk.0.begin(&owner)?;
            let placed = desk.0.store.roll_back(&owner, &name, digest);
            placed
                .map(|live| cards::card(&name, live))
                .map_err(|error| refused(&error))
        })
        .await?
    }
}

fn limit(owner: &ModuleOwner) -> u64 {
    match owner {
        ModuleOwner::Server => ADMIN_BYTES,
        ModuleOwner::Tenant(_) => TENANT_BYTES,
    }
}

fn parse(name: &str) -> Result<ModuleName, ApiError> {
    ModuleName::parse(name).map_err(|error| ApiError::invalid("name", error.to_string()))
}

fn unknown(name: &ModuleName) -> ApiError {
    ApiError::ModuleNotFound {
        name: name.to_string(),
    }
}

/// Why a module was not taken, for whoever brought it. Paths of the server's are for its log.
fn refused(error: &ModuleError) -> ApiError {
    let message = error.to_string();
    match error {
        ModuleError::Role { .. } => ApiError::Conflict { message },
        ModuleError::ForbiddenRole { .. } => ApiError::Forbidden { message },
        ModuleError::Quota { .. } => ApiError::Limited {
            limit: "module_bytes",
            message,
            retry_after: 60,
        },
        ModuleError::Compilations { retry_after, .. } => ApiError::Limited {
            limit: "compilations_per_hour",
            message,
            retry_after: retry_after.as_secs() + 1,
        },
        ModuleError::Index(TenantsError::UnknownVersion { .. }) => {
            ApiError::invalid("digest", message)
        }
        ModuleError::Folder { .. } | ModuleError::Index(_) => {
            tracing::error!(error = message, "modules cannot be kept");
            ApiError::Unavailable {
                message:
                    "modules cannot be kept or read at the moment; the server's log has the cause"
                        .to_owned(),
            }
        }
        _ => ApiError::Invalid {
            param: None,
            message,
        },
    }
}
