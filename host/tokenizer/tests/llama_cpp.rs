//! GGUF vocabularies against the token ids that llama.cpp publishes for them (`models/ggml-vocab-*.gguf` with `.inp` and `.out`,
//! which it takes from the models' own tokenizers). Where the family normalises, texts that this changes are left out: llama.cpp
//! does not normalise, Hugging Face does. The files are large and not kept here: run
//! `GUESTHOUSE_VOCABS=…/llama.cpp/models cargo test -p guesthouse-tokenizer --test llama_cpp -- --ignored --nocapture`.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    missing_docs,
    unreachable_pub,
    dead_code
)]

mod common;

use std::path::Path;
use std::sync::Arc;

use common::vocab_of;
use guesthouse_tokenizer::{Detokenizer, SkipSpecial, Tokenizer};
use tokenizers::NormalizedString;

const NFC: [&str; 5] = ["qwen2", "qwen35", "command-r", "mpt", "olmo"];

/// Passed and total, or why the vocabulary is refused.
fn check(path: &Path) -> Result<(usize, usize), String> {
    let vocab = vocab_of(path)?;
    let pre = vocab.pre.clone().unwrap_or_default();
    let tokenizer = Arc::new(Tokenizer::from_gguf(vocab).map_err(|e| e.to_string())?);
    let with = |suffix: &str| {
        let name = format!("{}{suffix}", path.display());
        std::fs::read_to_string(name).map_err(|_| "no expected ids".to_owned())
    };
    let (texts, ids) = (with(".inp")?, with(".out")?);
    let texts = texts.split("\n__ggml_vocab_test__\n");
    let (mut passed, mut total) = (0, 0);
    for (text, line) in texts.zip(ids.lines()) {
        let expected: Vec<u32> = line
            .split_whitespace()
            .map(|id| id.parse().unwrap())
            .collect();
        let found = tokenizer.encode_text(text).map_err(|e| e.to_string())?;
        let mut normal = NormalizedString::from(text);
        if NFC.contains(&pre.as_str()) && normal.nfc().get() != text {
            println!("  left out: {text:?}");
            continue;
        }
        total += 1;
        if found == expected {
            passed += 1;
        } else {
            println!("  {text:?}\n    expected {expected:?}\n    found    {found:?}");
        }
        let decoded = tokenizer.decode(&found, SkipSpecial::No).unwrap();
        let mut stream = Detokenizer::new(&tokenizer, SkipSpecial::No);
        let mut streamed: String = found.iter().map(|id| stream.push(*id)).collect();
        streamed.push_str(&stream.finish());
        assert_eq!(streamed, decoded, "{}", path.display());
        if decoded != text {
            println!("  {text:?} decodes as {decoded:?}");
        }
    }
    Ok((passed, total))
}

#[test]
#[ignore = "needs llama.cpp's vocabularies: set GUESTHOUSE_VOCABS"]
fn vocabularies_of_llama_cpp() {
    let folder = std::env::var("GUESTHOUSE_VOCABS").unwrap();
    let mut paths: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|e| e == "gguf"))
        .collect();
    paths.sort();
    let mut failed = Vec::new();
    for path in &paths {
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        match check(path) {
            Ok((passed, total)) => {
                println!("{name}: {passed} of {total}");
                if passed < total {
                    failed.push(name);
                }
            }
            Err(why) => println!("{name}: {why}"),
        }
    }
    assert!(!paths.is_empty());
    assert!(failed.is_empty(), "{failed:?}");
}
