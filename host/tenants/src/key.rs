//! Keys: `gh_<id>_<secret>`, of which only the SHA-256 is kept.

use crate::TenantsError;
use rand::TryRngCore;
use rand::rngs::OsRng;
use sha2::{Digest, Sha256};
use std::fmt;
use subtle::ConstantTimeEq;

const PREFIX: &str = "gh_";
/// Length of an id, characters of `[a-z0-9]`.
const ID: usize = 12;
/// Length of a secret, lower-case hexadecimal digits: 256 bits.
const SECRET: usize = 64;
/// Length of a key, bytes.
const LENGTH: usize = PREFIX.len() + ID + 1 + SECRET;

/// Names a key; no secret.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyId([u8; ID]);

impl KeyId {
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let fits = |c: &u8| c.is_ascii_lowercase() || c.is_ascii_digit();
        let bytes: [u8; ID] = text.as_bytes().try_into().ok()?;
        bytes.iter().all(fits).then_some(Self(bytes))
    }

    /// As text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        // Only ASCII gets in.
        std::str::from_utf8(&self.0).unwrap_or_default()
    }
}

impl fmt::Display for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeyId({self})")
    }
}

/// SHA-256 of a whole key. Compared in constant time only: it has no `==`.
#[derive(Clone, Copy)]
pub(crate) struct KeyDigest([u8; 32]);

impl KeyDigest {
    /// Equal to no key's.
    pub(crate) const NONE: Self = Self([0; 32]);

    pub(crate) fn of(key: &str) -> Self {
        Self(Sha256::digest(key.as_bytes()).into())
    }

    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(Self)
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    pub(crate) fn matches(&self, other: &Self) -> subtle::Choice {
        self.0.ct_eq(&other.0)
    }
}

/// A key as its tenant will use it, shown once and not kept. `Debug` leaves the secret out.
pub struct NewKey {
    id: KeyId,
    text: String,
}

impl NewKey {
    /// From the operating system's random numbers.
    pub(crate) fn generate() -> Result<Self, TenantsError> {
        let mut bytes = [0_u8; 32];
        fill(&mut bytes)?;
        let id = id()?;
        let secret: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(Self {
            id,
            text: format!("{PREFIX}{id}_{secret}"),
        })
    }

    /// Its name.
    #[must_use]
    pub fn id(&self) -> KeyId {
        self.id
    }

    /// The key itself.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.text
    }

    pub(crate) fn digest(&self) -> KeyDigest {
        KeyDigest::of(&self.text)
    }
}

impl fmt::Debug for NewKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NewKey({}, …)", self.id)
    }
}

/// The id within a key; none where the text cannot be a key. Bounded work for any text.
pub(crate) fn id_of(shown: &str) -> Option<KeyId> {
    if shown.len() != LENGTH {
        return None;
    }
    let (id, secret) = shown.strip_prefix(PREFIX)?.split_once('_')?;
    let hex = |c: u8| c.is_ascii_digit() || (b'a'..=b'f').contains(&c);
    if secret.len() != SECRET || !secret.bytes().all(hex) {
        return None;
    }
    KeyId::parse(id)
}

fn fill(bytes: &mut [u8]) -> Result<(), TenantsError> {
    OsRng
        .try_fill_bytes(bytes)
        .map_err(|error| TenantsError::Randomness {
            what: error.to_string(),
        })
}

fn id() -> Result<KeyId, TenantsError> {
    const LETTERS: &[u8; 36] = b"abcdefghijklmnopqrstuvwxyz0123456789";
    // 252 is the largest multiple of 36 in a byte: larger bytes would make some letters likelier.
    let mut id = [0_u8; ID];
    let mut filled = 0;
    while filled < ID {
        let mut bytes = [0_u8; 2 * ID];
        fill(&mut bytes)?;
        for byte in bytes.into_iter().filter(|byte| *byte < 252) {
            if let Some(place) = id.get_mut(filled) {
                *place = LETTERS[usize::from(byte) % LETTERS.len()];
                filled += 1;
            }
        }
    }
    Ok(KeyId(id))
}

#[cfg(test)]
mod tests;
