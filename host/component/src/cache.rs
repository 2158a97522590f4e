//! Compiled code on disk.
//!
//! A file's name is the module's digest and the engine's compatibility hash. The SHA-256 of its bytes stands in
//! [`CodeDigests`], a record elsewhere, or in a file next to it. Files are written under another name, synced and renamed,
//! so that an end at any moment leaves what was there, or code that nothing vouches for and that is made again. The
//! folder must be ours alone, as whoever can write into it runs native code in this process.

use std::fs;
use std::hash::{Hash, Hasher};
use std::io::Write as _;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use sha2::{Digest as _, Sha256};
use wasmtime::Engine;
use wasmtime::component::Component;

use crate::{CodeSource, ComponentError, ModuleDigest};

/// What the compiled code of a module must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CodeDigest {
    /// SHA-256 of its bytes.
    pub sha256: [u8; 32],
    /// Their number.
    pub bytes: u64,
}

/// Where digests of compiled code are kept, apart from the code. Engines are hex of the hash of their settings.
pub trait CodeDigests: Send + Sync {
    /// What was last written.
    fn get(&self, module: &ModuleDigest, engine: &str) -> Option<CodeDigest>;

    /// Remembers it.
    ///
    /// # Errors
    /// Says why it could not.
    fn set(&self, module: &ModuleDigest, engine: &str, code: CodeDigest) -> Result<(), String>;
}

/// Digests in files beside the code.
struct Beside<'a>(&'a Cache);

impl CodeDigests for Beside<'_> {
    fn get(&self, module: &ModuleDigest, _: &str) -> Option<CodeDigest> {
        let text = fs::read_to_string(sum_path(&self.0.path(module))).ok()?;
        let (sum, bytes) = text.trim().split_once(' ')?;
        Some(CodeDigest {
            sha256: ModuleDigest::parse(sum)?.0,
            bytes: bytes.parse().ok()?,
        })
    }

    fn set(&self, module: &ModuleDigest, _: &str, code: CodeDigest) -> Result<(), String> {
        let text = format!("{} {}", hex(&code.sha256), code.bytes);
        let path = sum_path(&self.0.path(module));
        self.0
            .write(&path, text.as_bytes())
            .map_err(|e| e.to_string())
    }
}

/// What a compilation made.
pub(crate) enum Fresh {
    /// In this process.
    Component(Component),
    /// By a child.
    Code(Vec<u8>),
}

/// Age from which a temporary file is one that its writer left behind, also where another process has its number.
const LEFT_BEHIND: Duration = Duration::from_secs(3600);

/// A folder of compiled modules.
pub(crate) struct Cache {
    folder: PathBuf,
    /// Hex of the engine's compatibility hash.
    engine: String,
}

impl Cache {
    /// Makes the folder if it is missing; refuses one that others may enter or that is not ours.
    pub(crate) fn open(folder: &Path, engine: &Engine) -> Result<Self, ComponentError> {
        let refuse = |reason: String| ComponentError::Cache {
            path: folder.to_owned(),
            reason,
        };
        if !folder.exists() {
            fs::DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(folder)
                .map_err(|error| refuse(format!("cannot be made: {error}")))?;
        }
        let meta = fs::symlink_metadata(folder)
            .map_err(|error| refuse(format!("cannot be read: {error}")))?;
        if !meta.is_dir() {
            return Err(refuse(
                "expected a folder, found a file or a symbolic link".into(),
            ));
        }
        let us = rustix::process::geteuid().as_raw();
        if meta.uid() != us {
            return Err(refuse(format!(
                "belongs to user {}, expected {us}; choose another folder",
                meta.uid()
            )));
        }
        let mode = meta.mode() & 0o777;
        if mode & 0o077 != 0 {
            return Err(refuse(format!(
                "has mode {mode:04o}, expected 0700; run chmod 700 on it"
            )));
        }
        clean(folder);
        Ok(Self {
            folder: folder.to_owned(),
            engine: compatibility(engine),
        })
    }

    /// Whether code of a module is there, as it was written.
    pub(crate) fn holds(&self, digest: &ModuleDigest, digests: &dyn CodeDigests) -> bool {
        self.read_verified(digest, digests).is_some()
    }

