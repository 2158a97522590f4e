//! What can go wrong.

use crate::{BadName, Sha256Digest, TenantId};
use std::path::PathBuf;

/// Why something about tenants could not be done. Nothing has changed then, in memory or on disk.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TenantsError {
    /// The name is outside the grammar.
    #[error(transparent)]
    Name(#[from] BadName),
    /// The name stands for keys of `--api-key`.
    #[error("'{id}' is kept for keys of --api-key; take a name that is not 'key-' and a number")]
    Reserved {
        /// The name.
        id: TenantId,
    },
    /// The name is taken.
    #[error("there is a tenant '{id}' already; change it, or take another name")]
    Exists {
        /// The name.
        id: TenantId,
    },
    /// No tenant has this name.
    #[error("there is no tenant '{id}'")]
    Unknown {
        /// The name.
        id: TenantId,
    },
    /// No tenant has this number, or not any more.
    #[error(
        "there is no tenant of number {number}; it was removed, or its key is one of --api-key"
    )]
    Gone {
        /// The number.
        number: u64,
    },
    /// The policy is not one.
    #[error("the policy is not accepted at {path}: {what}")]
    PolicyField {
        /// Where, as in `quotas.kv_blocks`; `.` is all of it.
        path: String,
        /// What was expected and found.
        what: String,
    },
    /// The policy makes no sense.
    #[error("the policy's {field} is {found}, expected {expected}")]
    Policy {
        /// Which part.
        field: &'static str,
        /// What it is.
        found: String,
        /// What it may be.
        expected: &'static str,
    },
    /// The tenant has so many keys that none is added.
    #[error(
        "'{id}' has {found} keys that did not expire, of at most {most}; rotate without keeping old ones"
    )]
    TooManyKeys {
        /// Whose.
        id: TenantId,
        /// That there are.
        found: usize,
        /// The limit.
        most: usize,
    },
    /// No live module has this name.
    #[error("there is no module '{name}' of this tenant")]
    UnknownModule {
        /// The name.
        name: String,
    },
    /// The module never had such a version.
    #[error("'{name}' has no version sha256:{digest}; its history lists those that it has")]
    UnknownVersion {
        /// The module.
        name: String,
        /// The version asked for.
        digest: Sha256Digest,
    },
    /// Another process holds the file.
    #[error(
        "{} is locked by another process for longer than {seconds} s; try again when that is done", path.display()
    )]
    Locked {
        /// The file.
        path: PathBuf,
        /// How long it was waited for.
        seconds: u64,
    },
    /// The disk, or the file's quota, is full.
    #[error("no room to write {}: free space on its disk", path.display())]
    Full {
        /// The file.
        path: PathBuf,
    },
    /// The file's contents are damaged.
    #[error("{} is damaged: {what}; put a copy of it back, or move it away to start without tenants", path.display())]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// How it shows.
        what: String,
    },
    /// It is a file of something else.
    #[error("{} is a database of another program; give another file by --state", path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
    },
    /// A later release wrote the file.
    #[error(
        "{} has schema {found}, and this release knows schemas up to {known}; run a later release", path.display()
    )]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its schema.
        found: i64,
        /// The newest known.
        known: i64,
    },
    /// The file was taken away or replaced while it was open.
    #[error("{} was removed or replaced while it was in use; put it back, or start the server again", path.display())]
    Replaced {
        /// The file.
        path: PathBuf,
    },
    /// Others could read or replace the file, or we may not.
    #[error("{} cannot be used for tenants: {what}", path.display())]
    Access {
        /// The file or folder.
        path: PathBuf,
        /// Why, and what to do.
        what: String,
    },
    /// Reading or writing failed otherwise.
    #[error("{} could not be read or written: {what}", path.display())]
    Storage {
        /// The file.
        path: PathBuf,
        /// The cause.
        what: String,
    },
    /// The operating system gave no random numbers.
    #[error("the operating system gave no random numbers for a key: {what}")]
    Randomness {
        /// The cause.
        what: String,
    },
}

impl TenantsError {
    /// A stable name of the kind, for metrics.
    #[must_use]
    pub fn label(&self) -> &'static str {
        match self {
            Self::Name(_) => "bad-name",
            Self::Reserved { .. } => "reserved-name",
            Self::Exists { .. } => "tenant-exists",
            Self::Unknown { .. } => "unknown-tenant",
            Self::Gone { .. } => "tenant-gone",
            Self::PolicyField { .. } | Self::Policy { .. } => "bad-policy",
            Self::TooManyKeys { .. } => "too-many-keys",
            Self::UnknownModule { .. } => "unknown-module",
            Self::UnknownVersion { .. } => "unknown-version",
            Self::Locked { .. } => "state-locked",
            Self::Full { .. } => "state-full",
            Self::Corrupt { .. } => "state-corrupt",
            Self::Foreign { .. } => "state-foreign",
            Self::Newer { .. } => "state-newer",
            Self::Replaced { .. } => "state-replaced",
            Self::Access { .. } => "state-access",
            Self::Storage { .. } => "state-storage",
            Self::Randomness { .. } => "no-randomness",
        }
    }
}
