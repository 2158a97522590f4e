//! The crate's error type.

use std::path::PathBuf;

/// What can go wrong while a tokenizer is loaded or used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TokenizerError {
    /// A file of the model folder could not be read.
    #[error(
        "cannot read {path}: {source}; the folder needs a readable tokenizer.json, tokenizer.model or *.tiktoken"
    )]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// A size is beyond what this crate accepts.
    #[error("{what} is {found}, the limit is {limit}; the tokenizer is damaged or hostile")]
    TooLarge {
        /// What was measured.
        what: &'static str,
        /// The measured size.
        found: usize,
        /// The largest accepted size.
        limit: usize,
    },
    /// A JSON file does not hold what it should.
    #[error(
        "{file} is not valid: {detail}; expected the format that Hugging Face's `save_pretrained` writes"
    )]
    Json {
        /// The file's name.
        file: String,
        /// What the parser said.
        detail: String,
    },
    /// A `tokenizer.model` is not a SentencePiece model that can be used.
    #[error(
        "the SentencePiece model is not valid: {detail}; the file is damaged, or not what its name says"
    )]
    SentencePiece {
        /// What is wrong.
        detail: String,
    },
    /// A table of ranks is damaged.
    #[error(
        "the table of ranks is not valid: {detail}; expected lines of a token in Base64 and its rank"
    )]
    Table {
        /// What is wrong.
        detail: String,
    },
    /// A table of ranks that does not say how text is split.
    #[error(
        "the table of ranks has {ranks} tokens and names no pre-tokenizer known here; set \"pat_str\" in tokenizer_config.json to the regular expression that splits text into words, and list its special tokens in \"added_tokens_decoder\""
    )]
    UnknownTable {
        /// How many tokens it has.
        ranks: usize,
    },
    /// `tokenizer.ggml.model` names a kind that is not implemented.
    #[error(
        "tokenizer.ggml.model is {found:?}, expected \"gpt2\" (byte-level BPE) or \"llama\" (SentencePiece); convert the model with its tokenizer.json instead"
    )]
    UnknownModel {
        /// The name found.
        found: String,
    },
    /// `tokenizer.ggml.pre` names a pre-tokenizer that is not implemented.
    #[error(
        "tokenizer.ggml.pre is {found:?}, which names no pre-tokenizer known here; use the model's tokenizer.json, or add {found:?} to the table in host/tokenizer/src/gguf/pre.rs"
    )]
    UnknownPreTokenizer {
        /// The name found.
        found: String,
    },
    /// Two GGUF arrays disagree, or one is missing.
    #[error(
        "tokenizer.ggml.{key}: expected {expected}, found {found}; the file is damaged or was converted by an incompatible tool"
    )]
    Gguf {
        /// The metadata key, without its common prefix.
        key: &'static str,
        /// What the format asks for.
        expected: String,
        /// What the file has.
        found: String,
    },
    /// The tokenizer's parts do not fit together.
    #[error("cannot build the tokenizer's {part}: {detail}")]
    Build {
        /// Which part: model, pre-tokenizer, added tokens, …
        part: &'static str,
        /// The cause.
        detail: String,
    },
    /// A token id that the vocabulary does not have.
    #[error("token id {id} is not in the vocabulary of {vocab_size} ids")]
    UnknownToken {
        /// The id.
        id: u32,
        /// One more than the largest id.
        vocab_size: usize,
    },
    /// The model could not encode a text.
    #[error("cannot encode the text: {detail}")]
    Encode {
        /// The cause.
        detail: String,
    },
    /// The model could not decode tokens.
    #[error("cannot decode the tokens: {detail}")]
    Decode {
        /// The cause.
        detail: String,
    },
    /// Plain text can only be encoded as a control token.
    #[error(
        "the text {text:?} has no encoding but the control token {id}; only a template may write control tokens"
    )]
    ControlFromText {
        /// The offending text.
        text: String,
        /// The control token it would become.
        id: u32,
    },
}

impl TokenizerError {
    /// A short name for metrics; it never changes for a given variant.
    #[must_use]
    pub fn label(&self) -> &'static str {
        match self {
            Self::Read { .. } => "read",
            Self::TooLarge { .. } => "too_large",
            Self::Json { .. } => "json",
            Self::SentencePiece { .. } => "sentencepiece",
            Self::Table { .. } => "table",
            Self::UnknownTable { .. } => "unknown_table",
            Self::UnknownModel { .. } => "unknown_model",
            Self::UnknownPreTokenizer { .. } => "unknown_pre_tokenizer",
            Self::Gguf { .. } => "gguf",
            Self::Build { .. } => "build",
            Self::UnknownToken { .. } => "unknown_token",
            Self::Encode { .. } => "encode",
            Self::Decode { .. } => "decode",
            Self::ControlFromText { .. } => "control_from_text",
        }
    }
}
