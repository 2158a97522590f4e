//! Tenants and keys come, change and go.

use super::{Registry, Write, to_db, unix_now};
use crate::key::NewKey;
use crate::{Policy, Tenant, TenantId, TenantsError};
use rusqlite::{OptionalExtension, params};
use std::sync::Arc;
use std::time::Duration;

/// Most keys of a tenant that did not expire.
const MOST_KEYS: usize = 16;

impl Registry {
    /// A new tenant and its first key, which is shown this once. Blocks.
    ///
    /// # Errors
    /// When the name is taken or reserved, the policy makes no sense, or the file cannot be written.
    pub fn add(
        &self,
        id: &TenantId,
        policy: &Policy,
    ) -> Result<(Arc<Tenant>, NewKey), TenantsError> {
        if reserved(id) {
            return Err(TenantsError::Reserved { id: id.clone() });
        }
        policy.check()?;
        let json = to_json(policy)?;
        let key = NewKey::generate()?;
        let now = unix_now();
        let number = self.write(|write| {
            if number_of(write, id)?.is_some() {
                return Err(TenantsError::Exists { id: id.clone() });
            }
            write.sql(|tx| {
                tx.execute(
                    "INSERT INTO tenants(id, policy, created) VALUES(?1, ?2, ?3)",
                    params![id.as_str(), json, to_db(now)],
                )
            })?;
            let number = write.tx.last_insert_rowid();
            insert_key(write, number, &key, now)?;
            Ok(number)
        })?;
        let tenant = Tenant {
            id: id.clone(),
            number: super::from_db(number),
            policy: policy.clone(),
        };
        Ok((Arc::new(tenant), key))
    }

    /// A further key, shown this once. Older ones expire after `keep_old`, or when they would anyway. Blocks.
    ///
    /// # Errors
    /// When there is no such tenant, it has too many keys, or the file cannot be written.
    pub fn rotate(&self, id: &TenantId, keep_old: Duration) -> Result<NewKey, TenantsError> {
        let key = NewKey::generate()?;
        let now = unix_now();
        let until = to_db(now.saturating_add(keep_old.as_secs()));
        self.write(|write| {
            let number = known(write, id)?;
            let kept: i64 = write.sql(|tx| {
                tx.execute(
                    "UPDATE keys SET expires = min(?2, ifnull(expires, ?2)) WHERE tenant = ?1",
                    params![number, until],
                )?;
                tx.execute(
                    "DELETE FROM keys WHERE tenant = ?1 AND expires <= ?2",
                    params![number, to_db(now)],
                )?;
                tx.query_row(
                    "SELECT count(*) FROM keys WHERE tenant = ?1",
                    [number],
                    |row| row.get(0),
                )
            })?;
            let kept = usize::try_from(kept).unwrap_or(usize::MAX);
            if kept >= MOST_KEYS {
                return Err(TenantsError::TooManyKeys {
                    id: id.clone(),
                    found: kept,
                    most: MOST_KEYS,
                });
            }
            insert_key(write, number, &key, now)
        })?;
        Ok(key)
    }

    /// Takes a tenant away with its keys, modules and digests; its counters stay, and its number is not given again.
    /// Blocks.
    ///
    /// # Errors
    /// When there is no such tenant or the file cannot be written.
    pub fn remove(&self, id: &TenantId) -> Result<(), TenantsError> {
        self.write(|write| {
            let number = known(write, id)?;
            write.sql(|tx| tx.execute("DELETE FROM tenants WHERE number = ?1", [number]))?;
            Ok(())
        })
    }

    /// From now on requests need a key, also before there is any. Blocks.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn require_keys(&self) -> Result<(), TenantsError> {
        self.write(|write| {
            write.sql(|tx| tx.execute("UPDATE state SET ever_had_keys = 1", []))?;
            Ok(())
        })
    }

    /// Changes what a tenant may do, from its next request on. Blocks.
    ///
    /// # Errors
    /// When there is no such tenant, the policy makes no sense, or the file cannot be written.
    pub fn set_policy(&self, id: &TenantId, policy: &Policy) -> Result<Arc<Tenant>, TenantsError> {
        policy.check()?;
        self.change_policy(id, |_| Ok(policy.clone()))
    }

    /// Likewise, by a JSON merge patch (RFC 7396) of the policy as it is then. Blocks.
    ///
    /// # Errors
    /// When there is no such tenant, the outcome is no policy, or the file cannot be written.
    pub fn patch_policy(
        &self,
        id: &TenantId,
        patch: &serde_json::Value,
    ) -> Result<Arc<Tenant>, TenantsError> {
        self.change_policy(id, |old| old.patched(patch))
    }

    fn change_policy(
        &self,
        id: &TenantId,
        change: impl FnOnce(&Policy) -> Result<Policy, TenantsError>,
    ) -> Result<Arc<Tenant>, TenantsError> {
        self.write(|write| {
            let number = known(write, id)?;
            let old: String = write.sql(|tx| {
                let sql = "SELECT policy FROM tenants WHERE number = ?1";
                tx.query_row(sql, [number], |row| row.get(0))
            })?;
            let old = serde_json::from_str(&old)
                .map_err(|error| write.place.corrupt(format!("tenant {number}: {error}")))?;
            let policy = change(&old)?;
            let json = to_json(&policy)?;
            write.sql(|tx| {
                tx.execute(
                    "UPDATE tenants SET policy = ?2 WHERE number = ?1",
                    params![number, json],
                )
            })?;
            Ok(Arc::new(Tenant {
                id: id.clone(),
                number: super::from_db(number),
                policy,
            }))
        })
    }
}

/// Names of tenants that `--api-key` makes.
fn reserved(id: &TenantId) -> bool {
    let number = id.as_str().strip_prefix("key-");
    number.is_some_and(|n| !n.is_empty() && n.bytes().all(|c| c.is_ascii_digit()))
}

fn to_json(policy: &Policy) -> Result<String, TenantsError> {
    serde_json::to_string(policy).map_err(|error| TenantsError::Policy {
        field: "content",
        found: error.to_string(),
        expected: "what JSON can hold",
    })
}

fn number_of(write: &Write<'_>, id: &TenantId) -> Result<Option<i64>, TenantsError> {
    write.sql(|tx| {
        tx.query_row(
            "SELECT number FROM tenants WHERE id = ?1 AND number > 0",
            [id.as_str()],
            |row| row.get(0),
        )
        .optional()
    })
}

fn known(write: &Write<'_>, id: &TenantId) -> Result<i64, TenantsError> {
    number_of(write, id)?.ok_or_else(|| TenantsError::Unknown { id: id.clone() })
}

fn insert_key(write: &Write<'_>, number: i64, key: &NewKey, now: u64) -> Result<(), TenantsError> {
    write.sql(|tx| {
        tx.execute(
            "INSERT INTO keys(id, tenant, sha256, created) VALUES(?1, ?2, ?3, ?4)",
            params![
                key.id().as_str(),
                number,
                key.digest().as_bytes(),
                to_db(now)
            ],
        )?;
        tx.execute("UPDATE state SET ever_had_keys = 1", [])
    })?;
    Ok(())
}
