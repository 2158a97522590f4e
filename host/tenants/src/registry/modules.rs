//! Versions of modules, and digests of their compiled code. Tenant 0 is the server itself. All calls block.
//!
//! Only records: files are named by digest and are their keeper's.

use super::{Registry, Write, from_db, number_to_db, to_db};
use crate::{Sha256Digest, TenantsError};
use rusqlite::{Connection, OptionalExtension, Row, params};

/// Whether a version serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModuleState {
    /// It serves under its name.
    Live,
    /// It did, and can again.
    Retired,
}

/// One version of a module. Of each name, one is live at most.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModuleVersion {
    /// What it is called, within its tenant.
    pub name: String,
    /// Counts up from 1 for each name; never given twice.
    pub version: u64,
    /// `chat`, `sampler` or `graph`.
    pub role: String,
    /// Of the component's bytes.
    pub digest: Sha256Digest,
    /// Its length.
    pub bytes: u64,
    /// When it began to serve, Unix seconds.
    pub since: u64,
    /// Whether it serves now.
    pub state: ModuleState,
    /// Where it came from, in words.
    pub source: String,
    /// The server, by whatever names it, whose check it passed last; empty where that is not known.
    pub checked: String,
}

/// A version to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewModule {
    /// What it is called, within its tenant.
    pub name: String,
    /// `chat`, `sampler` or `graph`.
    pub role: String,
    /// Of the component's bytes.
    pub digest: Sha256Digest,
    /// Its length.
    pub bytes: u64,
    /// Unix seconds.
    pub since: u64,
    /// Where it came from, in words.
    pub source: String,
    /// The server whose check it passed.
    pub checked: String,
}

/// What the compiled code of a module must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CodeRecord {
    /// Of the code's bytes.
    pub sha256: Sha256Digest,
    /// Its length.
    pub bytes: u64,
}

const COLUMNS: &str = "name, version, role, digest, bytes, since, state, source, checked";

fn version(row: &Row<'_>) -> rusqlite::Result<ModuleVersion> {
    let state: String = row.get(6)?;
    Ok(ModuleVersion {
        name: row.get(0)?,
        version: from_db(row.get(1)?),
        role: row.get(2)?,
        digest: Sha256Digest(row.get(3)?),
        bytes: from_db(row.get(4)?),
        since: from_db(row.get(5)?),
        state: match state.as_str() {
            "live" => ModuleState::Live,
            _ => ModuleState::Retired,
        },
        source: row.get(7)?,
        checked: row.get(8)?,
    })
}

fn versions(
    connection: &Connection,
    condition: &str,
    values: impl rusqlite::Params,
) -> rusqlite::Result<Vec<ModuleVersion>> {
    let sql = format!("SELECT {COLUMNS} FROM modules WHERE {condition}");
    let mut rows = connection.prepare(&sql)?;
    rows.query_map(values, version)?.collect()
}

fn live(
    connection: &Connection,
    tenant: u64,
    name: &str,
) -> rusqlite::Result<Option<ModuleVersion>> {
    let sql =
        format!("SELECT {COLUMNS} FROM modules WHERE tenant = ?1 AND name = ?2 AND state = 'live'");
    let mut row = connection.prepare(&sql)?;
    row.query_row(params![number_to_db(tenant), name], version)
        .optional()
}

fn retire(write: &Write<'_>, tenant: u64, name: &str) -> Result<(), TenantsError> {
    write.sql(|tx| {
        tx.execute(
            "UPDATE modules SET state = 'retired' WHERE tenant = ?1 AND name = ?2 AND state = 'live'",
            params![number_to_db(tenant), name],
        )
    })?;
    Ok(())
}

/// A tenant may be removed while its module is compiled.
fn check_tenant(write: &Write<'_>, tenant: u64) -> Result<(), TenantsError> {
    let sql = "SELECT EXISTS(SELECT 1 FROM tenants WHERE number = ?1)";
    let known = write.sql(|tx| tx.query_row(sql, [number_to_db(tenant)], |row| row.get(0)))?;
    if known {
        return Ok(());
    }
    Err(TenantsError::Gone { number: tenant })
}

