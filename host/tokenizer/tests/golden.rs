//! Ids and texts equal those of Hugging Face's `tokenizers` and of `sentencepiece`.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    missing_docs,
    unreachable_pub,
    dead_code
)]

mod common;

use std::collections::BTreeMap;
use std::sync::Arc;

use common::{Golden, bpe_gguf, hf_fixtures, load, segments, spm_gguf};
use guesthouse_tokenizer::{AddSpecial, Detokenizer, Segment, SkipSpecial, Tokenizer};
use serde::Deserialize;

fn for_each(check: impl Fn(&str, &Arc<Tokenizer>, &Golden)) {
    for (name, json, golden) in hf_fixtures() {
        let tokenizer = Arc::new(Tokenizer::from_json_bytes(json.as_bytes()).unwrap());
        check(name, &tokenizer, &golden);
    }
}

fn stream(tokenizer: &Arc<Tokenizer>, ids: &[u32], skip: SkipSpecial) -> String {
    let mut stream = Detokenizer::new(tokenizer, skip);
    let mut text: String = ids.iter().map(|id| stream.push(*id)).collect();
    text.push_str(&stream.finish());
    text
}

#[test]
fn texts_encode_as_in_hugging_face() {
    for_each(|name, tokenizer, golden| {
        for row in &golden.texts {
            let text = &row.text;
            assert_eq!(
                tokenizer.encode_text(text).unwrap(),
                row.plain,
                "{name} plain {text:?}"
            );
            let raw = tokenizer.encode_raw(text, AddSpecial::No).unwrap();
            assert_eq!(raw, row.raw, "{name} raw {text:?}");
            let special = tokenizer.encode_raw(text, AddSpecial::Yes).unwrap();
            assert_eq!(special, row.special, "{name} special {text:?}");
        }
    });
}

#[test]
fn segments_encode_as_the_whole_string_in_hugging_face() {
    for_each(|name, tokenizer, golden| {
        for case in &golden.segments {
            let ids = tokenizer
                .encode_segments(&segments(tokenizer, case))
                .unwrap();
            assert_eq!(ids, case.ids, "{name} {:?}", case.segments);
        }
    });
}

#[test]
fn ids_decode_as_in_hugging_face_at_once_and_streamed() {
    for_each(|name, tokenizer, golden| {
        for row in &golden.texts {
            for (skip, expected) in [
                (SkipSpecial::No, &row.decoded),
                (SkipSpecial::Yes, &row.skipped),
            ] {
                assert_eq!(
                    &tokenizer.decode(&row.raw, skip).unwrap(),
                    expected,
                    "{name} {:?}",
                    row.text
                );
                assert_eq!(
                    &stream(tokenizer, &row.raw, skip),
                    expected,
                    "{name} {:?}",
                    row.text
                );
            }
        }
    });
}

#[test]
fn text_never_becomes_a_control_token() {
    for_each(|name, tokenizer, _| {
        let controls = tokenizer.control_tokens();
        assert!(controls.len() >= 4, "{name}");
        let mut text = String::new();
        for (_, literal) in &controls {
            text.push_str(literal);
            text.push_str(" x");
        }
        for segments in [
            vec![Segment::Text(text.clone())],
            text.chars().map(|c| Segment::Text(c.into())).collect(),
        ] {
            let ids = tokenizer.encode_segments(&segments).unwrap();
            assert_eq!(ids, tokenizer.encode_text(&text).unwrap());
            for id in ids {
                assert!(
                    !tokenizer.is_control(id) || Some(id) == tokenizer.unk_id(),
                    "{name} {id}"
                );
            }
        }
    });
}

#[test]
fn each_named_pre_tokenizer_encodes_as_its_family() {
    #[derive(Deserialize)]
    struct Pre {
        texts: Vec<String>,
        ids: BTreeMap<String, Vec<Vec<u32>>>,
    }
    let golden: Pre = load("pre.json");
    assert!(golden.ids.len() >= 20);
    for (name, expected) in &golden.ids {
        let tokenizer = Tokenizer::from_gguf(bpe_gguf(name)).unwrap();
        for (text, ids) in golden.texts.iter().zip(expected) {
            assert_eq!(
                &tokenizer.encode_text(text).unwrap(),
                ids,
                "{name} {text:?}"
            );
        }
    }
}

#[test]
fn sentencepiece_vocabularies_encode_as_in_sentencepiece() {
    #[derive(Deserialize)]
    struct Spm {
        texts: Vec<Row>,
    }
    #[derive(Deserialize)]
    struct Row {
        text: String,
        ids: Vec<u32>,
        decoded: String,
    }
    let golden: Spm = load("spm_gguf.json");
    let tokenizer = Arc::new(Tokenizer::from_gguf(spm_gguf()).unwrap());
    for Row { text, ids, decoded } in golden.texts {
        assert_eq!(tokenizer.encode_text(&text).unwrap(), ids, "{text:?}");
        assert_eq!(
            tokenizer.decode(&ids, SkipSpecial::No).unwrap(),
            decoded,
            "{text:?}"
        );
        assert_eq!(
            stream(&tokenizer, &ids, SkipSpecial::No),
            decoded,
            "{text:?}"
        );
        let raw = tokenizer.encode_raw(&text, AddSpecial::Yes).unwrap();
        assert_eq!(raw[0], 1, "BOS is the default of this kind");
    }
}
