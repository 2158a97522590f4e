//! Modules as JSON.

use crate::model::ModuleStore;
use crate::model::store::{LiveModule, ModuleName, ModuleOwner, UnusableModule, Version};
use guesthouse_component::{ModuleDigest, builtin};
use serde::Serialize;
use utoipa::ToSchema;

/// A module.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct ModuleCard {
    name: String,
    object: &'static str,
    /// `graph`, `chat` or `sampler`.
    role: String,
    /// `sha256:` and hexadecimal digits.
    digest: String,
    /// Its length.
    bytes: usize,
    /// `built-in`, `upload`, the file's path, or the reference in a registry (`oci://…`).
    source: String,
    /// When it began to serve, Unix seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    since: Option<u64>,
    /// Interfaces that it imports.
    #[serde(skip_serializing_if = "Option::is_none")]
    imports: Option<Vec<String>>,
    /// Architectures that a graph module builds, or that a chat module says it is for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    builds: Vec<String>,
    /// What its check found.
    #[serde(skip_serializing_if = "Option::is_none")]
    check: Option<String>,
    /// Why it cannot be used; requests that need it fail.
    #[serde(skip_serializing_if = "Option::is_none")]
    unusable: Option<String>,
}

/// Modules.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct ModuleList {
    object: &'static str,
    data: Vec<ModuleCard>,
    /// Files that were not taken; the administrator's alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    rejected: Option<Vec<Rejected>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
struct Rejected {
    file: String,
    error: String,
    /// Unix seconds.
    at: u64,
}

/// A version of a module.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct VersionCard {
    /// Counts up from 1.
    version: u64,
    /// `sha256:` and hexadecimal digits.
    digest: String,
    role: String,
    /// Its length.
    bytes: u64,
    /// When it began to serve, Unix seconds.
    since: u64,
    /// Whether it serves now.
    live: bool,
    /// `upload`, the file's path, or the reference in a registry (`oci://…`).
    source: String,
}

/// The versions of a module, newest first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct ModuleHistory {
    name: String,
    object: &'static str,
    data: Vec<VersionCard>,
}

/// Something that is gone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct Deleted {
    /// What it was called.
    pub id: String,
    /// What it was.
    pub object: &'static str,
    /// Always true.
    pub deleted: bool,
}

impl Deleted {
    pub(super) fn module(name: &str) -> Self {
        Self {
            id: name.to_owned(),
            object: "module",
            deleted: true,
        }
    }
}

pub(super) fn card(name: &ModuleName, live: LiveModule) -> ModuleCard {
    ModuleCard {
        name: name.to_string(),
        object: "module",
        role: live.module.role().to_string(),
        digest: format!("sha256:{}", live.module.digest()),
        bytes: live.bytes,
        source: live.provenance.to_string(),
        since: Some(live.since),
        imports: Some(live.module.imports().to_vec()),
        builds: live.checked.builds,
        check: Some(live.checked.summary),
        unusable: None,
    }
}

pub(super) fn unusable(name: &ModuleName, module: UnusableModule) -> ModuleCard {
    ModuleCard {
        name: name.to_string(),
        object: "module",
        role: module.role,
        digest: format!("sha256:{}", module.digest),
        bytes: usize::try_from(module.bytes).unwrap_or(usize::MAX),
        source: module.provenance.to_string(),
        since: Some(module.since),
        imports: None,
        builds: Vec::new(),
        check: None,
        unusable: Some(module.what),
    }
}

/// Not loaded for this: only what its bytes say.
fn built_in(guest: &builtin::Builtin) -> ModuleCard {
    ModuleCard {
        name: guest.name.to_owned(),
        object: "module",
        role: guest.role.to_string(),
        digest: format!("sha256:{}", ModuleDigest::of(guest.bytes)),
        bytes: guest.bytes.len(),
        source: "built-in".to_owned(),
        since: None,
        imports: None,
        builds: Vec::new(),
        check: None,
        unusable: None,
    }
}

pub(super) fn list(store: &ModuleStore, owner: &ModuleOwner) -> ModuleList {
    let live = store.live_of(owner).into_iter();
    let mut data: Vec<_> = live.map(|(name, live)| card(&name, live)).collect();
    let unusable = store.unusable_of(owner).into_iter();
    data.extend(unusable.map(|(name, module)| self::unusable(&name, module)));
    let rejected = (*owner == ModuleOwner::Server).then(|| {
        data.extend(builtin::ALL.iter().map(built_in));
        let rejected = store.rejected().into_iter().map(|r| Rejected {
            file: r.path.display().to_string(),
            error: r.error,
            at: r.at,
        });
        rejected.collect()
    });
    ModuleList {
        object: "list",
        data,
        rejected,
    }
}

pub(super) fn history(name: &ModuleName, versions: Vec<Version>) -> ModuleHistory {
    let data = versions.into_iter().map(|version| VersionCard {
        version: version.number,
        digest: format!("sha256:{}", version.digest),
        role: version.role,
        bytes: version.bytes,
        since: version.since,
        live: version.live,
        source: version.source,
    });
    ModuleHistory {
        name: name.to_string(),
        object: "list",
        data: data.collect(),
    }
}
