//! Where modules that were brought are kept: files named by digest, and an index in the registry of tenants.
//!
//! A file is written under another name, synced and renamed before the index names it, and removed after the index has
//! forgotten it. So an end at any moment leaves files that nothing names, which the next start removes, and no name
//! without a file. What is read is compared with its digest.

use crate::model::store::ModuleError;
use guesthouse_component::{CodeDigest, CodeDigests, ModuleDigest};
use guesthouse_tenants::{CodeRecord, ModuleVersion, NewModule, Registry, Sha256Digest};
use std::collections::HashMap;
use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// Retired versions that are kept of each name.
const HISTORY: u32 = 10;
/// Largest file that is read, bytes.
const MAX_FILE: u64 = 128 << 20;
/// Names of the server's modules that came from the watched folder.
const WATCHED: &str = "watched.json";

/// A folder of modules with their index. Tenants are numbers; 0 is the server itself. All calls block.
pub(super) struct Shelf {
    pub(super) registry: Arc<Registry>,
    folder: PathBuf,
    /// How many are placing each module: its file is needed although the index may not name it yet. Locked while files are
    /// removed.
    in_hand: Mutex<HashMap<ModuleDigest, usize>>,
}

/// Keeps a module's file while it is being placed.
pub(super) struct InHand<'a> {
    shelf: &'a Shelf,
    digest: ModuleDigest,
}

impl Drop for InHand<'_> {
    fn drop(&mut self) {
        let mut all = self.shelf.in_hand();
        if let Some(count) = all.get_mut(&self.digest) {
            *count -= 1;
            if *count == 0 {
                all.remove(&self.digest);
            }
        }
    }
}

/// Whether all was removed that nothing needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Swept {
    /// All.
    All,
    /// Something was being placed, or could not be looked up or removed.
    Part,
}

/// Digests of compiled code, in the registry, of one tenant.
pub(super) struct Records<'a> {
    registry: &'a Registry,
    tenant: u64,
}

impl CodeDigests for Records<'_> {
    fn get(&self, module: &ModuleDigest, engine: &str) -> Option<CodeDigest> {
        let found = self
            .registry
            .code_digest(self.tenant, Sha256Digest(module.0), engine);
        let found = found.unwrap_or_else(|error| {
            tracing::warn!(%error, "digests of compiled code cannot be read");
            None
        });
        found.map(|code| CodeDigest {
            sha256: code.sha256.0,
            bytes: code.bytes,
        })
    }

    fn set(&self, module: &ModuleDigest, engine: &str, code: CodeDigest) -> Result<(), String> {
        let code = CodeRecord {
            sha256: Sha256Digest(code.sha256),
            bytes: code.bytes,
        };
        self.registry
            .set_code_digest(self.tenant, Sha256Digest(module.0), engine, code)
            .map_err(|error| error.to_string())
    }
}

impl Shelf {
    /// Makes the folder if it is missing; refuses one that others may enter or that is not ours.
    pub(super) fn open(registry: Arc<Registry>, folder: &Path) -> Result<Self, ModuleError> {
        let refuse = |what: String| ModuleError::Folder {
            path: folder.to_owned(),
            what,
        };
        if !folder.exists() {
            fs::DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(folder)
                .map_err(|error| refuse(format!("cannot be made: {error}")))?;
        }
        let meta = fs::symlink_metadata(folder).map_err(|error| refuse(error.to_string()))?;
        let ours = fs::metadata("/proc/self").map_or_else(|_| meta.uid(), |own| own.uid());
        if !meta.is_dir() || meta.mode() & 0o077 != 0 || meta.uid() != ours {
            return Err(refuse(format!(
                "expected a folder of user {ours} with mode 0700, found user {} and mode {:04o}",
                meta.uid(),
                meta.mode() & 0o777
            )));
        }
        Ok(Self {
            registry,
            folder: folder.to_owned(),
            in_hand: Mutex::default(),
        })
    }

