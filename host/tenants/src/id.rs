//! Names of tenants.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;

/// Longest name, characters.
const LONGEST: usize = 32;

/// A tenant's name: `[a-z0-9-]{1,32}`. Part of its keys, of metrics and of logs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct TenantId(Arc<str>);

/// Not a tenant's name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{found:?} is not a tenant's name: expected 1 to 32 of a-z, 0-9 and '-'")]
pub struct BadName {
    /// As written; its beginning, if it is long.
    pub found: String,
}

impl TenantId {
    /// Checks a name.
    ///
    /// # Errors
    /// [`BadName`]
    pub fn parse(text: &str) -> Result<Self, BadName> {
        let fits = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-';
        if text.is_empty() || text.len() > LONGEST || !text.bytes().all(fits) {
            let found = text.chars().take(2 * LONGEST).collect();
            return Err(BadName { found });
        }
        Ok(Self(text.into()))
    }

    /// Everyone, where no keys are needed. No tenant can be called so.
    #[must_use]
    pub fn anonymous() -> Self {
        Self("_".into())
    }

    /// As text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for TenantId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TryFrom<String> for TenantId {
    type Error = BadName;

    fn try_from(text: String) -> Result<Self, BadName> {
        Self::parse(&text)
    }
}

impl From<TenantId> for String {
    fn from(id: TenantId) -> Self {
        id.0.as_ref().to_owned()
    }
}
