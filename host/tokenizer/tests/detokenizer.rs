//! Properties of the streaming decoder.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    missing_docs,
    unreachable_pub,
    dead_code
)]

mod common;

use std::sync::{Arc, LazyLock};

use common::{bpe_gguf, hf_fixtures, spm_gguf};
use guesthouse_tokenizer::{AddSpecial, Detokenizer, SkipSpecial, Tokenizer};
use proptest::prelude::*;

const FFFD: char = char::REPLACEMENT_CHARACTER;

static ALL: LazyLock<Vec<(&'static str, Arc<Tokenizer>)>> = LazyLock::new(all);

fn all() -> Vec<(&'static str, Arc<Tokenizer>)> {
    let mut all: Vec<_> = hf_fixtures()
        .into_iter()
        .map(|(name, json, _)| (name, Tokenizer::from_json_bytes(json.as_bytes()).unwrap()))
        .collect();
    all.push((
        "gguf bpe",
        Tokenizer::from_gguf(bpe_gguf("smollm")).unwrap(),
    ));
    all.push(("gguf spm", Tokenizer::from_gguf(spm_gguf()).unwrap()));
    all.into_iter()
        .map(|(name, t)| (name, Arc::new(t)))
        .collect()
}

fn pieces(
    tokenizer: &Arc<Tokenizer>,
    prompt: &[u32],
    ids: &[u32],
    skip: SkipSpecial,
) -> Vec<String> {
    let mut stream = Detokenizer::new(tokenizer, skip).with_prompt(prompt);
    let mut pieces: Vec<String> = ids.iter().map(|id| stream.push(*id)).collect();
    pieces.push(stream.finish());
    pieces
}

fn text() -> impl Strategy<Value = String> {
    let part = prop_oneof![
        4 => "[ a-zA-Z0-9.,!?'\n\t]{0,8}",
        2 => prop::sample::select(vec![
            "👨‍👩‍👧‍👦", "🏳️‍🌈", "👍🏽", "🇫🇷", "你好世界", "日本語", "안녕", "नमस्ते", "ไทย", "e\u{301}", "\u{10ffff}", "▁", "  ", " ",
            "the quick brown", "<think>", "Привет", "\u{0}", "ß", "مرحبا",
        ]).prop_map(str::to_owned),
        1 => any::<String>(),
    ];
    prop::collection::vec(part, 0..8).prop_map(|parts| parts.concat())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn byte_level_text_survives_the_round_trip(text in text()) {
        for (name, tokenizer) in ALL.iter().filter(|(name, _)| name.ends_with("bpe")) {
            let ids = tokenizer.encode_text(&text).unwrap();
            prop_assert_eq!(&tokenizer.decode(&ids, SkipSpecial::No).unwrap(), &text, "{}", name);
            prop_assert_eq!(ids.iter().flat_map(|id| tokenizer.token_bytes(*id)).collect::<Vec<_>>(), text.as_bytes());
        }
    }

    #[test]
    fn a_streamed_text_is_the_decoded_text(text in text()) {
        let wanted = text.contains(FFFD);
        for (name, tokenizer) in ALL.iter() {
            let ids = tokenizer.encode_raw(&text, AddSpecial::Yes).unwrap();
            for skip in [SkipSpecial::Yes, SkipSpecial::No] {
                let pieces = pieces(tokenizer, &[], &ids, skip);
                prop_assert_eq!(pieces.concat(), tokenizer.decode(&ids, skip).unwrap(), "{}", name);
                prop_assert!(wanted || !pieces.iter().any(|piece| piece.contains(FFFD)), "{}", name);
                prop_assert!(pieces.last().unwrap().is_empty(), "all was given out before the end");
            }
        }
    }

    #[test]
    fn a_prompt_gives_the_rest_of_the_decoded_text(prompt in text(), text in text()) {
        for (name, tokenizer) in ALL.iter() {
            let prompt = tokenizer.encode_raw(&prompt, AddSpecial::Yes).unwrap();
            let ids = tokenizer.encode_text(&text).unwrap();
            let whole = tokenizer.decode(&[prompt.clone(), ids.clone()].concat(), SkipSpecial::Yes).unwrap();
            let before = tokenizer.decode(&prompt, SkipSpecial::Yes).unwrap();
            let streamed = pieces(tokenizer, &prompt, &ids, SkipSpecial::Yes).concat();
            prop_assert_eq!(before + &streamed, whole, "{}", name);
        }
    }

    #[test]
    fn any_ids_stream_as_they_decode(seed in prop::collection::vec(any::<u32>(), 0..40)) {
        for (name, tokenizer) in ALL.iter() {
            let size = u32::try_from(tokenizer.vocab_size()).unwrap();
            // A few ids beyond the vocabulary too.
            let ids: Vec<u32> = seed.iter().map(|id| id % (size + 5)).collect();
            let streamed = pieces(tokenizer, &[], &ids, SkipSpecial::No).concat();
            let decoded = tokenizer.decode(&ids, SkipSpecial::No).unwrap();
            let expected = match *name {
                "gguf bpe" | "bpe" | "metaspace" => decoded,
                _ => reference(tokenizer, &ids, *name != "gemma"),
            };
            prop_assert_eq!(streamed, expected, "{}", name);
        }
    }
}

/// Byte-fallback decoding that keeps the complete characters of a run with invalid bytes.
fn reference(tokenizer: &Tokenizer, ids: &[u32], strips: bool) -> String {
    let mut text = String::new();
    let mut run = Vec::new();
    let flush = |run: &mut Vec<u8>, text: &mut String| {
        for chunk in run.utf8_chunks() {
            text.push_str(chunk.valid());
            text.extend(chunk.invalid().iter().map(|_| FFFD));
        }
        run.clear();
    };
    for &id in ids {
        let Some(token) = tokenizer.id_to_token(id) else {
            continue;
        };
        match token.strip_prefix("<0x").and_then(|t| t.strip_suffix('>')) {
            Some(digits) => run.push(u8::from_str_radix(digits, 16).unwrap()),
            None => {
                flush(&mut run, &mut text);
                text.push_str(&String::from_utf8(tokenizer.token_bytes(id)).unwrap());
            }
        }
    }
    flush(&mut run, &mut text);
    match text.strip_prefix(' ') {
        Some(rest) if strips => rest.to_owned(),
        _ => text,
    }
}

/// Truncated characters end as U+FFFD, and only at the end.
#[test]
fn a_truncated_character_is_flushed() {
    let tokenizer = Arc::new(Tokenizer::from_gguf(bpe_gguf("gpt-2")).unwrap());
    let [a, b, c] = ["ð", "Ł", "Ĵ"].map(|token| tokenizer.token_to_id(token).unwrap());
    // U+1F600 is F0 9F 98 80; in GPT-2's table 9F is U+0141 and 98 is U+013A.
    assert_eq!(tokenizer.token_bytes(a), [0xf0]);
    assert_eq!(tokenizer.token_bytes(b), [0x9f]);
    assert_eq!(tokenizer.token_bytes(c), [0x92]);
    let mut stream = Detokenizer::new(&tokenizer, SkipSpecial::No);
    assert_eq!(stream.push(a), "");
    assert_eq!(stream.push(b), "");
    assert_eq!(stream.finish(), "\u{fffd}");
    assert_eq!(
        stream.push(b),
        "\u{fffd}",
        "a continuation byte alone can never become a character"
    );
    let bytes: Vec<u32> = ["ð", "Ł", "ĺ", "Ģ"]
        .iter()
        .map(|t| tokenizer.token_to_id(t).unwrap())
        .collect();
    let out: Vec<String> = bytes.iter().map(|id| stream.push(*id)).collect();
    assert_eq!(out, ["", "", "", "😀"]);
}

/// A model with a prefix space: the first token of an answer keeps its space, the first of a text does not.
#[test]
fn the_prefix_space_depends_on_the_prompt() {
    let tokenizer = Arc::new(Tokenizer::from_gguf(spm_gguf()).unwrap());
    let the = tokenizer.token_to_id("▁the").unwrap();
    let prompt = tokenizer.encode_text("of").unwrap();
    assert_eq!(
        Detokenizer::new(&tokenizer, SkipSpecial::Yes).push(the),
        "the"
    );
    let mut stream = Detokenizer::new(&tokenizer, SkipSpecial::Yes).with_prompt(&prompt);
    assert_eq!(stream.push(the), " the");
    let mut stream = Detokenizer::new(&tokenizer, SkipSpecial::Yes).with_prompt(&[1]);
    assert_eq!(stream.push(the), "the", "BOS alone is no text");
}

/// A parser may need to see some control tokens where all others are left out.
#[test]
fn visible_control_tokens_are_written() {
    for (name, json, _) in hf_fixtures() {
        let tokenizer = Arc::new(Tokenizer::from_json_bytes(json.as_bytes()).unwrap());
        let id = |literal: &str| tokenizer.token_to_id(literal).unwrap();
        let (start, end) = (id("<|im_start|>"), id("<|im_end|>"));
        let hello = tokenizer.encode_text("Hello").unwrap();
        let ids = [&[start], hello.as_slice(), &[end, start], &hello].concat();
        let mut stream =
            Detokenizer::new(&tokenizer, SkipSpecial::Yes).with_visible(&Arc::from([end]));
        let mut text: String = ids.iter().map(|id| stream.push(*id)).collect();
        text.push_str(&stream.finish());
        assert_eq!(text.replace(' ', ""), "Hello<|im_end|>Hello", "{name}");
    }
}
