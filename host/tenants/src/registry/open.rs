//! The file: who may read it, how it is opened, and what its errors mean.

use super::snapshot::{self, Snapshot};
use super::{BUSY, Write, schema};
use crate::TenantsError;
use rusqlite::{Connection, ErrorCode, OpenFlags, TransactionBehavior};
use std::fs::{self, DirBuilder, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// What a write that waited long for its turn still waits for other processes.
const LEAST_BUSY: Duration = Duration::from_millis(100);

/// One connection.
pub(super) struct Store {
    pub(super) connection: Connection,
    pub(super) place: Place,
    /// `PRAGMA data_version` of what the snapshot shows.
    seen: i64,
    /// Counters that are not on the disk yet.
    pub(super) unwritten: super::usage::Unwritten,
}

/// Where a database is.
pub(super) struct Place {
    path: PathBuf,
    /// Device and inode of the file that is open; none in memory.
    file: Option<(u64, u64)>,
    busy: Duration,
}

impl Place {
    /// What a failure of SQLite means for this file.
    pub(super) fn error(&self, error: &rusqlite::Error) -> TenantsError {
        let path = self.path.clone();
        let what = error.to_string();
        match error.sqlite_error_code() {
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => TenantsError::Locked {
                path,
                seconds: self.busy.as_secs(),
            },
            Some(ErrorCode::DiskFull) => TenantsError::Full { path },
            Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => {
                TenantsError::Corrupt { path, what }
            }
            Some(ErrorCode::ReadOnly | ErrorCode::PermissionDenied | ErrorCode::CannotOpen) => {
                TenantsError::Access { path, what }
            }
            Some(_) => TenantsError::Storage { path, what },
            // A value that is not of its column's type.
            None => TenantsError::Corrupt { path, what },
        }
    }

    pub(super) fn corrupt(&self, what: impl Into<String>) -> TenantsError {
        TenantsError::Corrupt {
            path: self.path.clone(),
            what: what.into(),
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// A write to a file without a name would be lost.
    pub(super) fn check_same_file(&self) -> Result<(), TenantsError> {
        let Some(open) = self.file else {
            return Ok(());
        };
        let there = fs::metadata(&self.path).ok().map(|found| identity(&found));
        if there == Some(open) {
            return Ok(());
        }
        Err(TenantsError::Replaced {
            path: self.path.clone(),
        })
    }

    fn io(&self, error: &io::Error) -> TenantsError {
        TenantsError::Access {
            path: self.path.clone(),
            what: error.to_string(),
        }
    }

    fn access(path: &Path, what: String) -> TenantsError {
        TenantsError::Access {
            path: path.to_owned(),
            what,
        }
    }
}

fn identity(found: &Metadata) -> (u64, u64) {
    (found.dev(), found.ino())
}

impl Store {
    pub(super) fn open(path: &Path, busy: Duration) -> Result<Self, TenantsError> {
        let mut place = Place {
            path: path.to_owned(),
            file: None,
            busy,
        };
        prepare_folder(path)?;
        if fs::symlink_metadata(path).is_err_and(|e| e.kind() == io::ErrorKind::NotFound) {
            create(&place)?;
        }
        place.file = Some(identity(&checked_file(&place)?));
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection =
            Connection::open_with_flags(path, flags).map_err(|error| place.error(&error))?;
        let mut store = Self::new(connection, place)?;
        store.check_contents()?;
        // SQLite takes a file that was cut within its first page for an empty one.
        if schema::found(&store.connection, &store.place)? == 0 {
            return Err(store.place.corrupt("it has no tables"));
        }
        store.use_wal()?;
        schema::migrate(&mut store.connection, &store.place)?;
        Ok(store)
    }

    pub(super) fn in_memory() -> Result<Self, TenantsError> {
        let place = Place {
            path: PathBuf::from(":memory:"),
            file: None,
            busy: BUSY,
        };
        let connection = Connection::open_in_memory().map_err(|error| place.error(&error))?;
        let mut store = Self::new(connection, place)?;
        schema::migrate(&mut store.connection, &store.place)?;
        Ok(store)
    }

    fn new(connection: Connection, place: Place) -> Result<Self, TenantsError> {
        let set = || {
            connection.busy_timeout(place.busy)?;
            connection.pragma_update(None, "foreign_keys", true)?;
            connection.pragma_update(None, "trusted_schema", false)?;
            connection.pragma_update(None, "synchronous", "FULL")
        };
        set().map_err(|error| place.error(&error))?;
        Ok(Self {
            connection,
            place,
            seen: 0,
            unwritten: super::usage::Unwritten::default(),
        })
    }

    /// How long the next write waits for other processes, after `waited`.
    pub(super) fn wait_for_others(&self, waited: Duration) -> Result<(), TenantsError> {
        let left = self.place.busy.saturating_sub(waited);
        // Never so short that a passing lock is an error.
        let least = LEAST_BUSY.min(self.place.busy);
        self.connection
            .busy_timeout(left.max(least))
            .map_err(|error| self.place.error(&error))
    }

    fn check_contents(&self) -> Result<(), TenantsError> {
        let found: String = self
            .connection
            .query_row("PRAGMA quick_check(1)", [], |row| row.get(0))
            .map_err(|error| self.place.error(&error))?;
        if found == "ok" {
            return Ok(());
        }
        Err(self.place.corrupt(found))
    }

    fn use_wal(&self) -> Result<(), TenantsError> {
        let ask = || -> rusqlite::Result<String> {
            let mode: String = self
                .connection
                .query_row("PRAGMA journal_mode", [], |row| row.get(0))?;
            if mode == "wal" {
                return Ok(mode);
            }
            self.connection
                .query_row("PRAGMA journal_mode=WAL", [], |row| row.get(0))
        };
        // SQLite does not wait for others here by itself.
        let mut left = self.place.busy.as_millis() / 20;
        let mode = loop {
            match ask() {
                Err(error)
                    if left > 0 && error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy) =>
                {
                    left -= 1;
                    std::thread::sleep(Duration::from_millis(20));
                }
                other => break other.map_err(|error| self.place.error(&error))?,
            }
        };
        if mode == "wal" {
            return Ok(());
        }
        Err(TenantsError::Access {
            path: self.place.path.clone(),
            what: format!(
                "its file system allows no write-ahead log (journal mode {mode}); put it on a local disk"
            ),
        })
    }

    pub(super) fn changed_by_others(&self) -> Result<bool, TenantsError> {
        self.place.check_same_file()?;
        let version: i64 = self
            .connection
            .query_row("PRAGMA data_version", [], |row| row.get(0))
            .map_err(|error| self.place.error(&error))?;
        // Noted by `load`, so that a failed load is tried again.
        Ok(version != self.seen)
    }

    /// What the file says now.
    pub(super) fn load(&mut self) -> Result<Snapshot, TenantsError> {
        let place = &self.place;
        // Asked before the reading: what is written in between is read again at the next refresh.
        let version = self
            .connection
            .query_row("PRAGMA data_version", [], |row| row.get(0))
            .map_err(|error| place.error(&error))?;
        let tx = self
            .connection
            .transaction_with_behavior(TransactionBehavior::Deferred)
            .map_err(|error| place.error(&error))?;
        let snapshot = snapshot::read(&Write { tx, place })?;
        self.seen = version;
        Ok(snapshot)
    }
}

/// Makes a missing folder for us alone; refuses one where others could replace the file.
fn prepare_folder(path: &Path) -> Result<(), TenantsError> {
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder)
        .map_err(|error| Place::access(folder, format!("the folder cannot be made: {error}")))?;
    let found = fs::metadata(folder).map_err(|error| Place::access(folder, error.to_string()))?;
    let mode = found.permissions().mode();
    if mode & 0o022 != 0 {
        let what = format!(
            "others may write in this folder (mode {:03o}) and could replace the file; chmod 700 it",
            mode & 0o777
        );
        return Err(Place::access(folder, what));
    }
    Ok(())
}

/// Refuses a file of others or an empty one; takes rights of others away.
fn checked_file(place: &Place) -> Result<Metadata, TenantsError> {
    let found = fs::metadata(&place.path).map_err(|error| place.io(&error))?;
    if !found.is_file() {
        return Err(Place::access(&place.path, "it is no file".to_owned()));
    }
    let (owner, us) = (found.uid(), rustix::process::geteuid().as_raw());
    if owner != us {
        let what = format!("user {owner} owns it, and this process runs as user {us}");
        return Err(Place::access(&place.path, what));
    }
    // Files are made whole and then named: an empty one was cut.
    if found.len() == 0 {
        return Err(place.corrupt("it is empty"));
    }
    if found.permissions().mode() & 0o077 != 0 {
        fs::set_permissions(&place.path, PermissionsExt::from_mode(0o600))
            .map_err(|error| place.io(&error))?;
    }
    Ok(found)
}

/// A new file is made under another name, and gets its own once its schema is on the disk: a file that is there is whole.
fn create(place: &Place) -> Result<(), TenantsError> {
    let mut name = place.path.as_os_str().to_owned();
    name.push(format!(".{}.new", std::process::id()));
    let new = PathBuf::from(name);
    let made = create_as(&new, place);
    let cleared = fs::remove_file(&new);
    made?;
    cleared.map_err(|error| place.io(&error))
}

fn create_as(new: &Path, place: &Place) -> Result<(), TenantsError> {
    // Of a process with this number that was killed.
    let _ = fs::remove_file(new);
    OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(new)
        .map_err(|error| place.io(&error))?;
    let mut connection = Connection::open_with_flags(new, OpenFlags::SQLITE_OPEN_READ_WRITE)
        .map_err(|error| place.error(&error))?;
    schema::migrate(&mut connection, place)?;
    connection
        .close()
        .map_err(|(_, error)| place.error(&error))?;
    match fs::hard_link(new, &place.path) {
        // Another process made one at the same time.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        linked => linked.map_err(|error| place.io(&error))?,
    }
    let folder = place.path.parent().filter(|p| !p.as_os_str().is_empty());
    fs::File::open(folder.unwrap_or(Path::new(".")))
        .and_then(|folder| folder.sync_all())
        .map_err(|error| place.io(&error))
}
