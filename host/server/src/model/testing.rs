//! What tests of several modules need.

use crate::model::ModuleStore;
use guesthouse_component::{Runtime, RuntimeConfig};
use std::sync::Arc;

/// The built-in modules. Their compiled code is kept among cargo's own temporary files, where the integration tests keep it
/// too, so that each is compiled once and not once a test.
pub(crate) fn modules() -> Arc<ModuleStore> {
    let test = std::env::current_exe().unwrap();
    // <target>/<profile>/deps/<test>
    let target = test.ancestors().nth(3).unwrap().join("tmp");
    let config = RuntimeConfig {
        cache_dir: target.is_dir().then(|| target.join("modules")),
        ..RuntimeConfig::default()
    };
    ModuleStore::new(Runtime::new(config).unwrap())
}
