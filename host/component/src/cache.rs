//! Compiled code on disk.
//!
//! A file's name is the module's digest and the engine's compatibility hash; next to it stands the SHA-256 of its
//! bytes. Both are written to a temporary file, synced and renamed. The folder must be ours alone, as whoever can write
//! into it runs native code in this process.

use std::fs;
use std::hash::{Hash, Hasher};
use std::io::Write as _;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use sha2::{Digest as _, Sha256};
use wasmtime::Engine;
use wasmtime::component::Component;

use crate::{CodeSource, ComponentError, ModuleDigest};

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
        Ok(Self {
            folder: folder.to_owned(),
            engine: compatibility(engine),
        })
    }

    fn path(&self, digest: &ModuleDigest) -> PathBuf {
        self.folder
            .join(format!("{digest}-{}.cwasm", &self.engine[..32]))
    }

    /// From the folder if what is there is what was written, else compiled and written.
    pub(crate) fn load(
        &self,
        engine: &Engine,
        digest: &ModuleDigest,
        compile: impl FnOnce() -> Result<Component, ComponentError>,
    ) -> Result<(Component, CodeSource), ComponentError> {
        let path = self.path(digest);
        if let Some(code) = read_verified(&path) {
            match deserialize(engine, &code) {
                Ok(component) => return Ok((component, CodeSource::Cache)),
                Err(error) => tracing::warn!("{}: recompiling: {error:#}", path.display()),
            }
        }
        let component = compile()?;
        // A full disk costs the cache, not the load.
        if let Err(error) = self.store(&path, &component) {
            tracing::warn!("{}: compiled code not kept: {error}", path.display());
        }
        Ok((component, CodeSource::Compiled))
    }

    fn store(&self, path: &Path, component: &Component) -> std::io::Result<()> {
        let code = component
            .serialize()
            .map_err(|error| std::io::Error::other(format!("{error:#}")))?;
        self.write(path, &code)?;
        self.write(&sum_path(path), hex(&Sha256::digest(&code)).as_bytes())?;
        fs::File::open(&self.folder)?.sync_all()
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
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&temporary, path)
    }
}

fn sum_path(path: &Path) -> PathBuf {
    path.with_extension("sha256")
}

/// The bytes at `path`, if their digest is the one that was recorded when they were written.
fn read_verified(path: &Path) -> Option<Vec<u8>> {
    let sum = fs::read_to_string(sum_path(path)).ok()?;
    let code = fs::read(path).ok()?;
    if hex(&Sha256::digest(&code)) == sum.trim() {
        return Some(code);
    }
    tracing::warn!(
        "{}: compiled code is not what was written; recompiling",
        path.display()
    );
    None
}

#[allow(unsafe_code)]
fn deserialize(engine: &Engine, code: &[u8]) -> wasmtime::Result<Component> {
    // SAFETY: `deserialize` trusts its bytes to come unchanged from `Component::serialize`. `code` is private memory,
    // so it cannot change now. It was read from a file whose SHA-256 equals the one that `store` computed over the
    // serialized bytes and recorded in the same folder. Both were written by this user alone: `open` refused a folder
    // that another user owns, may enter or may write, so nobody else could replace either. Wasmtime itself refuses
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
