//! The tokenizer's metadata, as stored.

use super::super::cursor::malformed;
use super::super::{Gguf, Metadata};
use crate::WeightsError;

/// A value of [`GgufTokenizer::token_types`]: tokens that are never produced from text.
pub(super) const CONTROL: i32 = 3;

/// The `tokenizer.ggml.*` keys of a file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GgufTokenizer {
    /// Kind of tokenizer: `gpt2` (byte-level BPE), `llama` (SentencePiece), …
    pub model: String,
    /// Name of the pre-tokenizer's splitting rules, for BPE.
    pub pre: Option<String>,
    /// Text of each token, by id.
    pub tokens: Vec<String>,
    /// Log-probability of each token, by id.
    pub scores: Option<Vec<f32>>,
    /// `llama_token_type` of each token, by id: 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte.
    pub token_types: Option<Vec<i32>>,
    /// BPE merges, the earliest first, each two pieces with a space between.
    pub merges: Option<Vec<String>>,
    /// Beginning of sequence.
    pub bos: Option<u32>,
    /// End of sequence.
    pub eos: Option<u32>,
    /// Unknown token.
    pub unk: Option<u32>,
    /// Padding.
    pub pad: Option<u32>,
    /// End of turn.
    pub eot: Option<u32>,
    /// End of message.
    pub eom: Option<u32>,
    /// Whether `bos` is put before a text.
    pub add_bos: Option<bool>,
    /// Whether `eos` is put after a text.
    pub add_eos: Option<bool>,
    /// Whether a space is put before a text.
    pub add_space_prefix: Option<bool>,
    /// Whether runs of white space are reduced to one space.
    pub remove_extra_whitespaces: Option<bool>,
    /// The chat template, in Jinja.
    pub chat_template: Option<String>,
}

impl GgufTokenizer {
    /// Reads the keys.
    ///
    /// # Errors
    /// When model or tokens are missing, a key has the wrong kind, per-token arrays differ in length from the tokens, or
    /// an id is not among them.
    pub fn from_gguf(gguf: &Gguf) -> Result<Self, WeightsError> {
        let m = gguf.metadata();
        let missing = |key: &str| malformed(gguf.path(), format!("its metadata lacks '{key}'"));
        let owned = |s: &[String]| s.to_vec();
        let this = Self {
            model: m.str(MODEL)?.ok_or_else(|| missing(MODEL))?.to_owned(),
            pre: m.str("tokenizer.ggml.pre")?.map(str::to_owned),
            tokens: m
                .strings(TOKENS)?
                .map(owned)
                .ok_or_else(|| missing(TOKENS))?,
            scores: m.f32s("tokenizer.ggml.scores")?.map(<[f32]>::to_vec),
            token_types: m.i32s("tokenizer.ggml.token_type")?,
            merges: m.strings("tokenizer.ggml.merges")?.map(owned),
            bos: id(m, "bos")?,
            eos: id(m, "eos")?,
            unk: id(m, "unknown")?,
            pad: id(m, "padding")?,
            eot: id(m, "eot")?,
            eom: id(m, "eom")?,
            add_bos: m.bool("tokenizer.ggml.add_bos_token")?,
            add_eos: m.bool("tokenizer.ggml.add_eos_token")?,
            add_space_prefix: m.bool("tokenizer.ggml.add_space_prefix")?,
            remove_extra_whitespaces: m.bool("tokenizer.ggml.remove_extra_whitespaces")?,
            chat_template: chat_template(gguf)?,
        };
        this.check().map_err(|what| malformed(gguf.path(), what))?;
        Ok(this)
    }

    fn check(&self) -> Result<(), String> {
        let count = self.tokens.len();
        let lengths = [
            ("scores", self.scores.as_ref().map(Vec::len)),
            ("token_type", self.token_types.as_ref().map(Vec::len)),
        ];
        for (key, len) in lengths {
            if let Some(len) = len.filter(|&len| len != count) {
                return Err(format!(
                    "'tokenizer.ggml.{key}' has {len} entries for {count} tokens"
                ));
            }
        }
        let ids = [self.bos, self.eos, self.unk, self.pad, self.eot, self.eom];
        match ids.into_iter().flatten().find(|&id| id as usize >= count) {
            Some(id) => Err(format!(
                "a special token has id {id}, but there are {count} tokens"
            )),
            None => Ok(()),
        }
    }

    /// Ids that end generation: `eos`, `eot` and `eom`, then control tokens whose text is a usual end of turn or text
    /// (older converters did not record `eot`). Each once.
    #[must_use]
    pub fn end_ids(&self) -> Vec<u32> {
        let mut ids: Vec<u32> = Vec::new();
        let told = [self.eos, self.eot, self.eom].into_iter().flatten();
        let types = self.token_types.as_deref().unwrap_or_default();
        let known = self.tokens.iter().zip(types).zip(0u32..);
        let known = known
            .filter(|((text, kind), _)| **kind == CONTROL && END_TEXTS.contains(&text.as_str()));
        for id in told.chain(known.map(|(_, id)| id)) {
            if !ids.contains(&id) {
                ids.push(id);
            }
        }
        ids
    }
}

const MODEL: &str = "tokenizer.ggml.model";
const TOKENS: &str = "tokenizer.ggml.tokens";

const END_TEXTS: [&str; 6] = [
    "<|eot_id|>",
    "<|eom_id|>",
    "<|im_end|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<end_of_turn>",
];

/// llama.cpp writes −1 for "none" in some files.
pub(super) fn id(metadata: &Metadata, which: &str) -> Result<Option<u32>, WeightsError> {
    let key = format!("tokenizer.ggml.{which}_token_id");
    match metadata.get(&key).and_then(super::super::Value::as_i64) {
        Some(-1 | 0xFFFF_FFFF) => Ok(None),
        _ => metadata.u32(&key),
    }
}

/// The chat template of a file, in Jinja.
///
/// # Errors
/// When the key has the wrong kind.
pub fn chat_template(gguf: &Gguf) -> Result<Option<String>, WeightsError> {
    Ok(gguf
        .metadata()
        .str("tokenizer.chat_template")?
        .map(str::to_owned))
}
