//! Which module a model uses.

use super::ModuleStore;
use guesthouse_component::{Module, Role};
use std::sync::{Arc, PoisonError, RwLock};

/// The module that a model uses for a role: always the newest one of a name, or a fixed one.
pub struct Chosen {
    role: Role,
    /// Store and name to follow.
    follows: Option<(Arc<ModuleStore>, String)>,
    last: RwLock<Arc<Module>>,
}

impl Chosen {
    /// Follows what `name` means in `store`; starts with `module`.
    pub(in crate::model) fn following(
        store: &Arc<ModuleStore>,
        name: &str,
        module: Arc<Module>,
    ) -> Arc<Self> {
        Arc::new(Self {
            role: module.role(),
            follows: Some((Arc::clone(store), name.to_owned())),
            last: RwLock::new(module),
        })
    }

    /// Never another one.
    pub(in crate::model) fn fixed(module: Arc<Module>) -> Arc<Self> {
        Arc::new(Self {
            role: module.role(),
            follows: None,
            last: RwLock::new(module),
        })
    }

    /// The module for the next request. One whose name was removed goes on.
    #[must_use]
    pub fn current(&self) -> Arc<Module> {
        let last = Arc::clone(&self.last.read().unwrap_or_else(PoisonError::into_inner));
        let Some((store, name)) = &self.follows else {
            return last;
        };
        match store.named(self.role, name) {
            Ok(Some(newest)) if !Arc::ptr_eq(&newest, &last) => {
                let mut place = self.last.write().unwrap_or_else(PoisonError::into_inner);
                *place = Arc::clone(&newest);
                newest
            }
            _ => last,
        }
    }
}
