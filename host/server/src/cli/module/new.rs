//! `guesthouse module new`: a guest's project, written from templates in this binary.

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};
use std::fs;
use std::path::{Path, PathBuf};

/// What a new guest is for.
#[derive(Debug, Subcommand)]
pub(in crate::cli) enum New {
    /// A graph guest: builds the graph of one or more architectures.
    Model(NewModel),
    /// A sampler guest: chooses tokens itself.
    Sampler(NewSampler),
}

#[derive(Debug, Args)]
struct Project {
    /// Name of project and module: 1 to 64 of a-z, 0-9 and '-', a letter first.
    #[arg(value_parser = project_name)]
    name: String,
    /// Where to write the project (default: a folder of that name here).
    #[arg(long, value_name = "DIR")]
    path: Option<PathBuf>,
    /// The guests' SDK: a version on crates.io, or the path of guests/sdk in a checkout (default: this binary's version).
    #[arg(long, value_name = "PATH|VERSION", default_value = env!("CARGO_PKG_VERSION"))]
    sdk: String,
}

#[derive(Debug, Args)]
pub(in crate::cli) struct NewModel {
    #[command(flatten)]
    project: Project,
    /// Name in `architectures` of config.json (default: NAME in camel case, with ForCausalLM).
    #[arg(long, value_parser = architecture_name)]
    architecture: Option<String>,
}

#[derive(Debug, Args)]
pub(in crate::cli) struct NewSampler {
    #[command(flatten)]
    project: Project,
}

/// Path in the project, and text with `{{…}}` to fill in.
type File = (&'static str, &'static str);

const MODEL: [File; 5] = [
    (
        "Cargo.toml",
        include_str!("../../../templates/model/Cargo.toml.in"),
    ),
    (
        ".cargo/config.toml",
        include_str!("../../../templates/model/config.toml"),
    ),
    (
        ".gitignore",
        include_str!("../../../templates/model/gitignore"),
    ),
    (
        "README.md",
        include_str!("../../../templates/model/README.md"),
    ),
    (
        "src/lib.rs",
        include_str!("../../../templates/model/lib.rs"),
    ),
];

const SAMPLER: [File; 6] = [
    (
        "Cargo.toml",
        include_str!("../../../templates/sampler/Cargo.toml.in"),
    ),
    (
        ".cargo/config.toml",
        include_str!("../../../templates/sampler/config.toml"),
    ),
    (
        ".gitignore",
        include_str!("../../../templates/sampler/gitignore"),
    ),
    (
        "README.md",
        include_str!("../../../templates/sampler/README.md"),
    ),
    (
        "src/lib.rs",
        include_str!("../../../templates/sampler/lib.rs"),
    ),
    (
        "src/tests.rs",
        include_str!("../../../templates/sampler/tests.rs"),
    ),
];

impl New {
    pub(super) fn run(self) -> Result<()> {
        match self {
            Self::Model(new) => new.run(),
            Self::Sampler(new) => new.run(),
        }
    }
}

impl NewModel {
    fn run(self) -> Result<()> {
        let architecture = self
            .architecture
            .unwrap_or_else(|| camel_case(&self.project.name) + "ForCausalLM");
        self.project.write(
            &MODEL,
            &[("architecture", architecture.as_str())],
            &format!("a guest that builds {architecture}"),
        )
    }
}

impl NewSampler {
    fn run(self) -> Result<()> {
        let step = sdk(&self.project.sdk, "step")?;
        self.project.write(
            &SAMPLER,
            &[("step", step.as_str())],
            "a sampler that chooses tokens",
        )
    }
}

impl Project {
    /// Writes the files, with `values` and those of every project filled in, and says how to go on.
    fn write(self, files: &[File], values: &[(&str, &str)], what: &str) -> Result<()> {
        let folder = self.path.unwrap_or_else(|| PathBuf::from(&self.name));
        let wasm = format!(
            "target/wasm32-unknown-unknown/release/{}.wasm",
            self.name.replace('-', "_")
        );
        let sdk = sdk(&self.sdk, "")?;
        let mut all = vec![("name", &*self.name), ("sdk", &*sdk), ("wasm", &*wasm)];
        all.extend(values);
        if fs::read_dir(&folder).is_ok_and(|mut entries| entries.next().is_some()) {
            bail!("{} exists and is not empty", folder.display());
        }
        for (path, text) in files {
            write(&folder.join(path), &filled(text, &all))?;
        }
        let shown = folder.display();
        println!(
            "{shown}: {what}\n\n  cd {shown}\n  cargo build --release\n  guesthouse module check {wasm}"
        );
        Ok(())
    }
}

fn write(path: &Path, text: &str) -> Result<()> {
    let written = || {
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)?;
        }
        fs::write(path, text)
    };
    written().with_context(|| format!("cannot write {}", path.display()))
}

fn filled(text: &str, values: &[(&str, &str)]) -> String {
    values.iter().fold(text.to_owned(), |text, (key, value)| {
        text.replace(&format!("{{{{{key}}}}}"), value)
    })
}

/// The source of the SDK, or of a crate in a folder of it, as Cargo.toml says it.
fn sdk(text: &str, folder: &str) -> Result<String> {
    if text.contains('/') || Path::new(text).is_dir() {
        let path = Path::new(text).join(folder);
        if !path.join("Cargo.toml").is_file() {
            bail!(
                "--sdk {text}: there is no Cargo.toml; expected the folder guests/sdk of a checkout"
            );
        }
        let path = path
            .canonicalize()
            .with_context(|| format!("--sdk {text}"))?;
        // TOML's basic strings and Rust's debug form agree on printable paths.
        return Ok(format!("path = {path:?}"));
    }
    let is_version = |c: char| c.is_ascii_alphanumeric() || ".-+".contains(c);
    if !text.starts_with(|c: char| c.is_ascii_digit()) || !text.chars().all(is_version) {
        bail!("--sdk {text}: expected a version such as 0.1.0, or a path with a '/'");
    }
    Ok(format!("version = {text:?}"))
}

fn project_name(text: &str) -> Result<String, String> {
    let fits = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-';
    if text.len() > 64
        || !text.starts_with(|c: char| c.is_ascii_lowercase())
        || text.ends_with('-')
        || !text.bytes().all(fits)
    {
        return Err("expected 1 to 64 of a-z, 0-9 and '-', a letter first".to_owned());
    }
    Ok(text.to_owned())
}

/// Names of Python classes.
fn architecture_name(text: &str) -> Result<String, String> {
    let fits = |c: char| c.is_ascii_alphanumeric() || c == '_';
    if text.is_empty() || text.starts_with(|c: char| c.is_ascii_digit()) || !text.chars().all(fits)
    {
        return Err("expected a class name such as MyModelForCausalLM".to_owned());
    }
    Ok(text.to_owned())
}

fn camel_case(name: &str) -> String {
    name.split('-')
        .map(|word| {
            let (first, rest) = word.split_at(word.len().min(1));
            first.to_ascii_uppercase() + rest
        })
        .collect()
}

#[cfg(test)]
mod tests;
