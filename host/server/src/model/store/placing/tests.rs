#![allow(clippy::unwrap_used, clippy::panic)]

use super::*;
use crate::model::testing::modules;
use guesthouse_component::builtin;
use guesthouse_tenants::{Policy, Quotas, Registry, TenantId};
use std::fs;
use std::path::Path;

/// A folder of modules and an index, which outlive stores.
struct Data {
    folder: tempfile::TempDir,
    registry: Arc<Registry>,
}

impl Data {
    fn new() -> Self {
        Self {
            folder: tempfile::tempdir().unwrap(),
            registry: Arc::new(Registry::in_memory().unwrap()),
        }
    }

    fn modules(&self) -> std::path::PathBuf {
        self.folder.path().join("modules")
    }

    /// A server that starts.
    fn store(&self) -> Arc<ModuleStore> {
        let registry = Arc::clone(&self.registry);
        modules().keeping(registry, &self.modules()).unwrap()
    }

    /// Likewise, with a folder of its own for compiled code.
    fn store_with_code(&self) -> Arc<ModuleStore> {
        let config = guesthouse_component::RuntimeConfig {
            cache_dir: Some(self.folder.path().join("code")),
            ..guesthouse_component::RuntimeConfig::default()
        };
        let runtime = guesthouse_component::Runtime::new(config).unwrap();
        let registry = Arc::clone(&self.registry);
        let store = ModuleStore::new(runtime);
        store.keeping(registry, &self.modules()).unwrap()
    }

    /// Whether there is compiled code of a module.
    fn has_code(&self, digest: ModuleDigest) -> bool {
        let code = fs::read_dir(self.folder.path().join("code")).unwrap();
        let mut names = code.map(|entry| entry.unwrap().file_name());
        names.any(|name| name.to_string_lossy().starts_with(&digest.to_string()))
    }

    fn tenant(&self, id: &str, quotas: Quotas) -> ModuleOwner {
        let policy = Policy {
            uploads: true,
            quotas,
            ..Policy::default()
        };
        let id = TenantId::parse(id).unwrap();
        ModuleOwner::Tenant(self.registry.add(&id, &policy).unwrap().0)
    }

    fn files(&self) -> Vec<String> {
        names(&self.modules())
    }
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    entries
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .filter(|name| name.ends_with(".wasm"))
        .collect()
}

fn name(text: &str) -> ModuleName {
    ModuleName::parse(text).unwrap()
}

/// The built-in sampler with a custom section that says `n`: another digest, the same behaviour.
fn sampler(n: u8) -> Vec<u8> {
    let bytes = builtin::find(Role::Sampler, "standard").unwrap().bytes;
    [bytes, &[0, 3, 1, b'n', n]].concat()
}

fn put(store: &ModuleStore, owner: &ModuleOwner, text: &str, bytes: &[u8]) -> LiveModule {
    let name = name(text);
    store
        .put_for(owner, &name, bytes, Provenance::Upload)
        .unwrap()
}

fn who(owner: &ModuleOwner) -> &guesthouse_tenants::Tenant {
    match owner {
        ModuleOwner::Tenant(tenant) => tenant,
        ModuleOwner::Server => panic!("the server is no tenant"),
    }
}

fn digest_for(store: &ModuleStore, owner: &ModuleOwner, name: &str) -> ModuleDigest {
    let found = store.named_for(who(owner), Role::Sampler, name).unwrap();
    found.unwrap().digest()
}

