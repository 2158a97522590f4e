//! The registry of tenants, in one SQLite file.
//!
//! Requests are answered from a snapshot in memory, which is replaced as a whole after each write, and by
//! [`Registry::refresh`] when another process wrote the file. All else goes through one connection behind a mutex: those
//! calls may wait for the disk, and for other processes up to the busy timeout, so they are no work for threads that poll
//! futures.
//!
//! A write is acknowledged when it is on the disk (`synchronous=FULL`: keys that were shown and tenants that were removed
//! must stay so after a loss of power, and writes are rare; counters are written in batches).

mod modules;
mod open;
mod schema;
mod snapshot;
mod tenants;
mod usage;

#[cfg(test)]
mod tests;

pub use modules::{CodeRecord, ModuleState, ModuleVersion, NewModule};
pub use snapshot::{KeyInfo, TenantRecord};
pub use usage::{Counted, UsageDay, day_of};

use crate::key::{KeyDigest, id_of};
use crate::{Tenant, TenantId, TenantsError};
use open::Store;
use rusqlite::{Transaction, TransactionBehavior};
use snapshot::Snapshot;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// How long a write waits for other processes.
pub(crate) const BUSY: Duration = Duration::from_secs(5);

/// Tenants, their keys, modules and counters. Share it in an `Arc`.
pub struct Registry {
    /// Never locked while a request is authenticated.
    store: Mutex<Store>,
    snapshot: RwLock<Arc<Snapshot>>,
}

impl std::fmt::Debug for Registry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Registry")
            .field("tenants", &self.current().tenants.len())
            .finish_non_exhaustive()
    }
}

impl Registry {
    /// Opens the file, or makes it (mode 0600, a missing folder with mode 0700), and brings it to this release's schema.
    ///
    /// # Errors
    /// When the file is damaged, foreign, of a later release, open to others, locked, or cannot be written.
    pub fn open(path: &Path) -> Result<Self, TenantsError> {
        Self::with(Store::open(path, BUSY)?)
    }

    /// In memory, gone with the value.
    ///
    /// # Errors
    /// When there is no memory for it.
    pub fn in_memory() -> Result<Self, TenantsError> {
        Self::with(Store::in_memory()?)
    }

    fn with(mut store: Store) -> Result<Self, TenantsError> {
        let snapshot = store.load()?;
        Ok(Self {
            store: Mutex::new(store),
            snapshot: RwLock::new(Arc::new(snapshot)),
        })
    }

    /// The tenant whose key this is, unless it expired. Reads memory alone. Takes as long for a key with a wrong secret
    /// as for a right one or one that nobody has.
    #[must_use]
    pub fn authenticate(&self, shown: &str) -> Option<Arc<Tenant>> {
        self.authenticate_at(shown, unix_now())
    }

    fn authenticate_at(&self, shown: &str, now: u64) -> Option<Arc<Tenant>> {
        let id = id_of(shown)?;
        let snapshot = self.current();
        let known = snapshot.keys.get(&id);
        let expected = known.map_or(KeyDigest::NONE, |key| key.digest);
        let matches = bool::from(KeyDigest::of(shown).matches(&expected));
        let key = known.filter(|_| matches)?;
        let expired = key.expires.is_some_and(|at| at <= now);
        (!expired).then(|| Arc::clone(&key.tenant))
    }

    /// Whether any key was ever made: then requests need one, also when all are gone.
    #[must_use]
    pub fn requires_key(&self) -> bool {
        self.current().ever_had_keys
    }

    /// All tenants with their keys, by name.
    #[must_use]
    pub fn list(&self) -> Vec<TenantRecord> {
        self.current().tenants.values().cloned().collect()
    }

    /// The numbers of all tenants.
    #[must_use]
    pub fn numbers(&self) -> BTreeSet<u64> {
        let current = self.current();
        current.tenants.values().map(|t| t.tenant.number).collect()
    }

