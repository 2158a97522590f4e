//! Tokenizers of Hugging Face folders.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use serde::Deserialize;
use serde_json::Value;
use tokenizers::{AddedToken, Model as _};

use crate::tokenizer::{
    Affixes, MAX_ADDED, MAX_ADDED_BYTES, MAX_VOCAB, Parts, Roles, check_limit, guard,
};
use crate::{Tokenizer, TokenizerError};

/// The largest file that is read.
const MAX_FILE_BYTES: u64 = 1 << 29;

/// What `tokenizer_config.json` and `special_tokens_map.json` say about added tokens.
#[derive(Debug, Default, Deserialize)]
struct Config {
    #[serde(default)]
    added_tokens_decoder: BTreeMap<String, TokenEntry>,
    #[serde(flatten)]
    rest: BTreeMap<String, Value>,
}

/// An added token as the configuration files write it. Absent flags are false, but for `normalized`.
#[derive(Clone, Debug, Deserialize)]
struct TokenEntry {
    content: String,
    #[serde(default)]
    single_word: bool,
    #[serde(default)]
    lstrip: bool,
    #[serde(default)]
    rstrip: bool,
    normalized: Option<bool>,
    #[serde(default)]
    special: bool,
}

impl TokenEntry {
    fn token(self) -> AddedToken {
        AddedToken {
            normalized: self.normalized.unwrap_or(!self.special),
            content: self.content,
            single_word: self.single_word,
            lstrip: self.lstrip,
            rstrip: self.rstrip,
            special: self.special,
        }
    }
}

/// The roles that name a special token.
const ROLES: [&str; 7] = [
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
];

impl Tokenizer {
    /// Reads `tokenizer.json`, and beside it `tokenizer_config.json` and `special_tokens_map.json` for added tokens and their roles.
    ///
    /// # Errors
    /// A missing or unreadable `tokenizer.json`, a file that is not what its name says, and sizes beyond the limits.
    pub fn from_hf_dir(path: impl AsRef<Path>) -> Result<Self, TokenizerError> {
        let folder = path.as_ref();
        let tokenizer = folder.join("tokenizer.json");
        let json = read(&tokenizer)?;
        let mut configs = Vec::new();
        for name in ["special_tokens_map.json", "tokenizer_config.json"] {
            let file = folder.join(name);
            if file.is_file() {
                configs.push(parse_config(name, &read(&file)?)?);
            }
        }
        build(&json, configs)
    }

    /// Builds a tokenizer from the bytes of a `tokenizer.json` alone. No token has a role then, and special tokens are those that
    /// the file marks.
    ///
    /// # Errors
    /// As [`Self::from_hf_dir`].
    pub fn from_json_bytes(json: &[u8]) -> Result<Self, TokenizerError> {
        build(json, Vec::new())
    }
}

fn read(path: &Path) -> Result<Vec<u8>, TokenizerError> {
    let error = |source| TokenizerError::Read {
        path: path.to_owned(),
        source,
    };
    let size = std::fs::metadata(path).map_err(error)?.len();
    if size > MAX_FILE_BYTES {
        return Err(TokenizerError::TooLarge {
            what: "the size of a tokenizer file",
            found: usize::try_from(size).unwrap_or(usize::MAX),
            limit: usize::try_from(MAX_FILE_BYTES).unwrap_or(usize::MAX),
        });
    }
    std::fs::read(path).map_err(error)
}

fn parse_config(name: &str, bytes: &[u8]) -> Result<Config, TokenizerError> {
    serde_json::from_slice(bytes).map_err(|e| TokenizerError::Json {
        file: name.to_owned(),
        detail: e.to_string(),
    })
}

fn build(json: &[u8], configs: Vec<Config>) -> Result<Tokenizer, TokenizerError> {
    check_added(json)?;
    let inner =
        guard(|| tokenizers::Tokenizer::from_bytes(json)).map_err(|e| json_error(e.to_string()))?;

    let mut roles = Vec::new();
    let mut extra = Vec::new();
    for config in configs {
        collect(config, &mut roles, &mut extra)?;
    }
    // Names come after entries, so that they find the entries' flags.
    extra.extend(
        roles
            .iter()
            .map(|(_, content)| (None, AddedToken::from(content.as_str(), true))),
    );
    let mut added = Added::new(&inner);
    let mut bytes = 0;
    for (id, token) in extra {
        bytes += token.content.len();
        check_limit("the number of added tokens", added.by_id.len(), MAX_ADDED)?;
        check_limit("the length of all added tokens", bytes, MAX_ADDED_BYTES)?;
        added.add(&inner, id, token)?;
    }
    let role = |wanted: &str| {
        let (_, content) = roles.iter().rev().find(|(name, _)| name == wanted)?;
        added.ids.get(content).copied()
    };
    let roles = Roles {
        bos: role("bos_token"),
        eos: role("eos_token"),
        pad: role("pad_token"),
        unk: role("unk_token"),
    };

    let vocab = inner.get_vocab(false);
    let size = vocab.values().max().map_or(0, |max| *max as usize + 1);
    check_limit("the largest token id", size, MAX_VOCAB)?;
    let mut tokens: Vec<Option<Box<str>>> = vec![None; size];
    for (token, id) in vocab {
        tokens[id as usize] = Some(token.into_boxed_str());
    }
    Tokenizer::from_parts(Parts {
        inner,
        merger: None,
        tokens,
        added: added.by_id,
        roles,
        affixes: Affixes::PostProcessor,
    })
}