    fn in_hand(&self) -> std::sync::MutexGuard<'_, HashMap<ModuleDigest, usize>> {
        self.in_hand.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Until the value is dropped nobody removes this module's file.
    pub(super) fn take(&self, digest: ModuleDigest) -> InHand<'_> {
        *self.in_hand().entry(digest).or_default() += 1;
        InHand {
            shelf: self,
            digest,
        }
    }

    pub(super) fn records(&self, tenant: u64) -> Records<'_> {
        Records {
            registry: &self.registry,
            tenant,
        }
    }

    fn path(&self, digest: ModuleDigest) -> PathBuf {
        self.folder.join(format!("{digest}.wasm"))
    }

    /// Writes a module's file. One that is there already is replaced: it may be damaged.
    pub(super) fn keep(&self, digest: ModuleDigest, bytes: &[u8]) -> Result<(), ModuleError> {
        self.write(&self.path(digest), bytes)
    }

    fn write(&self, path: &Path, bytes: &[u8]) -> Result<(), ModuleError> {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let write = || -> std::io::Result<()> {
            let unique = format!("{:?}", std::thread::current().id());
            let unique: String = unique.chars().filter(char::is_ascii_digit).collect();
            let temporary = self
                .folder
                .join(format!(".{name}.{}.{unique}", std::process::id()));
            let mut file = fs::OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(true)
                .mode(0o600)
                .open(&temporary)?;
            let written = file.write_all(bytes).and_then(|()| file.sync_all());
            if let Err(error) = written.and_then(|()| fs::rename(&temporary, path)) {
                // The disk may be full; what is there of it helps nobody.
                drop(fs::remove_file(&temporary));
                return Err(error);
            }
            fs::File::open(&self.folder)?.sync_all()
        };
        write().map_err(|error| ModuleError::Folder {
            path: path.to_owned(),
            what: format!("cannot be written: {error}"),
        })
    }

    /// The bytes of a module, which are those that were kept.
    pub(super) fn read(&self, digest: ModuleDigest) -> Result<Vec<u8>, ModuleError> {
        let path = self.path(digest);
        let refuse = |what: String| ModuleError::Folder {
            path: path.clone(),
            what,
        };
        // A pipe would be waited for.
        if fs::metadata(&path).is_ok_and(|found| !found.is_file()) {
            return Err(refuse("is not a file; bring the module again".to_owned()));
        }
        let mut bytes = Vec::new();
        fs::File::open(&path)
            .and_then(|file| file.take(MAX_FILE + 1).read_to_end(&mut bytes))
            .map_err(|error| refuse(format!("cannot be read: {error}")))?;
        let found = ModuleDigest::of(&bytes);
        if found != digest {
            return Err(refuse(format!(
                "holds sha256:{found}, not the module of its name; bring the module again"
            )));
        }
        Ok(bytes)
    }

    /// A version serves from now on. Returns modules that the index names no more in its place.
    pub(super) fn place(
        &self,
        tenant: u64,
        module: &NewModule,
    ) -> Result<Vec<ModuleDigest>, ModuleError> {
        self.registry.place_module(tenant, module)?;
        self.prune(tenant, &module.name)
    }

    /// Forgets what is beyond the history of a name. Returns those modules.
    pub(super) fn prune(&self, tenant: u64, name: &str) -> Result<Vec<ModuleDigest>, ModuleError> {
        let gone = self.registry.prune_history(tenant, name, HISTORY)?;
        Ok(gone
            .iter()
            .map(|gone| ModuleDigest(gone.digest.0))
            .collect())
    }

    /// Removes a module's file, and before it what `code` removes, unless someone needs them.
    pub(super) fn collect(&self, digest: ModuleDigest, code: impl FnOnce(&ModuleDigest)) -> Swept {
        let in_hand = self.in_hand();
        if in_hand.contains_key(&digest) {
            return Swept::Part;
        }
        match self.registry.needs_module(Sha256Digest(digest.0)) {
            Ok(true) => return Swept::All,
            Ok(false) => {}
            Err(error) => {
                tracing::warn!(%error, "a module that nothing may need stays");
                return Swept::Part;
            }
        }
        code(&digest);
        let path = self.path(digest);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                tracing::warn!(file = %path.display(), %error, "a module's file is not removed");
                Swept::Part
            }
            _ => Swept::All,
        }
    }

    /// Removes files of modules that no version names, and before each what `code` removes.
    ///
    /// # Errors
    /// When the folder cannot be read.
    pub(super) fn sweep(&self, code: impl Fn(&ModuleDigest)) -> std::io::Result<Swept> {
        let mut swept = Swept::All;
        for entry in fs::read_dir(&self.folder)? {
            let name = entry?.file_name();
            let digest = name.to_str().and_then(|name| name.strip_suffix(".wasm"));
            if let Some(digest) = digest.and_then(ModuleDigest::parse)
                && self.collect(digest, &code) == Swept::Part
            {
                swept = Swept::Part;
            }
        }
        Ok(swept)
    }

    /// Removes temporary files, which are of writers that were killed: nobody writes yet.
    ///
    /// # Errors
    /// When the folder cannot be read, or a file not removed.
    pub(super) fn sweep_temporary(&self) -> std::io::Result<()> {
        for entry in fs::read_dir(&self.folder)? {
            let entry = entry?;
            if entry.file_name().to_string_lossy().starts_with('.') {
                fs::remove_file(entry.path())?;
            }
        }
        Ok(())
    }

    pub(super) fn history(
        &self,
        tenant: u64,
        name: &str,
    ) -> Result<Vec<ModuleVersion>, ModuleError> {
        Ok(self.registry.history(tenant, name)?)
    }

    /// Names that came from the watched folder when this was last written, with their files.
    pub(super) fn watched(&self) -> std::collections::BTreeMap<String, PathBuf> {
        let text = fs::read(self.folder.join(WATCHED)).unwrap_or_default();
        serde_json::from_slice(&text).unwrap_or_default()
    }

    pub(super) fn set_watched(&self, names: &std::collections::BTreeMap<String, PathBuf>) {
        let text = serde_json::to_vec(names).unwrap_or_default();
        if let Err(error) = self.write(&self.folder.join(WATCHED), &text) {
            tracing::warn!(%error, "which modules come from the watched folder is not kept");
        }
    }
}