/// The live version stays if it is the same already; its last check is then this one.
fn place(
    write: &Write<'_>,
    tenant: u64,
    module: &NewModule,
) -> Result<ModuleVersion, TenantsError> {
    let old = write.sql(|tx| live(tx, tenant, &module.name))?;
    let same = |old: &ModuleVersion| old.digest == module.digest && old.role == module.role;
    if let Some(mut old) = old.filter(same) {
        old.checked.clone_from(&module.checked);
        note_check(write, tenant, module.digest, &module.checked)?;
        return Ok(old);
    }
    retire(write, tenant, &module.name)?;
    let version: i64 = write.sql(|tx| {
        let number: i64 = tx.query_row(
            "INSERT INTO module_versions VALUES(?1, ?2, 1)
             ON CONFLICT DO UPDATE SET last = last + 1 RETURNING last",
            params![number_to_db(tenant), module.name],
            |row| row.get(0),
        )?;
        tx.execute(
            "INSERT INTO modules(tenant, name, version, role, digest, bytes, since, state, source, checked)
             VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7, 'live', ?8, ?9)",
            params![
                number_to_db(tenant),
                module.name,
                number,
                module.role,
                module.digest.0,
                to_db(module.bytes),
                to_db(module.since),
                module.source,
                module.checked,
            ],
        )?;
        Ok(number)
    })?;
    Ok(ModuleVersion {
        name: module.name.clone(),
        version: from_db(version),
        role: module.role.clone(),
        digest: module.digest,
        bytes: module.bytes,
        since: module.since,
        state: ModuleState::Live,
        source: module.source.clone(),
        checked: module.checked.clone(),
    })
}

fn note_check(
    write: &Write<'_>,
    tenant: u64,
    digest: Sha256Digest,
    by: &str,
) -> Result<(), TenantsError> {
    write.sql(|tx| {
        tx.execute(
            "UPDATE modules SET checked = ?3 WHERE tenant = ?1 AND digest = ?2 AND checked != ?3",
            params![number_to_db(tenant), digest.0, by],
        )
    })?;
    Ok(())
}

