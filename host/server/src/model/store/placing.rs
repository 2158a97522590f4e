//! How a module gets its name, loses it, and gets an earlier version back.

use super::{
    LiveModule, ModuleError, ModuleName, ModuleOwner, ModuleStore, Provenance, SERVER,
    UnusableModule, Version, lock, now,
};
use crate::model::check::{self, Checked};
use crate::model::shelf::{Shelf, Swept};
use guesthouse_component::{CallContext, Module, ModuleDigest, Role};
use guesthouse_tenants::{ModuleState, ModuleVersion, NewModule, Sha256Digest};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, RwLockWriteGuard};
use std::time::Instant;

impl ModuleStore {
    /// One at a time for each owner.
    fn turn(&self, owner: &ModuleOwner) -> Arc<Mutex<()>> {
        Arc::clone(lock(&self.placing).entry(owner.number()).or_default())
    }

    /// Loads and checks a module, then lets it serve under `name` in place of what did. Blocks, and must not be called
    /// where futures are polled.
    ///
    /// # Errors
    /// When the module does not do, or its owner may not bring it. Then what had the name before goes on serving.
    pub fn put_for(
        &self,
        owner: &ModuleOwner,
        name: &ModuleName,
        bytes: &[u8],
        provenance: Provenance,
    ) -> Result<LiveModule, ModuleError> {
        let turn = self.turn(owner);
        let _turn = lock(&turn);
        let role = self.runtime.role(name.as_str(), bytes, owner.origin())?;
        self.fits(owner, name, role)?;
        let digest = ModuleDigest::of(bytes);
        if let ModuleOwner::Tenant(tenant) = owner {
            // It may be gone before anybody looks.
            lock(&self.tenants).insert(tenant.number);
        }
        let in_hand = self.shelf.as_ref().map(|shelf| shelf.take(digest));
        let placed = self.place(owner, name, bytes, &provenance);
        drop(in_hand);
        if placed.is_err()
            && let Some(shelf) = &self.shelf
        {
            // Neither file nor code of what was not taken stays.
            self.pruned(shelf, shelf.prune(owner.number(), name.as_str()));
            self.collect(shelf, digest);
        }
        let (module, checked) = placed?;
        let entry = LiveModule {
            module,
            checked,
            provenance,
            bytes: bytes.len(),
            since: now(),
        };
        self.serve(owner, name, entry.clone());
        Ok(entry)
    }

    /// Whether a name may have a module of this role.
    fn fits(&self, owner: &ModuleOwner, name: &ModuleName, role: Role) -> Result<(), ModuleError> {
        if matches!(owner, ModuleOwner::Tenant(_)) && role == Role::Graph {
            return Err(ModuleError::ForbiddenRole {
                name: name.clone(),
                role,
            });
        }
        match self.get_for(owner, name) {
            Some(old) if old.module.role() != role => Err(ModuleError::Role {
                name: name.clone(),
                live: old.module.role(),
                found: role,
            }),
            _ => Ok(()),
        }
    }

    /// Everything up to the index.
    fn place(
        &self,
        owner: &ModuleOwner,
        name: &ModuleName,
        bytes: &[u8],
        provenance: &Provenance,
    ) -> Result<(Arc<Module>, Checked), ModuleError> {
        let Some(shelf) = &self.shelf else {
            self.may_compile(owner, false)?;
            let module = self.runtime.load(name.as_str(), bytes, owner.origin())?;
            let checked = check::call(&module, &context(owner))?;
            return Ok((module, checked));
        };
        let (number, digest) = (owner.number(), ModuleDigest::of(bytes));
        // The same once more takes no more room.
        let history = shelf.history(number, name.as_str())?;
        let known = history.iter().any(|old| old.digest.0 == digest.0);
        let more = if known { 0 } else { bytes.len() as u64 };
        has_room(owner, shelf.registry.module_bytes(number)? + more)?;
        let records = shelf.records(number);
        self.may_compile(owner, self.runtime.is_compiled(&digest, &records))?;
        shelf.keep(digest, bytes)?;
        let module = self.load(shelf, owner, name, bytes)?;
        let checked = check::call(&module, &context(owner))?;
        // Now with its code.
        has_room(owner, shelf.registry.module_bytes(number)? + more)?;
        let version = NewModule {
            name: name.to_string(),
            role: module.role().to_string(),
            digest: Sha256Digest(digest.0),
            bytes: bytes.len() as u64,
            since: now(),
            source: provenance.to_string(),
            checked: self.checker(),
        };
        self.pruned(shelf, shelf.place(number, &version));
        let live = shelf.registry.modules(number)?;
        if !live
            .iter()
            .any(|m| m.name == version.name && m.digest == version.digest)
        {
            // Pruning may fail and be made up for; the index must have it.
            shelf.registry.place_module(number, &version)?;
        }
        Ok((module, checked))
    }

