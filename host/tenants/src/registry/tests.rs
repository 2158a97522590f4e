#![allow(clippy::unwrap_used)]

use super::Registry;
use crate::{Policy, TenantId};

#[test]
fn a_key_opens_and_only_its_tenant() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("made").join("state.db");
    let registry = Registry::open(&path).unwrap();
    assert!(!registry.requires_key());
    let acme = TenantId::parse("acme").unwrap();
    let (tenant, key) = registry.add(&acme, &Policy::default()).unwrap();
    assert!(registry.requires_key());
    assert_eq!(registry.authenticate(key.reveal()), Some(tenant.clone()));
    let other = Registry::open(&path).unwrap();
    assert_eq!(other.authenticate(key.reveal()), Some(tenant));
    registry.remove(&acme).unwrap();
    assert!(registry.authenticate(key.reveal()).is_none());
    assert!(other.refresh().unwrap());
    assert!(other.authenticate(key.reveal()).is_none());
    assert!(other.requires_key());
}
