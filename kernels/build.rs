//! Lists every kernel source, so that a new file needs no registration.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

fn main() -> io::Result<()> {
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default());
    let mut files = Vec::new();
    collect(&root, &mut files)?;
    files.sort();
    let mut code = String::from("&[\n");
    for file in &files {
        let name = file
            .strip_prefix(&root)
            .unwrap_or(file)
            .to_string_lossy()
            .replace('\\', "/");
        let _ = writeln!(
            code,
            "    ({name:?}, include_str!({:?})),",
            file.display().to_string()
        );
    }
    code.push_str("]\n");
    let out = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default());
    fs::write(out.join("sources.rs"), code)
}

/// Sources below a folder. Every folder is watched, so that files that come or go are noticed.
fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    println!("cargo::rerun-if-changed={}", folder.display());
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let hidden = path
            .file_name()
            .is_some_and(|n| n.to_string_lossy().starts_with('.'));
        if path.is_dir() && !hidden && path.file_name() != Some("src".as_ref()) {
            collect(&path, files)?;
        } else if path.extension().is_some_and(|e| e == "cu" || e == "cuh") {
            files.push(path);
        }
    }
    Ok(())
}
