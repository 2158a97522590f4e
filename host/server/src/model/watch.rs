//! A folder of modules: what appears there serves, under the file's name without `.wasm`.

use crate::model::modules::read_module;
use crate::model::store::{ModuleError, ModuleName, ModuleStore, Provenance};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime};

/// Time between two looks. A file is read when two looks found it unchanged: it may be being written.
const INTERVAL: Duration = Duration::from_millis(300);
/// Most files of a folder.
const FILES: usize = 1024;

/// Length and time of change.
type Stamp = (u64, Option<SystemTime>);

struct File {
    stamp: Stamp,
    /// Whether this state was read.
    read: bool,
}

/// Looks at a folder again and again.
pub struct Watcher {
    folder: PathBuf,
    store: Weak<ModuleStore>,
    files: HashMap<PathBuf, File>,
}

impl Watcher {
    /// Loads what is in the folder now; modules that do not do are logged and listed as rejected. Blocks.
    ///
    /// # Errors
    /// When the folder cannot be read.
    pub fn open(folder: &Path, store: &Arc<ModuleStore>) -> std::io::Result<Self> {
        let mut watcher = Self {
            folder: folder.to_owned(),
            store: Arc::downgrade(store),
            files: HashMap::new(),
        };
        // The second look finds everything unchanged.
        watcher.look(store)?;
        watcher.look(store)?;
        watcher.forget_gone(store);
        Ok(watcher)
    }

    /// Goes on looking on a thread of its own, as long as the store lives.
    ///
    /// # Errors
    /// When the system has no more threads.
    pub fn start(mut self) -> std::io::Result<()> {
        let run = move || {
            let mut troubled = false;
            loop {
                std::thread::sleep(INTERVAL);
                let Some(store) = self.store.upgrade() else {
                    return;
                };
                match self.look(&store) {
                    Ok(()) => troubled = false,
                    Err(error) => {
                        if !troubled {
                            tracing::error!(folder = %self.folder.display(), %error, "the modules' folder cannot be read");
                        }
                        troubled = true;
                    }
                }
            }
        };
        std::thread::Builder::new()
            .name("modules".to_owned())
            .stack_size(4 << 20)
            .spawn(run)?;
        Ok(())
    }

    /// Files that served when the server last ran, and went meanwhile.
    fn forget_gone(&self, store: &Arc<ModuleStore>) {
        for (_, live) in store.live() {
            if let Provenance::File(path) = &live.provenance
                && !self.files.contains_key(path)
            {
                remove(store, path);
            }
        }
    }

    fn look(&mut self, store: &Arc<ModuleStore>) -> std::io::Result<()> {
        let mut found = HashMap::new();
        for entry in std::fs::read_dir(&self.folder)?.take(FILES) {
            let path = entry?.path();
            if path.extension().is_none_or(|e| e != "wasm") {
                continue;
            }
            // One that vanished meanwhile is not there.
            if let Ok(meta) = std::fs::metadata(&path)
                && meta.is_file()
            {
                found.insert(path, (meta.len(), meta.modified().ok()));
            }
        }
        let gone: Vec<PathBuf> = self
            .files
            .keys()
            .filter(|path| !found.contains_key(*path))
            .cloned()
            .collect();
        for path in gone {
            self.files.remove(&path);
            store.accept(&path);
            remove(store, &path);
        }
        for (path, stamp) in found {
            match self.files.get_mut(&path) {
                Some(file) if file.stamp == stamp => {
                    if !file.read {
                        file.read = true;
                        take(store, &path);
                    }
                }
                _ => {
                    self.files.insert(path, File { stamp, read: false });
                }
            }
        }
        Ok(())
    }
}

fn name(path: &Path) -> Result<ModuleName, ModuleError> {
    ModuleName::parse(&path.file_stem().unwrap_or_default().to_string_lossy())
}

fn take(store: &Arc<ModuleStore>, path: &Path) {
    let provenance = Provenance::File(path.to_owned());
    let put = || -> Result<(), String> {
        let name = name(path).map_err(|error| error.to_string())?;
        let bytes = read_module(path).map_err(|error| error.to_string())?;
        store
            .put(&name, &bytes, provenance)
            .map(drop)
            .map_err(|error| error.to_string())
    };
    match put() {
        Ok(()) => store.accept(path),
        Err(error) => store.reject(path.to_owned(), error),
    }
}

/// An upload of the same name stays.
fn remove(store: &Arc<ModuleStore>, path: &Path) {
    if let Ok(name) = name(path)
        && store
            .get(&name)
            .is_some_and(|live| live.provenance == Provenance::File(path.to_owned()))
    {
        store.remove(&name);
    }
}

#[cfg(test)]
mod tests;
