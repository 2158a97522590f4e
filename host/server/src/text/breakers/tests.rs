#![allow(clippy::unwrap_used)]

use super::BreakingTokens;
use guesthouse_tokenizer::{GgufVocab, Tokenizer};

#[test]
fn tokens_with_a_breaker_anywhere_in_them_break_repetitions() {
    // Ġ is a space in GPT-2's table.
    let tokens = ["a", "b", "c", "Ġ", "ab", "Ġab"].map(str::to_owned);
    let vocab = GgufVocab {
        model: "gpt2".into(),
        pre: Some("gpt-2".into()),
        tokens: tokens.to_vec(),
        token_types: Some(vec![1; 6]),
        merges: Some(vec!["a b".into(), "Ġ ab".into()]),
        ..GgufVocab::default()
    };
    let tokenizer = Tokenizer::from_gguf(vocab).unwrap();
    let breaking = BreakingTokens::default();
    // Ids beyond the tokenizer's are nothing.
    let of = |breakers: &[&str]| {
        let breakers: Vec<String> = breakers.iter().map(ToString::to_string).collect();
        breaking.of(&tokenizer, 8, &breakers).to_vec()
    };
    assert_eq!(of(&["b"]), [1, 4, 5]);
    assert_eq!(of(&[" ", "c"]), [2, 3, 5]);
    assert_eq!(of(&["b"]), [1, 4, 5]);
    assert_eq!(of(&[" a"]), [5]);
    assert!(of(&[]).is_empty() && of(&[""]).is_empty());
}
