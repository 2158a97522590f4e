//! Files that are locked, full, damaged, gone, or not ours.

use super::super::open::Store;
use super::super::{Counted, Registry, UsageDay};
use super::{Place, add, id, opens, place};
use crate::{Policy, TenantsError};
use rusqlite::Connection;
use std::fs;
use std::time::{Duration, Instant};

/// A registry that does not wait for others.
fn impatient(place: &Place) -> Registry {
    Registry::with(Store::open(&place.path, Duration::from_millis(1)).unwrap()).unwrap()
}

fn refused(place: &Place) -> TenantsError {
    Registry::open(&place.path).unwrap_err()
}

#[test]
fn a_locked_file_changes_nothing() {
    let place = place();
    let registry = impatient(&place);
    let key = add(&registry, "acme");
    let list = registry.list();
    let other = Connection::open(&place.path).unwrap();
    other.execute_batch("BEGIN EXCLUSIVE").unwrap();

    let day = UsageDay {
        tenant: 1,
        day: 3,
        counted: Counted {
            requests: 2,
            ..Counted::default()
        },
    };
    for error in [
        registry.add(&id("b"), &Policy::default()).err(),
        registry.rotate(&id("acme"), Duration::ZERO).err(),
        registry.remove(&id("acme")).err(),
        registry.set_policy(&id("acme"), &Policy::default()).err(),
        registry.add_usage(&[day]).err(),
    ] {
        assert_eq!(error.unwrap().label(), "state-locked");
    }
    assert_eq!(registry.list(), list);
    assert!(opens(&registry, &key));
    // Readers need no lock.
    assert!(!registry.refresh().unwrap());

    other.execute_batch("ROLLBACK").unwrap();
    registry.rotate(&id("acme"), Duration::ZERO).unwrap();
    // Counters were kept.
    registry.add_usage(&[day]).unwrap();
    assert_eq!(registry.usage(1, 0).unwrap()[0].counted.requests, 4);
}

#[test]
fn many_writes_at_a_locked_file_fail_together() {
    let place = place();
    let busy = Duration::from_secs(1);
    let registry = Registry::with(Store::open(&place.path, busy).unwrap()).unwrap();
    let other = Connection::open(&place.path).unwrap();
    other.execute_batch("BEGIN EXCLUSIVE").unwrap();
    let asked = Instant::now();
    std::thread::scope(|scope| {
        let add = |n: u32| registry.add(&id(&format!("t{n}")), &Policy::default());
        let writes: Vec<_> = (0..8).map(|n| scope.spawn(move || add(n))).collect();
        for write in writes {
            assert_eq!(write.join().unwrap().unwrap_err().label(), "state-locked");
        }
    });
    // The first waits for all of the second, later ones for what is left of it: one after the other took 8 s.
    assert!(asked.elapsed() < 5 * busy, "{:?}", asked.elapsed());
}

#[test]
fn a_full_disk_changes_nothing() {
    let place = place();
    let registry = Registry::open(&place.path).unwrap();
    let key = add(&registry, "acme");
    let list = registry.list();
    let limit = |pages: i64| {
        let store = registry.store();
        let set = |row: &rusqlite::Row<'_>| row.get::<_, i64>(0);
        let sql = format!("PRAGMA max_page_count = {pages}");
        store.connection.query_row(&sql, [], set).unwrap();
    };
    // As many pages as there are already.
    limit(1);
    let large = Policy {
        defaults: [("note".to_owned(), "x".repeat(60_000).into())]
            .into_iter()
            .collect(),
        ..Policy::default()
    };
    let error = registry.add(&id("b"), &large).unwrap_err();
    assert!(matches!(error, TenantsError::Full { .. }), "{error}");
    let error = registry.set_policy(&id("acme"), &large).unwrap_err();
    assert_eq!(error.label(), "state-full");
    assert_eq!(registry.list(), list);
    assert!(opens(&registry, &key));
    limit(100_000);
    registry.set_policy(&id("acme"), &large).unwrap();
}

