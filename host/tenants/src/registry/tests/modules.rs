use super::{add, id, place};
use crate::{CodeRecord, ModuleState, ModuleVersion, NewModule, Registry, Sha256Digest};

fn digest(byte: u8) -> Sha256Digest {
    Sha256Digest([byte; 32])
}

fn module(name: &str, byte: u8, bytes: u64) -> NewModule {
    NewModule {
        name: name.to_owned(),
        role: "chat".to_owned(),
        digest: digest(byte),
        bytes,
        since: 1_000 + u64::from(byte),
        source: format!("oci://r/m@{byte}"),
        checked: "first".to_owned(),
    }
}

/// Version, first byte of the digest, whether it is live.
fn brief(versions: &[ModuleVersion]) -> Vec<(u64, u8, bool)> {
    let one = |v: &ModuleVersion| (v.version, v.digest.0[0], v.state == ModuleState::Live);
    versions.iter().map(one).collect()
}

#[test]
fn versions_follow_each_other_and_come_back() {
    let place = place();
    let registry = Registry::open(&place.path).unwrap();
    add(&registry, "acme");
    for byte in [1, 2, 2, 3] {
        let placed = registry
            .place_module(1, &module("house", byte, 10))
            .unwrap();
        assert_eq!(placed.digest, digest(byte));
    }
    registry.place_module(1, &module("b", 9, 5)).unwrap();
    registry.place_module(0, &module("house", 7, 5)).unwrap();
    // The same again is no new version.
    let history = registry.history(1, "house").unwrap();
    assert_eq!(
        brief(&history),
        [(3, 3, true), (2, 2, false), (1, 1, false)]
    );

    let back = registry.roll_back(1, "house", digest(1), 2_000).unwrap();
    assert_eq!((back.version, back.since), (4, 2_000));
    let again = registry.roll_back(1, "house", digest(1), 3_000).unwrap();
    assert_eq!(again, back);
    let error = registry.roll_back(1, "house", digest(9), 1).unwrap_err();
    assert_eq!(error.label(), "unknown-version");

    let live = registry.modules(1).unwrap();
    let names: Vec<&str> = live.iter().map(|v| v.name.as_str()).collect();
    assert_eq!(names, ["b", "house"]);
    assert_eq!(live[1], back);
    drop(registry);
    let registry = Registry::open(&place.path).unwrap();
    assert_eq!(registry.modules(1).unwrap(), live);
    assert_eq!(brief(&registry.modules(0).unwrap()), [(1, 7, true)]);
}

#[test]
fn removed_modules_leave_their_history_until_it_is_pruned() {
    let registry = Registry::in_memory().unwrap();
    add(&registry, "acme");
    for byte in [1, 2, 3] {
        registry
            .place_module(1, &module("house", byte, 10))
            .unwrap();
    }
    let removed = registry.remove_module(1, "house").unwrap();
    assert_eq!((removed.version, removed.state), (3, ModuleState::Retired));
    let error = registry.remove_module(1, "house").unwrap_err();
    assert_eq!(error.label(), "unknown-module");
    assert!(registry.modules(1).unwrap().is_empty());
    registry.roll_back(1, "house", digest(2), 1).unwrap();

    let gone = registry.prune_history(1, "house", 1).unwrap();
    assert_eq!(brief(&gone), [(2, 2, false), (1, 1, false)]);
    let left = registry.history(1, "house").unwrap();
    assert_eq!(brief(&left), [(4, 2, true), (3, 3, false)]);
    let needs = |byte| registry.needs_module(digest(byte)).unwrap();
    assert_eq!((needs(1), needs(2), needs(3)), (false, true, true));
    // Numbers of what was forgotten are not given again.
    registry.remove_module(1, "house").unwrap();
    registry.prune_history(1, "house", 0).unwrap();
    let placed = registry.place_module(1, &module("house", 1, 10)).unwrap();
    assert_eq!(placed.version, 5);
}