#[test]
fn a_tenants_module_serves_it_alone() {
    let data = Data::new();
    let store = data.store();
    let (a, b) = (
        data.tenant("a", Quotas::default()),
        data.tenant("b", Quotas::default()),
    );
    let built_in = digest_for(&store, &a, "standard");
    let own = put(&store, &a, "standard", &sampler(1)).module.digest();
    assert_eq!(own, ModuleDigest::of(&sampler(1)));
    assert_eq!(digest_for(&store, &a, "standard"), own);
    assert_eq!(digest_for(&store, &b, "standard"), built_in);
    assert!(store.live().is_empty(), "the server has none");
    assert!(store.get_for(&b, &name("standard")).is_none());

    put(&store, &a, "mine", &sampler(1));
    assert!(store.named(Role::Sampler, "mine").unwrap().is_none());
    let names = |owner| store.names_for(who(owner), Role::Sampler);
    assert!(names(&a).contains(&"mine".to_owned()));
    assert!(!names(&b).contains(&"mine".to_owned()));
    // The server's serves everyone, except whoever has its own.
    let server = put(&store, &ModuleOwner::Server, "mine", &sampler(2));
    assert_eq!(digest_for(&store, &b, "mine"), server.module.digest());
    assert_eq!(digest_for(&store, &a, "mine"), own);
}

#[test]
fn versions_outlive_the_process() {
    let data = Data::new();
    let a = data.tenant("a", Quotas::default());
    let mine = name("mine");
    {
        let store = data.store();
        for n in 1..=3 {
            put(&store, &a, "mine", &sampler(n));
        }
    }
    let store = data.store();
    let third = ModuleDigest::of(&sampler(3));
    assert_eq!(digest_for(&store, &a, "mine"), third);
    let history = store.history(&a, &mine).unwrap();
    let told: Vec<_> = history.iter().map(|v| (v.number, v.live)).collect();
    assert_eq!(told, [(3, true), (2, false), (1, false)]);

    // A request in flight keeps what it began with.
    let began = store
        .named_for(who(&a), Role::Sampler, "mine")
        .unwrap()
        .unwrap();
    let first = ModuleDigest::of(&sampler(1));
    store.roll_back(&a, &mine, first).unwrap();
    assert_eq!(digest_for(&store, &a, "mine"), first);
    assert_eq!(began.digest(), third);
    let unknown = store.roll_back(&a, &mine, ModuleDigest::of(b"never"));
    assert!(matches!(unknown, Err(ModuleError::Index(_))), "{unknown:?}");

    assert!(store.remove_for(&a, &mine).unwrap());
    assert!(!store.remove_for(&a, &mine).unwrap());
    let gone = data.store();
    assert!(gone.get_for(&a, &mine).is_none());
    gone.roll_back(&a, &mine, third).unwrap();
    assert_eq!(digest_for(&data.store(), &a, "mine"), third);
}

#[test]
fn damaged_files_are_never_served() {
    let data = Data::new();
    let a = data.tenant("a", Quotas::default());
    let store = data.store();
    let changed = put(&store, &a, "changed", &sampler(1)).module.digest();
    let missing = put(&store, &a, "missing", &sampler(2)).module.digest();
    put(&store, &a, "whole", &sampler(3));
    let path = |digest| data.modules().join(format!("{digest}.wasm"));
    // Another valid module in its place.
    fs::write(path(changed), sampler(9)).unwrap();
    fs::remove_file(path(missing)).unwrap();
    // Of writers that were killed, and of nobody.
    fs::write(data.modules().join(".x.wasm.1.1"), "half").unwrap();
    let stray = data.modules().join(format!("{}.wasm", "0".repeat(64)));
    fs::write(&stray, "stray").unwrap();

    let store = data.store();
    assert!(store.get_for(&a, &name("changed")).is_none());
    assert!(store.get_for(&a, &name("missing")).is_none());
    assert!(store.get_for(&a, &name("whole")).is_some());
    let rejected = store.rejected();
    let told: Vec<_> = rejected.iter().map(|r| r.path.to_str().unwrap()).collect();
    assert_eq!(told, ["a/changed", "a/missing"]);
    assert!(rejected[0].error.contains("not the module of its name"));
    assert!(!stray.exists());
    assert!(!data.modules().join(".x.wasm.1.1").exists());

    // Brought again, all is well.
    put(&store, &a, "changed", &sampler(1));
    assert!(data.store().get_for(&a, &name("changed")).is_some());
}

