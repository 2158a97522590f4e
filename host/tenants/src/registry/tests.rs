#![allow(clippy::unwrap_used)]

mod crash;
mod faults;
mod modules;
mod usage;

use super::{Registry, unix_now};
use crate::{NewKey, Policy, TenantId, TenantsError};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::Duration;
use tempfile::TempDir;

/// A folder of one's own, and a file in it that is not there yet.
struct Place {
    _folder: TempDir,
    path: PathBuf,
}

fn place() -> Place {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("made").join("state.db");
    Place {
        _folder: folder,
        path,
    }
}

fn id(text: &str) -> TenantId {
    TenantId::parse(text).unwrap()
}

fn add(registry: &Registry, name: &str) -> NewKey {
    registry.add(&id(name), &Policy::default()).unwrap().1
}

fn opens(registry: &Registry, key: &NewKey) -> bool {
    registry.authenticate(key.reveal()).is_some()
}

#[test]
fn a_key_opens_for_its_tenant() {
    let registry = Registry::in_memory().unwrap();
    assert!(!registry.requires_key());
    let policy = Policy {
        weight: 5,
        ..Policy::default()
    };
    let (acme, key) = registry.add(&id("acme"), &policy).unwrap();
    let (other, other_key) = registry.add(&id("other"), &Policy::default()).unwrap();
    assert_eq!(registry.authenticate(key.reveal()), Some(acme.clone()));
    assert_eq!(registry.authenticate(other_key.reveal()), Some(other));
    assert_eq!((acme.policy.weight, acme.number), (5, 1));
    let list = registry.list();
    assert_eq!(list.len(), 2);
    assert_eq!((&list[0].tenant, list[0].keys[0].id), (&acme, key.id()));
    assert_eq!(registry.get(&id("acme")), Some(list[0].clone()));
    assert!(registry.requires_key());
}

#[test]
fn nothing_else_opens() {
    let registry = Registry::in_memory().unwrap();
    let (one, two) = (add(&registry, "one"), add(&registry, "two"));
    let good = one.reveal();
    let secret = |key: &NewKey| key.reveal().rsplit('_').next().unwrap().to_owned();
    let last = if good.ends_with('0') { '1' } else { '0' };
    for wrong in [
        String::new(),
        "gh_".to_owned(),
        // The secret of another key, an id that nobody has, one digit off at either end, a key and more.
        format!("gh_{}_{}", one.id(), secret(&two)),
        format!("gh_{}_{}", "zzzzzzzzzzzz", secret(&one)),
        format!("{}{last}", &good[..good.len() - 1]),
        format!("gh_{}_{}", one.id(), "0".repeat(64)),
        good.to_uppercase(),
        format!("{good} "),
        format!("{good}{good}"),
        // Its digest is all that is kept, and no key.
        "x".repeat(1 << 20),
        format!("gh_{}_{}", one.id(), "0".repeat(1 << 20)),
        "\u{0}".repeat(80),
        "é".repeat(40),
    ] {
        assert_eq!(registry.authenticate(&wrong), None, "{wrong:.90}");
    }
    assert!(opens(&registry, &one));
}

#[test]
fn names_are_taken_once_and_numbers_too() {
    let registry = Registry::in_memory().unwrap();
    add(&registry, "acme");
    let again = registry.add(&id("acme"), &Policy::default()).unwrap_err();
    assert!(matches!(again, TenantsError::Exists { .. }), "{again}");
    let reserved = registry.add(&id("key-12"), &Policy::default());
    assert_eq!(reserved.unwrap_err().label(), "reserved-name");
    assert!(registry.add(&id("key-a"), &Policy::default()).is_ok());
    let unknown = registry.remove(&id("nobody")).unwrap_err();
    assert_eq!(unknown.label(), "unknown-tenant");

    registry.remove(&id("key-a")).unwrap();
    let (later, _) = registry.add(&id("later"), &Policy::default()).unwrap();
    assert_eq!(later.number, 3);
    // Nobody's name cannot be written.
    assert!(registry.remove(&TenantId::anonymous()).is_err());
    assert_eq!(registry.list().len(), 2);
}

#[test]
fn keys_stay_needed_when_the_last_one_is_gone() {
    let place = place();
    let registry = Registry::open(&place.path).unwrap();
    let key = add(&registry, "acme");
    registry.remove(&id("acme")).unwrap();
    assert!(!opens(&registry, &key));
    assert!(registry.requires_key());
    drop(registry);
    assert!(Registry::open(&place.path).unwrap().requires_key());
}