#[test]
fn bytes_are_those_of_files() {
    let registry = Registry::in_memory().unwrap();
    add(&registry, "acme");
    let bytes = || registry.module_bytes(1).unwrap();
    assert_eq!(bytes(), 0);
    registry.place_module(1, &module("a", 1, 100)).unwrap();
    registry.place_module(1, &module("a", 2, 20)).unwrap();
    // One file under two names.
    registry.place_module(1, &module("b", 1, 100)).unwrap();
    assert_eq!(bytes(), 120);
    let code = CodeRecord {
        sha256: digest(8),
        bytes: 1_000,
    };
    registry.set_code_digest(1, digest(2), "e1", code).unwrap();
    registry.set_code_digest(0, digest(2), "e1", code).unwrap();
    assert_eq!(bytes(), 1_120);
    let new = CodeRecord {
        sha256: digest(9),
        bytes: 3_000,
    };
    registry.set_code_digest(1, digest(2), "e1", new).unwrap();
    assert_eq!(bytes(), 3_120);
    let found = |tenant, engine| registry.code_digest(tenant, digest(2), engine).unwrap();
    assert_eq!(found(1, "e1"), Some(new));
    assert_eq!(found(0, "e1"), Some(code));
    assert_eq!(found(1, "e2"), None);

    // Code goes with the last version that it is of.
    registry.remove_module(1, "a").unwrap();
    registry.prune_history(1, "a", 0).unwrap();
    assert_eq!((found(1, "e1"), bytes()), (None, 100));
    assert_eq!(found(0, "e1"), Some(code));
}

#[test]
fn all_of_a_removed_tenant_goes() {
    let registry = Registry::in_memory().unwrap();
    add(&registry, "acme");
    let code = CodeRecord {
        sha256: digest(8),
        bytes: 1_000,
    };
    registry.place_module(1, &module("a", 1, 100)).unwrap();
    registry.set_code_digest(1, digest(1), "e", code).unwrap();
    registry.remove(&id("acme")).unwrap();
    assert_eq!(registry.module_bytes(1).unwrap(), 0);
    assert!(!registry.needs_module(digest(1)).unwrap());
    assert_eq!(registry.code_digest(1, digest(1), "e").unwrap(), None);
    // An upload that ends after its tenant did.
    let error = registry.place_module(1, &module("a", 1, 100)).unwrap_err();
    assert_eq!(error.label(), "tenant-gone");
    let error = registry.set_code_digest(1, digest(1), "e", code);
    assert_eq!(error.unwrap_err().label(), "tenant-gone");
}

#[test]
fn checks_and_sources_are_kept() {
    let registry = Registry::in_memory().unwrap();
    add(&registry, "a");
    add(&registry, "b");
    for tenant in [1, 2] {
        registry.place_module(tenant, &module("m", 1, 5)).unwrap();
    }
    registry.place_module(1, &module("m", 2, 5)).unwrap();
    registry.note_check(1, digest(1), "second").unwrap();
    let told = |tenant| {
        let history = registry.history(tenant, "m").unwrap();
        let one = |v: ModuleVersion| (v.source, v.checked);
        history.into_iter().map(one).collect::<Vec<_>>()
    };
    let pair = |n: u8, by: &str| (format!("oci://r/m@{n}"), by.to_owned());
    assert_eq!(told(1), [pair(2, "first"), pair(1, "second")]);
    assert_eq!(told(2), [pair(1, "first")]);
    // The same once more was checked once more; what is rolled back was not.
    let again = NewModule {
        checked: "third".to_owned(),
        ..module("m", 2, 5)
    };
    registry.place_module(1, &again).unwrap();
    assert_eq!(told(1)[0], pair(2, "third"));
    registry.roll_back(1, "m", digest(1), 9).unwrap();
    assert_eq!(told(1)[0], pair(1, "second"));
}

#[test]
fn modules_of_the_first_schema_are_uploads_of_unknown_checks() {
    let place = place();
    let registry = Registry::open(&place.path).unwrap();
    registry.place_module(0, &module("m", 1, 5)).unwrap();
    drop(registry);
    let old = rusqlite::Connection::open(&place.path).unwrap();
    old.execute_batch(
        "ALTER TABLE modules DROP COLUMN source; ALTER TABLE modules DROP COLUMN checked; PRAGMA user_version = 1;",
    )
    .unwrap();
    drop(old);
    let registry = Registry::open(&place.path).unwrap();
    let found = registry.modules(0).unwrap().remove(0);
    assert_eq!(
        (found.source.as_str(), found.checked.as_str()),
        ("upload", "")
    );
    assert_eq!(found.digest, digest(1));
}