#[test]
fn what_is_refused_leaves_nothing_behind() {
    let data = Data::new();
    let a = data.tenant("a", Quotas::default());
    let store = data.store();
    let mine = name("mine");
    let good = put(&store, &a, "mine", &sampler(1));
    let upload = |bytes: &[u8]| store.put_for(&a, &mine, bytes, Provenance::Upload);

    let graph = builtin::find(Role::Graph, "llama").unwrap().bytes;
    let error = upload(graph).unwrap_err();
    assert!(
        matches!(error, ModuleError::ForbiddenRole { .. }),
        "{error}"
    );
    let chat = builtin::find(Role::Chat, "chatml").unwrap().bytes;
    let error = upload(chat).unwrap_err();
    assert!(matches!(error, ModuleError::Role { .. }), "{error}");
    // Passes the outline, fails validation.
    let bad = wat(r#"(component
        (core module (func (result i32) i64.const 0))
        (instance $i)
        (export "guesthouse:sampling/plan@0.1.0" (instance $i)))"#);
    let error = upload(&bad).unwrap_err();
    assert!(error.to_string().contains("type mismatch"), "{error}");
    // Compiles, does not link.
    let empty = wat(r#"(component
        (instance $i)
        (export "guesthouse:sampling/plan@0.1.0" (instance $i)))"#);
    assert!(upload(&empty).is_err());

    let live = store.get_for(&a, &mine).unwrap();
    assert!(Arc::ptr_eq(&live.module, &good.module));
    assert_eq!(data.files(), [format!("{}.wasm", good.module.digest())]);
    assert_eq!(store.history(&a, &mine).unwrap().len(), 1);
}

fn wat(text: &str) -> Vec<u8> {
    wat::parse_str(text).unwrap()
}

#[test]
fn quotas_hold() {
    let data = Data::new();
    let store = data.store();
    let length = sampler(1).len() as u64;
    let small = data.tenant(
        "small",
        Quotas {
            module_bytes: Some(length - 1),
            ..Quotas::default()
        },
    );
    let mine = name("mine");
    let error = store
        .put_for(&small, &mine, &sampler(1), Provenance::Upload)
        .unwrap_err();
    let ModuleError::Quota { found, limit } = error else {
        panic!("{error}");
    };
    assert_eq!((found, limit), (length, length - 1));

    let busy = data.tenant(
        "busy",
        Quotas {
            compilations_per_hour: Some(1),
            ..Quotas::default()
        },
    );
    put(&store, &busy, "mine", &sampler(1));
    let error = store
        .put_for(&busy, &mine, &sampler(2), Provenance::Upload)
        .unwrap_err();
    assert!(matches!(error, ModuleError::Compilations { limit: 1, .. }));
    assert_eq!(data.files().len(), 1);
}

#[test]
fn ten_earlier_versions_are_kept() {
    let data = Data::new();
    let store = data.store();
    let owner = ModuleOwner::Server;
    for n in 1..=13 {
        put(&store, &owner, "mine", &sampler(n));
    }
    let history = store.history(&owner, &name("mine")).unwrap();
    let numbers: Vec<_> = history.iter().map(|v| v.number).collect();
    assert_eq!(numbers, (3..=13).rev().collect::<Vec<_>>());
    assert_eq!(data.files().len(), 11);
}

#[test]
fn what_a_tenant_leaves_is_collected() {
    let data = Data::new();
    let (a, b) = (
        data.tenant("a", Quotas::default()),
        data.tenant("b", Quotas::default()),
    );
    let store = data.store_with_code();
    let own = put(&store, &a, "mine", &sampler(1)).module.digest();
    put(&store, &a, "mine", &sampler(2));
    let shared = put(&store, &a, "shared", &sampler(3)).module.digest();
    put(&store, &b, "other", &sampler(3));
    assert_eq!(data.files().len(), 3);
    assert!(data.has_code(own) && data.has_code(shared));

    store.forget_gone();
    assert_eq!(data.files().len(), 3, "nobody went");
    data.registry.remove(&who(&a).id).unwrap();
    // Brought by someone else at this moment.
    let second = ModuleDigest::of(&sampler(2));
    let shelf = store.shelf.as_ref().unwrap();
    let in_hand = shelf.take(second);
    store.forget_gone();
    let mut left = data.files();
    left.sort();
    let mut expected = [second, shared].map(|digest| format!("{digest}.wasm"));
    expected.sort();
    assert_eq!(left, expected);
    drop(in_hand);
    store.forget_gone();
    assert_eq!(data.files(), [format!("{shared}.wasm")]);
    assert!(store.live_of(&a).is_empty());
    assert_eq!(store.live_of(&b).len(), 1);
    assert!(!data.has_code(own) && data.has_code(shared));

    // Or at the next start, where it went while no server ran.
    let c = data.tenant("c", Quotas::default());
    put(&store, &c, "mine", &sampler(1));
    data.registry.remove(&who(&c).id).unwrap();
    assert!(data.files().len() == 2 && data.has_code(own));
    data.store_with_code();
    assert_eq!(data.files(), [format!("{shared}.wasm")]);
    assert!(!data.has_code(own) && data.has_code(shared));
}

