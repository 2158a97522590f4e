//! Tokenizers inside GGUF files.

pub(crate) mod pre;

use std::collections::{HashMap, HashSet};

use serde_json::{Value, json};
use tokenizers::AddedToken;
use tokenizers::models::bpe::{BPE, Vocab};

use crate::spm::{ByteFallback, SpmMerger};
use crate::tokenizer::{Affixes, MAX_ADDED, MAX_ADDED_BYTES, MAX_VOCAB, Parts, Roles, check_limit};
use crate::words::WordModel;
use crate::{Tokenizer, TokenizerError};
use pre::Pre;

/// Merges beyond this many are refused.
const MAX_MERGES: usize = 1 << 24;

/// What a GGUF file says about its tokenizer: the keys `tokenizer.ggml.*`, as plain data.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GgufVocab {
    /// `model`: `gpt2` (byte-level BPE), `llama` (SentencePiece) or `gemma4` (BPE on plain text).
    pub model: String,
    /// `pre`: the pre-tokenizer's name, for byte-level BPE. Absent means `default`.
    pub pre: Option<String>,
    /// `tokens`: the vocabulary; a token's place is its id.
    pub tokens: Vec<String>,
    /// `scores`: as many as tokens, for SentencePiece.
    pub scores: Option<Vec<f32>>,
    /// `token_type`: as many as tokens; 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte.
    pub token_types: Option<Vec<i32>>,
    /// `merges`: pairs with a space between, best first, for BPE.
    pub merges: Option<Vec<String>>,
    /// `bos_token_id`.
    pub bos: Option<u32>,
    /// `eos_token_id`.
    pub eos: Option<u32>,
    /// `unknown_token_id`.
    pub unk: Option<u32>,
    /// `padding_token_id`.
    pub pad: Option<u32>,
    /// `eot_token_id`: ends a turn.
    pub eot: Option<u32>,
    /// `add_bos_token`.
    pub add_bos: Option<bool>,
    /// `add_eos_token`.
    pub add_eos: Option<bool>,
    /// `add_space_prefix`: whether SentencePiece text begins with a space of its own. Absent means yes.
    pub add_space_prefix: Option<bool>,
}

/// The values of `token_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Normal,
    Unknown,
    Control,
    UserDefined,
    Unused,
    Byte,
}

/// Tokens that end a turn or mark a span in every family that has them; some files call them normal.
const CONTROL_LITERALS: [&str; 18] = [
    "<|eot_id|>",
    "<|eom_id|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|begin_of_text|>",
    "<|end|>",
    "<start_of_turn>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<EOT>",
    "<|EOT|>",
    "<｜end▁of▁sentence｜>",
    "<｜begin▁of▁sentence｜>",
    "<end_of_utterance>",
    "<|START_OF_TURN_TOKEN|>",
];

impl Tokenizer {
    /// Builds the tokenizer of a GGUF file.
    ///
    /// Byte-level BPE encodes as the family's `tokenizer.json`; its pre-tokenizer is found by name. SentencePiece text begins with a
    /// space, also after each control token, unless the file says otherwise; pieces are merged by score, without normalisation
    /// other than that of spaces.
    ///
    /// # Errors
    /// An unknown model or pre-tokenizer, arrays of unequal length, ids outside the vocabulary, merges that name no
    /// tokens, and sizes beyond the limits are refused with the error that says so.
    pub fn from_gguf(vocab: GgufVocab) -> Result<Self, TokenizerError> {
        check_limit("the number of tokens", vocab.tokens.len(), MAX_VOCAB)?;
        let kinds = vocab.kinds()?;
        vocab.check_ids()?;
        let built = match vocab.model.as_str() {
            "gpt2" => byte_level(&vocab)?,
            "llama" => sentence_piece(&vocab, &kinds)?,
            "gemma4" => plain_bpe(&vocab, &kinds)?,
            _ => {
                return Err(TokenizerError::UnknownModel { found: vocab.model });
            }
        };
        let added = vocab.added(&kinds)?;
        let affixes = vocab.affixes(built.add_bos)?;
        Self::from_parts(Parts {
            inner: built.inner,
            words: built.words,
            roles: Roles {
                bos: vocab.bos,
                eos: vocab.eos,
                pad: vocab.pad,
                unk: vocab.unk,
            },
            tokens: vocab
                .tokens
                .into_iter()
                .map(|token| Some(token.into_boxed_str()))
                .collect(),
            added,
            affixes,
        })
    }
}