impl Registry {
    /// Notes that a tenant's module passed the check of the server that `by` names.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn note_check(
        &self,
        tenant: u64,
        digest: Sha256Digest,
        by: &str,
    ) -> Result<(), TenantsError> {
        self.write_aside(|write| note_check(write, tenant, digest, by))
    }

    /// Makes a version live in place of what had its name; changes nothing if it is live already.
    ///
    /// # Errors
    /// When the file cannot be written, or there is no such tenant.
    pub fn place_module(
        &self,
        tenant: u64,
        module: &NewModule,
    ) -> Result<ModuleVersion, TenantsError> {
        self.write_aside(|write| {
            check_tenant(write, tenant)?;
            place(write, tenant, module)
        })
    }

    /// A tenant's live modules, by name.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn modules(&self, tenant: u64) -> Result<Vec<ModuleVersion>, TenantsError> {
        self.read(|c| {
            versions(
                c,
                "tenant = ?1 AND state = 'live' ORDER BY name",
                [number_to_db(tenant)],
            )
        })
    }

    /// All versions of a name, newest first.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn history(&self, tenant: u64, name: &str) -> Result<Vec<ModuleVersion>, TenantsError> {
        let values = params![number_to_db(tenant), name];
        self.read(|c| versions(c, "tenant = ?1 AND name = ?2 ORDER BY version DESC", values))
    }

    /// Makes an earlier version live again, as a new version from `since` on.
    ///
    /// # Errors
    /// When the name never had it, or the file cannot be written.
    pub fn roll_back(
        &self,
        tenant: u64,
        name: &str,
        digest: Sha256Digest,
        since: u64,
    ) -> Result<ModuleVersion, TenantsError> {
        self.write_aside(|write| {
            let sql = "tenant = ?1 AND name = ?2 AND digest = ?3 ORDER BY version DESC LIMIT 1";
            let found =
                write.sql(|tx| versions(tx, sql, params![number_to_db(tenant), name, digest.0]))?;
            let Some(old) = found.into_iter().next() else {
                return Err(TenantsError::UnknownVersion {
                    name: name.to_owned(),
                    digest,
                });
            };
            let again = NewModule {
                name: old.name,
                role: old.role,
                digest,
                bytes: old.bytes,
                since,
                source: old.source,
                checked: old.checked,
            };
            place(write, tenant, &again)
        })
    }

    /// Retires the live version of a name; its history stays, and takes its place in [`Self::module_bytes`].
    ///
    /// # Errors
    /// When nothing of this name is live, or the file cannot be written.
    pub fn remove_module(&self, tenant: u64, name: &str) -> Result<ModuleVersion, TenantsError> {
        self.write_aside(|write| {
            let Some(mut old) = write.sql(|tx| live(tx, tenant, name))? else {
                return Err(TenantsError::UnknownModule {
                    name: name.to_owned(),
                });
            };
            retire(write, tenant, name)?;
            old.state = ModuleState::Retired;
            Ok(old)
        })
    }

    /// Forgets the retired versions of a name but the newest `keep`, and those that are left of compiled code; returns
    /// what is forgotten.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn prune_history(
        &self,
        tenant: u64,
        name: &str,
        keep: u32,
    ) -> Result<Vec<ModuleVersion>, TenantsError> {
        self.write_aside(|write| {
            let values = params![number_to_db(tenant), name, keep];
            let old = write.sql(|tx| {
                let sql = "tenant = ?1 AND name = ?2 AND state = 'retired'
                           ORDER BY version DESC LIMIT -1 OFFSET ?3";
                versions(tx, sql, values)
            })?;
            write.sql(|tx| {
                let mut forget = tx.prepare(
                    "DELETE FROM modules WHERE tenant = ?1 AND name = ?2 AND version = ?3",
                )?;
                for gone in &old {
                    forget.execute(params![number_to_db(tenant), name, to_db(gone.version)])?;
                }
                tx.execute(
                    "DELETE FROM code WHERE tenant = ?1 AND NOT EXISTS(
                       SELECT 1 FROM modules m WHERE m.tenant = ?1 AND m.digest = code.module)",
                    [number_to_db(tenant)],
                )
            })?;
            Ok(old)
        })
    }

    /// Whether any tenant has a version, live or retired, of this digest: then its file is needed.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn needs_module(&self, digest: Sha256Digest) -> Result<bool, TenantsError> {
        self.read(|c| {
            let sql = "SELECT EXISTS(SELECT 1 FROM modules WHERE digest = ?1)";
            c.query_row(sql, params![digest.0], |row| row.get(0))
        })
    }

    /// Bytes of a tenant's modules, retired ones too, each digest once, and of their compiled code.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn module_bytes(&self, tenant: u64) -> Result<u64, TenantsError> {
        let sum = self.read(|c| {
            let sql = "SELECT
                (SELECT ifnull(sum(bytes), 0) FROM
                   (SELECT max(bytes) AS bytes FROM modules WHERE tenant = ?1 GROUP BY digest))
                + (SELECT ifnull(sum(bytes), 0) FROM code WHERE tenant = ?1)";
            c.query_row(sql, [number_to_db(tenant)], |row| row.get(0))
        })?;
        Ok(from_db(sum))
    }

    /// What the code must be that a module was compiled to, for an engine (hash of its settings), for a tenant.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn code_digest(
        &self,
        tenant: u64,
        module: Sha256Digest,
        engine: &str,
    ) -> Result<Option<CodeRecord>, TenantsError> {
        self.read(|c| {
            let sql =
                "SELECT sha256, bytes FROM code WHERE tenant = ?1 AND module = ?2 AND engine = ?3";
            c.query_row(
                sql,
                params![number_to_db(tenant), module.0, engine],
                |row| {
                    Ok(CodeRecord {
                        sha256: Sha256Digest(row.get(0)?),
                        bytes: from_db(row.get(1)?),
                    })
                },
            )
            .optional()
        })
    }

    /// Notes what a module was compiled to.
    ///
    /// # Errors
    /// When the file cannot be written, or there is no such tenant.
    pub fn set_code_digest(
        &self,
        tenant: u64,
        module: Sha256Digest,
        engine: &str,
        code: CodeRecord,
    ) -> Result<(), TenantsError> {
        self.write_aside(|write| {
            check_tenant(write, tenant)?;
            write.sql(|tx| {
                tx.execute(
                    "INSERT INTO code VALUES(?1, ?2, ?3, ?4, ?5)
                     ON CONFLICT DO UPDATE SET sha256 = excluded.sha256, bytes = excluded.bytes",
                    params![
                        number_to_db(tenant),
                        module.0,
                        engine,
                        code.sha256.0,
                        to_db(code.bytes)
                    ],
                )
            })?;
            Ok(())
        })
    }
}
