//! Tokenizers of Hugging Face folders.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use serde::Deserialize;
use serde_json::Value;
use tokenizers::{AddedToken, Model as _};

use crate::files::{Base, Settings, VocabularyFile};
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
    /// Reads a model folder's `tokenizer.json`, or where there is none its SentencePiece model (`tokenizer.model`) or table of ranks
    /// (`*.tiktoken`), and beside it `tokenizer_config.json` and `special_tokens_map.json` (without a `tokenizer.json` also
    /// `added_tokens.json`, and `generation_config.json` for the tokens of speakers) for added tokens and their roles.
    ///
    /// # Errors
    /// A missing or unreadable vocabulary, a file that is not what its name says, and sizes beyond the limits.
    pub fn from_hf_dir(path: impl AsRef<Path>) -> Result<Self, TokenizerError> {
        let folder = path.as_ref();
        let vocabulary = VocabularyFile::find(folder)
            .unwrap_or_else(|| VocabularyFile::Json(folder.join("tokenizer.json")));
        let (VocabularyFile::Json(file) | VocabularyFile::Model(file)) = &vocabulary;
        let bytes = read(file)?;
        let mut configs = Vec::new();
        for name in ["special_tokens_map.json", "tokenizer_config.json"] {
            let file = folder.join(name);
            if file.is_file() {
                configs.push(parse_config(name, &read(&file)?)?);
            }
        }
        match vocabulary {
            VocabularyFile::Json(_) => build(&bytes, configs),
            VocabularyFile::Model(_) => {
                let file = folder.join("added_tokens.json");
                let mut added = BTreeMap::new();
                if file.is_file() {
                    added = serde_json::from_slice(&read(&file)?).map_err(|e| {
                        TokenizerError::Json {
                            file: "added_tokens.json".into(),
                            detail: e.to_string(),
                        }
                    })?;
                }
                let file = folder.join("generation_config.json");
                let mut roles = Vec::new();
                if file.is_file() {
                    let name = "generation_config.json";
                    roles = role_tokens(&parse_config(name, &read(&file)?)?);
                }
                build_model(&bytes, &roles, added, configs)
            }
        }
    }

    /// Whether a folder has a vocabulary that [`Self::from_hf_dir`] would read.
    #[must_use]
    pub fn is_in(folder: impl AsRef<Path>) -> bool {
        VocabularyFile::find(folder.as_ref()).is_some()
    }

    /// Builds a tokenizer from the bytes of a `tokenizer.json` alone. No token has a role then, and special tokens are those that
    /// the file marks.
    ///
    /// # Errors
    /// As [`Self::from_hf_dir`].
    pub fn from_json_bytes(json: &[u8]) -> Result<Self, TokenizerError> {
        build(json, Vec::new())
    }

    /// Builds a tokenizer from the bytes of a SentencePiece model or a table of ranks alone.
    ///
    /// # Errors
    /// As [`Self::from_hf_dir`].
    pub fn from_model_bytes(model: &[u8]) -> Result<Self, TokenizerError> {
        build_model(model, &[], BTreeMap::new(), Vec::new())
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

/// A role and the token that has it.
type RoleName = (String, String);
/// An added token, and its id where the file says one.
type Entry = (Option<u32>, AddedToken);

fn build(json: &[u8], configs: Vec<Config>) -> Result<Tokenizer, TokenizerError> {
    check_parts(json)?;
    let inner =
        guard(|| tokenizers::Tokenizer::from_bytes(json)).map_err(|e| json_error(e.to_string()))?;

    let mut names = Vec::new();
    let mut extra = Vec::new();
    for config in configs {
        collect(config, &mut names, &mut extra)?;
    }
    let by_id: HashMap<_, _> = inner.get_added_tokens_decoder().into_iter().collect();
    let mut added = Added::new(by_id, inner.get_vocab_size(false));
    added.extend(&inner, extra, &names)?;
    let roles = added.roles(&names, Roles::default());

    let vocab = inner.get_vocab(false);
    let size = vocab.values().max().map_or(0, |max| *max as usize + 1);
    check_limit("the largest token id", size, MAX_VOCAB)?;
    let mut tokens: Vec<Option<Box<str>>> = vec![None; size];
    for (token, id) in vocab {
        tokens[id as usize] = Some(token.into_boxed_str());
    }
    Tokenizer::from_parts(Parts {
        inner,
        words: None,
        tokens,
        added: added.by_id,
        roles,
        affixes: Affixes::PostProcessor,
    })
}

/// Tokens that stand for who speaks: no text may become one.
fn role_tokens(generation: &Config) -> Vec<u32> {
    ["system_token_id", "user_token_id", "assistant_token_id"]
        .iter()
        .filter_map(|key| generation.rest.get(*key)?.as_u64())
        .filter_map(|id| u32::try_from(id).ok())
        .collect()
}

/// Builds a tokenizer from a vocabulary without a `tokenizer.json`. `roles` are control tokens, `listed` the contents of
/// `added_tokens.json`.
fn build_model(
    model: &[u8],
    roles: &[u32],
    listed: BTreeMap<String, u32>,
    configs: Vec<Config>,
) -> Result<Tokenizer, TokenizerError> {
    let mut settings = Settings::default();
    let mut names = Vec::new();
    // What that file lists is special only if a role says so.
    let mut extra: Vec<Entry> = listed
        .into_iter()
        .map(|(content, id)| (Some(id), AddedToken::from(content, false).normalized(false)))
        .collect();
    for config in configs {
        let flag = |name: &str| config.rest.get(name).and_then(Value::as_bool);
        settings.add_bos = flag("add_bos_token").or(settings.add_bos);
        settings.add_eos = flag("add_eos_token").or(settings.add_eos);
        settings.prefix_space = flag("add_prefix_space").or(settings.prefix_space);
        settings.legacy = flag("legacy").or(settings.legacy);
        let pattern = config.rest.get("pat_str").and_then(Value::as_str);
        settings.pattern = pattern.map(str::to_owned).or(settings.pattern);
        collect(config, &mut names, &mut extra)?;
    }
    let mut base =
        guard(|| Ok(Base::read(model, &settings))).map_err(|e| TokenizerError::Build {
            part: "pipeline",
            detail: e.to_string(),
        })??;
    for id in roles {
        if let Some(Some(token)) = base.tokens.get(*id as usize) {
            let token = AddedToken::from(&**token, true).normalized(false);
            base.added.insert(*id, token);
        }
    }
    let mut added = Added::new(std::mem::take(&mut base.added), base.tokens.len());
    added.extend(&base.inner, extra, &names)?;
    base.roles = added.roles(&names, base.roles);
    base.added = added.by_id;
    Tokenizer::from_parts(base.parts(&settings, &added.ids))
}

/// Added tokens while they are collected.
struct Added {
    by_id: HashMap<u32, AddedToken>,
    ids: HashMap<String, u32>,
    next: u32,
}

impl Added {
    /// From the added tokens there are, beside a vocabulary of that size.
    fn new(by_id: HashMap<u32, AddedToken>, vocab: usize) -> Self {
        let vocab = u32::try_from(vocab).unwrap_or(u32::MAX);
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

    /// Adds what the configuration lists, then what it names: names find the flags of what is listed.
    fn extend(
        &mut self,
        inner: &tokenizers::Tokenizer,
        extra: Vec<Entry>,
        names: &[RoleName],
    ) -> Result<(), TokenizerError> {
        let named = names
            .iter()
            .map(|(_, content)| (None, AddedToken::from(content.as_str(), true)));
        let mut bytes = 0;
        for (id, token) in extra.into_iter().chain(named) {
            bytes += token.content.len();
            check_limit("the number of added tokens", self.by_id.len(), MAX_ADDED)?;
            check_limit("the length of all added tokens", bytes, MAX_ADDED_BYTES)?;
            self.add(inner, id, token)?;
        }
        Ok(())
    }

    /// The ids of the named roles; the vocabulary's own where a role has no name.
    fn roles(&self, names: &[RoleName], own: Roles) -> Roles {
        let role = |wanted: &str| {
            let (_, content) = names.iter().rev().find(|(name, _)| name == wanted)?;
            self.ids.get(content).copied()
        };
        Roles {
            bos: role("bos_token").or(own.bos),
            eos: role("eos_token").or(own.eos),
            pad: role("pad_token").or(own.pad),
            unk: role("unk_token").or(own.unk),
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

/// Refuses a file whose added tokens alone would make the parser allocate without bound, and one whose decoder is not JSON: that
/// ends the `tokenizers` crate in a panic, which would be caught and be said to be something else.
fn check_parts(json: &[u8]) -> Result<(), TokenizerError> {
    #[derive(Deserialize)]
    struct Peek {
        added_tokens: Option<Vec<PeekToken>>,
        #[serde(rename = "decoder")]
        _decoder: Option<serde_json::Value>,
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
    roles: &mut Vec<RoleName>,
    extra: &mut Vec<Entry>,
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