    fn load(
        &self,
        shelf: &Shelf,
        owner: &ModuleOwner,
        name: &ModuleName,
        bytes: &[u8],
    ) -> Result<Arc<Module>, ModuleError> {
        let records = shelf.records(owner.number());
        let (name, origin) = (name.as_str(), owner.origin());
        Ok(self.runtime.load_recorded(name, bytes, origin, &records)?)
    }

    fn may_compile(&self, owner: &ModuleOwner, compiled: bool) -> Result<(), ModuleError> {
        match owner {
            ModuleOwner::Tenant(tenant) if !compiled => {
                let limit = tenant.policy.quotas.compilations_per_hour;
                self.compilations
                    .begin(tenant.number, limit, Instant::now())
            }
            _ => Ok(()),
        }
    }

    /// What no version needs any more goes.
    fn pruned(&self, shelf: &Shelf, forgotten: Result<Vec<ModuleDigest>, ModuleError>) {
        match forgotten {
            Ok(forgotten) => forgotten.iter().for_each(|d| self.collect(shelf, *d)),
            Err(error) => tracing::warn!(%error, "old versions of a module stay"),
        }
    }

    fn collect(&self, shelf: &Shelf, digest: ModuleDigest) {
        // Whoever has it in hand collects it, if it fails.
        let _: Swept = shelf.collect(digest, |code| self.runtime.forget_code(code));
    }

    /// Lets go of what is left of tenants that the registry has no more: modules in memory, their files and compiled code,
    /// except what another owner has too. Costs next to nothing when no tenant went. Blocks.
    pub fn forget_gone(&self) {
        let Some(shelf) = &self.shelf else {
            return;
        };
        let numbers = shelf.registry.numbers();
        let there = |number: u64| number == SERVER || numbers.contains(&number);
        let mut live = self.live.write().unwrap_or_else(PoisonError::into_inner);
        live.retain(|(number, _), _| there(*number));
        drop(live);
        self.unusable_mut().retain(|(number, _), _| there(*number));
        lock(&self.placing).retain(|number, turn| there(*number) || Arc::strong_count(turn) > 1);
        let mut known = lock(&self.tenants);
        if known.is_subset(&numbers) {
            *known = numbers;
            return;
        }
        match shelf.sweep(|code| self.runtime.forget_code(code)) {
            Ok(Swept::All) => *known = numbers,
            // Once more at the next call.
            Ok(Swept::Part) => {}
            Err(error) => tracing::warn!(%error, "modules of tenants that are gone stay"),
        }
    }

    /// Requests from now on get it.
    fn serve(&self, owner: &ModuleOwner, name: &ModuleName, entry: LiveModule) {
        let module = Arc::clone(&entry.module);
        let from_folder = matches!(entry.provenance, Provenance::File(_));
        let key = (owner.number(), name.clone());
        let mut live = self.live.write().unwrap_or_else(PoisonError::into_inner);
        let old = live.insert(key.clone(), entry);
        drop(live);
        self.unusable_mut().remove(&key);
        if from_folder || old.is_some_and(|old| matches!(old.provenance, Provenance::File(_))) {
            self.note_watched();
        }
        tracing::info!(%name, tenant = tenant(owner), role = %module.role(), digest = %module.digest(), "a module serves");
    }

    /// Takes a name away, and says whether there was a module; its versions stay. Models that use a server's module keep it; a built-in one of its role and name
    /// serves again.
    ///
    /// # Errors
    /// When the index cannot be written; then it goes on serving.
    pub fn remove_for(&self, owner: &ModuleOwner, name: &ModuleName) -> Result<bool, ModuleError> {
        let turn = self.turn(owner);
        let _turn = lock(&turn);
        let key = (owner.number(), name.clone());
        if !self.read().contains_key(&key) && !self.unusable_mut().contains_key(&key) {
            return Ok(false);
        }
        if let Some(shelf) = &self.shelf {
            match shelf.registry.remove_module(owner.number(), name.as_str()) {
                Ok(_) | Err(guesthouse_tenants::TenantsError::UnknownModule { .. }) => {}
                Err(error) => return Err(error.into()),
            }
            self.pruned(shelf, shelf.prune(owner.number(), name.as_str()));
        }
        let mut live = self.live.write().unwrap_or_else(PoisonError::into_inner);
        let removed = live.remove(&key);
        drop(live);
        self.unusable_mut().remove(&key);
        if removed
            .as_ref()
            .is_some_and(|old| matches!(old.provenance, Provenance::File(_)))
        {
            self.note_watched();
        }
        tracing::info!(%name, tenant = tenant(owner), "a module was removed");
        Ok(true)
    }

