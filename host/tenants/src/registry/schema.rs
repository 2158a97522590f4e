//! Tables, and the way from older schemas.

use super::open::Place;
use crate::TenantsError;
use rusqlite::{Connection, TransactionBehavior};

/// `application_id` of our files: "gues".
const APPLICATION: i64 = 0x6775_6573;

/// Each leads from the schema of its index to the next; never changed once released. A field of `Policy` that older
/// releases do not know needs one too (an empty one does): they would refuse its rows one by one.
const MIGRATIONS: &[&str] = &[V1, V2];

/// Times are Unix seconds. Number 0 is nobody's: requests without a key, and the server's own modules.
const V1: &str = "
CREATE TABLE state(
  one INTEGER PRIMARY KEY CHECK(one = 1),
  ever_had_keys INTEGER NOT NULL
) STRICT;
INSERT INTO state VALUES(1, 0);

CREATE TABLE tenants(
  number INTEGER PRIMARY KEY AUTOINCREMENT,
  id TEXT NOT NULL UNIQUE,
  policy TEXT NOT NULL,
  created INTEGER NOT NULL
) STRICT;
INSERT INTO tenants VALUES(0, '_', '{}', 0);

CREATE TABLE keys(
  id TEXT PRIMARY KEY,
  tenant INTEGER NOT NULL REFERENCES tenants(number) ON DELETE CASCADE,
  sha256 BLOB NOT NULL CHECK(length(sha256) = 32),
  created INTEGER NOT NULL,
  expires INTEGER
) STRICT, WITHOUT ROWID;
CREATE INDEX keys_of ON keys(tenant);

CREATE TABLE modules(
  tenant INTEGER NOT NULL REFERENCES tenants(number) ON DELETE CASCADE,
  name TEXT NOT NULL,
  version INTEGER NOT NULL,
  role TEXT NOT NULL,
  digest BLOB NOT NULL CHECK(length(digest) = 32),
  bytes INTEGER NOT NULL,
  since INTEGER NOT NULL,
  state TEXT NOT NULL CHECK(state IN ('live', 'retired')),
  PRIMARY KEY(tenant, name, version)
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX live_modules ON modules(tenant, name) WHERE state = 'live';
CREATE INDEX modules_by_digest ON modules(digest);

-- Versions given to a name so far: also of those whose rows are gone.
CREATE TABLE module_versions(
  tenant INTEGER NOT NULL REFERENCES tenants(number) ON DELETE CASCADE,
  name TEXT NOT NULL,
  last INTEGER NOT NULL,
  PRIMARY KEY(tenant, name)
) STRICT, WITHOUT ROWID;

CREATE TABLE code(
  tenant INTEGER NOT NULL REFERENCES tenants(number) ON DELETE CASCADE,
  module BLOB NOT NULL CHECK(length(module) = 32),
  engine TEXT NOT NULL,
  sha256 BLOB NOT NULL CHECK(length(sha256) = 32),
  bytes INTEGER NOT NULL,
  PRIMARY KEY(tenant, module, engine)
) STRICT, WITHOUT ROWID;

-- Outlives its tenant. Days since 1970-01-01, UTC.
CREATE TABLE usage(
  tenant INTEGER NOT NULL,
  day INTEGER NOT NULL,
  requests INTEGER NOT NULL,
  prompt_tokens INTEGER NOT NULL,
  output_tokens INTEGER NOT NULL,
  guest_ms INTEGER NOT NULL,
  PRIMARY KEY(tenant, day)
) STRICT, WITHOUT ROWID;
";

/// Where a module came from, and what checked it last.
const V2: &str = "
ALTER TABLE modules ADD COLUMN source TEXT NOT NULL DEFAULT 'upload';
ALTER TABLE modules ADD COLUMN checked TEXT NOT NULL DEFAULT '';
";

/// Schemas up to this one are known.
fn known() -> i64 {
    i64::try_from(MIGRATIONS.len()).unwrap_or(i64::MAX)
}

fn number(connection: &Connection, place: &Place, sql: &str) -> Result<i64, TenantsError> {
    connection
        .query_row(sql, [], |row| row.get(0))
        .map_err(|error| place.error(&error))
}

/// The file's schema. Refuses files of later releases and of other programs.
pub(super) fn found(connection: &Connection, place: &Place) -> Result<i64, TenantsError> {
    let tables = number(connection, place, "SELECT count(*) FROM sqlite_schema")?;
    let application = number(connection, place, "PRAGMA application_id")?;
    let path = || place.path().to_owned();
    if tables > 0 && application != APPLICATION {
        return Err(TenantsError::Foreign { path: path() });
    }
    let found = number(connection, place, "PRAGMA user_version")?;
    if found > known() {
        return Err(TenantsError::Newer {
            path: path(),
            found,
            known: known(),
        });
    }
    Ok(found)
}

/// Brings a file to the newest schema, whole or not at all.
pub(super) fn migrate(connection: &mut Connection, place: &Place) -> Result<(), TenantsError> {
    let sql = |error: rusqlite::Error| place.error(&error);
    let tx = connection
        .transaction_with_behavior(TransactionBehavior::Immediate)
        .map_err(sql)?;
    let done = usize::try_from(found(&tx, place)?).unwrap_or(0);
    if done == MIGRATIONS.len() {
        return Ok(());
    }
    for step in MIGRATIONS.iter().skip(done) {
        tx.execute_batch(step).map_err(sql)?;
    }
    tx.pragma_update(None, "application_id", APPLICATION)
        .and_then(|()| tx.pragma_update(None, "user_version", known()))
        .and_then(|()| tx.commit())
        .map_err(sql)
}
