#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::HashMap;

use tokenizers::AddedToken;

use super::{AddedTokens, Literals, Placed};

fn tokens(list: &[AddedToken]) -> AddedTokens {
    let by_id: HashMap<_, _> = (0..).zip(list.iter().cloned()).collect();
    AddedTokens::new(by_id, None).unwrap()
}

fn special(content: &str) -> AddedToken {
    AddedToken::from(content, true)
}

fn cut(
    tokens: &AddedTokens,
    text: &str,
    placed: &[Placed],
    literals: Literals,
) -> Vec<(String, Option<u32>)> {
    tokens
        .cut_raw(text, placed, literals)
        .into_iter()
        .map(|piece| (text[piece.range].to_owned(), piece.id))
        .collect()
}

fn texts(pieces: &[(&str, Option<u32>)]) -> Vec<(String, Option<u32>)> {
    pieces
        .iter()
        .map(|(text, id)| ((*text).to_owned(), *id))
        .collect()
}

#[test]
fn the_longest_of_the_leftmost_wins() {
    let t = tokens(&[special("<a>"), special("<a><b>"), special("b>")]);
    let found = cut(&t, "x<a><b>y<a>", &[], Literals::All);
    assert_eq!(
        found,
        texts(&[
            ("x", None),
            ("<a><b>", Some(1)),
            ("y", None),
            ("<a>", Some(0))
        ])
    );
}

#[test]
fn control_literals_are_text_unless_asked_for() {
    let t = tokens(&[special("<a>"), special("<b>").special(false)]);
    let found = cut(&t, "<a><b>", &[], Literals::NoControl);
    assert_eq!(found, texts(&[("<a>", None), ("<b>", Some(1))]));
}

#[test]
fn a_placed_token_counts_where_it_stands_and_nowhere_else() {
    let t = tokens(&[special("<a>"), special("<a><").special(false)]);
    let placed = [Placed { range: 3..6, id: 0 }];
    let found = cut(&t, "<a><a><a>", &placed, Literals::NoControl);
    assert_eq!(
        found,
        texts(&[("<a>", None), ("<a>", Some(0)), ("<a>", None)])
    );
}

#[test]
fn tokens_take_the_white_space_they_strip() {
    let t = tokens(&[
        special("<m>").lstrip(true).rstrip(true),
        special("<n>").lstrip(true),
    ]);
    let found = cut(&t, "a \u{3000}<m> \n <n>  b", &[], Literals::All);
    assert_eq!(
        found,
        texts(&[
            ("a", None),
            (" \u{3000}<m> \n ", Some(0)),
            ("<n>", Some(1)),
            ("  b", None)
        ])
    );
}

#[test]
fn single_words_stand_alone() {
    let t = tokens(&[special("ab")
        .special(false)
        .normalized(false)
        .single_word(true)]);
    let found = cut(&t, "ab cab ab\u{301} _ab ab", &[], Literals::NoControl);
    assert_eq!(
        found,
        texts(&[
            ("ab", Some(0)),
            (" cab ab\u{301} _ab ", None),
            ("ab", Some(0))
        ])
    );
}
