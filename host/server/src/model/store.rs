//! Modules by name: built in, from a watched folder, or uploaded. They are replaced while models use them.
//!
//! - `placing`: how a module gets its name, loses it, and gets an earlier version back;
//! - `compilations`: how many each tenant may have;
//! - `chosen`: which one a model uses.

mod chosen;
mod compilations;
mod error;
mod placing;

pub use chosen::Chosen;
pub use error::ModuleError;

use crate::lock::lock;
use crate::model::check::Checked;
use crate::model::shelf::Shelf;
use compilations::Compilations;
use guesthouse_component::{
    CallContext, Module, ModuleDigest, Origin, Recorder, Role, RowDraw, Runtime, SamplerThreads,
    ThreadsConfig, builtin,
};
use guesthouse_device::sample::draw_row;
use guesthouse_tenants::{Registry, Tenant, TenantId};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{SystemTime, UNIX_EPOCH};

/// Longest name, characters.
const NAME: usize = 64;

/// What a module is called: `[a-z0-9-]{1,64}`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ModuleName(Arc<str>);

impl ModuleName {
    /// Checks a name.
    ///
    /// # Errors
    /// [`ModuleError::Name`]
    pub fn parse(text: &str) -> Result<Self, ModuleError> {
        let fits = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-';
        if text.is_empty() || text.len() > NAME || !text.bytes().all(fits) {
            return Err(ModuleError::Name {
                found: text.chars().take(2 * NAME).collect(),
            });
        }
        Ok(Self(text.into()))
    }

    /// As text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ModuleName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Where a module came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Provenance {
    /// Part of this binary.
    BuiltIn,
    /// A file of the watched folder.
    File(PathBuf),
    /// An API.
    Upload,
    /// A registry: the reference, with `oci://`.
    Oci(String),
}

impl Provenance {
    /// What an index says of it.
    fn from_index(source: &str) -> Self {
        if source.starts_with(crate::oci::SCHEME) {
            return Self::Oci(source.to_owned());
        }
        Self::Upload
    }
}

impl fmt::Display for Provenance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BuiltIn => f.write_str("built-in"),
            Self::File(path) => path.display().fmt(f),
            Self::Upload => f.write_str("upload"),
            Self::Oci(reference) => f.write_str(reference),
        }
    }
}

/// Whose modules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ModuleOwner {
    /// The administrator's: they serve everyone.
    Server,
    /// A tenant's: they serve it alone.
    Tenant(Arc<Tenant>),
}

impl ModuleOwner {
    /// 0 is the server.
    #[must_use]
    pub fn number(&self) -> u64 {
        match self {
            Self::Server => SERVER,
            Self::Tenant(tenant) => tenant.number,
        }
    }

    fn origin(&self) -> Origin {
        match self {
            Self::Server => Origin::File,
            Self::Tenant(_) => Origin::Tenant,
        }
    }
}

/// The server's number among those of tenants.
const SERVER: u64 = 0;

/// A version of a module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    /// Counts up from 1.
    pub number: u64,
    /// Of its bytes.
    pub digest: ModuleDigest,
    /// Its length.
    pub bytes: u64,
    /// What it is for.
    pub role: String,
    /// When it began to serve, Unix seconds.
    pub since: u64,
    /// Whether it serves now.
    pub live: bool,
    /// Where it came from, in words.
    pub source: String,
}

/// A tenant's module that served when the server last ran, and does no more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnusableModule {
    /// `chat` or `sampler`.
    pub role: String,
    /// Of its bytes.
    pub digest: ModuleDigest,
    /// Its length.
    pub bytes: u64,
    /// Since when it served, Unix seconds.
    pub since: u64,
    /// Where it came from.
    pub provenance: Provenance,
    /// What is wrong with it, for its tenant.
    pub what: String,
}

/// A module that serves under a name.
#[derive(Clone, Debug)]
pub struct LiveModule {
    /// The module.
    pub module: Arc<Module>,
    /// What its check found.
    pub checked: Checked,
    /// Where it came from.
    pub provenance: Provenance,
    /// Its length, bytes.
    pub bytes: usize,
    /// When it began to serve, Unix seconds.
    pub since: u64,
}

