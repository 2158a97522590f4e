#![allow(clippy::unwrap_used, clippy::panic)]

use super::*;
use crate::model::testing::modules;

fn name(text: &str) -> ModuleName {
    ModuleName::parse(text).unwrap()
}

fn bytes(role: Role, name: &str) -> &'static [u8] {
    builtin::find(role, name).unwrap().bytes
}

/// The same component with one more custom section: another digest, the same behaviour.
fn changed(bytes: &[u8]) -> Vec<u8> {
    [bytes, &[0, 3, 1, b'x', b'y']].concat()
}

#[test]
fn names_follow_the_grammar() {
    assert!(ModuleName::parse(&"a".repeat(64)).is_ok());
    for wrong in ["", "A", "a_b", "a.b", "../a", "ä", &"a".repeat(65)] {
        let error = ModuleName::parse(wrong).unwrap_err();
        assert!(error.to_string().contains("a-z"), "{error}");
    }
}

#[test]
fn a_model_follows_the_name_and_keeps_what_was_removed() {
    let store = modules();
    let built_in = store.named(Role::Sampler, "standard").unwrap().unwrap();
    let chosen = Chosen::following(&store, "standard", Arc::clone(&built_in));
    let other = changed(bytes(Role::Sampler, "standard"));
    let live = store
        .put(&name("standard"), &other, Provenance::Upload)
        .unwrap();
    assert_ne!(live.module.digest(), built_in.digest());
    assert_eq!(chosen.current().digest(), live.module.digest());
    assert!(store.remove(&name("standard")));
    assert_eq!(
        chosen.current().digest(),
        built_in.digest(),
        "the built-in one serves again"
    );

    store
        .put(&name("mine"), &other, Provenance::Upload)
        .unwrap();
    let mine = store.named(Role::Sampler, "mine").unwrap().unwrap();
    let chosen = Chosen::following(&store, "mine", Arc::clone(&mine));
    assert!(store.remove(&name("mine")));
    assert!(store.named(Role::Sampler, "mine").unwrap().is_none());
    assert!(
        Arc::ptr_eq(&chosen.current(), &mine),
        "nothing else has the name"
    );
}

#[test]
fn what_fails_leaves_the_old_one_serving() {
    let store = modules();
    let good = bytes(Role::Sampler, "standard");
    let first = store.put(&name("mine"), good, Provenance::Upload).unwrap();
    let cut = store.put(&name("mine"), &good[..good.len() / 2], Provenance::Upload);
    assert!(matches!(cut, Err(ModuleError::Component(_))), "{cut:?}");
    let graph = bytes(Role::Graph, "llama");
    let role = store.put(&name("mine"), graph, Provenance::Upload);
    assert!(matches!(role, Err(ModuleError::Role { .. })), "{role:?}");
    let live = store.get(&name("mine")).unwrap();
    assert!(Arc::ptr_eq(&live.module, &first.module));
}

#[test]
fn a_live_module_builds_before_a_built_in_one() {
    let store = modules();
    let wanted = ["NobodysModel", "LlamaForCausalLM"];
    let built_in = store.serving(Role::Graph, &wanted).unwrap().unwrap();
    assert_eq!(built_in.name(), "llama");
    let graph = bytes(Role::Graph, "llama");
    store
        .put(&name("zz-mine"), graph, Provenance::Upload)
        .unwrap();
    assert_eq!(
        store.serving(Role::Graph, &wanted).unwrap().unwrap().name(),
        "zz-mine"
    );
    let known = store
        .serving(Role::Graph, &["NobodysModel"])
        .unwrap()
        .unwrap_err();
    assert!(known.contains(&"LlamaForCausalLM".to_owned()));
}
