//! Modules compiled by a child process, and the code that is kept of them.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use guesthouse_component::{
    ChildCompiler, CodeDigest, CodeDigests, CodeSource, CompileLimits, Compiler, ComponentError,
    ModuleDigest, Origin, PoolSizes, Runtime, RuntimeConfig,
};

use crate::common::{bytes, works};

/// The limits of a server; less where a test says so.
fn limits() -> CompileLimits {
    CompileLimits::default()
}

fn config(limits: CompileLimits, folder: Option<&Path>) -> RuntimeConfig {
    let program = env!("CARGO_BIN_EXE_guesthouse-compile-module");
    RuntimeConfig {
        compiler: Compiler::Child(ChildCompiler {
            limits,
            ..ChildCompiler::new(program.into(), Vec::new())
        }),
        cache_dir: folder.map(Path::to_owned),
        pool: PoolSizes {
            graph: 1,
            chat: 1,
            sampler: 2,
            step: 1,
        },
        ..RuntimeConfig::default()
    }
}

#[derive(Default)]
struct Digests(Mutex<HashMap<ModuleDigest, CodeDigest>>);

impl CodeDigests for Digests {
    fn get(&self, module: &ModuleDigest, _: &str) -> Option<CodeDigest> {
        self.0.lock().unwrap().get(module).copied()
    }

    fn set(&self, module: &ModuleDigest, _: &str, code: CodeDigest) -> Result<(), String> {
        self.0.lock().unwrap().insert(*module, code);
        Ok(())
    }
}

/// Loads a sampler, and lets it plan.
fn loaded(runtime: &Arc<Runtime>, digests: &Digests) -> Result<CodeSource, ComponentError> {
    let bytes = bytes("hostile_sampler");
    let module = runtime.load_recorded("mine", &bytes, Origin::Tenant, digests)?;
    works(&module)
}

#[test]
fn a_child_compiles_and_its_code_is_kept() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().join("code");
    let digests = Digests::default();
    let runtime = || Runtime::new(config(limits(), Some(&folder))).unwrap();
    assert_eq!(loaded(&runtime(), &digests).unwrap(), CodeSource::Compiled);
    assert_eq!(loaded(&runtime(), &digests).unwrap(), CodeSource::Cache);
    let digest = ModuleDigest::of(&bytes("hostile_sampler"));
    assert!(runtime().is_compiled(&digest, &digests));
    let files: Vec<_> = std::fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    assert_eq!(files.len(), 1, "its digest is elsewhere: {files:?}");
    let length = std::fs::metadata(&files[0]).unwrap().len();
    assert_eq!(digests.get(&digest, "").unwrap().bytes, length);

    // Another's records know nothing of it.
    let others = Digests::default();
    assert_eq!(loaded(&runtime(), &others).unwrap(), CodeSource::Compiled);

    // Code and a matching digest beside it do not stand in for the record.
    let other = [b"not code".to_vec(), vec![0; 100]].concat();
    std::fs::write(&files[0], &other).unwrap();
    assert!(!runtime().is_compiled(&digest, &digests));
    assert_eq!(loaded(&runtime(), &digests).unwrap(), CodeSource::Compiled);
    // Killed after the code was written, before its digest was.
    digests.0.lock().unwrap().clear();
    assert_eq!(loaded(&runtime(), &digests).unwrap(), CodeSource::Compiled);
    assert_eq!(loaded(&runtime(), &digests).unwrap(), CodeSource::Cache);
    // Killed while the code was written.
    std::fs::write(folder.join(".some.cwasm.1.1"), "half").unwrap();
    std::fs::remove_file(&files[0]).unwrap();
    assert_eq!(loaded(&runtime(), &digests).unwrap(), CodeSource::Compiled);
    runtime().forget_code(&digest);
    assert!(!files[0].exists());
}

/// A valid sampler's component whose one function is a loop over so many branches. Each changes eight of two hundred values,
/// all of which live to the end, so that registers must be found for all of them everywhere.
fn bomb(branches: usize) -> Vec<u8> {
    let mut body = String::new();
    for i in 0..branches {
        body.push_str(&format!("local.get {} i32.wrap_i64 if ", i % 200));
        for j in 0..8 {
            let (from, other, to) = ((i + j) % 200, (i * 7 + j) % 200, (i * 13 + j) % 200);
            body.push_str(&format!(
                "local.get {from} local.get {other} i64.mul local.set {to} "
            ));
        }
        body.push_str("end\n");
    }
    let sum: String = (0..200)
        .map(|i| format!("global.get 0 local.get {i} i64.add global.set 0 "))
        .collect();
    let locals = "i64 ".repeat(200);
    wat::parse_str(format!(
        r#"(component
            (core module
                (global (mut i64) (i64.const 1))
                (func (export "f") (local {locals})
                    loop {body} local.get 0 i64.eqz br_if 0 end {sum}))
            (instance $i)
            (export "guesthouse:sampling/plan@0.1.0" (instance $i)))"#
    ))
    .unwrap()
}

#[track_caller]
fn refused(limits: CompileLimits, bytes: &[u8], label: &str, words: &str) {
    let runtime = Runtime::new(config(limits, None)).unwrap();
    let error = runtime.load("mine", bytes, Origin::Tenant).map(drop);
    let error = error.unwrap_err();
    assert_eq!(error.label(), label, "{error}");
    assert!(error.to_string().contains(words), "{error}");
}

#[test]
fn bombs_end_at_their_limits() {
    let bomb = bomb(30_000);
    let cpu = CompileLimits {
        cpu: Duration::from_secs(1),
        ..limits()
    };
    refused(cpu, &bomb, "compile_cpu", "1 s of processor time");
    let wall = CompileLimits {
        wall: Duration::from_millis(500),
        ..limits()
    };
    refused(wall, &bomb, "compile_wall", "did not end within");
    let memory = CompileLimits {
        memory: 256 << 20,
        ..limits()
    };
    refused(memory, &bomb, "compile_memory", "256 MiB of memory");
    let output = CompileLimits {
        output: 1000,
        ..limits()
    };
    refused(
        output,
        &bytes("hostile_sampler"),
        "compile_output",
        "MiB of code",
    );
}

#[test]
fn a_compiler_of_another_build_is_refused() {
    let runtime = Runtime::new(config(limits(), None)).unwrap();
    assert!(loaded(&runtime, &Digests::default()).is_ok());
    let arguments = ["time", "0123", "4294967296", "10", "1000"];
    let program = env!("CARGO_BIN_EXE_guesthouse-compile-module");
    let answer = std::process::Command::new(program)
        .args(arguments)
        .stdin(std::process::Stdio::null())
        .output()
        .unwrap();
    assert_eq!(answer.status.code(), Some(1));
    let words = String::from_utf8(answer.stderr).unwrap();
    assert!(words.contains("expected 0123"), "{words}");
}
