//! Real tokenizers against transformers. Their files are large and not kept here: put folders with `tokenizer.json` and
//! `tokenizer_config.json`, or GGUF files, somewhere, run `make_golden.py PATH…`, then
//! `GUESTHOUSE_TOKENIZERS=PATH:… cargo test -p guesthouse-tokenizer --test real -- --ignored --nocapture`.
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
use std::time::Instant;

use common::{Golden, segments, vocab_of};
use guesthouse_tokenizer::{AddSpecial, Detokenizer, SkipSpecial, Tokenizer};

/// Counts comparisons and prints those that fail.
#[derive(Default)]
struct Tally {
    total: usize,
    failed: usize,
}

impl Tally {
    fn equal<T: PartialEq + std::fmt::Debug>(&mut self, what: &str, found: &T, expected: &T) {
        self.total += 1;
        if found != expected {
            self.failed += 1;
            println!("  {what}\n    expected {expected:?}\n    found    {found:?}");
        }
    }
}

fn check(folder: &Path) -> Tally {
    let started = Instant::now();
    let (tokenizer, golden) = if folder.is_dir() {
        let tokenizer = Tokenizer::from_hf_dir(folder).unwrap();
        (tokenizer, folder.join("golden.json"))
    } else {
        let tokenizer = Tokenizer::from_gguf(vocab_of(folder).unwrap()).unwrap();
        (tokenizer, folder.with_extension("golden.json"))
    };
    let tokenizer = Arc::new(tokenizer);
    let loaded = started.elapsed();
    let text = std::fs::read_to_string(golden).unwrap();
    let golden: Golden = serde_json::from_str(&text).unwrap();
    let mut tally = Tally::default();
    for row in &golden.texts {
        let what = format!("{:?}", row.text);
        tally.equal(
            &what,
            &tokenizer.encode_text(&row.text).unwrap(),
            &row.plain,
        );
        let raw = tokenizer.encode_raw(&row.text, AddSpecial::No).unwrap();
        tally.equal(&what, &raw, &row.raw);
        let special = tokenizer.encode_raw(&row.text, AddSpecial::Yes).unwrap();
        tally.equal(&what, &special, &row.special);
        for (skip, expected) in [
            (SkipSpecial::No, &row.decoded),
            (SkipSpecial::Yes, &row.skipped),
        ] {
            tally.equal(&what, &tokenizer.decode(&row.raw, skip).unwrap(), expected);
            let mut stream = Detokenizer::new(&tokenizer, skip);
            let mut streamed: String = row.raw.iter().map(|id| stream.push(*id)).collect();
            streamed.push_str(&stream.finish());
            tally.equal(&what, &streamed, expected);
        }
    }
    for case in &golden.segments {
        let ids = tokenizer
            .encode_segments(&segments(&tokenizer, case))
            .unwrap();
        tally.equal("a chat", &ids, &case.ids);
    }
    let long = golden
        .texts
        .iter()
        .map(|row| row.text.as_str())
        .collect::<String>()
        .repeat(50);
    let started = Instant::now();
    let ids = tokenizer.encode_text(&long).unwrap();
    let encoded = started.elapsed();
    println!(
        "{}: {} of {} ({} chats), loaded in {loaded:.1?}, {:.1} MB/s, {} ids",
        folder.display(),
        tally.total - tally.failed,
        tally.total,
        golden.segments.len(),
        long.len() as f64 / 1e6 / encoded.as_secs_f64(),
        ids.len(),
    );
    tally
}

#[test]
#[ignore = "needs real tokenizers: set GUESTHOUSE_TOKENIZERS"]
fn real_tokenizers_agree_with_transformers() {
    let folders = std::env::var("GUESTHOUSE_TOKENIZERS").unwrap();
    let failed: usize = folders
        .split(':')
        .map(|folder| check(Path::new(folder)).failed)
        .sum();
    assert_eq!(failed, 0);
}