    /// One tenant with its keys.
    #[must_use]
    pub fn get(&self, id: &TenantId) -> Option<TenantRecord> {
        self.current().tenants.get(id).cloned()
    }

    /// Takes over what other processes wrote; whether they wrote anything. Costs one small read when they did not. Blocks;
    /// to be called every second or so.
    ///
    /// # Errors
    /// When the file cannot be read, or was removed or replaced; what was known stays.
    pub fn refresh(&self) -> Result<bool, TenantsError> {
        let mut store = self.store();
        if !store.changed_by_others()? {
            return Ok(false);
        }
        let snapshot = store.load()?;
        self.replace(snapshot);
        Ok(true)
    }

    fn current(&self) -> Arc<Snapshot> {
        let snapshot = self.snapshot.read().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(&snapshot)
    }

    fn replace(&self, snapshot: Snapshot) {
        let mut place = self
            .snapshot
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        *place = Arc::new(snapshot);
    }

    fn store(&self) -> MutexGuard<'_, Store> {
        self.store.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The store for a write that waits for other processes no longer than the busy timeout, its wait for earlier ones
    /// included: many writes at a locked file fail together, not one after the other.
    fn store_for_writing(&self) -> Result<MutexGuard<'_, Store>, TenantsError> {
        let asked = Instant::now();
        let store = self.store();
        store.wait_for_others(asked.elapsed())?;
        Ok(store)
    }

    /// Does all of `work` or nothing, and lets requests see it once it is on the disk.
    fn write<T>(
        &self,
        work: impl FnOnce(&Write<'_>) -> Result<T, TenantsError>,
    ) -> Result<T, TenantsError> {
        let mut store = self.store_for_writing()?;
        let (value, snapshot) = store.transaction(|write| {
            let value = work(write)?;
            Ok((value, snapshot::read(write)?))
        })?;
        // Under the store's lock, so that snapshots are replaced in the order of writes.
        self.replace(snapshot);
        Ok(value)
    }

    /// Likewise, for what the snapshot does not hold.
    fn write_aside<T>(
        &self,
        work: impl FnOnce(&Write<'_>) -> Result<T, TenantsError>,
    ) -> Result<T, TenantsError> {
        self.store_for_writing()?.transaction(work)
    }

    fn read<T>(
        &self,
        work: impl FnOnce(&rusqlite::Connection) -> rusqlite::Result<T>,
    ) -> Result<T, TenantsError> {
        let store = self.store();
        work(&store.connection).map_err(|error| store.place.error(&error))
    }
}

/// A transaction that holds the file's write lock.
pub(crate) struct Write<'a> {
    tx: Transaction<'a>,
    place: &'a open::Place,
}

impl Write<'_> {
    /// Runs SQL whose failures are the file's.
    fn sql<T>(
        &self,
        work: impl FnOnce(&Transaction<'_>) -> rusqlite::Result<T>,
    ) -> Result<T, TenantsError> {
        work(&self.tx).map_err(|error| self.place.error(&error))
    }
}

impl Store {
    fn transaction<T>(
        &mut self,
        work: impl FnOnce(&Write<'_>) -> Result<T, TenantsError>,
    ) -> Result<T, TenantsError> {
        self.place.check_same_file()?;
        let place = &self.place;
        let tx = self
            .connection
            .transaction_with_behavior(TransactionBehavior::Immediate)
            .map_err(|error| place.error(&error))?;
        let write = Write { tx, place };
        // Dropping the transaction undoes it.
        let value = work(&write)?;
        write.tx.commit().map_err(|error| place.error(&error))?;
        Ok(value)
    }
}

/// Unix seconds.
pub(crate) fn unix_now() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}

/// Bit for bit: numbers beyond SQLite's are given to tenants that the registry does not know.
fn number_to_db(tenant: u64) -> i64 {
    tenant.cast_signed()
}

/// SQLite's integers are signed.
fn to_db(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn from_db(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}