    /// All versions of a name that are kept, newest first.
    ///
    /// # Errors
    /// When the index cannot be read, or there is none.
    pub fn history(
        &self,
        owner: &ModuleOwner,
        name: &ModuleName,
    ) -> Result<Vec<Version>, ModuleError> {
        let shelf = self.shelf.as_ref().ok_or(ModuleError::NoVersions)?;
        let versions = shelf.history(owner.number(), name.as_str())?;
        Ok(versions.into_iter().map(version).collect())
    }

    /// Lets an earlier version serve again, also of a name that was taken away. A tenant's is checked again if another
    /// server checked it last. Blocks.
    ///
    /// # Errors
    /// When it is not among the versions that are kept, or does not load any more.
    pub fn roll_back(
        &self,
        owner: &ModuleOwner,
        name: &ModuleName,
        digest: ModuleDigest,
    ) -> Result<LiveModule, ModuleError> {
        let turn = self.turn(owner);
        let _turn = lock(&turn);
        let shelf = self.shelf.as_ref().ok_or(ModuleError::NoVersions)?;
        let number = owner.number();
        let wanted = Sha256Digest(digest.0);
        let versions = shelf.history(number, name.as_str())?;
        let Some(found) = versions.iter().find(|version| version.digest == wanted) else {
            return Err(guesthouse_tenants::TenantsError::UnknownVersion {
                name: name.to_string(),
                digest: wanted,
            }
            .into());
        };
        let bytes = shelf.read(digest)?;
        let role = self.runtime.role(name.as_str(), &bytes, owner.origin())?;
        self.fits(owner, name, role)?;
        self.may_compile(
            owner,
            self.runtime.is_compiled(&digest, &shelf.records(number)),
        )?;
        let module = self.load(shelf, owner, name, &bytes)?;
        let checked = self.check_again(shelf, owner, found, &module)?;
        let since = now();
        shelf
            .registry
            .roll_back(number, name.as_str(), wanted, since)?;
        self.pruned(shelf, shelf.prune(number, name.as_str()));
        let entry = LiveModule {
            module,
            checked,
            provenance: Provenance::from_index(&found.source),
            bytes: bytes.len(),
            since,
        };
        self.serve(owner, name, entry.clone());
        Ok(entry)
    }

    /// Lets serve what the index says.
    pub(super) fn restore(&self) -> Result<(), ModuleError> {
        let Some(shelf) = &self.shelf else {
            return Ok(());
        };
        let swept = shelf.sweep(|code| self.runtime.forget_code(code));
        if let Err(error) = swept.and_then(|_| shelf.sweep_temporary()) {
            tracing::warn!(%error, "files of modules that nothing needs stay");
        }
        *lock(&self.tenants) = shelf.registry.numbers();
        let watched = shelf.watched();
        let tenants = shelf.registry.list().into_iter();
        let tenants = tenants.map(|record| ModuleOwner::Tenant(record.tenant));
        for owner in std::iter::once(ModuleOwner::Server).chain(tenants) {
            for version in shelf.registry.modules(owner.number())? {
                let path = watched.get(&version.name);
                let path = path.filter(|_| owner == ModuleOwner::Server);
                if let Err(error) = self.again(shelf, &owner, &version, path) {
                    let at = format!("{}/{}", tenant(&owner), version.name);
                    self.reject(PathBuf::from(at), error.to_string());
                    self.note_unusable(&owner, version, &error);
                }
            }
        }
        Ok(())
    }

