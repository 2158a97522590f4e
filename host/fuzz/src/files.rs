//! Files from anyone: weights, tokenizers, records.

use guesthouse_component::RecordedRun;
use guesthouse_tokenizer::{AddSpecial, SkipSpecial, Tokenizer};
use guesthouse_weights::gguf::hf::{chat_template, generation_config, hf_config};
use guesthouse_weights::{Gguf, GgufSource, Safetensors, WeightSource};
use std::io::Write as _;
use std::path::Path;

/// Runs `work` on a file with these bytes. Nothing is checked where none can be written.
fn with_file(data: &[u8], work: impl FnOnce(&Path)) {
    let Ok(mut file) = tempfile::NamedTempFile::new() else {
        return;
    };
    if file.write_all(data).is_ok() {
        work(file.path());
    }
}

/// All tensors, read whole.
fn read_all(source: &dyn WeightSource) {
    for name in source.names() {
        // What the header promises was checked against the file.
        let _ = source.info(&name);
        let _ = source.read(&name);
    }
}

/// A GGUF file: as it is, as a checkpoint, and what it says of the model.
pub fn gguf(data: &[u8]) {
    with_file(data, |path| {
        let Ok(gguf) = Gguf::open(path) else { return };
        for tensor in gguf.tensors() {
            let _ = gguf.bytes(tensor);
        }
        let _ = (
            hf_config(&gguf),
            chat_template(&gguf),
            generation_config(&gguf),
        );
        if let Ok(source) = GgufSource::new(gguf) {
            read_all(&source);
        }
    });
}

/// A safetensors file.
pub fn safetensors(data: &[u8]) {
    with_file(data, |path| {
        if let Ok(source) = Safetensors::open(path) {
            read_all(&source);
        }
    });
}

/// A tokenizer: JSON if it begins so, else SentencePiece's protocol buffer. One that loads encodes and decodes.
pub fn tokenizer(data: &[u8]) {
    let read = match data.first() {
        Some(b'{') => Tokenizer::from_json_bytes(data),
        _ => Tokenizer::from_model_bytes(data),
    };
    if let Ok(tokenizer) = read {
        try_out(&tokenizer);
    }
}

/// A table of ranks in a folder that says how text is split into words.
pub fn tiktoken(data: &[u8]) {
    let Ok(folder) = tempfile::tempdir() else {
        return;
    };
    let config = br#"{"pat_str": "\\p{L}+|\\p{N}{1,3}|\\s+|[^\\s\\p{L}\\p{N}]+"}"#;
    let written = std::fs::write(folder.path().join("tokenizer.model"), data)
        .and_then(|()| std::fs::write(folder.path().join("tokenizer_config.json"), config));
    if written.is_ok()
        && let Ok(tokenizer) = Tokenizer::from_hf_dir(folder.path())
    {
        try_out(&tokenizer);
    }
}

fn try_out(tokenizer: &Tokenizer) {
    for text in ["", "Hello, world! 123", "naïve 日本 \u{1f600}\n\t<s>"] {
        if let Ok(ids) = tokenizer.encode_raw(text, AddSpecial::Yes) {
            let _ = tokenizer.decode(&ids, SkipSpecial::No);
        }
    }
}

/// A record of guest calls.
pub fn record(data: &[u8]) {
    let _ = RecordedRun::read(data);
}
