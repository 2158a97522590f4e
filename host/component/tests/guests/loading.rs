use std::os::unix::fs::PermissionsExt as _;

use guesthouse_component::{
    CodeSource, ComponentError, Origin, PoolSizes, Role, Runtime, RuntimeConfig, builtin,
};

use crate::common::{bytes, runtime, works};

fn refused(bytes: &[u8]) -> ComponentError {
    runtime()
        .load("mine", bytes, Origin::Tenant)
        .map(|_| ())
        .unwrap_err()
}

#[track_caller]
fn refuses(bytes: &[u8], label: &str, parts: &[&str]) {
    let error = refused(bytes);
    assert_eq!(error.label(), label, "{error}");
    for part in [&["mine"], parts].concat() {
        assert!(error.to_string().contains(part), "says {part:?}: {error}");
    }
}

fn component(text: &str) -> Vec<u8> {
    wat::parse_str(text).unwrap()
}

#[test]
fn roles_are_recognised() {
    for (name, role, steps) in [
        ("hostile_graph", Role::Graph, false),
        ("hostile_chat", Role::Chat, false),
        ("hostile_sampler", Role::Sampler, true),
    ] {
        let module = runtime().load(name, &bytes(name), Origin::File).unwrap();
        assert_eq!((module.role(), module.steps()), (role, steps));
        assert_eq!(module.code_source(), CodeSource::Compiled);
        let ours = |import: &String| import.starts_with("guesthouse:");
        assert!(
            module.imports().iter().all(ours),
            "no WASI: {:?}",
            module.imports()
        );
        let others: Vec<_> = [
            module.graph().err(),
            module.chat().err(),
            module.sampler().err(),
        ]
        .into_iter()
        .flatten()
        .map(|error| error.label())
        .collect();
        assert_eq!(others, ["wrong_role"; 2]);
    }
}

#[test]
fn other_bytes_are_refused() {
    refuses(b"", "not_a_component", &["nothing"]);
    refuses(b"#!/bin/sh\n", "not_a_component", &["not WebAssembly"]);
    refuses(&component("(module)"), "not_a_component", &["core module"]);
    refuses(
        b"\0asm\x0d\0\x01\0\xff\xff\xff\xff",
        "malformed",
        &["byte 8"],
    );
    refuses(
        &component("(component)"),
        "roles",
        &["exactly one role", "found none"],
    );
}

#[test]
fn every_truncation_is_an_error() {
    let whole = bytes("hostile_sampler");
    for length in (0..whole.len()).step_by(997).chain([whole.len() - 1]) {
        let error = refused(&whole[..length]);
        let labels = ["malformed", "not_a_component", "roles", "compile"];
        assert!(labels.contains(&error.label()), "{length} bytes: {error}");
    }
}

#[test]
fn bit_flips_never_panic() {
    let whole = bytes("hostile_sampler");
    for at in (0..whole.len().min(4000)).step_by(61) {
        let mut flipped = whole.clone();
        flipped[at] ^= 0x10;
        // Loading may succeed: a name or a constant changed. It must not panic.
        drop(runtime().load("mine", &flipped, Origin::Tenant));
    }
}

#[test]
fn two_roles_are_refused() {
    let both = component(
        r#"(component
            (instance $i)
            (export "guesthouse:graph/model@0.1.0" (instance $i))
            (export "guesthouse:sampling/plan@0.1.0" (instance $i)))"#,
    );
    refuses(
        &both,
        "roles",
        &["guesthouse:graph/model@0.1.0, guesthouse:sampling/plan@0.1.0"],
    );
    let half = component(
        r#"(component (instance $i) (export "guesthouse:chat/template@0.1.0" (instance $i)))"#,
    );
    refuses(&half, "roles", &["guesthouse:chat/template"]);
}

