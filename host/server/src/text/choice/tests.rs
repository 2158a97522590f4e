#![allow(clippy::unwrap_used, clippy::panic)]

use super::{ChoiceText, Ending, StopSet, TextParams};
use crate::openai::StopText;
use guesthouse_tokenizer::{GgufVocab, SkipSpecial, Tokenizer};
use std::sync::Arc;

const END: u32 = 7;

fn tokenizer() -> Arc<Tokenizer> {
    // The bytes of é are Ã and © in GPT-2's table.
    let tokens = ["a", "b", "c", "Ã", "©", "Ġ", "ab", "<|end|>"]
        .map(str::to_owned)
        .to_vec();
    let mut token_types = vec![1; 8];
    token_types[END as usize] = 3;
    let vocab = GgufVocab {
        model: "gpt2".into(),
        pre: Some("gpt-2".into()),
        tokens,
        token_types: Some(token_types),
        merges: Some(vec!["a b".into()]),
        eos: Some(END),
        ..GgufVocab::default()
    };
    Arc::new(Tokenizer::from_gguf(vocab).unwrap())
}

fn params(stops: &[&str]) -> TextParams {
    let stops: Vec<String> = stops.iter().map(|&stop| stop.to_owned()).collect();
    TextParams {
        stops: Arc::new(StopSet::new(&stops, StopText::Cut)),
        stop_tokens: vec![END],
        min_tokens: 0,
        skip_special: SkipSpecial::Yes,
        visible: Arc::default(),
    }
}

fn run(params: TextParams, tokens: &[u32]) -> (Vec<String>, Ending, u32) {
    let mut text = ChoiceText::new(&tokenizer(), &Arc::new(params), &[0]);
    let mut shown = Vec::new();
    let mut ending = Ending::Open;
    let mut note = |(part, end): (String, Ending)| {
        shown.push(part);
        if end != Ending::Open {
            ending = end;
        }
    };
    tokens.iter().for_each(|&token| note(text.push(token)));
    note(text.finish());
    (shown, ending, text.tokens())
}

fn parts(list: &[&str]) -> Vec<String> {
    list.iter().map(|&part| part.to_owned()).collect()
}

#[test]
fn half_a_character_waits_and_the_end_marks_it() {
    assert_eq!(
        run(params(&[]), &[0, 3, 4, 3]).0,
        parts(&["a", "", "é", "", "\u{FFFD}"])
    );
}

#[test]
fn the_end_token_is_counted_but_not_shown() {
    let shown = run(params(&[]), &[0, END]);
    assert_eq!(shown, (parts(&["a", "", ""]), Ending::Open, 2));
    let kept = TextParams {
        stops: Arc::new(StopSet::new(&[], StopText::Keep)),
        skip_special: SkipSpecial::No,
        ..params(&[])
    };
    assert_eq!(run(kept, &[0, END]).0, parts(&["a", "<|end|>", ""]));
}

#[test]
fn a_stop_string_spans_tokens_and_ends_the_count() {
    let (shown, ending, tokens) = run(params(&["bca"]), &[6, 2, 6, 0]);
    assert_eq!(shown, parts(&["a", "", "", "", ""]));
    assert_eq!((ending, tokens), (Ending::StopString("bca".into()), 3));
}

#[test]
fn what_only_began_a_stop_string_comes_out_at_the_end() {
    assert_eq!(
        run(params(&["bca"]), &[6, 2, END]).0,
        parts(&["a", "", "", "bc"])
    );
}

#[test]
fn the_mark_of_a_broken_character_may_complete_a_stop_string() {
    let (shown, ending, _) = run(params(&["\u{FFFD}"]), &[0, 3]);
    assert_eq!(
        (shown, ending),
        (parts(&["a", "", ""]), Ending::StopString("\u{FFFD}".into()))
    );
}

#[test]
fn within_min_tokens_stop_strings_do_not_count() {
    let two = TextParams {
        min_tokens: 2,
        ..params(&["a", "bc"])
    };
    let (shown, ending, tokens) = run(two, &[0, 1, 2, 0, 2]);
    assert_eq!(shown, parts(&["a", "b", "c", "", "", ""]));
    assert_eq!((ending, tokens), (Ending::StopString("a".into()), 4));
}
