//! From ids to text, token by token.

use std::sync::Arc;

use crate::decode::{Decoding, Pieces, byte_level};
use crate::{SkipSpecial, Tokenizer};

/// The longest window of a decoder that only works on whole sequences, in tokens that have not yet given text.
const MAX_HELD: usize = 32;
/// How much of the prompt an opaque decoder sees before the first output token.
const PROMPT_TAIL: usize = 8;

/// Decodes a stream of ids. Text leaves as soon as its characters are complete; half a character is never given out.
///
/// All strings together equal [`Tokenizer::decode`] of all ids, with one exception: where a run of byte-fallback tokens holds
/// complete characters and then bytes that are not UTF-8, `decode` (as Hugging Face's) turns the whole run into U+FFFD, here the
/// complete characters stay.
///
/// A push does work proportional to the token's length, and the state is at most three bytes; only a decoder that
/// is neither byte-level nor SentencePiece keeps a window of a few tokens, which it decodes again on each push.
pub struct Detokenizer {
    tokenizer: Arc<Tokenizer>,
    skip: SkipSpecial,
    /// Control tokens that are written although others are skipped.
    shown: Arc<[u32]>,
    state: State,
}

enum State {
    Bytes {
        /// The beginning of a character.
        pending: Vec<u8>,
    },
    Pieces {
        /// Byte tokens that begin a character.
        pending: Vec<u8>,
        /// How many characters may still be cut from the beginning.
        strip: usize,
        /// Whether the next token is the first.
        first: bool,
    },
    Window {
        /// The window; `ids[..read]` is context whose text has been given out.
        ids: Vec<u32>,
        read: usize,
    },
}

impl Detokenizer {
    /// A stream that begins at the beginning of a text.
    #[must_use]
    pub fn new(tokenizer: &Arc<Tokenizer>, skip: SkipSpecial) -> Self {
        let state = match &tokenizer.decoding {
            Decoding::ByteLevel => State::Bytes {
                pending: Vec::new(),
            },
            Decoding::Pieces(pieces) => State::Pieces {
                pending: Vec::new(),
                strip: pieces.strip_left.map_or(0, |(_, count)| count),
                first: true,
            },
            Decoding::Opaque => State::Window {
                ids: Vec::new(),
                read: 0,
            },
        };
        Self {
            tokenizer: Arc::clone(tokenizer),
            skip,
            shown: Arc::default(),
            state,
        }
    }

    /// Names control tokens that are written as their literals although others are skipped.
    #[must_use]
    pub fn with_visible(mut self, ids: &Arc<[u32]>) -> Self {
        self.shown = Arc::clone(ids);
        self
    }

    /// Sets what stands before the stream, so that the first token keeps the space that it has after other text. The end of the
    /// prompt is enough (64 ids at most are looked at). A character that the prompt left incomplete is given out with its end.
    #[must_use]
    pub fn with_prompt(mut self, prompt: &[u32]) -> Self {
        let tail = &prompt[prompt.len().saturating_sub(64)..];
        if let State::Window { ids, read } = &mut self.state {
            ids.clear();
            ids.extend_from_slice(&tail[tail.len().saturating_sub(PROMPT_TAIL)..]);
            *read = ids.len();
            return self;
        }
        for &id in tail {
            self.push(id);
        }
        self
    }

    /// Takes one id and gives the text that became complete, which may be empty.
    pub fn push(&mut self, id: u32) -> String {
        let shown = self.shown.contains(&id);
        if shown && matches!(self.state, State::Window { .. }) {
            let rest = self.finish();
            return rest + self.tokenizer.id_to_token(id).unwrap_or_default();
        }
        let skip = if shown { SkipSpecial::No } else { self.skip };
        let Some(token) = self.tokenizer.visible(id, skip) else {
            return String::new();
        };
        match (&mut self.state, &self.tokenizer.decoding) {
            (State::Bytes { pending }, _) => {
                pending.extend_from_slice(&byte_level(token));
                take_complete(pending, Invalid::PerSequence)
            }
            (
                State::Pieces {
                    pending,
                    strip,
                    first,
                },
                Decoding::Pieces(pieces),
            ) => {
                let is_first = std::mem::replace(first, false);
                let text = match pieces.byte(token) {
                    Some(byte) => {
                        pending.push(byte);
                        take_complete(pending, Invalid::PerByte)
                    }
                    None => take_rest(pending) + &piece_text(pieces, token, is_first),
                };
                cut_left(text, pieces, strip)
            }
            (State::Window { ids, read }, _) => {
                ids.push(id);
                window_step(&self.tokenizer, self.skip, ids, read, false)
            }
            // `new` pairs the state with the decoding.
            (State::Pieces { .. }, _) => String::new(),
        }
    }

