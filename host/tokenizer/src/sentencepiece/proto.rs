//! The few fields of `sentencepiece_model.proto` that matter, read from protobuf's wire format.

use crate::TokenizerError;
use crate::tokenizer::{MAX_VOCAB, check_limit};

/// What a piece is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Normal,
    Unknown,
    Control,
    UserDefined,
    Unused,
    Byte,
}

/// An entry of the vocabulary; its place is its id.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct PieceEntry {
    pub(super) text: String,
    pub(super) score: f32,
    pub(super) kind: Kind,
}

/// How pieces are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Algorithm {
    Unigram,
    Bpe,
    Word,
    Char,
}

/// Whether a rule of the model's specification holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rule {
    On,
    Off,
}

/// `NormalizerSpec`
#[derive(Clone, Debug)]
pub(super) struct NormalizerSpec {
    pub(super) charsmap: Vec<u8>,
    pub(super) add_dummy_prefix: Rule,
    pub(super) remove_extra_whitespaces: Rule,
    pub(super) escape_whitespaces: Rule,
}

/// `ModelProto`
#[derive(Clone, Debug)]
pub(super) struct ModelProto {
    pub(super) pieces: Vec<PieceEntry>,
    pub(super) algorithm: Algorithm,
    pub(super) byte_fallback: Rule,
    /// The dummy prefix is a suffix.
    pub(super) whitespace_as_suffix: Rule,
    pub(super) bos: String,
    pub(super) eos: String,
    pub(super) pad: String,
    pub(super) normalizer: NormalizerSpec,
}

/// A field's value as the wire has it.
enum Value<'a> {
    Varint(u64),
    Fixed32(u32),
    Bytes(&'a [u8]),
    Skipped,
}

/// Reads one message field by field.
struct Message<'a> {
    rest: &'a [u8],
    /// For errors.
    name: &'static str,
}

fn error(detail: String) -> TokenizerError {
    TokenizerError::SentencePiece { detail }
}

impl<'a> Message<'a> {
    fn new(bytes: &'a [u8], name: &'static str) -> Self {
        Self { rest: bytes, name }
    }

    fn truncated(&self, what: &str) -> TokenizerError {
        error(format!(
            "{what} of {} goes beyond the end of its message",
            self.name
        ))
    }

    fn varint(&mut self) -> Result<u64, TokenizerError> {
        let mut value = 0u64;
        for shift in (0..70).step_by(7) {
            let (&byte, rest) = self
                .rest
                .split_first()
                .ok_or_else(|| self.truncated("a number"))?;
            self.rest = rest;
            if shift < 64 {
                value |= u64::from(byte & 0x7f) << shift;
            }
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(error(format!(
            "a number of {} has more than 10 bytes",
            self.name
        )))
    }

    fn take(&mut self, length: u64) -> Result<&'a [u8], TokenizerError> {
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        let (taken, rest) = self
            .rest
            .split_at_checked(length)
            .ok_or_else(|| self.truncated(&format!("a field of {length} bytes")))?;
        self.rest = rest;
        Ok(taken)
    }

    /// The next field and its value.
    fn next(&mut self) -> Result<Option<(u64, Value<'a>)>, TokenizerError> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        let tag = self.varint()?;
        let value = match tag & 7 {
            0 => Value::Varint(self.varint()?),
            1 => {
                self.take(8)?;
                Value::Skipped
            }
            2 => {
                let length = self.varint()?;
                Value::Bytes(self.take(length)?)
            }
            5 => {
                let bytes = self.take(4)?;
                Value::Fixed32(bytes.iter().rev().fold(0, |n, b| n << 8 | u32::from(*b)))
            }
            other => {
                return Err(error(format!(
                    "wire type {other} in {}; is this a SentencePiece model?",
                    self.name
                )));
            }
        };
        Ok(Some((tag >> 3, value)))
    }
}

fn text(bytes: &[u8], what: &str) -> Result<String, TokenizerError> {
    String::from_utf8(bytes.to_vec()).map_err(|_| error(format!("{what} is not UTF-8")))
}

fn rule(value: u64) -> Rule {
    if value == 0 { Rule::Off } else { Rule::On }
}

