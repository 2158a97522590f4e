//! Which file of a model folder holds the vocabulary, and what a vocabulary without a `tokenizer.json` becomes.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use tokenizers::AddedToken;

use crate::tokenizer::{Affixes, Parts, Roles};
use crate::words::WordModel;
use crate::{TokenizerError, sentencepiece, tiktoken};

/// The vocabulary of a folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum VocabularyFile {
    /// `tokenizer.json`
    Json(PathBuf),
    /// SentencePiece's protobuf, or a table of ranks under the same name.
    Model(PathBuf),
}

/// Names under which SentencePiece models are shipped.
const MODEL_NAMES: [&str; 3] = ["tokenizer.model", "spiece.model", "sentencepiece.bpe.model"];

impl VocabularyFile {
    /// The best description that a folder has: `tokenizer.json`, a SentencePiece model, a table `*.tiktoken`.
    pub(crate) fn find(folder: &Path) -> Option<Self> {
        let json = folder.join("tokenizer.json");
        if json.is_file() {
            return Some(Self::Json(json));
        }
        let named = MODEL_NAMES.iter().map(|name| folder.join(name));
        let mut tables: Vec<PathBuf> = std::fs::read_dir(folder)
            .into_iter()
            .flatten()
            .filter_map(|entry| Some(entry.ok()?.path()))
            .filter(|path| path.extension().is_some_and(|e| e == "tiktoken"))
            .collect();
        tables.sort();
        named
            .chain(tables)
            .find(|path| path.is_file())
            .map(Self::Model)
    }
}

/// Whether something is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flag {
    On,
    Off,
}

impl Flag {
    pub(crate) fn of(on: bool) -> Self {
        if on { Self::On } else { Self::Off }
    }
}

/// A vocabulary before the files beside it say more.
pub(crate) struct Base {
    pub(crate) inner: tokenizers::Tokenizer,
    pub(crate) words: Option<Box<dyn WordModel>>,
    pub(crate) tokens: Vec<Option<Box<str>>>,
    pub(crate) added: HashMap<u32, AddedToken>,
    pub(crate) roles: Roles,
    /// Whether raw text begins with BOS, where the configuration does not say.
    pub(crate) add_bos: Flag,
    /// What raw text begins with, where the configuration says nothing of BOS; empty for `add_bos`.
    pub(crate) prefix: Vec<String>,
}

/// What the configuration says that only such vocabularies need.
#[derive(Clone, Debug, Default)]
pub(crate) struct Settings {
    pub(crate) add_bos: Option<bool>,
    pub(crate) add_eos: Option<bool>,
    /// `add_prefix_space`
    pub(crate) prefix_space: Option<bool>,
    /// Whether each run of text begins with a space of its own, as older versions of transformers had it.
    pub(crate) legacy: Option<bool>,
    /// `pat_str`: how text is split into words.
    pub(crate) pattern: Option<String>,
}

impl Base {
    /// Reads a `tokenizer.model` or `*.tiktoken`.
    pub(crate) fn read(bytes: &[u8], settings: &Settings) -> Result<Self, TokenizerError> {
        if tiktoken::is_table(bytes) {
            return tiktoken::read(bytes, settings.pattern.as_deref());
        }
        let prefix = match (settings.prefix_space, settings.legacy) {
            (Some(false), _) => sentencepiece::Prefix::Never,
            (_, Some(false)) => sentencepiece::Prefix::Sentence,
            _ => sentencepiece::Prefix::EachRun,
        };
        sentencepiece::read(bytes, prefix)
    }

    /// The finished parts; `ids` finds added tokens by their literals.
    pub(crate) fn parts(self, settings: &Settings, ids: &HashMap<String, u32>) -> Parts {
        let wanted = settings.add_bos.unwrap_or(self.add_bos == Flag::On);
        let known: Option<Vec<u32>> = self.prefix.iter().map(|p| ids.get(p).copied()).collect();
        let prefix = match (settings.add_bos, known) {
            (None, Some(prefix)) if !prefix.is_empty() => prefix,
            _ => self.roles.bos.filter(|_| wanted).into_iter().collect(),
        };
        let eos = self.roles.eos.filter(|_| settings.add_eos == Some(true));
        Parts {
            inner: self.inner,
            words: self.words,
            tokens: self.tokens,
            added: self.added,
            roles: self.roles,
            affixes: Affixes::Fixed {
                prefix,
                suffix: eos.into_iter().collect(),
            },
        }
    }
}
