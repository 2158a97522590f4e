//! From text to ids.
//!
//! One path serves all three calls: the sentence is cut at added tokens, the rest is normalised, cut again, split by the
//! pre-tokenizer and encoded by the model. It is Hugging Face's, but for the control tokens whose places the caller knows.
//! A control token's literal stays in the sentence, so that neighbours see what they would see there (a prefix that
//! belongs to the sentence's first word only, `lstrip`, `rstrip`).

use tokenizers::normalizer::Range;
use tokenizers::{
    Model as _, NormalizedString, Normalizer as _, OffsetReferential, OffsetType,
    PreTokenizedString, PreTokenizer as _, Token,
};

use crate::added::{Literals, Piece, Placed};
use crate::tokenizer::{Affixes, guard};
use crate::words::Place;
use crate::{Tokenizer, TokenizerError};

/// Whether a raw text gets what the tokenizer adds around a sequence (BOS, EOS).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddSpecial {
    /// Add it, as `add_special_tokens=True`.
    Yes,
    /// The text alone.
    No,
}

/// A part of a prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Segment {
    /// A control token; any id of the vocabulary is accepted.
    Control(u32),
    /// Text in which control tokens are not recognised. Adjacent texts are one text.
    Text(String),
}

type TokenizersResult<T> = tokenizers::Result<T>;

impl Tokenizer {
    /// Encodes text that a client wrote: control tokens are not recognised, added tokens with `special: false` are, nothing is
    /// added. Equal to Hugging Face with `add_special_tokens=False, split_special_tokens=True`.
    ///
    /// # Errors
    /// [`TokenizerError::Encode`] where the model has no token for the text (word-level models without an unknown token), and
    /// [`TokenizerError::ControlFromText`] where its only encoding is a control token.
    pub fn encode_text(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        self.encode_sentence(text, &[], Literals::NoControl)
    }

    /// Encodes text that is trusted to write control tokens: all added tokens are recognised. Equal to Hugging Face's
    /// `tokenizer(text, add_special_tokens=…)`.
    ///
    /// # Errors
    /// As [`Self::encode_text`].
    pub fn encode_raw(&self, text: &str, add: AddSpecial) -> Result<Vec<u32>, TokenizerError> {
        let ids = self.encode_sentence(text, &[], Literals::All)?;
        match (add, &self.affixes) {
            (AddSpecial::No, _) => Ok(ids),
            (AddSpecial::Yes, Affixes::Fixed { prefix, suffix }) => {
                Ok([prefix.as_slice(), &ids, suffix].concat())
            }
            (AddSpecial::Yes, Affixes::PostProcessor) => {
                let encoding = ids
                    .into_iter()
                    .map(|id| (id, String::new(), (0, 0), None, 0))
                    .collect();
                guard(|| self.inner.post_process(encoding, None, true))
                    .map(|encoding| encoding.get_ids().to_vec())
                    .map_err(encode_error)
            }
        }
    }

    /// Encodes a prompt. Control tokens come from `Control` segments alone; as long as no text contains a control token's
    /// literal, the ids are those of Hugging Face for the whole string. Added tokens are not searched across a control token, and
    /// control tokens flagged `normalized` are cut like the others, before normalisation.
    ///
    /// # Errors
    /// [`TokenizerError::UnknownToken`] for an id outside the vocabulary, else as [`Self::encode_text`].
    pub fn encode_segments(&self, segments: &[Segment]) -> Result<Vec<u32>, TokenizerError> {
        let mut sentence = String::new();
        let mut placed = Vec::new();
        for segment in segments {
            match segment {
                Segment::Text(text) => sentence.push_str(text),
                Segment::Control(id) => {
                    let literal = self.id_to_token(*id).ok_or(TokenizerError::UnknownToken {
                        id: *id,
                        vocab_size: self.vocab_size(),
                    })?;
                    let start = sentence.len();
                    // An empty piece would be dropped.
                    sentence.push_str(if literal.is_empty() { "\0" } else { literal });
                    placed.push(Placed {
                        range: start..sentence.len(),
                        id: *id,
                    });
                }
            }
        }
        self.encode_sentence(&sentence, &placed, Literals::NoControl)
    }

