//! Builds the guests and embeds those that are built in.

use std::error::Error;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Folder below guests/, middle of the package names, role of the modules.
const KINDS: [(&str, &str, &str); 3] = [
    ("models", "model", "Graph"),
    ("chat", "chat", "Chat"),
    ("samplers", "sampler", "Sampler"),
];

/// Settings of the outer build that must not reach the inner one: flags and wrappers of another target, clippy's
/// driver, the outer job server.
const LEAKS: [&str; 14] = [
    "RUSTFLAGS",
    "RUSTDOCFLAGS",
    "RUSTC",
    "RUSTDOC",
    "RUSTC_WRAPPER",
    "RUSTC_WORKSPACE_WRAPPER",
    "RUSTC_LINKER",
    "CLIPPY_ARGS",
    "CLIPPY_CONF_DIR",
    "MAKEFLAGS",
    "MFLAGS",
    "TARGET",
    "HOST",
    "OUT_DIR",
];

/// Set while writing guests: those that do not build are left out with a warning, instead of failing the host's build.
const PARTIAL: &str = "GUESTHOUSE_PARTIAL_GUESTS";

fn main() {
    if let Err(error) = run() {
        eprintln!("{error}");
        println!(
            "cargo::error={}",
            error
                .to_string()
                .lines()
                .next()
                .unwrap_or("the guests do not build")
        );
        std::process::exit(1);
    }
}

fn run() -> Result<()> {
    let here = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?);
    let out = PathBuf::from(env::var("OUT_DIR")?);
    let root = here.join("../..").canonicalize()?;
    let guests = root.join("guests");
    for folder in [
        "wit",
        "guests/sdk",
        "guests/models",
        "guests/chat",
        "guests/samplers",
        "guests/testing",
        "guests/.cargo",
    ] {
        println!("cargo::rerun-if-changed={}", root.join(folder).display());
    }
    println!(
        "cargo::rerun-if-changed={}",
        guests.join("Cargo.toml").display()
    );
    println!("cargo::rerun-if-env-changed={PARTIAL}");

    let target = target_folder(&out)?;
    let modules = target.join("wasm32-unknown-unknown/release");
    println!(
        "cargo::rustc-env=GUESTHOUSE_GUESTS_DIR={}",
        modules.display()
    );
    let partial = env::var_os(PARTIAL).is_some();
    match build(&guests, &target) {
        Err(error) if partial => {
            println!("cargo::warning={}", first_error(&error.to_string()));
        }
        built => built?,
    }

    let mut all = String::from("/// Every embedded module.\npub const ALL: &[Builtin] = &[\n");
    for (folder, kind, role) in KINDS {
        for name in packages(&guests.join(folder))? {
            let file = modules.join(format!("guesthouse_{kind}_{}.wasm", name.replace('-', "_")));
            if !file.exists() {
                if partial {
                    println!("cargo::warning=guests/{folder}/{name} is left out");
                    continue;
                }
                return Err(format!(
                    "guests/{folder}/{name}: expected the package guesthouse-{kind}-{name} with crate-type cdylib; {} was not built",
                    file.display()
                )
                .into());
            }
            let embedded = out.join(format!("{kind}-{name}.wasm"));
            copy_changed(&file, &embedded)?;
            writeln!(
                all,
                "    Builtin {{ name: {name:?}, role: Role::{role}, bytes: include_bytes!({embedded:?}) }},"
            )?;
        }
    }
    all.push_str("];\n");
    fs::write(out.join("builtin.rs"), all)?;
    Ok(())
}

/// Copies what differs, so that equal guests leave the crate as it was.
fn copy_changed(from: &Path, to: &Path) -> Result<()> {
    let bytes = fs::read(from)?;
    if fs::read(to).ok().as_ref() != Some(&bytes) {
        fs::write(to, bytes)?;
    }
    Ok(())
}

/// `<workspace target>/guests`, shared by all profiles: OUT_DIR is `<target>/<profile>/build/<package>/out`.
fn target_folder(out: &Path) -> Result<PathBuf> {
    let mut folder = out.ancestors();
    let target = folder
        .nth(4)
        .ok_or("OUT_DIR is not inside a target folder")?;
    Ok(target.join("guests"))
}

/// The line of a build's output that says most.
fn first_error(text: &str) -> &str {
    text.lines()
        .find(|line| line.starts_with("error"))
        .or(text.lines().next())
        .unwrap_or_default()
}

/// Names of the folders that hold a package.
fn packages(folder: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    if folder.exists() {
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            if entry.path().join("Cargo.toml").exists() {
                names.push(entry.file_name().to_string_lossy().into_owned());
            }
        }
    }
    names.sort();
    Ok(names)
}

fn build(guests: &Path, target: &Path) -> Result<()> {
    let mut cargo = Command::new(env::var("CARGO").unwrap_or_else(|_| "cargo".into()));
    cargo
        .args(["build", "--release", "--keep-going", "--manifest-path"])
        .arg(guests.join("Cargo.toml"))
        .arg("--target-dir")
        .arg(target);
    // guests/.cargo/config.toml is found from the working folder.
    cargo.current_dir(guests);
    for (name, _) in env::vars_os() {
        let text = name.to_string_lossy();
        let leaks = LEAKS.contains(&&*text)
            || (text.starts_with("CARGO")
                && !matches!(
                    &*text,
                    "CARGO_HOME" | "CARGO_NET_OFFLINE" | "CARGO_HTTP_CAINFO"
                ));
        if leaks {
            cargo.env_remove(&name);
        }
    }
    let output = cargo
        .output()
        .map_err(|error| format!("cargo cannot be run for the guests: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr);
    if text.contains("can't find crate for `core`") || text.contains("target may not be installed")
    {
        return Err("the guests need the target wasm32-unknown-unknown; run: rustup target add wasm32-unknown-unknown".into());
    }
    Err(format!(
        "the guests do not build; run cargo build --release in {} to see why\n{text}",
        guests.display()
    )
    .into())
}
