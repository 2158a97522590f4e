#![allow(clippy::unwrap_used, clippy::panic)]

use super::*;
use crate::testing::{WORDS, tokenizer};
use guesthouse_tokenizer::GgufVocab;

#[test]
fn words_are_bytes_and_control_tokens_are_apart() {
    let tokenizer = tokenizer(WORDS);
    let size = tokenizer.vocab_size();
    let vocabulary = Vocabulary::new(Arc::clone(&tokenizer), size + 3).unwrap();
    let trie = vocabulary.tok_trie();
    assert_eq!(trie.vocab_size(), size + 3);
    assert_eq!(trie.token(0), b"\xff<|end|>");
    assert!(trie.is_special_token(1));
    for byte in 0..=254_u8 {
        assert_eq!(trie.token(2 + u32::from(byte)), [byte]);
    }
    // A byte that is in no text would be taken for a mark.
    assert!(trie.token(2 + 255).is_empty());
    assert!(trie.token(u32::try_from(size).unwrap()).is_empty());
    let id = tokenizer.token_to_id("hello").unwrap();
    assert_eq!(trie.token(id), b"hello");
    let text = "hello 日本 true\u{1F600}";
    assert_eq!(
        vocabulary.tokenize_bytes(text.as_bytes()),
        tokenizer.encode_text(text).unwrap()
    );
    // Half a character is written by what there is: here a token of its two bytes.
    let tokens = vocabulary.tokenize_bytes(b"a\xe6\x97\xe6");
    let words: Vec<&[u8]> = tokens.iter().map(|token| trie.token(*token)).collect();
    assert_eq!(words, [b"a".as_slice(), b"\xe6\x97", b"\xe6"]);
}

/// A SentencePiece vocabulary with byte fallback, as Llama's: a space stands before the first word of a text.
fn pieces() -> Arc<Tokenizer> {
    let mut tokens = vec!["<unk>".to_owned(), "<s>".into(), "</s>".into()];
    let mut token_types = vec![2, 3, 3];
    for byte in 0..=255 {
        tokens.push(format!("<0x{byte:02X}>"));
        token_types.push(6);
    }
    let mut scores = vec![0.0; tokens.len()];
    for (at, piece) in ["▁", "a", "b", "ab", "▁ab", "▁a", "é"].iter().enumerate() {
        tokens.push((*piece).into());
        token_types.push(1);
        scores.push(-(at as f32));
    }
    Arc::new(
        Tokenizer::from_gguf(GgufVocab {
            model: "llama".into(),
            tokens,
            token_types: Some(token_types),
            scores: Some(scores),
            eos: Some(2),
            bos: Some(1),
            unk: Some(0),
            ..GgufVocab::default()
        })
        .unwrap(),
    )
}

#[test]
fn pieces_have_their_bytes_and_no_space_comes_from_nowhere() {
    let tokenizer = pieces();
    let size = tokenizer.vocab_size();
    let vocabulary = Vocabulary::new(Arc::clone(&tokenizer), size).unwrap();
    let trie = vocabulary.tok_trie();
    assert!((0..3).all(|id| trie.is_special_token(id)));
    assert_eq!(trie.token(3 + 0x41), b"A");
    assert_eq!(trie.token(259), b" ");
    assert_eq!(trie.token(263), b" ab");
    assert_eq!(trie.token(265), "é".as_bytes());
    for text in ["ab", " ab", "aab", "é", "日", "ab ab", ""] {
        let tokens = vocabulary.tokenize_bytes(text.as_bytes());
        let bytes: Vec<u8> = tokens
            .iter()
            .flat_map(|t| trie.token(*t).to_vec())
            .collect();
        assert_eq!(bytes, text.as_bytes(), "{text:?}: {tokens:?}");
    }
    assert_eq!(vocabulary.tokenize_bytes(b"ab ab"), [262, 263]);
}

#[test]
fn vocabularies_that_do_not_fit_are_errors() {
    for size in [0, MAX_TOKENS + 1] {
        let error = Vocabulary::new(tokenizer(&[]), size).err().unwrap();
        assert_eq!(error.label(), "vocabulary");
    }
}