/// A file of the watched folder that was not taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejection {
    /// Which file.
    pub path: PathBuf,
    /// Why.
    pub error: String,
    /// When, Unix seconds.
    pub at: u64,
}

/// Where requests are recorded.
struct Records {
    folder: PathBuf,
    /// Unix seconds; keeps the files of several runs apart.
    begun: u64,
    next: AtomicU64,
}

/// All modules of a process. Names of live modules are unique within a tenant; its own stand before the server's, and
/// these before built-in ones of their role and name.
pub struct ModuleStore {
    runtime: Arc<Runtime>,
    /// Run the samplers that choose tokens.
    samplers: SamplerThreads,
    /// By tenant, then name.
    live: RwLock<BTreeMap<(u64, ModuleName), LiveModule>>,
    /// Likewise; of those that are not live.
    unusable: RwLock<BTreeMap<(u64, ModuleName), UnusableModule>>,
    /// Where they outlive the process.
    shelf: Option<Shelf>,
    compilations: Compilations,
    rejected: Mutex<BTreeMap<PathBuf, Rejection>>,
    built_in: Mutex<HashMap<(Role, &'static str), LiveModule>>,
    /// Where requests are recorded.
    records: Option<Records>,
    /// Held, for each owner, while a module is loaded, checked and put in place: later calls win.
    placing: Mutex<HashMap<u64, Arc<Mutex<()>>>>,
    /// Tenants whose modules may be kept.
    tenants: Mutex<BTreeSet<u64>>,
}

fn now() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |d| d.as_secs())
}

impl ModuleStore {
    /// Only the built-in modules.
    #[must_use]
    pub fn new(runtime: Arc<Runtime>) -> Arc<Self> {
        Self::build(runtime, None, None)
    }

    /// Likewise, with a folder for the guest calls of every request. The runtime's clock should be
    /// [`Clock::Fuel`](guesthouse_component::Clock::Fuel).
    #[must_use]
    pub fn recording(runtime: Arc<Runtime>, folder: PathBuf) -> Arc<Self> {
        let records = Records {
            folder,
            begun: now(),
            next: AtomicU64::new(0),
        };
        Self::build(runtime, Some(records), None)
    }

    /// The same store with what was brought before, and which keeps what is brought from now on: files in `folder`, an index
    /// in `registry`. Modules that are damaged or do not load are listed as rejected. Blocks, and must not be called
    /// where futures are polled.
    ///
    /// # Errors
    /// When the folder or the index cannot be used.
    pub fn keeping(
        self: Arc<Self>,
        registry: Arc<Registry>,
        folder: &Path,
    ) -> Result<Arc<Self>, ModuleError> {
        let shelf = Shelf::open(registry, folder)?;
        let Ok(mut store) = Arc::try_unwrap(self) else {
            return Err(ModuleError::Folder {
                path: folder.to_owned(),
                what: "the store is in use already".to_owned(),
            });
        };
        store.shelf = Some(shelf);
        let store = Arc::new(store);
        store.restore()?;
        Ok(store)
    }

    fn build(runtime: Arc<Runtime>, records: Option<Records>, shelf: Option<Shelf>) -> Arc<Self> {
        let draw: RowDraw =
            |row, random, position| draw_row(row, random, position).map_err(|e| e.to_string());
        Arc::new(Self {
            runtime,
            samplers: SamplerThreads::new(ThreadsConfig::new(draw)),
            live: RwLock::default(),
            unusable: RwLock::default(),
            rejected: Mutex::default(),
            shelf,
            compilations: Compilations::default(),
            built_in: Mutex::default(),
            records,
            placing: Mutex::default(),
            tenants: Mutex::default(),
        })
    }

    /// What runs them.
    #[must_use]
    pub fn runtime(&self) -> &Arc<Runtime> {
        &self.runtime
    }

    /// A new record for a request with this context, if requests are recorded.
    ///
    /// # Errors
    /// When its file cannot be written.
    pub fn record(&self, context: &CallContext) -> std::io::Result<Option<Recorder>> {
        let Some(records) = &self.records else {
            return Ok(None);
        };
        let number = records.next.fetch_add(1, Ordering::Relaxed);
        let name = format!("{}-{number:06}.jsonl", records.begun);
        Recorder::create(&records.folder.join(name), &self.runtime, context).map(Some)
    }