#[test]
fn two_that_bring_the_same_do_not_take_it_from_each_other() {
    let data = Data::new();
    let store = data.store();
    let small = Quotas {
        module_bytes: Some(1),
        ..Quotas::default()
    };
    let small = data.tenant("small", small);
    let digest = ModuleDigest::of(&sampler(1));
    let shelf = store.shelf.as_ref().unwrap();
    // Another owner has written it, and not yet its name.
    let in_hand = shelf.take(digest);
    shelf.keep(digest, &sampler(1)).unwrap();
    let refused = store.put_for(&small, &name("mine"), &sampler(1), Provenance::Upload);
    assert!(
        matches!(refused, Err(ModuleError::Quota { .. })),
        "{refused:?}"
    );
    assert_eq!(data.files().len(), 1);
    drop(in_hand);
}

#[test]
fn modules_are_checked_again_by_another_server() {
    let data = Data::new();
    let (a, b) = (
        data.tenant("a", Quotas::default()),
        data.tenant("b", Quotas::default()),
    );
    let store = data.store();
    let mine = put(&store, &a, "mine", &sampler(1)).module.digest();
    put(&store, &b, "mine", &sampler(1));
    put(&store, &ModuleOwner::Server, "mine", &sampler(2));
    drop(store);
    // From now on it cannot pass: its instance has no memory.
    let policy = Policy {
        quotas: Quotas {
            guest_memory_bytes: Some(1),
            ..Quotas::default()
        },
        ..Policy::default()
    };
    data.registry.set_policy(&who(&a).id, &policy).unwrap();
    let store = data.store();
    assert_eq!(digest_for(&store, &a, "mine"), mine, "not checked again");
    drop(store);

    let checked = |tenant: &ModuleOwner| {
        let live = data.registry.modules(tenant.number()).unwrap();
        live[0].checked.clone()
    };
    let this = checked(&a);
    for tenant in [&a, &b] {
        let digest = Sha256Digest(mine.0);
        let number = tenant.number();
        data.registry.note_check(number, digest, "older").unwrap();
    }
    let store = data.store();
    let error = store
        .named_for(who(&a), Role::Sampler, "mine")
        .unwrap_err()
        .to_string();
    assert!(error.contains("'mine' cannot be used"), "{error}");
    assert!(error.contains("limits"), "{error}");
    let unusable = store.unusable_of(&a);
    assert_eq!(unusable[0].0, name("mine"));
    assert_eq!(unusable[0].1.digest, mine);
    assert!(store.get_for(&a, &name("mine")).is_none());
    assert_eq!(store.rejected().len(), 1);
    // Nobody else notices.
    assert_eq!(digest_for(&store, &b, "mine"), mine);
    assert_eq!((checked(&a), checked(&b)), ("older".to_owned(), this));
    assert!(store.named(Role::Sampler, "mine").unwrap().is_some());

    // Taken away, the name means the server's again.
    assert!(store.remove_for(&a, &name("mine")).unwrap());
    assert!(store.unusable_of(&a).is_empty());
    assert_eq!(
        digest_for(&store, &a, "mine"),
        ModuleDigest::of(&sampler(2))
    );
}
