#![allow(clippy::unwrap_used, clippy::panic)]

use super::*;
use crate::model::testing::modules;
use guesthouse_component::{Role, builtin};
use std::fs;

fn sampler() -> &'static [u8] {
    builtin::find(Role::Sampler, "standard").unwrap().bytes
}

fn get(store: &ModuleStore, name: &str) -> Option<String> {
    let live = store.get(&ModuleName::parse(name).unwrap())?;
    Some(live.module.digest().to_string())
}

#[test]
fn files_come_change_and_go() {
    let folder = tempfile::tempdir().unwrap();
    let store = modules();
    let file = folder.path().join("mine.wasm");
    fs::write(folder.path().join("notes.txt"), "not looked at").unwrap();
    fs::write(&file, sampler()).unwrap();
    let mut watcher = Watcher::open(folder.path(), &store).unwrap();
    let first = get(&store, "mine").expect("what is there at the start serves at once");

    // Half a file, as if it were being copied: the old one serves on, and the reason is listed.
    fs::write(&file, &sampler()[..1000]).unwrap();
    watcher.look(&store).unwrap();
    assert!(store.rejected().is_empty(), "it may still be being written");
    watcher.look(&store).unwrap();
    assert_eq!(get(&store, "mine").as_ref(), Some(&first));
    let rejected = store.rejected();
    assert_eq!(rejected.len(), 1);
    assert_eq!(rejected[0].path, file);

    // Complete, and another one.
    fs::write(&file, [sampler(), &[0, 3, 1, b'x', b'y']].concat()).unwrap();
    watcher.look(&store).unwrap();
    watcher.look(&store).unwrap();
    assert_ne!(get(&store, "mine").unwrap(), first);
    assert!(store.rejected().is_empty());

    fs::remove_file(&file).unwrap();
    watcher.look(&store).unwrap();
    assert_eq!(get(&store, "mine"), None);
}

#[test]
fn names_outside_the_grammar_are_rejected_and_uploads_stay() {
    let folder = tempfile::tempdir().unwrap();
    let store = modules();
    let (bad, good) = (
        folder.path().join("My Model.wasm"),
        folder.path().join("mine.wasm"),
    );
    fs::write(&bad, sampler()).unwrap();
    fs::write(&good, sampler()).unwrap();
    let mut watcher = Watcher::open(folder.path(), &store).unwrap();
    assert!(store.rejected()[0].error.contains("a-z"));
    let name = ModuleName::parse("mine").unwrap();
    store.put(&name, sampler(), Provenance::Upload).unwrap();
    fs::remove_file(&good).unwrap();
    fs::remove_file(&bad).unwrap();
    watcher.look(&store).unwrap();
    assert!(store.get(&name).is_some(), "the upload took the name over");
    assert!(store.rejected().is_empty());
}
