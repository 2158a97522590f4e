//! The guests that are part of this binary.

use sha2::{Digest as _, Sha256};

use crate::{ModuleDigest, Role};

/// An embedded module.
#[derive(Clone, Copy, Debug)]
pub struct Builtin {
    /// Folder name: "llama", "jinja", "standard".
    pub name: &'static str,
    /// What its folder says it is; loading checks it.
    pub role: Role,
    /// The component.
    pub bytes: &'static [u8],
}

include!(concat!(env!("OUT_DIR"), "/builtin.rs"));

/// The embedded module of a name.
#[must_use]
pub fn find(role: Role, name: &str) -> Option<&'static Builtin> {
    ALL.iter()
        .find(|builtin| builtin.role == role && builtin.name == name)
}

/// SHA-256 of a module's bytes.
pub(crate) fn digest(builtin: &Builtin) -> ModuleDigest {
    ModuleDigest(Sha256::digest(builtin.bytes).into())
}