    /// What runs the samplers that choose tokens.
    #[must_use]
    pub fn samplers(&self) -> &SamplerThreads {
        &self.samplers
    }

    /// A server's module; see [`ModuleStore::put_for`].
    ///
    /// # Errors
    /// As [`ModuleStore::put_for`].
    pub fn put(
        &self,
        name: &ModuleName,
        bytes: &[u8],
        provenance: Provenance,
    ) -> Result<LiveModule, ModuleError> {
        self.put_for(&ModuleOwner::Server, name, bytes, provenance)
    }

    /// Takes a server's name away, if it has it; see [`ModuleStore::remove_for`].
    pub fn remove(&self, name: &ModuleName) -> bool {
        let removed = self.remove_for(&ModuleOwner::Server, name);
        removed.unwrap_or_else(|error| {
            tracing::error!(%name, %error, "a module is not removed");
            false
        })
    }

    /// The server's live module of a name.
    #[must_use]
    pub fn get(&self, name: &ModuleName) -> Option<LiveModule> {
        self.get_for(&ModuleOwner::Server, name)
    }

    /// An owner's live module of a name.
    #[must_use]
    pub fn get_for(&self, owner: &ModuleOwner, name: &ModuleName) -> Option<LiveModule> {
        self.read().get(&(owner.number(), name.clone())).cloned()
    }

    /// All live modules of the server, by name.
    #[must_use]
    pub fn live(&self) -> Vec<(ModuleName, LiveModule)> {
        self.live_of(&ModuleOwner::Server)
    }

    /// All live modules of an owner, by name.
    #[must_use]
    pub fn live_of(&self, owner: &ModuleOwner) -> Vec<(ModuleName, LiveModule)> {
        let number = owner.number();
        let all = self.read();
        let own = all.iter().filter(|((of, _), _)| *of == number);
        own.map(|((_, name), module)| (name.clone(), module.clone()))
            .collect()
    }

    /// An owner's modules that cannot be used, by name.
    #[must_use]
    pub fn unusable_of(&self, owner: &ModuleOwner) -> Vec<(ModuleName, UnusableModule)> {
        let number = owner.number();
        let all = self.unusable.read().unwrap_or_else(PoisonError::into_inner);
        let own = all.iter().filter(|((of, _), _)| *of == number);
        own.map(|((_, name), module)| (name.clone(), module.clone()))
            .collect()
    }

    /// A tenant of the registry.
    #[must_use]
    pub fn tenant(&self, id: &TenantId) -> Option<Arc<Tenant>> {
        let shelf = self.shelf.as_ref()?;
        shelf.registry.get(id).map(|record| record.tenant)
    }

    /// Files of the watched folder that were not taken, and modules that were there before and do not load any more.
    #[must_use]
    pub fn rejected(&self) -> Vec<Rejection> {
        lock(&self.rejected).values().cloned().collect()
    }

    pub(super) fn reject(&self, path: PathBuf, error: String) {
        tracing::error!(file = %path.display(), %error, "a module is not taken");
        let at = now();
        lock(&self.rejected).insert(path.clone(), Rejection { path, error, at });
    }

    pub(super) fn accept(&self, path: &std::path::Path) {
        lock(&self.rejected).remove(path);
    }

    /// The module that now serves for a role under a name: a live one, or the built-in one.
    ///
    /// # Errors
    /// When a built-in module does not load.
    pub fn named(&self, role: Role, name: &str) -> Result<Option<Arc<Module>>, ModuleError> {
        let live = ModuleName::parse(name).ok().and_then(|n| self.get(&n));
        if let Some(found) = live.filter(|m| m.module.role() == role) {
            return Ok(Some(found.module));
        }
        match builtin::find(role, name) {
            Some(guest) => Ok(Some(self.built_in(guest)?.module)),
            None => Ok(None),
        }
    }

