//! The tokenizer: its parts, and what can be asked about its vocabulary.

use std::collections::HashMap;

use tokenizers::{AddedToken, Model as _};

use crate::TokenizerError;
use crate::added::AddedTokens;
use crate::decode::Decoding;
use crate::words::WordModel;

/// Ids at or beyond this are refused, so that a damaged file cannot ask for a huge table.
pub(crate) const MAX_VOCAB: usize = 1 << 22;
/// Added tokens beyond this count are refused: each is a path of the matching automaton.
pub(crate) const MAX_ADDED: usize = 1 << 17;
/// Bytes of all added tokens together.
pub(crate) const MAX_ADDED_BYTES: usize = 1 << 23;

/// Whether control tokens are left out of decoded text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SkipSpecial {
    /// Leave them out, as `skip_special_tokens=True`.
    Yes,
    /// Write their literals.
    No,
}

/// What surrounds a raw text when special tokens are asked for.
pub(crate) enum Affixes {
    /// The post-processor of `tokenizer.json`.
    PostProcessor,
    /// These ids.
    Fixed { prefix: Vec<u32>, suffix: Vec<u32> },
}

/// The ids that have a role.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Roles {
    pub(crate) bos: Option<u32>,
    pub(crate) eos: Option<u32>,
    pub(crate) pad: Option<u32>,
    pub(crate) unk: Option<u32>,
}

/// What a loader hands over.
pub(crate) struct Parts {
    /// Normalizer, pre-tokenizer, model, post-processor and decoder; truncation and padding are ignored.
    pub(crate) inner: tokenizers::Tokenizer,
    /// Stands in for the model of `inner` when text is encoded.
    pub(crate) words: Option<Box<dyn WordModel>>,
    /// Tokens by id; later ids of equal content are only decoded, never produced.
    pub(crate) tokens: Vec<Option<Box<str>>>,
    pub(crate) added: HashMap<u32, AddedToken>,
    pub(crate) roles: Roles,
    pub(crate) affixes: Affixes,
}

/// A loaded tokenizer. It is immutable and shared between threads in an `Arc`.
pub struct Tokenizer {
    pub(crate) inner: tokenizers::Tokenizer,
    pub(crate) words: Option<Box<dyn WordModel>>,
    pub(crate) added: AddedTokens,
    pub(crate) affixes: Affixes,
    pub(crate) decoding: Decoding,
    pub(crate) roles: Roles,
    /// What the model says for text it does not know. It may be a control token and still come from text.
    pub(crate) model_unk: Option<u32>,
    tokens: Vec<Option<Box<str>>>,
    /// Tokens that decode as their normalised content.
    normalized: HashMap<u32, String>,
    ids: HashMap<String, u32>,
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokenizer")
            .field("vocab_size", &self.tokens.len())
            .field("decoding", &self.decoding)
            .field("roles", &self.roles)
            .finish_non_exhaustive()
    }
}

impl Tokenizer {
    pub(crate) fn from_parts(parts: Parts) -> Result<Self, TokenizerError> {
        let Parts {
            mut inner,
            words,
            mut tokens,
            added,
            roles,
            affixes,
        } = parts;
        // Padding alone would change what encode_raw returns; truncation would do so silently.
        inner.with_padding(None);
        inner
            .with_truncation(None)
            .map_err(|e| TokenizerError::Build {
                part: "truncation",
                detail: e.to_string(),
            })?;
        for (&id, token) in &added {
            let at = id as usize;
            check_limit("a token id", at, MAX_VOCAB - 1)?;
            if at >= tokens.len() {
                tokens.resize(at + 1, None);
            }
            tokens[at] = Some(token.content.as_str().into());
        }
        // An added token's id is the one its literal encodes to; control tokens before the others, as when matching.
        let mut ids = inner.get_vocab(false);
        let mut ordered: Vec<_> = added.iter().collect();
        ordered.sort_unstable_by_key(|(id, token)| (token.special, std::cmp::Reverse(**id)));
        for (id, token) in ordered {
            ids.insert(token.content.clone(), *id);
        }
        let added = AddedTokens::new(added, inner.get_normalizer())?;
        let normalized = added
            .normalized_contents()
            .filter(|(id, content)| added.get(*id).is_some_and(|t| t.content != *content))
            .map(|(id, content)| (id, content.to_owned()))
            .collect();
        let model_unk = model_unk(&inner).or(words.as_ref().and_then(|words| words.unk()));
        Ok(Self {
            added,
            normalized,
            decoding: Decoding::of(inner.get_decoder())?,
            inner,
            words,
            affixes,
            roles,
            model_unk,
            tokens,
            ids,
        })
    }

