//! Measurements by tenant. Only tenants that exist become labels: what was measured of others counts as `other`.

use guesthouse_tenants::{Tenant, TenantId};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The label of all tenants that are gone.
const OTHER: &str = "other";

/// What can be added up.
pub(in crate::http) trait Absorb: Default {
    fn absorb(&self, other: &Self);
}

/// One `T` for each tenant that asked for anything and still exists, and one for all others.
#[derive(Default)]
pub(in crate::http) struct PerTenant<T>(Mutex<Known<T>>);

struct Known<T> {
    tenants: BTreeMap<u64, (TenantId, Arc<T>)>,
    /// Of tenants that are gone.
    other: Option<Arc<T>>,
}

impl<T> Default for Known<T> {
    fn default() -> Self {
        Self {
            tenants: BTreeMap::new(),
            other: None,
        }
    }
}

impl<T: Absorb> PerTenant<T> {
    /// A tenant's own.
    pub(in crate::http) fn of(&self, tenant: &Tenant) -> Arc<T> {
        let mut known = self.lock();
        let (_, own) = known
            .tenants
            .entry(tenant.number)
            .or_insert_with(|| (tenant.id.clone(), Arc::default()));
        Arc::clone(own)
    }

    /// All of them by label, of tenants with a key. Those that are not known any more, and that nothing writes, are added
    /// to `other`.
    pub(in crate::http) fn list(&self, knows: impl Fn(u64) -> bool) -> Vec<(String, Arc<T>)> {
        let mut known = self.lock();
        let gone: Vec<u64> = known
            .tenants
            .iter()
            .filter(|(number, (_, own))| {
                **number != 0 && !knows(**number) && Arc::strong_count(own) == 1
            })
            .map(|(number, _)| *number)
            .collect();
        for number in gone {
            if let Some((_, own)) = known.tenants.remove(&number) {
                known.other.get_or_insert_default().absorb(&own);
            }
        }
        let named = known
            .tenants
            .iter()
            .filter(|(number, _)| **number != 0 && knows(**number))
            .map(|(_, (id, own))| (id.to_string(), Arc::clone(own)));
        let other = known
            .other
            .iter()
            .map(|own| (OTHER.to_owned(), Arc::clone(own)));
        named.chain(other).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Known<T>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