    /// Likewise for a tenant: its own module of the name and role, else the server's, else the built-in one.
    ///
    /// # Errors
    /// When its own cannot be used, or a built-in module does not load.
    pub fn named_for(
        &self,
        tenant: &Tenant,
        role: Role,
        name: &str,
    ) -> Result<Option<Arc<Module>>, ModuleError> {
        if tenant.number != SERVER
            && let Ok(own) = ModuleName::parse(name)
        {
            let key = (tenant.number, own);
            let live = self.read().get(&key).map(|live| Arc::clone(&live.module));
            if let Some(found) = live.filter(|module| module.role() == role) {
                return Ok(Some(found));
            }
            let unusable = self.unusable.read().unwrap_or_else(PoisonError::into_inner);
            if let Some(found) = unusable.get(&key)
                && found.role == role.to_string()
            {
                return Err(ModuleError::Unusable {
                    name: key.1,
                    role,
                    what: found.what.clone(),
                });
            }
        }
        self.named(role, name)
    }

    /// Names of the modules of a role that a tenant may use, its own too, in order.
    #[must_use]
    pub fn names_for(&self, tenant: &Tenant, role: Role) -> Vec<String> {
        let mut names: BTreeSet<String> = self.names(role).into_iter().collect();
        if tenant.number != SERVER {
            let own = self.read();
            let own = own
                .iter()
                .filter(|((of, _), module)| *of == tenant.number && module.module.role() == role);
            names.extend(own.map(|((_, name), _)| name.to_string()));
        }
        names.into_iter().collect()
    }

    /// Names of the modules of a role, live ones and built-in ones, in order.
    #[must_use]
    pub fn names(&self, role: Role) -> Vec<String> {
        let live = self.live().into_iter();
        let live = live.filter(|(_, m)| m.module.role() == role);
        let built_in = builtin::ALL.iter().filter(|guest| guest.role == role);
        let names: BTreeSet<String> = live
            .map(|(name, _)| name.to_string())
            .chain(built_in.map(|guest| guest.name.to_owned()))
            .collect();
        names.into_iter().collect()
    }

    /// A module of the role that says it serves one of the architectures: the first live one by name, else a built-in one.
    /// Where there is none, all architectures that are served.
    ///
    /// # Errors
    /// When a built-in module does not load.
    pub fn serving(
        &self,
        role: Role,
        wanted: &[&str],
    ) -> Result<Result<Arc<Module>, Vec<String>>, ModuleError> {
        let mut known = Vec::new();
        let live = self.live().into_iter().map(|(_, module)| Ok(module));
        let live = live.filter(|m: &Result<LiveModule, ModuleError>| {
            m.as_ref().is_ok_and(|m| m.module.role() == role)
        });
        let mut built_in: Vec<_> = builtin::ALL.iter().filter(|g| g.role == role).collect();
        // Loading takes time; a guest holds the names that it answers as text, so those that mention one go first.
        built_in.sort_by_key(|guest| !wanted.iter().any(|name| mentions(guest.bytes, name)));
        for entry in live.chain(built_in.into_iter().map(|guest| self.built_in(guest))) {
            let LiveModule {
                module, checked, ..
            } = entry?;
            if checked.builds.iter().any(|a| wanted.contains(&a.as_str())) {
                return Ok(Ok(module));
            }
            known.extend(checked.builds);
        }
        known.sort();
        known.dedup();
        Ok(Err(known))
    }

    /// Loads a built-in module at its first use.
    fn built_in(&self, guest: &builtin::Builtin) -> Result<LiveModule, ModuleError> {
        let mut loaded = lock(&self.built_in);
        let key = (guest.role, guest.name);
        if let Some(found) = loaded.get(&key) {
            return Ok(found.clone());
        }
        let module = self
            .runtime
            .load(guest.name, guest.bytes, Origin::Embedded)?;
        let builds = match guest.role {
            Role::Graph => module.graph()?.architectures()?,
            Role::Chat => module.chat()?.architectures()?,
            Role::Sampler => Vec::new(),
        };
        let entry = LiveModule {
            module,
            checked: Checked {
                builds,
                summary: String::new(),
            },
            provenance: Provenance::BuiltIn,
            bytes: guest.bytes.len(),
            since: now(),
        };
        loaded.insert(key, entry.clone());
        Ok(entry)
    }

    fn read(&self) -> std::sync::RwLockReadGuard<'_, BTreeMap<(u64, ModuleName), LiveModule>> {
        self.live.read().unwrap_or_else(PoisonError::into_inner)
    }
}

fn mentions(bytes: &[u8], name: &str) -> bool {
    !name.is_empty() && memchr::memmem::find(bytes, name.as_bytes()).is_some()
}

#[cfg(test)]
mod tests;