    /// One more than the largest id. Some ids below may be unused; the model's logits may be wider.
    #[must_use]
    pub fn vocab_size(&self) -> usize {
        self.tokens.len()
    }

    /// The id of a token as the vocabulary writes it (`Ġthe`, `▁the`, `<|im_end|>`).
    #[must_use]
    pub fn token_to_id(&self, token: &str) -> Option<u32> {
        self.ids.get(token).copied()
    }

    /// A token as the vocabulary writes it.
    #[must_use]
    pub fn id_to_token(&self, id: u32) -> Option<&str> {
        self.tokens.get(id as usize)?.as_deref()
    }

    /// A token as it is decoded: an added token that is matched in normalised text is written so too.
    pub(crate) fn decoded_token(&self, id: u32) -> Option<&str> {
        match self.normalized.get(&id) {
            Some(content) => Some(content),
            None => self.id_to_token(id),
        }
    }

    /// Whether the id is a control token: an added token with `special: true`.
    #[must_use]
    pub fn is_control(&self, id: u32) -> bool {
        self.added.get(id).is_some_and(|token| token.special)
    }

    /// Every control token with its literal, by ascending id.
    #[must_use]
    pub fn control_tokens(&self) -> Vec<(u32, String)> {
        let mut tokens: Vec<_> = self
            .added
            .iter()
            .filter(|(_, token)| token.special)
            .map(|(id, token)| (id, token.content.clone()))
            .collect();
        tokens.sort_unstable_by_key(|(id, _)| *id);
        tokens
    }

    /// The token that begins a sequence.
    #[must_use]
    pub fn bos_id(&self) -> Option<u32> {
        self.roles.bos
    }

    /// The token that ends a sequence. A model's `generation_config.json` may name more.
    #[must_use]
    pub fn eos_id(&self) -> Option<u32> {
        self.roles.eos
    }

    /// The token that fills a batch.
    #[must_use]
    pub fn pad_id(&self) -> Option<u32> {
        self.roles.pad
    }

    /// The token for unknown text. It is often a control token, and the only one that plain text can become.
    #[must_use]
    pub fn unk_id(&self) -> Option<u32> {
        self.model_unk.or(self.roles.unk)
    }

    /// Whether each token has bytes of its own ([`Self::token_bytes`]) that, one after the other, are the text. Only decoders that
    /// are neither byte-level nor SentencePiece's have none.
    #[must_use]
    pub fn tells_bytes(&self) -> bool {
        self.decoding != crate::decode::Decoding::Opaque
    }

    /// The bytes a token stands for: byte-level tokens decoded, `▁` as a space, `<0xNN>` as that byte. Unknown ids have none.
    #[must_use]
    pub fn token_bytes(&self, id: u32) -> Vec<u8> {
        self.decoded_token(id)
            .map(|token| self.decoding.bytes(token))
            .unwrap_or_default()
    }
}

/// Refuses a size beyond its limit.
pub(crate) fn check_limit(
    what: &'static str,
    found: usize,
    limit: usize,
) -> Result<(), TokenizerError> {
    if found > limit {
        return Err(TokenizerError::TooLarge { what, found, limit });
    }
    Ok(())
}

/// Runs code of the `tokenizers` crate, which may panic where a file's parts contradict each other (a decoder that strips
/// more than there is). What it shares between calls is a cache that survives.
pub(crate) fn guard<T>(work: impl FnOnce() -> tokenizers::Result<T>) -> tokenizers::Result<T> {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(work))
        .unwrap_or_else(|_| Err("the tokenizer's parts contradict each other".into()))
}

fn model_unk(inner: &tokenizers::Tokenizer) -> Option<u32> {
    use tokenizers::ModelWrapper;
    let model = inner.get_model();
    match model {
        ModelWrapper::BPE(bpe) => model.token_to_id(bpe.get_unk_token().as_deref()?),
        ModelWrapper::WordPiece(pieces) => model.token_to_id(&pieces.unk_token),
        ModelWrapper::WordLevel(words) => model.token_to_id(&words.unk_token),
        // Its number is private; the configuration names it.
        ModelWrapper::Unigram(unigram) => serde_json::to_value(unigram)
            .ok()?
            .get("unk_id")?
            .as_u64()
            .and_then(|id| u32::try_from(id).ok()),
    }
}