#[test]
fn imports_beyond_the_role_are_refused() {
    let with = |import: &str| {
        component(&format!(
            r#"(component
                (import "{import}" (instance))
                (instance $i)
                (export "guesthouse:sampling/plan@0.1.0" (instance $i)))"#
        ))
    };
    for import in [
        "wasi:http/types@0.2.0",
        "guesthouse:graph/builder@0.1.0",
        "wasi:filesystem/types@0.2.6",
        "evil:a/b",
    ] {
        refuses(
            &with(import),
            "forbidden_import",
            &[import, "sampler guest"],
        );
    }
    refuses(
        &with("guesthouse:common/log@0.9.0"),
        "version",
        &["guesthouse:common/log@0.9.0", "@0.1.x"],
    );
}

#[test]
fn another_version_is_refused() {
    let newer = component(
        r#"(component (instance $i) (export "guesthouse:sampling/plan@0.2.0" (instance $i)))"#,
    );
    refuses(
        &newer,
        "version",
        &[
            "guesthouse:sampling/plan@0.2.0",
            "guesthouse:sampling/plan@0.1.x",
        ],
    );
}

#[test]
fn exports_of_another_shape_are_refused() {
    let empty = component(
        r#"(component (instance $i) (export "guesthouse:sampling/plan@0.1.0" (instance $i)))"#,
    );
    refuses(&empty, "link", &["sampler"]);
}

#[test]
fn built_in_guests_load_under_their_role() {
    for builtin in builtin::ALL {
        let module = runtime()
            .load(builtin.name, builtin.bytes, Origin::Embedded)
            .unwrap();
        assert_eq!(module.role(), builtin.role, "{}", builtin.name);
    }
}

fn cached(folder: &std::path::Path) -> Result<CodeSource, ComponentError> {
    let pool = PoolSizes {
        graph: 1,
        chat: 1,
        sampler: 2,
        step: 1,
    };
    let config = RuntimeConfig {
        cache_dir: Some(folder.to_owned()),
        pool,
        ..RuntimeConfig::default()
    };
    let runtime = Runtime::new(config)?;
    let module = runtime.load("hostile_sampler", &bytes("hostile_sampler"), Origin::File)?;
    works(&module)
}

/// The file with the compiled code.
fn code(folder: &std::path::Path) -> std::path::PathBuf {
    let files = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let codes: Vec<_> = files
        .filter(|path| path.extension().is_some_and(|e| e == "cwasm"))
        .collect();
    assert_eq!(codes.len(), 1, "one module, no temporary files left");
    codes[0].clone()
}

#[test]
fn compiled_code_is_kept_and_verified() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().join("code");
    assert_eq!(cached(&folder).unwrap(), CodeSource::Compiled);
    assert_eq!(
        std::fs::metadata(&folder).unwrap().permissions().mode() & 0o777,
        0o700
    );
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 2);
    assert_eq!(cached(&folder).unwrap(), CodeSource::Cache);

    let original = std::fs::read(code(&folder)).unwrap();
    let mut tampered = original.clone();
    let middle = tampered.len() / 2;
    tampered[middle] ^= 1;
    for bytes in [&tampered[..], &original[..100], &[]] {
        std::fs::write(code(&folder), bytes).unwrap();
        assert_eq!(cached(&folder).unwrap(), CodeSource::Compiled);
        assert_eq!(cached(&folder).unwrap(), CodeSource::Cache, "and replaced");
    }
    std::fs::remove_file(code(&folder).with_extension("sha256")).unwrap();
    assert_eq!(cached(&folder).unwrap(), CodeSource::Compiled);
}

#[test]
fn a_folder_that_others_may_enter_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let error = cached(folder.path()).unwrap_err();
    assert_eq!(error.label(), "cache");
    assert!(
        error.to_string().contains("has mode 0755, expected 0700"),
        "{error}"
    );

    let real = tempfile::tempdir().unwrap();
    std::fs::set_permissions(real.path(), std::fs::Permissions::from_mode(0o700)).unwrap();
    let link = real.path().join("link");
    std::os::unix::fs::symlink(real.path(), &link).unwrap();
    let error = cached(&link).unwrap_err();
    assert!(error.to_string().contains("symbolic link"), "{error}");
}