    /// Ends the stream: what is left of a truncated character becomes U+FFFD.
    pub fn finish(&mut self) -> String {
        match (&mut self.state, &self.tokenizer.decoding) {
            (State::Bytes { pending }, _) => {
                let text = String::from_utf8_lossy(pending).into_owned();
                pending.clear();
                text
            }
            (State::Pieces { pending, strip, .. }, Decoding::Pieces(pieces)) => {
                cut_left(take_rest(pending), pieces, strip)
            }
            (State::Window { ids, read }, _) => {
                window_step(&self.tokenizer, self.skip, ids, read, true)
            }
            (State::Pieces { .. }, _) => String::new(),
        }
    }
}

/// How bytes that can never become UTF-8 are written.
#[derive(Clone, Copy)]
enum Invalid {
    /// One U+FFFD for each maximal invalid sequence, as `String::from_utf8_lossy`.
    PerSequence,
    /// One U+FFFD for each byte, as Hugging Face's byte fallback.
    PerByte,
}

/// Takes everything but the beginning of a character that later bytes may complete.
fn take_complete(pending: &mut Vec<u8>, invalid: Invalid) -> String {
    let mut text = String::new();
    loop {
        match std::str::from_utf8(pending) {
            Ok(valid) => {
                text.push_str(valid);
                pending.clear();
                return text;
            }
            Err(error) => {
                let valid = error.valid_up_to();
                text.push_str(&String::from_utf8_lossy(&pending[..valid]));
                let Some(bad) = error.error_len() else {
                    pending.drain(..valid);
                    return text;
                };
                let marks = match invalid {
                    Invalid::PerSequence => 1,
                    Invalid::PerByte => bad,
                };
                text.extend(std::iter::repeat_n(char::REPLACEMENT_CHARACTER, marks));
                pending.drain(..valid + bad);
            }
        }
    }
}

/// Ends a run of byte tokens.
fn take_rest(pending: &mut Vec<u8>) -> String {
    let marks = pending.len();
    pending.clear();
    std::iter::repeat_n(char::REPLACEMENT_CHARACTER, marks).collect()
}

fn piece_text(pieces: &Pieces, token: &str, is_first: bool) -> String {
    match pieces.first_token_drops {
        Some(mark) if is_first => pieces.text(&token.replace(mark, "")),
        _ => pieces.text(token),
    }
}

fn cut_left(text: String, pieces: &Pieces, strip: &mut usize) -> String {
    let Some((mark, _)) = pieces.strip_left else {
        return text;
    };
    if *strip == 0 || text.is_empty() {
        return text;
    }
    let mut rest = text.as_str();
    while *strip > 0 {
        let Some(shorter) = rest.strip_prefix(mark) else {
            break;
        };
        rest = shorter;
        *strip -= 1;
    }
    if !rest.is_empty() {
        *strip = 0;
    }
    rest.to_owned()
}

/// The technique of two offsets: the context is decoded alone and with the new tokens, the difference is the new text.
fn window_step(
    tokenizer: &Tokenizer,
    skip: SkipSpecial,
    ids: &mut Vec<u32>,
    read: &mut usize,
    flush: bool,
) -> String {
    // A decoder that refuses a window gives nothing; the next window is another.
    let context = tokenizer.decode(&ids[..*read], skip).unwrap_or_default();
    let whole = tokenizer.decode(ids, skip).unwrap_or_default();
    let fresh = whole.get(context.len()..).unwrap_or_default();
    let incomplete = fresh.is_empty() || fresh.ends_with(char::REPLACEMENT_CHARACTER);
    if incomplete && !flush && ids.len() - *read < MAX_HELD {
        return String::new();
    }
    let fresh = fresh.to_owned();
    ids.drain(..*read);
    *read = ids.len();
    fresh
}
