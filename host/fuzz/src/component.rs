//! Modules that tenants bring.

use guesthouse_component::{Origin, Runtime, RuntimeConfig};
use std::sync::{Arc, OnceLock};

fn runtime() -> Option<&'static Arc<Runtime>> {
    static RUNTIME: OnceLock<Option<Arc<Runtime>>> = OnceLock::new();
    RUNTIME
        .get_or_init(|| Runtime::new(RuntimeConfig::default()).ok())
        .as_ref()
}

/// A module: its outline, its validation and, where both let it through, the compiler and the linker.
pub fn component(data: &[u8]) {
    let Some(runtime) = runtime() else { return };
    let role = runtime.role("fuzzed", data, Origin::Tenant);
    match runtime.load("fuzzed", data, Origin::Tenant) {
        Ok(module) => assert_eq!(role.ok(), Some(module.role())),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}