impl ModelProto {
    /// Reads a model. Fields that do not change what text becomes are passed over.
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, TokenizerError> {
        let mut model = Self {
            pieces: Vec::new(),
            algorithm: Algorithm::Unigram,
            byte_fallback: Rule::Off,
            whitespace_as_suffix: Rule::Off,
            bos: "<s>".into(),
            eos: "</s>".into(),
            pad: "<pad>".into(),
            normalizer: NormalizerSpec {
                charsmap: Vec::new(),
                add_dummy_prefix: Rule::On,
                remove_extra_whitespaces: Rule::On,
                escape_whitespaces: Rule::On,
            },
        };
        let mut message = Message::new(bytes, "the model");
        while let Some((field, value)) = message.next()? {
            match (field, value) {
                (1, Value::Bytes(piece)) => {
                    check_limit("the number of pieces", model.pieces.len() + 1, MAX_VOCAB)?;
                    let id = model.pieces.len();
                    model.pieces.push(PieceEntry::parse(piece, id)?);
                }
                (2, Value::Bytes(spec)) => model.trainer(spec)?,
                (3, Value::Bytes(spec)) => model.normalizer.read(spec)?,
                _ => {}
            }
        }
        if model.pieces.is_empty() {
            return Err(error("it has no pieces".into()));
        }
        Ok(model)
    }

    fn trainer(&mut self, spec: &[u8]) -> Result<(), TokenizerError> {
        let mut message = Message::new(spec, "trainer_spec");
        while let Some((field, value)) = message.next()? {
            match (field, value) {
                (3, Value::Varint(kind)) => {
                    self.algorithm = match kind {
                        1 => Algorithm::Unigram,
                        2 => Algorithm::Bpe,
                        3 => Algorithm::Word,
                        4 => Algorithm::Char,
                        other => {
                            return Err(error(format!(
                                "model_type is {other}, expected 1 (unigram) to 4 (char)"
                            )));
                        }
                    }
                }
                (24, Value::Varint(on)) => self.whitespace_as_suffix = rule(on),
                (35, Value::Varint(on)) => self.byte_fallback = rule(on),
                (46, Value::Bytes(piece)) => self.bos = text(piece, "bos_piece")?,
                (47, Value::Bytes(piece)) => self.eos = text(piece, "eos_piece")?,
                (48, Value::Bytes(piece)) => self.pad = text(piece, "pad_piece")?,
                _ => {}
            }
        }
        Ok(())
    }
}

impl PieceEntry {
    fn parse(bytes: &[u8], id: usize) -> Result<Self, TokenizerError> {
        let mut piece = Self {
            text: String::new(),
            score: 0.0,
            kind: Kind::Normal,
        };
        let mut message = Message::new(bytes, "a piece");
        while let Some((field, value)) = message.next()? {
            match (field, value) {
                (1, Value::Bytes(bytes)) => piece.text = text(bytes, &format!("piece {id}"))?,
                (2, Value::Fixed32(bits)) => piece.score = f32::from_bits(bits),
                (3, Value::Varint(kind)) => {
                    piece.kind = match kind {
                        1 => Kind::Normal,
                        2 => Kind::Unknown,
                        3 => Kind::Control,
                        4 => Kind::UserDefined,
                        5 => Kind::Unused,
                        6 => Kind::Byte,
                        other => {
                            return Err(error(format!(
                                "piece {id} has type {other}, expected 1 to 6"
                            )));
                        }
                    }
                }
                _ => {}
            }
        }
        if piece.text.is_empty() {
            return Err(error(format!("piece {id} is empty")));
        }
        if !piece.score.is_finite() {
            return Err(error(format!(
                "piece {id} has the score {}, expected a number",
                piece.score
            )));
        }
        Ok(piece)
    }
}

impl NormalizerSpec {
    fn read(&mut self, spec: &[u8]) -> Result<(), TokenizerError> {
        let mut message = Message::new(spec, "normalizer_spec");
        while let Some((field, value)) = message.next()? {
            match (field, value) {
                (2, Value::Bytes(map)) => self.charsmap = map.to_vec(),
                (3, Value::Varint(on)) => self.add_dummy_prefix = rule(on),
                (4, Value::Varint(on)) => self.remove_extra_whitespaces = rule(on),
                (5, Value::Varint(on)) => self.escape_whitespaces = rule(on),
                _ => {}
            }
        }
        Ok(())
    }
}
