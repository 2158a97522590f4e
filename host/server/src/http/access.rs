//! Who may come in, and as whom.

use guesthouse_engine::{CacheSalt, Owner, Priority};
use guesthouse_tenants::{Policy, Registry, Tenant, TenantId};
use sha2::{Digest, Sha256};
use std::collections::BTreeSet;
use std::sync::Arc;
use subtle::ConstantTimeEq as _;

/// Tenants with keys of their own, which come and go while the server runs.
pub trait Directory: std::fmt::Debug + Send + Sync {
    /// Whose key `shown` is, as of now. Takes as long for a wrong secret as for a right one.
    fn authenticate(&self, shown: &str) -> Option<Arc<Tenant>>;

    /// Whether a key was ever made: from then on one is asked for.
    fn requires_key(&self) -> bool;

    /// The numbers of all tenants.
    fn numbers(&self) -> BTreeSet<u64>;
}

impl Directory for Registry {
    fn authenticate(&self, shown: &str) -> Option<Arc<Tenant>> {
        self.authenticate(shown)
    }

    fn requires_key(&self) -> bool {
        self.requires_key()
    }

    fn numbers(&self) -> BTreeSet<u64> {
        self.numbers()
    }
}

/// Whether keys are asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Access {
    /// Once there are any.
    #[default]
    Keys,
    /// Never. Who shows a key is still known by it.
    Open,
}

/// Numbers of tenants that the command line made begin here; a directory's stay below.
pub(super) const STATIC: u64 = 1 << 63;

/// Keys as the administrator wrote them, kept as SHA-256 digests. The first is of the tenant `key-1`, and so on.
#[derive(Clone, Default)]
pub struct ApiKeys(Vec<([u8; 32], Arc<Tenant>)>);

impl std::fmt::Debug for ApiKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ApiKeys({} keys)", self.0.len())
    }
}

impl ApiKeys {
    /// Empty keys are passed over.
    pub fn new<S: AsRef<str>>(keys: impl IntoIterator<Item = S>) -> Self {
        let keys = keys.into_iter().filter(|key| !key.as_ref().is_empty());
        let tenants = (1..).zip(keys).map(|(number, key)| {
            let tenant = Tenant {
                id: TenantId::parse(&format!("key-{number}"))
                    .unwrap_or_else(|_| TenantId::anonymous()),
                number: STATIC + number,
                policy: Policy::default(),
            };
            let digest = Sha256::digest(key.as_ref().as_bytes()).into();
            (digest, Arc::new(tenant))
        });
        Self(tenants.collect())
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whose key `shown` is, if it is one. Takes as long for a wrong key as for a right one.
    #[must_use]
    pub fn tenant(&self, shown: &str) -> Option<Arc<Tenant>> {
        let digest: [u8; 32] = Sha256::digest(shown.as_bytes()).into();
        let mut found = None;
        for (key, tenant) in &self.0 {
            if key.ct_eq(&digest).into() {
                found = Some(tenant);
            }
        }
        found.cloned()
    }

    /// The numbers of all keys' tenants.
    pub fn numbers(&self) -> impl Iterator<Item = u64> + '_ {
        self.0.iter().map(|(_, tenant)| tenant.number)
    }
}

/// Of whose requests somebody sees the measurements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sees {
    /// Its own.
    Own,
    /// Everyone's.
    All,
}

/// Who asks, among a request's extensions.
#[derive(Clone, Debug)]
pub(super) struct Caller {
    pub(super) tenant: Arc<Tenant>,
    pub(super) sees: Sees,
}

impl Caller {
    /// Whether it showed no key though keys are asked for: it came by a route that is open to everyone.
    pub(super) fn is_stranger(&self) -> bool {
        self.sees == Sees::Own && self.tenant.number == Tenant::anonymous().number
    }

    /// Root of prefix-cache keys: requests share blocks only within one tenant, or among those that share theirs, and with
    /// equal `cache_salt` fields.
    pub(super) fn salt(&self, model: CacheSalt, client: Option<&str>) -> CacheSalt {
        let mut hash = Sha256::new();
        hash.update(model.0);
        if self.tenant.policy.shared_cache {
            hash.update(b"shared..");
        } else {
            hash.update(b"tenant..");
            hash.update(self.tenant.number.to_le_bytes());
        }
        hash.update(client.unwrap_or_default().as_bytes());
        CacheSalt(hash.finalize().into())
    }

    /// Its share of the engine.
    pub(super) fn owner(&self) -> Owner {
        let policy = &self.tenant.policy;
        Owner {
            tenant: self.tenant.number,
            weight: policy.weight.max(1),
            max_running: None,
            max_blocks: policy.quotas.kv_blocks,
        }
    }

    /// Its place in the engine's queue.
    pub(super) fn priority(&self) -> Priority {
        Priority(self.tenant.policy.priority)
    }
}
