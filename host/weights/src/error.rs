//! The crate's error type.

use std::path::{Path, PathBuf};

/// What can go wrong when weights are found, checked or read.
#[non_exhaustive]
#[derive(Debug, thiserror::Error)]
pub enum WeightsError {
    /// A file could not be opened, read or inspected.
    #[error("cannot read {path}: {source}; check that the file exists and is readable", path = path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        source: std::io::Error,
    },
    /// A file breaks the rules of its format.
    #[error("{path} is not a valid {format} file: {what}; the download may be incomplete or corrupt, fetch the file again", path = path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// "safetensors", "GGUF" or "index".
        format: &'static str,
        /// What was expected and what was found, and where.
        what: String,
    },
    /// A well-formed file uses something that is not supported.
    #[error("{path}: {what}", path = path.display())]
    Unsupported {
        /// The file.
        path: PathBuf,
        /// What is unsupported and what to do instead.
        what: String,
    },
    /// A folder holds only pickled weights.
    #[error(
        "{folder} has only pickled weights ('{found}'), which can run code when loaded and are never read; convert them \
         with: {command}",
        folder = folder.display()
    )]
    PickleOnly {
        /// The model folder.
        folder: PathBuf,
        /// The pickled file that was found.
        found: String,
        /// A shell command that saves the same weights as safetensors.
        command: String,
    },
    /// A folder holds no weights at all.
    #[error("{folder} has no weights: expected model.safetensors.index.json, model.safetensors or another *.safetensors file; check the path", folder = folder.display())]
    NoWeights {
        /// The model folder.
        folder: PathBuf,
    },
    /// A tensor is not in the source.
    #[error("no tensor '{name}' in {source_name}; {hint}")]
    MissingTensor {
        /// The name that was asked for.
        name: String,
        /// Where it was looked for.
        source_name: String,
        /// What to do.
        hint: String,
    },
    /// A file became shorter while it was read.
    #[error("{path} shrank while it was being read: it had {before} bytes, {now} are left; do not change model files while they load, then load again", path = path.display())]
    Shrank {
        /// The file.
        path: PathBuf,
        /// Its length when it was opened.
        before: u64,
        /// Its length now.
        now: u64,
    },
    /// Bytes or an output buffer do not fit a scheme.
    #[error("{scheme}: expected {expected}, found {found}")]
    Size {
        /// The scheme's name.
        scheme: String,
        /// The expected size, in words.
        expected: String,
        /// The size found, in words.
        found: String,
    },
    /// A scheme name that does not exist.
    #[error("unknown storage scheme '{name}'; expected a name like f32, bf16, q4_0, q4_K or mxfp4")]
    UnknownScheme {
        /// The name.
        name: String,
    },
    /// A scheme that the operation does not cover.
    #[error("{operation} does not support {scheme} tensors")]
    UnsupportedScheme {
        /// The operation.
        operation: &'static str,
        /// The scheme's name.
        scheme: String,
    },
}

/// Saves the tensors of each file that is named beside it as safetensors; shards stay shards. It needs the packages torch
/// and safetensors, and lets torch read tensors alone. Free of `"`, `$` and `\``: it stands in double quotes.
const UNPICKLE: &str = "import sys, torch; from safetensors.torch import save_file; \
    load = lambda f: torch.load(f, map_location='cpu', weights_only=True); \
    tensors = lambda d: {k: v.detach().clone().contiguous() for k, v in d.get('state_dict', d).items() if torch.is_tensor(v)}; \
    [save_file(tensors(load(f)), f.rsplit('.', 1)[0] + '.safetensors', {'format': 'pt'}) for f in sys.argv[1:]]";

/// For a POSIX shell.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

impl WeightsError {
    /// A short stable name of the variant, for metrics and logs.
    #[must_use]
    pub const fn label(&self) -> &'static str {
        match self {
            Self::Io { .. } => "weights_io",
            Self::Malformed { .. } => "weights_malformed",
            Self::Unsupported { .. } => "weights_unsupported",
            Self::PickleOnly { .. } => "weights_pickle_only",
            Self::NoWeights { .. } => "weights_none",
            Self::MissingTensor { .. } => "weights_missing_tensor",
            Self::Shrank { .. } => "weights_shrank",
            Self::Size { .. } => "weights_size",
            Self::UnknownScheme { .. } => "weights_unknown_scheme",
            Self::UnsupportedScheme { .. } => "weights_unsupported_scheme",
        }
    }

    pub(crate) fn unknown_scheme(name: &str) -> Self {
        Self::UnknownScheme {
            name: name.chars().take(64).collect(),
        }
    }

    pub(crate) fn io(path: &Path, source: std::io::Error) -> Self {
        Self::Io {
            path: path.to_owned(),
            source,
        }
    }

    /// `found` holds at least one name.
    pub(crate) fn pickle_only(folder: &Path, found: &[String]) -> Self {
        let files: Vec<String> = found
            .iter()
            .map(|name| quoted(&folder.join(name).display().to_string()))
            .collect();
        Self::PickleOnly {
            folder: folder.to_owned(),
            found: found.first().cloned().unwrap_or_default(),
            command: format!("python -c \"{UNPICKLE}\" {}", files.join(" ")),
        }
    }

    pub(crate) fn missing(name: &str, source_name: impl Into<String>) -> Self {
        Self::MissingTensor {
            name: name.to_owned(),
            source_name: source_name.into(),
            hint: "check that the checkpoint matches its config.json".to_owned(),
        }
    }
}
