//! Vocabularies and walks for tests.

#![allow(clippy::unwrap_used, clippy::panic)]

use crate::{GrammarCompiler, GrammarError, Limits};
use guesthouse_engine::{Constraint, TokenId};
use guesthouse_tokenizer::{GgufVocab, Tokenizer};
use std::sync::Arc;

/// GPT-2's character for a byte.
pub(crate) fn byte_char(byte: u8) -> char {
    let printable = |b: u8| matches!(b, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    if printable(byte) {
        return char::from(byte);
    }
    let before = (0..byte).filter(|b| !printable(*b)).count();
    char::from_u32(0x100 + u32::try_from(before).unwrap()).unwrap()
}

fn spelled(bytes: &[u8]) -> String {
    bytes.iter().map(|b| byte_char(*b)).collect()
}

/// Token 0 ends, 1 is another control token, then all bytes, then these words, which merges make.
pub(crate) fn tokenizer(words: &[&str]) -> Arc<Tokenizer> {
    let mut tokens = vec!["<|end|>".to_owned(), "<|tool|>".to_owned()];
    tokens.extend((0..=255).map(|b| spelled(&[b])));
    let mut merges = Vec::new();
    for word in words {
        let bytes = word.as_bytes();
        for end in 2..=bytes.len() {
            let token = spelled(&bytes[..end]);
            if !tokens.contains(&token) {
                merges.push(format!(
                    "{} {}",
                    spelled(&bytes[..end - 1]),
                    spelled(&bytes[end - 1..end])
                ));
                tokens.push(token);
            }
        }
    }
    let mut token_types = vec![1; tokens.len()];
    token_types[..2].fill(3);
    Arc::new(
        Tokenizer::from_gguf(GgufVocab {
            model: "gpt2".into(),
            pre: Some("gpt-2".into()),
            tokens,
            token_types: Some(token_types),
            merges: Some(merges),
            eos: Some(0),
            ..GgufVocab::default()
        })
        .unwrap(),
    )
}

pub(crate) const END: TokenId = 0;

/// Common English and JSON pieces.
pub(crate) const WORDS: &[&str] = &[
    "true",
    "false",
    "null",
    "name",
    "\":",
    "\",",
    "{\"",
    "\"}",
    "},",
    "[{",
    " \"",
    "age",
    "type",
    "hello",
    "123",
    "0.5",
    "é",
    "日本",
    "  ",
    "\n",
    "<func",
    "<function=",
    "call",
    "abc",
    "bcd",
];

pub(crate) fn compiler() -> GrammarCompiler {
    let tokenizer = tokenizer(WORDS);
    let size = tokenizer.vocab_size();
    // Logits may be wider than the vocabulary.
    GrammarCompiler::new(tokenizer, size + 7, Limits::default())
}

pub(crate) fn start(
    compiler: &GrammarCompiler,
    syntax: &str,
    source: &str,
) -> Result<Box<dyn Constraint>, GrammarError> {
    compiler.compile(syntax, source, &[END])
}

pub(crate) fn allowed(follower: &mut Box<dyn Constraint>, size: usize) -> Vec<TokenId> {
    let mut words = vec![u32::MAX; size.div_ceil(32)];
    follower.mask(&mut words).unwrap();
    (0..words.len() as u32 * 32)
        .filter(|t| words[*t as usize / 32] >> (t % 32) & 1 == 1)
        .collect()
}

/// xorshift64*.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % limit
    }
}

/// A random output: any allowed token, and the end at once where it is allowed after `enough` tokens. None where it did not
/// end in time.
pub(crate) fn walk(
    compiler: &GrammarCompiler,
    tokenizer: &Tokenizer,
    grammar: (&str, &str),
    seed: u64,
) -> Option<Vec<u8>> {
    let mut follower = start(compiler, grammar.0, grammar.1).unwrap();
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let enough = random.below(12);
    let mut text = Vec::new();
    for step in 0..400 {
        let allowed = allowed(&mut follower, tokenizer.vocab_size() + 7);
        assert!(!allowed.is_empty());
        let token = if step >= enough && allowed.contains(&END) {
            END
        } else {
            allowed[random.below(allowed.len())]
        };
        follower.accept(token).unwrap_or_else(|e| {
            panic!(
                "token {token} after {:?}: {e}",
                String::from_utf8_lossy(&text)
            )
        });
        if token == END {
            return Some(text);
        }
        assert!(!tokenizer.is_control(token));
        text.extend(tokenizer.token_bytes(token));
    }
    None
}

/// Whether an output is allowed, byte by byte.
pub(crate) fn accepts(compiler: &GrammarCompiler, syntax: &str, source: &str, text: &str) -> bool {
    let mut follower = start(compiler, syntax, source).unwrap();
    for byte in text.bytes() {
        if follower.accept(2 + u32::from(byte)).is_err() {
            return false;
        }
    }
    follower.accept(END).is_ok()
}
