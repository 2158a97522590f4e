//! SentencePiece models (`tokenizer.model`), equal to the reference implementation
//! (<https://github.com/google/sentencepiece>): its normalizer, its unigram and BPE segmentation, its byte fallback.
//!
//! Each run of text between added tokens is encoded as SentencePiece would encode it alone, but for the dummy prefix, which the
//! caller may want at the beginning of the sentence only. Control pieces and the unknown piece become control tokens; pieces
//! defined by the user are found by the model itself, as in the reference.

mod normalizer;
mod proto;
mod trie;
mod unigram;

use std::collections::HashSet;
use std::ops::Range;

use serde_json::json;
use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::{AddedToken, Token};

use crate::TokenizerError;
use crate::files::{Base, Flag};
use crate::gguf::{byte_of, part};
use crate::spm::SpmMerger;
use crate::tokenizer::Roles;
use crate::words::{Place, WordModel};
use normalizer::{Dummy, Normalizer, SPACE};
use proto::{Algorithm, Kind, ModelProto, Rule};
pub(crate) use trie::Trie;
use unigram::Unigram;

/// Longer pieces are refused: each position of a text may be compared with the longest.
const MAX_PIECE_BYTES: usize = 1 << 12;

/// Which runs of a sentence begin with the dummy prefix, where the model has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Prefix {
    /// Each run of text between added tokens.
    EachRun,
    /// Only text that begins the sentence.
    Sentence,
    /// None, whatever the model says.
    Never,
}

struct SentencePiece {
    normalizer: Normalizer,
    user_defined: Trie,
    segmenter: Segmenter,
    dummy: Dummy,
    prefix: Prefix,
    unk: u32,
    /// Unknown text is written as these, if the model has them.
    bytes: Option<Box<[u32; 256]>>,
}

enum Segmenter {
    Unigram(Unigram),
    Bpe(SpmMerger),
}

/// Reads a model. The prefix rule is the caller's.
pub(crate) fn read(bytes: &[u8], prefix: Prefix) -> Result<Base, TokenizerError> {
    let model = ModelProto::parse(bytes)?;
    let unk = model.check()?;
    let piece = |wanted: &str| {
        let found = |p: &proto::PieceEntry| p.text == wanted && p.kind == Kind::Control;
        let at = model.pieces.iter().position(found)?;
        u32::try_from(at).ok()
    };
    let roles = Roles {
        bos: piece(&model.bos),
        eos: piece(&model.eos),
        pad: piece(&model.pad),
        unk: Some(unk),
    };
    let words = SentencePiece {
        normalizer: Normalizer::new(&model.normalizer)?,
        user_defined: Trie::new(model.of_kind(Kind::UserDefined)),
        segmenter: match model.algorithm {
            Algorithm::Unigram => Segmenter::Unigram(Unigram::new(&model.pieces, unk)),
            Algorithm::Bpe => Segmenter::Bpe(model.merger()),
            other => {
                return Err(error(format!(
                    "its type is {other:?}, expected Unigram or Bpe; ask the model's authors for a tokenizer.json"
                )));
            }
        },
        dummy: match (prefix, model.normalizer.add_dummy_prefix) {
            (Prefix::Never, _) | (_, Rule::Off) => Dummy::None,
            _ if model.whitespace_as_suffix == Rule::On => Dummy::Suffix,
            _ => Dummy::Prefix,
        },
        prefix,
        unk,
        bytes: model.bytes()?,
    };
    let added = (0u32..)
        .zip(&model.pieces)
        .filter(|(_, p)| matches!(p.kind, Kind::Control | Kind::Unknown))
        .map(|(id, p)| {
            (
                id,
                AddedToken::from(p.text.as_str(), true).normalized(false),
            )
        })
        .collect();
    Ok(Base {
        inner: model.pipeline(words.dummy)?,
        words: Some(Box::new(words)),
        tokens: model
            .pieces
            .into_iter()
            .map(|p| Some(p.text.into_boxed_str()))
            .collect(),
        added,
        add_bos: Flag::of(roles.bos.is_some()),
        roles,
        prefix: Vec::new(),
    })
}

fn error(detail: String) -> TokenizerError {
    TokenizerError::SentencePiece { detail }
}

impl ModelProto {
    fn of_kind(&self, kind: Kind) -> impl Iterator<Item = (&str, u32)> {
        let numbered = (0u32..).zip(&self.pieces);
        let wanted = numbered.filter(move |(_, p)| p.kind == kind);
        wanted.map(|(id, p)| (p.text.as_str(), id))
    }

    /// Checks what the reference checks, and returns the unknown piece's id.
    fn check(&self) -> Result<u32, TokenizerError> {
        let (mut text, mut reserved) = (HashSet::new(), HashSet::new());
        for piece in &self.pieces {
            if piece.text.len() > MAX_PIECE_BYTES {
                return Err(error(format!(
                    "a piece has {} bytes, at most {MAX_PIECE_BYTES} are accepted",
                    piece.text.len()
                )));
            }
            let names = match piece.kind {
                Kind::Normal | Kind::UserDefined | Kind::Unused => &mut text,
                Kind::Unknown | Kind::Control | Kind::Byte => &mut reserved,
            };
            if !names.insert(piece.text.as_str()) {
                return Err(error(format!("the piece {:?} is there twice", piece.text)));
            }
        }
        let mut unknown = self.of_kind(Kind::Unknown);
        match (unknown.next(), unknown.next()) {
            (Some((_, id)), None) => Ok(id),
            (None, _) => Err(error("no piece is of type unknown".into())),
            (Some((a, _)), Some((b, _))) => Err(error(format!(
                "two pieces are of type unknown: {a:?} and {b:?}"
            ))),
        }
    }