/// Added tokens while they are collected.
struct Added {
    by_id: HashMap<u32, AddedToken>,
    ids: HashMap<String, u32>,
    next: u32,
}

impl Added {
    fn new(inner: &tokenizers::Tokenizer) -> Self {
        let by_id: HashMap<_, _> = inner.get_added_tokens_decoder().into_iter().collect();
        let vocab = u32::try_from(inner.get_vocab_size(false)).unwrap_or(u32::MAX);
        Self {
            ids: by_id
                .iter()
                .map(|(id, token)| (token.content.clone(), *id))
                .collect(),
            next: by_id
                .keys()
                .max()
                .map_or(vocab, |max| vocab.max(max.saturating_add(1))),
            by_id,
        }
    }

    /// Adds a token or changes the flags of one. A name alone (no `id`) only makes a known token special.
    fn add(
        &mut self,
        inner: &tokenizers::Tokenizer,
        id: Option<u32>,
        token: AddedToken,
    ) -> Result<(), TokenizerError> {
        if token.content.is_empty() {
            return Ok(());
        }
        if let Some(known) = self.ids.get(&token.content) {
            let entry = self.by_id.entry(*known).or_default();
            let special = entry.special && id.is_none() || token.special;
            if id.is_some() {
                *entry = token;
            }
            entry.special = special;
            return Ok(());
        }
        let free = id.filter(|id| !self.by_id.contains_key(id));
        let id = match inner.get_model().token_to_id(&token.content).or(free) {
            Some(id) => id,
            None => self.next,
        };
        check_limit("the largest token id", id as usize, MAX_VOCAB - 1)?;
        self.next = self.next.max(id.saturating_add(1));
        self.ids.insert(token.content.clone(), id);
        self.by_id.insert(id, token);
        Ok(())
    }
}

fn json_error(detail: String) -> TokenizerError {
    TokenizerError::Json {
        file: "tokenizer.json".into(),
        detail,
    }
}

/// Refuses a file whose added tokens alone would make the parser allocate without bound.
fn check_added(json: &[u8]) -> Result<(), TokenizerError> {
    #[derive(Deserialize)]
    struct Peek {
        added_tokens: Option<Vec<PeekToken>>,
    }
    #[derive(Deserialize)]
    struct PeekToken {
        content: String,
    }
    let limit = usize::try_from(MAX_FILE_BYTES).unwrap_or(usize::MAX);
    check_limit("the size of a tokenizer file", json.len(), limit)?;
    let peek: Peek = serde_json::from_slice(json).map_err(|e| json_error(e.to_string()))?;
    let tokens = peek.added_tokens.unwrap_or_default();
    check_limit("the number of added tokens", tokens.len(), MAX_ADDED)?;
    let bytes = tokens.iter().map(|token| token.content.len()).sum();
    check_limit("the length of all added tokens", bytes, MAX_ADDED_BYTES)
}

/// Reads one configuration file: the later file wins over the earlier.
fn collect(
    config: Config,
    roles: &mut Vec<(String, String)>,
    extra: &mut Vec<(Option<u32>, AddedToken)>,
) -> Result<(), TokenizerError> {
    for (id, entry) in config.added_tokens_decoder {
        let id = id
            .parse::<u32>()
            .ok()
            .filter(|id| (*id as usize) < MAX_VOCAB)
            .ok_or_else(|| TokenizerError::Json {
                file: "tokenizer_config.json".into(),
                detail: format!(
                    "added_tokens_decoder: expected an id below {MAX_VOCAB}, found {id:?}"
                ),
            })?;
        extra.push((Some(id), entry.token()));
    }
    for (name, value) in config.rest {
        let lists = ["additional_special_tokens", "extra_special_tokens"];
        let values = match value {
            Value::Array(values) if lists.contains(&name.as_str()) => values,
            Value::Object(map)
                if lists.contains(&name.as_str()) && !map.contains_key("content") =>
            {
                map.into_iter().map(|(_, value)| value).collect()
            }
            value if ROLES.contains(&name.as_str()) => vec![value],
            _ => continue,
        };
        for value in values {
            let token = match value {
                Value::String(content) => AddedToken::from(content, true),
                value @ Value::Object(_) => match serde_json::from_value::<TokenEntry>(value) {
                    Ok(entry) => TokenEntry {
                        special: true,
                        ..entry
                    }
                    .token(),
                    Err(_) => continue,
                },
                _ => continue,
            };
            roles.push((name.clone(), token.content));
        }
    }
    Ok(())
}