/// A pipeline, and whether its kind begins with BOS by default.
struct Built {
    inner: tokenizers::Tokenizer,
    words: Option<Box<dyn WordModel>>,
    add_bos: bool,
}

impl GgufVocab {
    fn kinds(&self) -> Result<Vec<Kind>, TokenizerError> {
        let Some(types) = &self.token_types else {
            return Ok(vec![Kind::Normal; self.tokens.len()]);
        };
        self.check_length("token_type", types.len())?;
        Ok(types
            .iter()
            .map(|kind| match kind {
                2 => Kind::Unknown,
                3 => Kind::Control,
                4 => Kind::UserDefined,
                5 => Kind::Unused,
                6 => Kind::Byte,
                _ => Kind::Normal,
            })
            .collect())
    }

    fn check_length(&self, key: &'static str, found: usize) -> Result<(), TokenizerError> {
        if found == self.tokens.len() {
            return Ok(());
        }
        Err(TokenizerError::Gguf {
            key,
            expected: format!("{} values, one for each token", self.tokens.len()),
            found: format!("{found}"),
        })
    }

    fn check_ids(&self) -> Result<(), TokenizerError> {
        let ids = [
            ("bos_token_id", self.bos),
            ("eos_token_id", self.eos),
            ("unknown_token_id", self.unk),
            ("padding_token_id", self.pad),
            ("eot_token_id", self.eot),
        ];
        for (key, id) in ids {
            if let Some(id) = id.filter(|id| *id as usize >= self.tokens.len()) {
                return Err(TokenizerError::Gguf {
                    key,
                    expected: format!("an id below {}", self.tokens.len()),
                    found: format!("{id}"),
                });
            }
        }
        Ok(())
    }

    /// Control and user-defined tokens. What begins or ends a sequence or a turn is a control token whatever its type says, unless
    /// it is so short that the file rather names a piece of text by mistake.
    fn added(&self, kinds: &[Kind]) -> Result<HashMap<u32, AddedToken>, TokenizerError> {
        let roles: HashSet<u32> = [self.bos, self.eos, self.eot]
            .into_iter()
            .flatten()
            .filter(|id| self.tokens[*id as usize].len() > 2)
            .collect();
        let known: HashSet<&str> = CONTROL_LITERALS.into_iter().collect();
        // Phi-3's control tokens swallow white space on their right, which the format cannot say.
        let rstrip = self.model == "llama"
            && ["<|endoftext|>", "<|assistant|>", "<|user|>", "<|end|>"]
                .iter()
                .all(|literal| self.tokens.iter().skip(32000).any(|t| t == literal));
        let mut added = HashMap::new();
        let mut bytes = 0;
        for (id, (token, kind)) in (0u32..).zip(self.tokens.iter().zip(kinds)) {
            let special = matches!(kind, Kind::Control | Kind::Unknown)
                || roles.contains(&id)
                || known.contains(token.as_str());
            if !special && *kind != Kind::UserDefined {
                continue;
            }
            bytes += token.len();
            check_limit("the number of added tokens", added.len(), MAX_ADDED)?;
            check_limit("the length of all added tokens", bytes, MAX_ADDED_BYTES)?;
            let rstrip = rstrip && special && id >= 32000 && token != "<|endoftext|>";
            let token = AddedToken::from(token.as_str(), special)
                .normalized(false)
                .rstrip(rstrip);
            added.insert(id, token);
        }
        Ok(added)
    }

