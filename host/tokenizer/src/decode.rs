//! From ids to text, whole sequences at once.

use serde_json::Value;
use tokenizers::{Decoder as _, DecoderWrapper};

use crate::tokenizer::guard;
use crate::{SkipSpecial, Tokenizer, TokenizerError};

/// How a decoder turns one token after the other into text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Decoding {
    /// Each character of a token is a byte (GPT-2's table); the bytes together are UTF-8.
    ByteLevel,
    /// SentencePiece.
    Pieces(Pieces),
    /// Anything else: only `decode` of several tokens tells.
    Opaque,
}

/// The decoder of a SentencePiece vocabulary.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Pieces {
    /// Replaced in order in each token.
    pub(crate) replace: Vec<(String, String)>,
    /// Whether `<0xNN>` is a byte.
    pub(crate) byte_fallback: bool,
    /// Up to this many of this character are cut from the beginning of the text.
    pub(crate) strip_left: Option<(char, usize)>,
    /// All of this character are cut from the first token (Metaspace).
    pub(crate) first_token_drops: Option<char>,
}

impl Decoding {
    /// Recognises what the streaming decoder can do exactly.
    pub(crate) fn of(decoder: Option<&DecoderWrapper>) -> Result<Self, TokenizerError> {
        let Some(decoder) = decoder else {
            return Ok(Self::Opaque);
        };
        let value = serde_json::to_value(decoder).map_err(|e| TokenizerError::Build {
            part: "decoder",
            detail: e.to_string(),
        })?;
        Ok(Self::parse(&value).unwrap_or(Self::Opaque))
    }

    fn parse(decoder: &Value) -> Option<Self> {
        let steps = match decoder.get("decoders") {
            Some(steps) => steps.as_array()?.as_slice(),
            None => std::slice::from_ref(decoder),
        };
        let mut pieces = Pieces::default();
        let mut fused = false;
        let mut steps = steps.iter().peekable();
        while let Some(step) = steps.next() {
            match step.get("type")?.as_str()? {
                // Each kind below only where it commutes with working token by token.
                "ByteLevel" if pieces == Pieces::default() && !fused => {
                    let rest_fuses = steps.all(|s| s.get("type").is_some_and(|t| t == "Fuse"));
                    return rest_fuses.then_some(Self::ByteLevel);
                }
                "Replace" if !fused && !pieces.byte_fallback => pieces.replace.push((
                    step.get("pattern")?.get("String")?.as_str()?.to_owned(),
                    step.get("content")?.as_str()?.to_owned(),
                )),
                "ByteFallback" if !fused => pieces.byte_fallback = true,
                "Fuse" => fused = true,
                "Strip" if fused && pieces.strip_left.is_none() => {
                    if step.get("stop")?.as_u64()? != 0 {
                        return None;
                    }
                    let content = step.get("content")?.as_str()?.chars().next()?;
                    let start = usize::try_from(step.get("start")?.as_u64()?).ok()?;
                    pieces.strip_left = Some((content, start));
                }
                "Metaspace" if pieces == Pieces::default() && !fused => {
                    let mark = step.get("replacement")?.as_str()?;
                    if step.get("prepend_scheme")?.as_str()? != "never" {
                        pieces.first_token_drops = mark.chars().next();
                    }
                    pieces.replace.push((mark.to_owned(), " ".to_owned()));
                    fused = true;
                }
                _ => return None,
            }
        }
        Some(Self::Pieces(pieces))
    }

    /// What a token stands for, regardless of its place.
    pub(crate) fn bytes(&self, token: &str) -> Vec<u8> {
        match self {
            Self::ByteLevel => byte_level(token),
            Self::Pieces(pieces) => match pieces.byte(token) {
                Some(byte) => vec![byte],
                None => pieces.text(token).into_bytes(),
            },
            Self::Opaque => token.as_bytes().to_vec(),
        }
    }
}

impl Pieces {
    /// The byte that a fallback token stands for.
    pub(crate) fn byte(&self, token: &str) -> Option<u8> {
        if !self.byte_fallback {
            return None;
        }
        // Replacing comes first, but cannot touch the ASCII form that is looked for unless it replaces ASCII.
        let token = self.text(token);
        let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
        if digits.len() != 2 {
            return None;
        }
        u8::from_str_radix(digits, 16).ok()
    }

    /// The text of a token that is not a byte.
    pub(crate) fn text(&self, token: &str) -> String {
        let mut text = token.to_owned();
        for (from, to) in &self.replace {
            if !from.is_empty() && text.contains(from.as_str()) {
                text = text.replace(from.as_str(), to);
            }
        }
        text
    }
}

/// The bytes of a byte-level token; a token with a character outside the table is written as it is.
pub(crate) fn byte_level(token: &str) -> Vec<u8> {
    token
        .chars()
        .map(byte_of)
        .collect::<Option<Vec<u8>>>()
        .unwrap_or_else(|| token.as_bytes().to_vec())
}

/// GPT-2's table backwards: printable Latin-1 stands for itself, the other 68 bytes are U+0100 and on, in order.
fn byte_of(c: char) -> Option<u8> {
    match u32::from(c) {
        code @ (0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff) => u8::try_from(code).ok(),
        code @ 0x100..=0x120 => u8::try_from(code - 0x100).ok(),
        code @ 0x121..=0x142 => u8::try_from(code - 0x121 + 0x7f).ok(),
        0x143 => Some(0xad),
        _ => None,
    }
}

impl Tokenizer {
    /// Decodes a sequence, as Hugging Face with `clean_up_tokenization_spaces=False`. Ids outside the vocabulary are
    /// passed over; bytes that are not UTF-8 become U+FFFD.
    ///
    /// # Errors
    /// [`TokenizerError::Decode`] if the decoder refuses; those of known models never do.
    pub fn decode(&self, ids: &[u32], skip: SkipSpecial) -> Result<String, TokenizerError> {
        let tokens: Vec<String> = ids
            .iter()
            .filter_map(|&id| self.visible(id, skip))
            .map(str::to_owned)
            .collect();
        match self.inner.get_decoder() {
            Some(decoder) => guard(|| decoder.decode(tokens)).map_err(|e| TokenizerError::Decode {
                detail: e.to_string(),
            }),
            None => Ok(tokens.join(" ")),
        }
    }

    /// The token, unless it is unknown or skipped.
    pub(crate) fn visible(&self, id: u32, skip: SkipSpecial) -> Option<&str> {
        if skip == SkipSpecial::Yes && self.is_control(id) {
            return None;
        }
        self.decoded_token(id)
    }
}

#[cfg(test)]
mod tests;