    fn encode_sentence(
        &self,
        sentence: &str,
        placed: &[Placed],
        literals: Literals,
    ) -> Result<Vec<u32>, TokenizerError> {
        let split = guard(|| self.split(sentence, placed, literals)).map_err(encode_error)?;
        let mut ids = Vec::with_capacity(sentence.len() / 4 + 1);
        for (word, (start, _), known) in
            split.get_splits(OffsetReferential::Original, OffsetType::Byte)
        {
            if let Some(tokens) = known {
                ids.extend(tokens.iter().map(|token| token.id));
                continue;
            }
            let place = if start == 0 {
                Place::First
            } else {
                Place::Later
            };
            let tokens = self.encode_word(word, place).map_err(encode_error)?;
            for token in tokens {
                if literals == Literals::NoControl && self.is_forged(token.id) {
                    self.encode_apart(&token, &mut ids)?;
                } else {
                    ids.push(token.id);
                }
            }
        }
        Ok(ids)
    }

    /// Cuts the sentence into added tokens (with their ids) and words still to be encoded.
    fn split(
        &self,
        sentence: &str,
        placed: &[Placed],
        literals: Literals,
    ) -> TokenizersResult<PreTokenizedString> {
        let mut split = PreTokenizedString::from(sentence);
        split.split(|_, whole| {
            let pieces = self.added.cut_raw(whole.get(), placed, literals);
            slices(&whole, pieces)
        })?;
        split.split(|_, mut piece| {
            if let Some(normalizer) = self.inner.get_normalizer() {
                normalizer.normalize(&mut piece)?;
            }
            let pieces = self.added.cut_normalized(piece.get(), literals);
            slices(&piece, pieces)
        })?;
        if let Some(pre_tokenizer) = self.inner.get_pre_tokenizer() {
            pre_tokenizer.pre_tokenize(&mut split)?;
        }
        Ok(split)
    }

    fn encode_word(&self, word: &str, place: Place) -> TokenizersResult<Vec<Token>> {
        match &self.words {
            Some(words) => Ok(words.encode(word, place)),
            None => guard(|| self.inner.get_model().tokenize(word)),
        }
    }

    fn is_forged(&self, id: u32) -> bool {
        self.is_control(id) && Some(id) != self.model_unk
    }

    /// Encodes a token's text character by character, where the model itself produced a control token for plain text.
    fn encode_apart(&self, token: &Token, ids: &mut Vec<u32>) -> Result<(), TokenizerError> {
        for c in token.value.chars() {
            let word = c.to_string();
            for token in self
                .encode_word(&word, Place::Later)
                .map_err(encode_error)?
            {
                if self.is_forged(token.id) {
                    return Err(TokenizerError::ControlFromText {
                        text: word,
                        id: token.id,
                    });
                }
                ids.push(token.id);
            }
        }
        Ok(())
    }
}

fn slices(
    whole: &NormalizedString,
    pieces: Vec<Piece>,
) -> TokenizersResult<Vec<(NormalizedString, Option<Vec<Token>>)>> {
    pieces
        .into_iter()
        .map(|Piece { range, id }| {
            let length = range.len();
            let slice = whole
                .slice(Range::Normalized(range))
                .ok_or("an added token does not end at a character")?;
            let tokens = id.map(|id| vec![Token::new(id, String::new(), (0, length))]);
            Ok((slice, tokens))
        })
        .collect()
}

#[allow(clippy::needless_pass_by_value)] // used as a function of map_err
fn encode_error(error: tokenizers::Error) -> TokenizerError {
    TokenizerError::Encode {
        detail: error.to_string(),
    }
}