    fn affixes(&self, bos_by_default: bool) -> Result<Affixes, TokenizerError> {
        let wanted = |wanted: bool, id: Option<u32>, key: &'static str| match (wanted, id) {
            (false, _) => Ok(Vec::new()),
            (true, Some(id)) => Ok(vec![id]),
            (true, None) => Err(TokenizerError::Gguf {
                key,
                expected: "an id, as the file asks for this token to be added".into(),
                found: "none".into(),
            }),
        };
        let add_bos = self.add_bos.unwrap_or(bos_by_default && self.bos.is_some());
        Ok(Affixes::Fixed {
            prefix: wanted(add_bos, self.bos, "bos_token_id")?,
            suffix: wanted(self.add_eos == Some(true), self.eos, "eos_token_id")?,
        })
    }

    fn ids(&self) -> Vocab {
        let mut ids = Vocab::default();
        for (id, token) in (0u32..).zip(&self.tokens) {
            // Of equal tokens the first is what text becomes.
            ids.entry(token.clone()).or_insert(id);
        }
        ids
    }

    fn merge_pairs(&self) -> Result<Vec<(String, String)>, TokenizerError> {
        let merges = self.merges.as_ref().ok_or(TokenizerError::Gguf {
            key: "merges",
            expected: "the merges of a BPE vocabulary".into(),
            found: "none".into(),
        })?;
        check_limit("the number of merges", merges.len(), MAX_MERGES)?;
        merges
            .iter()
            .map(|merge| {
                // The first character may itself be a space.
                let after_first = merge.chars().next().map_or(0, char::len_utf8);
                let at = merge[after_first..].find(' ').map(|at| at + after_first);
                at.map(|at| (merge[..at].to_owned(), merge[at + 1..].to_owned()))
                    .ok_or_else(|| TokenizerError::Gguf {
                        key: "merges",
                        expected: "two tokens with a space between".into(),
                        found: format!("{merge:?}"),
                    })
            })
            .collect()
    }
}

fn byte_level(vocab: &GgufVocab) -> Result<Built, TokenizerError> {
    let name = vocab.pre.as_deref().unwrap_or("default");
    let pre = Pre::named(name).ok_or_else(|| TokenizerError::UnknownPreTokenizer {
        found: name.to_owned(),
    })?;
    let model = BPE::builder()
        .vocab_and_merges(vocab.ids(), vocab.merge_pairs()?)
        .ignore_merges(pre.ignore_merges)
        .build()
        .map_err(|e| build_error("model", &e))?;
    let mut steps: Vec<Value> = pre
        .splits
        .iter()
        .map(|regex| {
            json!({"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": false})
        })
        .collect();
    let byte_level = json!({
        "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false
    });
    steps.push(byte_level.clone());
    let mut inner = tokenizers::Tokenizer::new(model);
    if pre.nfc {
        inner.with_normalizer(Some(part::<tokenizers::NormalizerWrapper>(
            "normalizer",
            json!({"type": "NFC"}),
        )?));
    }
    inner.with_pre_tokenizer(Some(part::<tokenizers::PreTokenizerWrapper>(
        "pre-tokenizer",
        json!({"type": "Sequence", "pretokenizers": steps}),
    )?));
    inner.with_decoder(Some(part::<tokenizers::DecoderWrapper>(
        "decoder", byte_level,
    )?));
    Ok(Built {
        inner,
        words: None,
        add_bos: pre.add_bos,
    })
}

