//! The bytes of a model's tokens, as the matcher needs them.

use crate::GrammarError;
use guesthouse_engine::TokenId;
use guesthouse_tokenizer::Tokenizer;
use std::sync::Arc;
use toktrie::{INVALID_TOKEN, TokRxInfo, TokTrie, TokenizerEnv};

/// Longer tokens are never allowed: the trie counts a node's ancestors in ten bits.
const MAX_TOKEN_BYTES: usize = 1000;
/// Ids that the trie can hold.
const MAX_TOKENS: usize = 1 << 21;

/// A trie of all tokens, and the tokenizer for what a grammar forces.
pub(crate) struct Vocabulary {
    trie: TokTrie,
    tokenizer: Arc<Tokenizer>,
    /// Text that no merge crosses, with the tokens that it begins with.
    lead: Option<Lead>,
}

/// See [`Vocabulary::lead`]: SentencePiece puts a space before the first word, here it stands before the newline.
struct Lead {
    text: &'static str,
    tokens: Vec<TokenId>,
}

impl Vocabulary {
    /// `size` is the width of the model's logits.
    pub(crate) fn new(tokenizer: Arc<Tokenizer>, size: usize) -> Result<Self, GrammarError> {
        if !tokenizer.tells_bytes() {
            return Err(GrammarError::Vocabulary(
                "its tokenizer's decoder is neither byte-level nor SentencePiece, so tokens have no bytes of their own"
                    .into(),
            ));
        }
        if size == 0 || size > MAX_TOKENS {
            return Err(GrammarError::Vocabulary(format!(
                "its vocabulary has {size} tokens; 1 to {MAX_TOKENS} are supported"
            )));
        }
        let ids = 0..u32::try_from(size).unwrap_or(u32::MAX);
        let words: Vec<Vec<u8>> = ids.map(|id| word(&tokenizer, id)).collect();
        let info = TokRxInfo {
            vocab_size: u32::try_from(size).unwrap_or(u32::MAX),
            // Stop tokens are each request's own.
            tok_eos: INVALID_TOKEN,
            tok_bos: None,
            tok_pad: None,
            tok_unk: None,
            tok_end_of_turn: None,
        };
        let trie = std::panic::catch_unwind(|| TokTrie::from(&info, &words)).map_err(|_| {
            GrammarError::Vocabulary("its tokens do not fit the matcher's trie".into())
        })?;
        let lead = tokenizer
            .encode_text("\n")
            .ok()
            .map(|tokens| Lead { text: "\n", tokens });
        Ok(Self {
            trie,
            tokenizer,
            lead,
        })
    }

    fn spells(&self, tokens: &[TokenId], text: &[u8]) -> bool {
        let mut rest = text;
        for &token in tokens {
            if token as usize >= self.trie.vocab_size() || self.trie.is_special_token(token) {
                return false;
            }
            match rest.strip_prefix(self.trie.token(token)) {
                Some(after) if after.len() < rest.len() => rest = after,
                _ => return false,
            }
        }
        rest.is_empty()
    }

    /// The tokens that the tokenizer makes of a text in the middle of another.
    fn canonical(&self, text: &str) -> Option<Vec<TokenId>> {
        let plain = self.tokenizer.encode_text(text).ok()?;
        if self.spells(&plain, text.as_bytes()) {
            return Some(plain);
        }
        let lead = self.lead.as_ref()?;
        let led = self
            .tokenizer
            .encode_text(&format!("{}{text}", lead.text))
            .ok()?;
        let rest = led.strip_prefix(lead.tokens.as_slice())?;
        self.spells(rest, text.as_bytes()).then(|| rest.to_vec())
    }
}

/// Control tokens begin with a byte that is never in UTF-8. Ids without a token, and tokens with that byte, have no bytes.
fn word(tokenizer: &Tokenizer, id: TokenId) -> Vec<u8> {
    let special = |text: &[u8]| [&[TokTrie::SPECIAL_TOKEN_MARKER], text].concat();
    if tokenizer.is_control(id) || tokenizer.unk_id() == Some(id) {
        let literal = tokenizer.id_to_token(id).unwrap_or_default();
        return if literal.is_empty() || literal.len() > MAX_TOKEN_BYTES {
            Vec::new()
        } else {
            special(literal.as_bytes())
        };
    }
    let bytes = tokenizer.token_bytes(id);
    if bytes.len() > MAX_TOKEN_BYTES || bytes.contains(&TokTrie::SPECIAL_TOKEN_MARKER) {
        return Vec::new();
    }
    bytes
}

impl TokenizerEnv for Vocabulary {
    fn tok_trie(&self) -> &TokTrie {
        &self.trie
    }

    fn tokenize_bytes(&self, bytes: &[u8]) -> Vec<TokenId> {
        let text = match std::str::from_utf8(bytes) {
            Ok(text) => text,
            Err(error) => std::str::from_utf8(&bytes[..error.valid_up_to()]).unwrap_or_default(),
        };
        let mut tokens = self
            .canonical(text)
            .unwrap_or_else(|| self.trie.greedy_tokenize(text.as_bytes()));
        tokens.extend(self.trie.greedy_tokenize(&bytes[text.len()..]));
        tokens
    }

    /// What a text is encoded to is what is forced.
    fn tokenize_is_canonical(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests;