#[test]
fn old_keys_end_when_they_are_told_to() {
    let registry = Registry::in_memory().unwrap();
    let acme = id("acme");
    let first = add(&registry, "acme");
    let second = registry.rotate(&acme, Duration::ZERO).unwrap();
    assert!(!opens(&registry, &first));
    assert!(opens(&registry, &second));
    assert_eq!(registry.get(&acme).unwrap().keys.len(), 1);

    let third = registry.rotate(&acme, Duration::from_secs(100)).unwrap();
    let keys = registry.get(&acme).unwrap().keys;
    let ends = keys.iter().find(|k| k.id == second.id()).unwrap().expires;
    let at = ends.unwrap();
    assert!((unix_now() + 90..=unix_now() + 100).contains(&at));
    let opens_at = |key: &NewKey, now| registry.authenticate_at(key.reveal(), now).is_some();
    assert!(opens_at(&second, at - 1));
    assert!(!opens_at(&second, at));
    assert!(opens_at(&third, u64::MAX));
    // Keeping it longer afterwards does not revive it.
    registry.rotate(&acme, Duration::from_secs(9_999)).unwrap();
    assert!(!opens_at(&second, at));
    let error = registry.rotate(&id("nobody"), Duration::ZERO).unwrap_err();
    assert_eq!(error.label(), "unknown-tenant");
}

#[test]
fn a_tenant_has_few_keys() {
    let registry = Registry::in_memory().unwrap();
    let acme = id("acme");
    add(&registry, "acme");
    let more = (0..99).map_while(|_| registry.rotate(&acme, Duration::from_secs(999)).ok());
    assert_eq!(more.count(), 15);
    let error = registry
        .rotate(&acme, Duration::from_secs(999))
        .unwrap_err();
    assert_eq!(error.label(), "too-many-keys");
    assert_eq!(registry.get(&acme).unwrap().keys.len(), 16);
    registry.rotate(&acme, Duration::ZERO).unwrap();
    assert_eq!(registry.get(&acme).unwrap().keys.len(), 1);
}

#[test]
fn policies_change() {
    let registry = Registry::in_memory().unwrap();
    let key = add(&registry, "acme");
    let before = registry.authenticate(key.reveal()).unwrap();
    let patch = serde_json::json!({"weight": 4, "quotas": {"kv_blocks": 9}});
    let changed = registry.patch_policy(&id("acme"), &patch).unwrap();
    assert_eq!(registry.authenticate(key.reveal()), Some(changed.clone()));
    assert_eq!(changed.policy.quotas.kv_blocks, Some(9));
    // A request that runs keeps what it began with.
    assert_eq!(before.policy, Policy::default());

    let bad = serde_json::json!({"weight": 0});
    assert!(registry.patch_policy(&id("acme"), &bad).is_err());
    assert_eq!(registry.authenticate(key.reveal()), Some(changed));
    let whole = registry.set_policy(&id("acme"), &Policy::default());
    assert_eq!(whole.unwrap().policy, Policy::default());
}

#[test]
fn processes_see_each_others_changes() {
    let place = place();
    let one = Registry::open(&place.path).unwrap();
    let two = Registry::open(&place.path).unwrap();
    assert!(!two.refresh().unwrap());
    let key = add(&one, "acme");
    // Its own writes are no news.
    assert!(!one.refresh().unwrap());
    assert!(!opens(&two, &key));
    assert!(two.refresh().unwrap());
    assert!(!two.refresh().unwrap());
    assert!(opens(&two, &key) && two.requires_key());

    let patch = serde_json::json!({"priority": -3});
    two.patch_policy(&id("acme"), &patch).unwrap();
    // A write reads the file first: what others did is seen then.
    add(&one, "other");
    assert_eq!(one.get(&id("acme")).unwrap().tenant.policy.priority, -3);
    two.refresh().unwrap();
    assert_eq!(one.list(), two.list());
    two.remove(&id("acme")).unwrap();
    assert!(one.refresh().unwrap());
    assert!(!opens(&one, &key));
}

#[test]
fn only_its_user_reads_the_file() {
    let place = place();
    let registry = Registry::open(&place.path).unwrap();
    add(&registry, "acme");
    let folder = place.path.parent().unwrap();
    let mode = |path: &std::path::Path| std::fs::metadata(path).unwrap().permissions().mode();
    assert_eq!(mode(folder) & 0o777, 0o700);
    let names: Vec<_> = std::fs::read_dir(folder).unwrap().collect();
    // The file, its log and the log's index; nothing is left of making it.
    assert_eq!(names.len(), 3, "{names:?}");
    for entry in names {
        assert_eq!(mode(&entry.unwrap().path()) & 0o777, 0o600);
    }
    drop(registry);

    std::fs::set_permissions(&place.path, PermissionsExt::from_mode(0o644)).unwrap();
    drop(Registry::open(&place.path).unwrap());
    assert_eq!(mode(&place.path) & 0o777, 0o600);
    std::fs::set_permissions(folder, PermissionsExt::from_mode(0o777)).unwrap();
    let error = Registry::open(&place.path).unwrap_err();
    assert!(error.to_string().contains("chmod 700"), "{error}");
}

#[test]
fn no_secret_is_kept_or_shown() {
    let place = place();
    let registry = Registry::open(&place.path).unwrap();
    let key = add(&registry, "acme");
    let secret = key.reveal().rsplit('_').next().unwrap();
    for entry in std::fs::read_dir(place.path.parent().unwrap()).unwrap() {
        let bytes = std::fs::read(entry.unwrap().path()).unwrap();
        let found = bytes.windows(64).any(|part| part == secret.as_bytes());
        assert!(!found);
    }
    let shown = format!("{registry:?} {:?} {key:?}", registry.list());
    assert!(!shown.contains(secret));
}
