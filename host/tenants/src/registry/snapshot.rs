//! What requests see of the registry.

use super::{Write, from_db};
use crate::key::{KeyDigest, KeyId};
use crate::{Policy, Tenant, TenantId, TenantsError};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// The file's tenants and keys at one moment.
pub(super) struct Snapshot {
    pub(super) tenants: BTreeMap<TenantId, TenantRecord>,
    pub(super) keys: HashMap<KeyId, Key>,
    pub(super) ever_had_keys: bool,
}

pub(super) struct Key {
    pub(super) tenant: Arc<Tenant>,
    pub(super) digest: KeyDigest,
    /// Unix seconds.
    pub(super) expires: Option<u64>,
}

/// A tenant with what is known of its keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TenantRecord {
    /// The tenant.
    pub tenant: Arc<Tenant>,
    /// When it was added, Unix seconds.
    pub created: u64,
    /// Its keys, oldest first; expired ones stay until the next is made.
    pub keys: Vec<KeyInfo>,
}

/// What is known of a key; its secret is not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyInfo {
    /// Its name, part of it.
    pub id: KeyId,
    /// When it was made, Unix seconds.
    pub created: u64,
    /// From when on it is refused, Unix seconds.
    pub expires: Option<u64>,
}

/// Reads all of it, within one transaction.
pub(super) fn read(write: &Write<'_>) -> Result<Snapshot, TenantsError> {
    let ever_had_keys = write.sql(|tx| {
        tx.query_row("SELECT ever_had_keys FROM state", [], |row| {
            row.get::<_, bool>(0)
        })
    })?;
    let rows: Vec<(i64, String, String, i64)> = write.sql(|tx| {
        let mut rows =
            tx.prepare("SELECT number, id, policy, created FROM tenants WHERE number > 0")?;
        let rows = rows.query_map([], |r| Ok((r.get(0)?, r.get(1)?, r.get(2)?, r.get(3)?)))?;
        rows.collect()
    })?;
    let mut by_number = HashMap::new();
    for (number, id, policy, created) in rows {
        let damaged = |what: String| write.place.corrupt(format!("tenant {number}: {what}"));
        let id = TenantId::parse(&id).map_err(|error| damaged(error.to_string()))?;
        let policy: Policy =
            serde_json::from_str(&policy).map_err(|error| damaged(error.to_string()))?;
        let tenant = Tenant {
            id,
            number: from_db(number),
            policy,
        };
        let record = TenantRecord {
            tenant: Arc::new(tenant),
            created: from_db(created),
            keys: Vec::new(),
        };
        by_number.insert(number, record);
    }
    let mut keys = HashMap::new();
    for row in key_rows(write)? {
        let parsed = (KeyId::parse(&row.id), KeyDigest::from_bytes(&row.sha256));
        let record = by_number.get_mut(&row.tenant);
        let ((Some(id), Some(digest)), Some(record)) = (parsed, record) else {
            let what = format!("a key of tenant {} makes no sense", row.tenant);
            return Err(write.place.corrupt(what));
        };
        let (created, expires) = (from_db(row.created), row.expires.map(from_db));
        record.keys.push(KeyInfo {
            id,
            created,
            expires,
        });
        let key = Key {
            tenant: Arc::clone(&record.tenant),
            digest,
            expires,
        };
        keys.insert(id, key);
    }
    Ok(Snapshot {
        tenants: by_number
            .into_values()
            .map(|record| (record.tenant.id.clone(), record))
            .collect(),
        keys,
        ever_had_keys,
    })
}

struct KeyRow {
    id: String,
    tenant: i64,
    sha256: Vec<u8>,
    created: i64,
    expires: Option<i64>,
}

/// Oldest first.
fn key_rows(write: &Write<'_>) -> Result<Vec<KeyRow>, TenantsError> {
    write.sql(|tx| {
        let sql = "SELECT id, tenant, sha256, created, expires FROM keys ORDER BY created, id";
        let mut rows = tx.prepare(sql)?;
        let rows = rows.query_map([], |row| {
            Ok(KeyRow {
                id: row.get(0)?,
                tenant: row.get(1)?,
                sha256: row.get(2)?,
                created: row.get(3)?,
                expires: row.get(4)?,
            })
        })?;
        rows.collect()
    })
}
