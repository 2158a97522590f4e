#![allow(clippy::unwrap_used, clippy::panic)]

use super::{base64, is_table, read, spelling};
use crate::{Tokenizer, TokenizerError};

/// The 256 bytes, so that a table is complete.
fn bytes() -> String {
    let alphabet: Vec<char> = ('A'..='Z')
        .chain('a'..='z')
        .chain('0'..='9')
        .chain(['+', '/'])
        .collect();
    let encoded = |b: usize| {
        [alphabet[b >> 2], alphabet[(b & 3) << 4]]
            .iter()
            .collect::<String>()
    };
    (0..256)
        .map(|b| format!("{}== {b}\n", encoded(b)))
        .collect()
}

fn refused(table: &str) -> String {
    match read(table.as_bytes(), Some("\\S+|\\s+")) {
        Err(error @ (TokenizerError::Table { .. } | TokenizerError::TooLarge { .. })) => {
            error.to_string()
        }
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("accepted"),
    }
}

/// The test vectors of RFC 4648, section 10.
#[test]
fn base64_is_that_of_the_rfc() {
    for (text, bytes) in [
        ("", ""),
        ("Zg==", "f"),
        ("Zm8=", "fo"),
        ("Zm9v", "foo"),
        ("Zm9vYg==", "foob"),
        ("Zm9vYmE=", "fooba"),
        ("Zm9vYmFy", "foobar"),
    ] {
        assert_eq!(base64(text.as_bytes()).unwrap(), bytes.as_bytes());
    }
    for bad in ["Z", "Zg=a", "Z-9v", "Zg===", "Zm9vZ"] {
        assert_eq!(base64(bad.as_bytes()), None, "{bad}");
    }
}

#[test]
fn every_byte_has_its_own_spelling() {
    let mut all: Vec<char> = (0..=u8::MAX).map(spelling).collect();
    for (byte, c) in (0..=u8::MAX).zip(&all) {
        assert_eq!(crate::decode::byte_level(&c.to_string()), [byte]);
    }
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), 256);
}

/// By hand: "abc" merges its lowest rank first, and a word that is a token is not merged at all.
#[test]
fn lowest_rank_first_but_whole_words_at_once() {
    let rank = |token: &str, rank: u32| {
        let text = match token {
            "bc" => "YmM=",
            "ab" => "YWI=",
            "abcd" => "YWJjZA==",
            other => panic!("{other}"),
        };
        format!("{text} {rank}\n")
    };
    let table = bytes() + &rank("bc", 256) + &rank("ab", 257) + &rank("abcd", 258);
    let base = read(table.as_bytes(), Some("\\w+|\\W+")).unwrap();
    let settings = crate::files::Settings::default();
    let parts = base.parts(&settings, &std::collections::HashMap::new());
    let tokenizer = Tokenizer::from_parts(parts).unwrap();
    assert_eq!(tokenizer.encode_text("abc").unwrap(), [97, 256]);
    assert_eq!(tokenizer.encode_text("ab").unwrap(), [257]);
    // "a", "bc", "d" has no further pair, yet the word is a token.
    assert_eq!(tokenizer.encode_text("abcd").unwrap(), [258]);
    assert_eq!(tokenizer.encode_text("abcd!").unwrap(), [258, 33]);
}

#[test]
fn damaged_tables_are_refused() {
    let table = bytes();
    assert!(is_table(table.as_bytes()));
    assert!(!is_table(b"\x0a\x0f\x0a\x05<unk>\x15\0\0\0\0\x18\x02"));
    assert!(!is_table(b""));
    assert!(refused(&(table.clone() + "YWI= 7\n")).contains("line 257: rank 7 is there twice"));
    assert!(refused(&(table.clone() + "YQ== 256\n")).contains("twice"));
    assert!(refused(&(table.clone() + "YWI=\n")).contains("line 257: expected Base64"));
    assert!(refused(&(table.clone() + "YW!= 256\n")).contains("line 257"));
    assert!(refused(&(table.clone() + " 256\n")).contains("has 0 bytes"));
    assert!(refused(&(table.clone() + "YWI= -1\n")).contains("line 257"));
    assert!(refused(&(table.clone() + "YWI= 4294967295\n")).contains("limit"));
    assert!(refused(&(table.clone() + "YWI= 99999999999999999999999\n")).contains("line 257"));
    let without = table.replacen("AA== 0\n", "", 1);
    assert!(refused(&without).contains("no token for the byte 0x00"));
}

#[test]
fn a_table_of_unknown_size_needs_a_pattern() {
    let error = Tokenizer::from_model_bytes(bytes().as_bytes()).unwrap_err();
    assert_eq!(error.label(), "unknown_table");
    assert!(error.to_string().contains("\"pat_str\""), "{error}");
    let Err(error) = read(bytes().as_bytes(), Some("(unclosed")) else {
        panic!("accepted")
    };
    assert_eq!(error.label(), "build");
}
