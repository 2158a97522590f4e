//! Why a module does not serve.

use super::ModuleName;
use guesthouse_component::{ComponentError, Role};
use guesthouse_tenants::TenantsError;
use std::path::PathBuf;
use std::time::Duration;

/// Why a module was not taken. What had its name before stays.
#[derive(Debug, thiserror::Error)]
pub enum ModuleError {
    /// The name is outside the grammar.
    #[error("{found:?} is not a name for a module: expected 1 to 64 of a-z, 0-9 and '-'")]
    Name {
        /// As written.
        found: String,
    },
    /// A registry's module, where files and names are taken.
    #[error(
        "{found:?}: modules of registries are brought by PUT /admin/v1/modules/NAME of a server; then give NAME, or give a file here"
    )]
    Remote {
        /// As written.
        found: String,
    },
    /// It is no guest, or does not load.
    #[error(transparent)]
    Component(#[from] ComponentError),
    /// It loads, and fails when it is called as a server would.
    #[error("the module '{name}' fails its check: {what}")]
    Check {
        /// Which.
        name: String,
        /// What it did.
        what: String,
    },
    /// The folder of modules cannot be used, or a file of it is not what it was.
    #[error("{}: {what}", path.display())]
    Folder {
        /// Folder or file.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// The index cannot be read or written, or does not know the version.
    #[error(transparent)]
    Index(#[from] TenantsError),
    /// Tenants bring chat and sampler modules alone.
    #[error("'{name}' is a {role} module; tenants may bring chat and sampler modules")]
    ForbiddenRole {
        /// Which.
        name: ModuleName,
        /// What it is.
        role: Role,
    },
    /// The tenant's modules take too much room.
    #[error(
        "with this module, this tenant's modules and their compiled code take {found} bytes on disk, its limit `module_bytes` is {limit}; delete others first"
    )]
    Quota {
        /// Bytes that they would take.
        found: u64,
        /// The limit.
        limit: u64,
    },
    /// The tenant had too many modules compiled.
    #[error(
        "this tenant had {limit} modules compiled within an hour, its limit `compilations_per_hour`"
    )]
    Compilations {
        /// The limit.
        limit: u32,
        /// Until the next is taken.
        retry_after: Duration,
    },
    /// It served before, and does no more. No other module takes its place.
    #[error(
        "the {role} module '{name}' cannot be used: {what}; bring it again, roll it back or delete it"
    )]
    Unusable {
        /// Which.
        name: ModuleName,
        /// What it was for.
        role: Role,
        /// What is wrong with it.
        what: String,
    },
    /// There are no versions here.
    #[error("this server keeps no versions of modules, as it has no data folder")]
    NoVersions,
    /// Models use the name for another role.
    #[error(
        "'{name}' is a {live} module, and the new one is a {found} module; take another name, or delete the old one first"
    )]
    Role {
        /// Which.
        name: ModuleName,
        /// Of the one that serves.
        live: Role,
        /// Of the new one.
        found: Role,
    },
}