    /// Removes the code of a module.
    pub(crate) fn forget(&self, digest: &ModuleDigest) {
        let path = self.path(digest);
        for path in [sum_path(&path), path] {
            match fs::remove_file(&path) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    tracing::warn!("{}: not removed: {error}", path.display());
                }
                _ => {}
            }
        }
    }

    fn path(&self, digest: &ModuleDigest) -> PathBuf {
        self.folder
            .join(format!("{digest}-{}.cwasm", &self.engine[..32]))
    }

    /// From the folder if what is there is what was written, else compiled and written. Without `digests` they stand
    /// beside the code.
    pub(crate) fn load(
        &self,
        engine: &Engine,
        module: &ModuleDigest,
        digests: Option<&dyn CodeDigests>,
        compile: impl FnOnce() -> Result<Fresh, ComponentError>,
    ) -> Result<(Component, CodeSource), ComponentError> {
        let beside = Beside(self);
        let digests = digests.unwrap_or(&beside);
        let path = self.path(module);
        if let Some(code) = self.read_verified(module, digests) {
            match deserialize(engine, &code) {
                Ok(component) => return Ok((component, CodeSource::Cache)),
                Err(error) => tracing::warn!("{}: recompiling: {error:#}", path.display()),
            }
        }
        let fresh = compile()?;
        // A full disk costs the cache, not the load.
        if let Err(error) = self.store(module, &fresh, digests) {
            tracing::warn!("{}: compiled code not kept: {error}", path.display());
        }
        Ok((fresh.component(engine, module)?, CodeSource::Compiled))
    }

    fn store(
        &self,
        module: &ModuleDigest,
        fresh: &Fresh,
        digests: &dyn CodeDigests,
    ) -> std::io::Result<()> {
        let serialized;
        let code = match fresh {
            Fresh::Code(code) => code,
            Fresh::Component(component) => {
                let other = |error| std::io::Error::other(format!("{error:#}"));
                serialized = component.serialize().map_err(other)?;
                &serialized
            }
        };
        self.write(&self.path(module), code)?;
        let digest = CodeDigest {
            sha256: Sha256::digest(code).into(),
            bytes: code.len() as u64,
        };
        digests
            .set(module, &self.engine, digest)
            .map_err(std::io::Error::other)?;
        fs::File::open(&self.folder)?.sync_all()
    }

    /// The code of a module, if it is what was recorded when it was written.
    fn read_verified(&self, module: &ModuleDigest, digests: &dyn CodeDigests) -> Option<Vec<u8>> {
        let digest = digests.get(module, &self.engine)?;
        let path = self.path(module);
        // What is no file or has another length is not read.
        let found = fs::metadata(&path).ok()?;
        if found.is_file() && found.len() == digest.bytes {
            let code = fs::read(&path).ok()?;
            if Sha256::digest(&code)[..] == digest.sha256 {
                return Some(code);
            }
        }
        tracing::warn!(
            "{}: compiled code is not what was written; recompiling",
            path.display()
        );
        None
    }

    fn write(&self, path: &Path, bytes: &[u8]) -> std::io::Result<()> {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let thread = format!("{:?}", std::thread::current().id());
        let id: String = thread.chars().filter(char::is_ascii_digit).collect();
        let temporary = self
            .folder
            .join(format!(".{name}.{}.{id}", std::process::id()));
        let mut file = fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&temporary)?;
        let written = file.write_all(bytes).and_then(|()| file.sync_all());
        written
            .and_then(|()| fs::rename(&temporary, path))
            .inspect_err(|_| {
                // The disk may be full; what is there of it helps nobody.
                drop(fs::remove_file(&temporary));
            })
    }
}

fn sum_path(path: &Path) -> PathBuf {
    path.with_extension("sha256")
}

/// Whether the process that writes a temporary file is gone. Its name ends with the numbers of process and thread.
fn is_orphan(name: &str) -> bool {
    let process = name.rsplit('.').nth(1).and_then(|n| n.parse::<u32>().ok());
    process.is_some_and(|id| {
        Path::new("/proc/self").exists() && !Path::new("/proc").join(id.to_string()).exists()
    })
}

/// Removes what writers that were killed left behind.
fn clean(folder: &Path) {
    let Ok(entries) = fs::read_dir(folder) else {
        return;
    };
    for entry in entries.flatten() {
        let old = || {
            let age = entry.metadata().ok()?.modified().ok()?.elapsed().ok()?;
            Some(age > LEFT_BEHIND)
        };
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let temporary =
            name.starts_with('.') && (name.contains(".cwasm.") || name.contains(".sha256."));
        if temporary && (is_orphan(&name) || old() == Some(true)) {
            // Another process may have done it meanwhile.
            drop(fs::remove_file(entry.path()));
        }
    }
}

impl Fresh {
    /// Ready to run.
    pub(crate) fn component(
        self,
        engine: &Engine,
        digest: &ModuleDigest,
    ) -> Result<Component, ComponentError> {
        match self {
            Self::Component(component) => Ok(component),
            Self::Code(code) => {
                deserialize(engine, &code).map_err(|error| ComponentError::Compile {
                    module: digest.to_string(),
                    reason: format!("the compiler's code does not load: {error:#}"),
                })
            }
        }
    }
}

#[allow(unsafe_code)]
fn deserialize(engine: &Engine, code: &[u8]) -> wasmtime::Result<Component> {
    // SAFETY: `deserialize` trusts its bytes to come unchanged from `Component::serialize`. `code` is private memory,
    // so it cannot change now. Either it came through a private pipe from a process that this one started to compile,
    // whose program is our own. Or it was read from a file whose SHA-256 equals the one that `store` computed over such
    // bytes and recorded, in `CodeDigests` or in the same folder. All of it was written by this user alone: `open` refused
    // a folder that another user owns, may enter or may write, so nobody else could replace it. Wasmtime itself refuses
    // bytes of another version or of an engine with other settings, and the file's name holds the engine's hash.
    unsafe { Component::deserialize(engine, code) }
}

/// Hex of the engine's compatibility hash, stable over processes.
pub(crate) fn compatibility(engine: &Engine) -> String {
    struct Feed(Sha256);
    impl Hasher for Feed {
        fn write(&mut self, bytes: &[u8]) {
            self.0.update(bytes);
        }
        fn finish(&self) -> u64 {
            0
        }
    }
    let mut feed = Feed(Sha256::new());
    engine.precompile_compatibility_hash().hash(&mut feed);
    hex(&feed.0.finalize())
}

/// Lower-case hex.
pub(crate) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes
        .iter()
        .fold(String::with_capacity(bytes.len() * 2), |mut out, byte| {
            // Writing to a string cannot fail.
            let _ = write!(out, "{byte:02x}");
            out
        })
}
