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
}

#[derive(Debug, Args)]
pub(in crate::cli) struct NewModel {
    /// Name of project and module: 1 to 64 of a-z, 0-9 and '-', a letter first.
    #[arg(value_parser = project_name)]
    name: String,
    /// Where to write the project (default: a folder of that name here).
    #[arg(long, value_name = "DIR")]
    path: Option<PathBuf>,
    /// The guests' SDK: a version on crates.io, or the path of guests/sdk in a checkout (default: this binary's version).
    #[arg(long, value_name = "PATH|VERSION", default_value = env!("CARGO_PKG_VERSION"))]
    sdk: String,
    /// Name in `architectures` of config.json (default: NAME in camel case, with ForCausalLM).
    #[arg(long, value_parser = architecture_name)]
    architecture: Option<String>,
}

/// Path in the project, and text with `{{…}}` to fill in.
const MODEL: [(&str, &str); 5] = [
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

impl New {
    pub(super) fn run(self) -> Result<()> {
        match self {
            Self::Model(new) => new.run(),
        }
    }
}

impl NewModel {
    fn run(self) -> Result<()> {
        let folder = self.path.unwrap_or_else(|| PathBuf::from(&self.name));
        let architecture = self
            .architecture
            .unwrap_or_else(|| camel_case(&self.name) + "ForCausalLM");
        let wasm = format!(
            "target/wasm32-unknown-unknown/release/{}.wasm",
            self.name.replace('-', "_")
        );
        let values = [
            ("name", self.name.as_str()),
            ("architecture", &architecture),
            ("sdk", &sdk(&self.sdk)?),
            ("wasm", &wasm),
        ];
        if fs::read_dir(&folder).is_ok_and(|mut entries| entries.next().is_some()) {
            bail!("{} exists and is not empty", folder.display());
        }
        for (path, text) in MODEL {
            write(&folder.join(path), &filled(text, &values))?;
        }
        let shown = folder.display();
        println!(
            "{shown}: a guest that builds {architecture}\n\n  cd {shown}\n  cargo build --release\n  guesthouse module check {wasm}"
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

/// The dependency's source, as Cargo.toml says it.
fn sdk(text: &str) -> Result<String> {
    let path = Path::new(text);
    if text.contains('/') || path.is_dir() {
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