    fn bytes(&self) -> Result<Option<Box<[u32; 256]>>, TokenizerError> {
        let mut ids = [None; 256];
        for (text, id) in self.of_kind(Kind::Byte) {
            let byte = byte_of(text).ok_or_else(|| {
                error(format!("the byte piece {text:?} is not of the form <0xNN>"))
            })?;
            ids[usize::from(byte)] = Some(id);
        }
        if self.byte_fallback == Rule::Off {
            return Ok(None);
        }
        let mut all = Box::new([0; 256]);
        for (byte, (slot, id)) in all.iter_mut().zip(ids).enumerate() {
            *slot = id.ok_or_else(|| {
                error(format!(
                    "byte_fallback is set, but there is no piece <0x{byte:02X}>"
                ))
            })?;
        }
        Ok(Some(all))
    }

    fn merger(&self) -> SpmMerger {
        let usable = [Kind::Normal, Kind::UserDefined, Kind::Unused];
        let pieces = (0u32..)
            .zip(&self.pieces)
            .filter(|(_, p)| usable.contains(&p.kind))
            .map(|(id, p)| (p.text.as_str().into(), (id, p.score)));
        let unused = self.of_kind(Kind::Unused).map(|(_, id)| id).collect();
        let frozen = Trie::new(self.of_kind(Kind::UserDefined));
        SpmMerger::new(pieces.collect()).with(unused, frozen)
    }

    /// What names and decodes tokens; text is encoded by [`SentencePiece`].
    fn pipeline(&self, dummy: Dummy) -> Result<tokenizers::Tokenizer, TokenizerError> {
        let mut vocab = Vocab::default();
        for (id, piece) in (0u32..).zip(&self.pieces) {
            vocab.entry(piece.text.clone()).or_insert(id);
        }
        let model = BPE::builder()
            .vocab_and_merges(vocab, Vec::new())
            .build()
            .map_err(|e| TokenizerError::Build {
                part: "model",
                detail: e.to_string(),
            })?;
        let mut decoders =
            vec![json!({"type": "Replace", "pattern": {"String": SPACE}, "content": " "})];
        if self.byte_fallback == Rule::On {
            decoders.push(json!({"type": "ByteFallback"}));
        }
        decoders.push(json!({"type": "Fuse"}));
        let stripped = match (self.normalizer.remove_extra_whitespaces, dummy) {
            (Rule::On, _) => 1 << 20,
            (Rule::Off, Dummy::Prefix) => 1,
            (Rule::Off, Dummy::None | Dummy::Suffix) => 0,
        };
        if stripped > 0 {
            decoders.push(json!({"type": "Strip", "content": " ", "start": stripped, "stop": 0}));
        }
        let mut inner = tokenizers::Tokenizer::new(model);
        inner.with_decoder(Some(part::<tokenizers::DecoderWrapper>(
            "decoder",
            json!({"type": "Sequence", "decoders": decoders}),
        )?));
        Ok(inner)
    }
}

impl SentencePiece {
    fn segment(&self, text: &str) -> Vec<(u32, Range<usize>)> {
        match &self.segmenter {
            Segmenter::Bpe(merger) => {
                let pieces = merger.segment(text).into_iter();
                pieces
                    .map(|(id, range)| (id.unwrap_or(self.unk), range))
                    .collect()
            }
            Segmenter::Unigram(unigram) => {
                let mut start = 0;
                let pieces = unigram.segment(text).into_iter();
                pieces
                    .map(|(id, end)| (id, std::mem::replace(&mut start, end)..end))
                    .collect()
            }
        }
    }
}

impl WordModel for SentencePiece {
    fn encode(&self, word: &str, place: Place) -> Vec<Token> {
        let dummy = match (self.prefix, place) {
            (Prefix::Sentence, Place::Later) => Dummy::None,
            _ => self.dummy,
        };
        let text = self.normalizer.normalize(word, &self.user_defined, dummy);
        let mut tokens: Vec<Token> = Vec::new();
        for (id, range) in self.segment(&text) {
            let piece = &text[range.clone()];
            let token = |id| Token::new(id, piece.to_owned(), (range.start, range.end));
            match &self.bytes {
                _ if id != self.unk => tokens.push(token(id)),
                Some(bytes) => tokens.extend(piece.bytes().map(|b| token(bytes[usize::from(b)]))),
                // A run of unknown text is one token.
                None if tokens.last().is_some_and(|last| last.id == self.unk) => {}
                None => tokens.push(token(id)),
            }
        }
        tokens
    }

    fn unk(&self) -> Option<u32> {
        Some(self.unk)
    }
}

#[cfg(test)]
mod tests;