    fn again(
        &self,
        shelf: &Shelf,
        owner: &ModuleOwner,
        version: &ModuleVersion,
        watched: Option<&PathBuf>,
    ) -> Result<(), ModuleError> {
        let name = ModuleName::parse(&version.name)?;
        let bytes = shelf.read(ModuleDigest(version.digest.0))?;
        let module = self.load(shelf, owner, &name, &bytes)?;
        self.fits(owner, &name, module.role())?;
        let checked = self.check_again(shelf, owner, version, &module)?;
        let entry = LiveModule {
            module,
            checked,
            provenance: watched.map_or_else(
                || Provenance::from_index(&version.source),
                |path| Provenance::File(path.clone()),
            ),
            bytes: bytes.len(),
            since: version.since,
        };
        let mut live = self.live.write().unwrap_or_else(PoisonError::into_inner);
        live.insert((owner.number(), name), entry);
        Ok(())
    }

    /// A tenant's module that this server checked before passes: a thousand of them must not hold up the start.
    fn check_again(
        &self,
        shelf: &Shelf,
        owner: &ModuleOwner,
        version: &ModuleVersion,
        module: &Arc<Module>,
    ) -> Result<Checked, ModuleError> {
        let by = self.checker();
        if matches!(owner, ModuleOwner::Tenant(_)) && version.checked == by {
            return Ok(checked_before());
        }
        let checked = check::call(module, &context(owner))?;
        let noted = shelf
            .registry
            .note_check(owner.number(), version.digest, &by);
        if let Err(error) = noted {
            tracing::warn!(%error, "that a module passed its check is not kept");
        }
        Ok(checked)
    }

    /// Names this server as far as guests may notice: its release, which fixes the interfaces that they import, and the engine
    /// with its settings.
    fn checker(&self) -> String {
        let engine = self.runtime.compatibility();
        format!("{} {engine}", env!("CARGO_PKG_VERSION"))
    }

    /// A tenant's requests that need it are told; no other module takes its place.
    fn note_unusable(&self, owner: &ModuleOwner, version: ModuleVersion, error: &ModuleError) {
        let ModuleOwner::Tenant(tenant) = owner else {
            return;
        };
        let Ok(name) = ModuleName::parse(&version.name) else {
            return;
        };
        let module = UnusableModule {
            role: version.role,
            digest: ModuleDigest(version.digest.0),
            bytes: version.bytes,
            since: version.since,
            provenance: Provenance::from_index(&version.source),
            what: match error {
                // Its path is the server's.
                ModuleError::Folder { .. } => "its file is missing or damaged".to_owned(),
                error => error.to_string(),
            },
        };
        self.unusable_mut().insert((tenant.number, name), module);
    }

    fn unusable_mut(&self) -> RwLockWriteGuard<'_, BTreeMap<(u64, ModuleName), UnusableModule>> {
        self.unusable
            .write()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Remembers which of the server's modules come from the watched folder.
    fn note_watched(&self) {
        let Some(shelf) = &self.shelf else {
            return;
        };
        let live = self.live().into_iter();
        let names = live.filter_map(|(name, module)| match module.provenance {
            Provenance::File(path) => Some((name.to_string(), path)),
            _ => None,
        });
        shelf.set_watched(&names.collect());
    }
}

fn has_room(owner: &ModuleOwner, found: u64) -> Result<(), ModuleError> {
    match owner {
        ModuleOwner::Tenant(tenant) => match tenant.policy.quotas.module_bytes {
            Some(limit) if found > limit => Err(ModuleError::Quota { found, limit }),
            _ => Ok(()),
        },
        ModuleOwner::Server => Ok(()),
    }
}

/// For log lines.
fn tenant(owner: &ModuleOwner) -> &str {
    match owner {
        ModuleOwner::Server => "-",
        ModuleOwner::Tenant(tenant) => tenant.id.as_str(),
    }
}

fn checked_before() -> Checked {
    Checked {
        builds: Vec::new(),
        summary: "passed its check when it was brought".to_owned(),
    }
}

/// A check's calls are the owner's, who pays for them.
fn context(owner: &ModuleOwner) -> CallContext {
    let context = CallContext::new("check", 0);
    match owner {
        ModuleOwner::Server => context,
        ModuleOwner::Tenant(tenant) => CallContext {
            tenant: tenant.id.as_str().into(),
            memory: crate::model::guests::memory_of(tenant),
            ..context
        },
    }
}

fn version(version: ModuleVersion) -> Version {
    Version {
        number: version.version,
        digest: ModuleDigest(version.digest.0),
        bytes: version.bytes,
        role: version.role,
        since: version.since,
        live: version.state == ModuleState::Live,
        source: version.source,
    }
}

#[cfg(test)]
mod tests;
