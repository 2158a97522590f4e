#![allow(clippy::unwrap_used, clippy::panic)]

use crate::Tokenizer;

/// A field with a length.
fn bytes(field: u8, content: &[u8]) -> Vec<u8> {
    let mut length = content.len();
    let mut out = vec![field << 3 | 2];
    while length > 0x7f {
        out.push((length & 0x7f) as u8 | 0x80);
        length >>= 7;
    }
    out.push(u8::try_from(length).unwrap());
    out.extend(content);
    out
}

fn number(field: u16, value: u8) -> Vec<u8> {
    let tag = field << 3;
    if tag < 0x80 {
        vec![u8::try_from(tag).unwrap(), value]
    } else {
        vec![(tag & 0x7f) as u8 | 0x80, (tag >> 7) as u8, value]
    }
}

/// A piece; kinds: 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte.
fn piece(text: &str, score: f32, kind: u8) -> Vec<u8> {
    let score = [[2 << 3 | 5].as_slice(), &score.to_le_bytes()].concat();
    bytes(
        1,
        &[bytes(1, text.as_bytes()), score, number(3, kind)].concat(),
    )
}

/// `model_type`: 1 unigram, 2 BPE.
fn model(pieces: &[Vec<u8>], model_type: u8) -> Vec<u8> {
    // No dummy prefix, white space as it is.
    let normalizer = [number(3, 0), number(4, 0)].concat();
    [
        pieces.concat(),
        bytes(2, &number(3, model_type)),
        bytes(3, &normalizer),
    ]
    .concat()
}

fn ids(model: &[u8], text: &str) -> Vec<u32> {
    Tokenizer::from_model_bytes(model)
        .unwrap()
        .encode_text(text)
        .unwrap()
}

fn refused(model: &[u8]) -> String {
    let error = Tokenizer::from_model_bytes(model).unwrap_err();
    assert_eq!(error.label(), "sentencepiece", "{error}");
    error.to_string()
}

/// By hand: "ab" + "c" scores -3, "a" + "bc" -2.5, "abc" is only for show.
#[test]
fn unigram_takes_the_best_sum() {
    let pieces = [
        piece("<unk>", 0.0, 2),
        piece("a", -1.0, 1),
        piece("c", -1.0, 1),
        piece("ab", -2.0, 1),
        piece("bc", -1.5, 1),
        piece("abc", -9.0, 1),
    ];
    let m = model(&pieces, 1);
    assert_eq!(ids(&m, "abc"), [1, 4]);
    assert_eq!(ids(&m, "ab"), [3]);
    assert_eq!(
        ids(&m, "xya"),
        [0, 1],
        "a run of unknown characters is one token"
    );
    assert_eq!(ids(&m, "a a"), [1, 0, 1]);
}

/// An unused piece leads to the longer one, and is taken apart where it stays.
#[test]
fn unused_pieces_are_steps() {
    let pieces = [
        piece("<unk>", 0.0, 2),
        piece("a", -9.0, 1),
        piece("b", -9.0, 1),
        piece("c", -9.0, 1),
        piece("ab", -1.0, 5),
        piece("abc", -2.0, 1),
    ];
    let m = model(&pieces, 2);
    assert_eq!(ids(&m, "abc"), [5]);
    assert_eq!(ids(&m, "ab"), [1, 2]);
    assert_eq!(ids(&m, "abab"), [1, 2, 1, 2]);
}

#[test]
fn user_defined_pieces_are_found_first_and_never_merged() {
    let pieces = [
        piece("<unk>", 0.0, 2),
        piece("a", -9.0, 1),
        piece("b", -9.0, 1),
        piece("aa", -1.0, 1),
        piece("ba", -20.0, 4),
    ];
    assert_eq!(ids(&model(&pieces, 2), "aabaa"), [3, 4, 1]);
    assert_eq!(ids(&model(&pieces, 1), "aabaa"), [3, 4, 1]);
}

#[test]
fn damaged_models_are_refused() {
    let unk = piece("<unk>", 0.0, 2);
    let good = model(&[unk.clone(), piece("a", 0.0, 1)], 1);
    assert_eq!(ids(&good, "a"), [1]);
    for end in 1..good.len() {
        // Never a panic; a prefix that ends between fields may still be a model.
        let _ = Tokenizer::from_model_bytes(&good[..end]);
    }
    assert!(refused(b"").contains("no pieces"));
    assert!(refused(&good[..5]).contains("beyond the end"));
    assert!(
        refused(&[0x0a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f])
            .contains("beyond the end")
    );
    assert!(refused(&[0xff; 12]).contains("more than 10 bytes"));
    assert!(refused(&[0x0b]).contains("wire type 3"));
    let twice = [unk.clone(), piece("a", 0.0, 1), piece("a", 0.0, 4)];
    assert!(refused(&model(&twice, 1)).contains("\"a\" is there twice"));
    assert!(refused(&model(&[piece("a", 0.0, 1)], 1)).contains("no piece is of type unknown"));
    let two = [unk.clone(), piece("<u>", 0.0, 2)];
    assert!(refused(&model(&two, 1)).contains("two pieces"));
    assert!(refused(&model(&[unk.clone(), piece("", 0.0, 1)], 1)).contains("piece 1 is empty"));
    assert!(refused(&model(&[unk.clone(), piece("a", f32::NAN, 1)], 1)).contains("NaN"));
    assert!(refused(&model(&[unk.clone(), piece("a", 0.0, 9)], 1)).contains("type 9"));
    assert!(refused(&model(std::slice::from_ref(&unk), 3)).contains("Word"));
    let long = piece(&"a".repeat(5000), 0.0, 1);
    assert!(refused(&model(&[unk.clone(), long], 1)).contains("5000 bytes"));
    let mut fallback = model(&[unk], 1);
    fallback.extend(bytes(2, &number(35, 1)));
    assert!(refused(&fallback).contains("no piece <0x00>"));
}

#[test]
fn damaged_rules_are_refused_or_harmless() {
    let with = |map: &[u8]| {
        let mut m = model(&[piece("<unk>", 0.0, 2), piece("a", 0.0, 1)], 1);
        m.extend(bytes(3, &bytes(2, map)));
        m
    };
    assert!(refused(&with(&[1, 0])).contains("length is missing"));
    assert!(refused(&with(&[8, 0, 0, 0, 1])).contains("beyond its end"));
    assert!(refused(&with(&[3, 0, 0, 0, 1, 2, 3])).contains("whole units"));
    // Units that lead to themselves or far outside end the search.
    for unit in [0u32, u32::MAX, 0x0000_0361, 0x8000_0000, 0x7fff_ff61] {
        let map = [&4u32.to_le_bytes(), unit.to_le_bytes().as_slice(), b"x"].concat();
        let found = ids(&with(&map), &"a".repeat(100));
        assert!(!found.is_empty());
    }
}
