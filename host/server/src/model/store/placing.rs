//! How a module gets its name, loses it, and gets an earlier version back.

use super::{
    LiveModule, ModuleError, ModuleName, ModuleOwner, ModuleStore, Provenance, Version, lock, now,
};
use crate::model::check::{self, Checked};
use crate::model::shelf::Shelf;
use guesthouse_component::{CallContext, Module, ModuleDigest, Role};
use guesthouse_tenants::{ModuleState, ModuleVersion, NewModule, Sha256Digest};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
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
        let placed = self.place(owner, name, bytes, digest);
        if placed.is_err()
            && let Some(shelf) = &self.shelf
        {
            // Neither file nor code of what was not taken stays.
            self.pruned(shelf.prune(owner.number(), name.as_str()));
            if shelf.drop_unneeded(digest) {
                self.runtime.forget_code(&digest);
            }
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
        digest: ModuleDigest,
    ) -> Result<(Arc<Module>, Checked), ModuleError> {
        let Some(shelf) = &self.shelf else {
            self.may_compile(owner, false)?;
            let module = self.runtime.load(name.as_str(), bytes, owner.origin())?;
            let checked = check::call(&module, &context(owner))?;
            return Ok((module, checked));
        };
        let number = owner.number();
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
        };
        self.pruned(shelf.place(number, &version));
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

    /// Compiled code of modules that nothing needs goes with them.
    fn pruned(&self, unneeded: Result<Vec<ModuleDigest>, ModuleError>) {
        match unneeded {
            Ok(unneeded) => unneeded.iter().for_each(|d| self.runtime.forget_code(d)),
            Err(error) => tracing::warn!(%error, "old versions of a module stay"),
        }
    }

    /// Requests from now on get it.
    fn serve(&self, owner: &ModuleOwner, name: &ModuleName, entry: LiveModule) {
        let module = Arc::clone(&entry.module);
        let from_folder = matches!(entry.provenance, Provenance::File(_));
        let key = (owner.number(), name.clone());
        let mut live = self.live.write().unwrap_or_else(PoisonError::into_inner);
        let old = live.insert(key, entry);
        drop(live);
        if from_folder || old.is_some_and(|old| matches!(old.provenance, Provenance::File(_))) {
            self.note_watched();
        }
        tracing::info!(%name, tenant = tenant(owner), role = %module.role(), digest = %module.digest(), "a module serves");
    }

    /// Takes a name away; its versions stay. Models that use a server's module keep it; a built-in one of its role and name
    /// serves again.
    ///
    /// # Errors
    /// When the index cannot be written; then it goes on serving.
    pub fn remove_for(
        &self,
        owner: &ModuleOwner,
        name: &ModuleName,
    ) -> Result<Option<LiveModule>, ModuleError> {
        let turn = self.turn(owner);
        let _turn = lock(&turn);
        if self.get_for(owner, name).is_none() {
            return Ok(None);
        }
        if let Some(shelf) = &self.shelf {
            match shelf.registry.remove_module(owner.number(), name.as_str()) {
                Ok(_) | Err(guesthouse_tenants::TenantsError::UnknownModule { .. }) => {}
                Err(error) => return Err(error.into()),
            }
            self.pruned(shelf.prune(owner.number(), name.as_str()));
        }
        let mut live = self.live.write().unwrap_or_else(PoisonError::into_inner);
        let removed = live.remove(&(owner.number(), name.clone()));
        drop(live);
        if removed
            .as_ref()
            .is_some_and(|old| matches!(old.provenance, Provenance::File(_)))
        {
            self.note_watched();
        }
        tracing::info!(%name, tenant = tenant(owner), "a module was removed");
        Ok(removed)
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

    /// Lets an earlier version serve again, also of a name that was taken away. It passed its check when it was brought.
    /// Blocks.
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
        if !versions.iter().any(|version| version.digest == wanted) {
            return Err(guesthouse_tenants::TenantsError::UnknownVersion {
                name: name.to_string(),
                digest: wanted,
            }
            .into());
        }
        let bytes = shelf.read(digest)?;
        let role = self.runtime.role(name.as_str(), &bytes, owner.origin())?;
        self.fits(owner, name, role)?;
        self.may_compile(
            owner,
            self.runtime.is_compiled(&digest, &shelf.records(number)),
        )?;
        let module = self.load(shelf, owner, name, &bytes)?;
        let checked = match owner {
            ModuleOwner::Server => check::call(&module, &context(owner))?,
            ModuleOwner::Tenant(_) => checked_before(),
        };
        let since = now();
        shelf
            .registry
            .roll_back(number, name.as_str(), wanted, since)?;
        self.pruned(shelf.prune(number, name.as_str()));
        let entry = LiveModule {
            module,
            checked,
            provenance: Provenance::Upload,
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
        if let Err(error) = shelf.sweep() {
            tracing::warn!(%error, "files of modules that nothing needs stay");
        }
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
        // A tenant's guests run for its own requests alone: a thousand of them must not hold up the start.
        let checked = match owner {
            ModuleOwner::Server => check::call(&module, &context(owner))?,
            ModuleOwner::Tenant(_) => checked_before(),
        };
        let entry = LiveModule {
            module,
            checked,
            provenance: watched.map_or(Provenance::Upload, |path| Provenance::File(path.clone())),
            bytes: bytes.len(),
            since: version.since,
        };
        let mut live = self.live.write().unwrap_or_else(PoisonError::into_inner);
        live.insert((owner.number(), name), entry);
        Ok(())
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
    }
}

#[cfg(test)]
mod tests;