fn sentence_piece(vocab: &GgufVocab, kinds: &[Kind]) -> Result<Built, TokenizerError> {
    let scores = vocab.scores.as_ref().ok_or(TokenizerError::Gguf {
        key: "scores",
        expected: "the scores of a SentencePiece vocabulary".into(),
        found: "none".into(),
    })?;
    vocab.check_length("scores", scores.len())?;
    let mut pieces = HashMap::with_capacity(vocab.tokens.len());
    let mut bytes = Box::new([None; 256]);
    let mut unk = vocab.unk;
    for (id, ((token, kind), score)) in (0u32..).zip(vocab.tokens.iter().zip(kinds).zip(scores)) {
        match kind {
            Kind::Control => {}
            Kind::Unknown => unk = unk.or(Some(id)),
            Kind::Byte => {
                if let Some(byte) = byte_of(token) {
                    bytes[usize::from(byte)] = Some(id);
                }
            }
            Kind::Normal | Kind::UserDefined | Kind::Unused => {
                pieces.entry(token.as_str().into()).or_insert((id, *score));
            }
        }
    }
    let prefix = vocab.add_space_prefix.unwrap_or(true);
    // Text is encoded by the merger; the model in its place only names tokens.
    let model = BPE::builder()
        .vocab_and_merges(vocab.ids(), Vec::new())
        .byte_fallback(true)
        .build()
        .map_err(|e| build_error("model", &e))?;
    let mut inner = tokenizers::Tokenizer::new(model);
    add_space_marks(&mut inner, prefix)?;
    Ok(Built {
        inner,
        words: Some(Box::new(ByteFallback {
            merger: SpmMerger::new(pieces),
            bytes,
            unk,
        })),
        add_bos: true,
    })
}

/// BPE with merges on text whose spaces are `▁`.
fn plain_bpe(vocab: &GgufVocab, kinds: &[Kind]) -> Result<Built, TokenizerError> {
    let unk = kinds
        .iter()
        .position(|kind| *kind == Kind::Unknown)
        .map(|at| vocab.tokens[at].clone());
    let mut builder = BPE::builder()
        .vocab_and_merges(vocab.ids(), vocab.merge_pairs()?)
        .byte_fallback(true)
        .fuse_unk(true);
    if let Some(unk) = unk {
        builder = builder.unk_token(unk);
    }
    let model = builder.build().map_err(|e| build_error("model", &e))?;
    let mut inner = tokenizers::Tokenizer::new(model);
    add_space_marks(&mut inner, false)?;
    Ok(Built {
        inner,
        words: None,
        add_bos: true,
    })
}

/// SentencePiece's treatment of spaces, in both directions.
fn add_space_marks(inner: &mut tokenizers::Tokenizer, prefix: bool) -> Result<(), TokenizerError> {
    let mut normalizers = Vec::new();
    let mut decoders = vec![
        json!({"type": "Replace", "pattern": {"String": "▁"}, "content": " "}),
        json!({"type": "ByteFallback"}),
        json!({"type": "Fuse"}),
    ];
    if prefix {
        normalizers.push(json!({"type": "Prepend", "prepend": "▁"}));
        decoders.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
    }
    normalizers.push(json!({"type": "Replace", "pattern": {"String": " "}, "content": "▁"}));
    inner.with_normalizer(Some(part::<tokenizers::NormalizerWrapper>(
        "normalizer",
        json!({"type": "Sequence", "normalizers": normalizers}),
    )?));
    inner.with_decoder(Some(part::<tokenizers::DecoderWrapper>(
        "decoder",
        json!({"type": "Sequence", "decoders": decoders}),
    )?));
    Ok(())
}

/// The byte of a token `<0xNN>`.
pub(crate) fn byte_of(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    u8::from_str_radix(digits, 16).ok()
}

pub(crate) fn part<T: serde::de::DeserializeOwned>(
    name: &'static str,
    value: Value,
) -> Result<T, TokenizerError> {
    serde_json::from_value(value).map_err(|e| TokenizerError::Build {
        part: name,
        detail: e.to_string(),
    })
}

fn build_error(part: &'static str, error: &tokenizers::Error) -> TokenizerError {
    TokenizerError::Build {
        part,
        detail: error.to_string(),
    }
}