#[test]
fn a_cut_file_is_refused_wherever_it_is_cut() {
    let place = place();
    let registry = Registry::open(&place.path).unwrap();
    for n in 0..40 {
        add(&registry, &format!("t{n}"));
    }
    drop(registry);
    let whole = fs::read(&place.path).unwrap();
    assert!(whole.len() > 8 * 4096, "{}", whole.len());
    for length in (0..whole.len()).step_by(2_048).chain([1, 99, 100, 511]) {
        fs::write(&place.path, &whole[..length]).unwrap();
        let error = refused(&place);
        assert!(
            matches!(error, TenantsError::Corrupt { .. }),
            "{length}: {error}"
        );
        assert!(error.to_string().contains("state.db"), "{error}");
    }
    fs::write(&place.path, &whole).unwrap();
    assert_eq!(Registry::open(&place.path).unwrap().list().len(), 40);
}

#[test]
fn damage_never_panics() {
    let place = place();
    let registry = Registry::open(&place.path).unwrap();
    (0..10).for_each(|n| drop(add(&registry, &format!("t{n}"))));
    drop(registry);
    let whole = fs::read(&place.path).unwrap();
    for at in (0..whole.len()).step_by(997) {
        let mut bytes = whole.clone();
        bytes[at] ^= 0xff;
        fs::write(&place.path, &bytes).unwrap();
        // What looks whole is used; all else is told.
        if let Ok(registry) = Registry::open(&place.path) {
            let _ = registry.add(&id("more"), &Policy::default());
        }
    }
    fs::write(&place.path, "#!/bin/sh\nexit 1\n").unwrap();
    assert_eq!(refused(&place).label(), "state-corrupt");
}

#[test]
fn rows_that_make_no_sense_are_told() {
    for (sql, words) in [
        (
            "UPDATE tenants SET policy = '{\"weigth\": 1}' WHERE number = 1",
            "weigth",
        ),
        ("UPDATE tenants SET id = 'A B' WHERE number = 1", "A B"),
        ("UPDATE keys SET id = 'x'", "a key of tenant 1"),
    ] {
        let place = place();
        let registry = Registry::open(&place.path).unwrap();
        let key = add(&registry, "acme");
        let other = Connection::open(&place.path).unwrap();
        other.execute_batch(sql).unwrap();
        // A server goes on with what it knew, and tries again.
        for _ in 0..2 {
            let error = registry.refresh().unwrap_err();
            assert_eq!(error.label(), "state-corrupt");
            assert!(error.to_string().contains(words), "{error}");
        }
        assert!(opens(&registry, &key));
        drop(registry);
        assert!(refused(&place).to_string().contains(words));
    }
}

#[test]
fn files_of_others_are_left_alone() {
    let place = place();
    drop(Registry::open(&place.path).unwrap());
    let set = |sql: &str| {
        Connection::open(&place.path)
            .unwrap()
            .execute_batch(sql)
            .unwrap();
    };
    set("PRAGMA user_version = 99");
    let error = refused(&place);
    assert!(
        matches!(error, TenantsError::Newer { found: 99, .. }),
        "{error}"
    );
    fs::remove_file(&place.path).unwrap();
    set("CREATE TABLE recipes(name TEXT)");
    let before = fs::read(&place.path).unwrap();
    assert_eq!(refused(&place).label(), "state-foreign");
    assert_eq!(fs::read(&place.path).unwrap(), before);
    fs::remove_file(&place.path).unwrap();
    fs::create_dir(&place.path).unwrap();
    assert_eq!(refused(&place).label(), "state-access");
}

#[test]
fn a_file_that_was_replaced_is_noticed() {
    let place = place();
    let registry = Registry::open(&place.path).unwrap();
    let key = add(&registry, "acme");
    let aside = place.path.with_extension("old");
    fs::rename(&place.path, &aside).unwrap();
    for _ in 0..2 {
        assert_eq!(registry.refresh().unwrap_err().label(), "state-replaced");
        let lost = registry.add(&id("b"), &Policy::default()).unwrap_err();
        assert!(matches!(lost, TenantsError::Replaced { .. }), "{lost}");
        assert!(opens(&registry, &key));
        fs::write(&place.path, "other").unwrap();
    }
    fs::rename(&aside, &place.path).unwrap();
    assert!(!registry.refresh().unwrap());
    add(&registry, "b");
}

#[test]
fn a_file_cut_while_it_is_open_is_told() {
    let place = place();
    let registry = Registry::open(&place.path).unwrap();
    let key = add(&registry, "acme");
    fs::write(&place.path, "").unwrap();
    fs::write(place.path.with_extension("db-wal"), "").unwrap();
    let _ = registry.refresh();
    let _ = registry.add(&id("b"), &Policy::default());
    assert!(opens(&registry, &key));
}
