//! Damaged and hostile GGUF files: a clear error, never a panic, never an allocation that the file's size does not justify.

#![allow(clippy::unwrap_used, clippy::panic)]

mod builder;

use std::path::Path;

use builder::{Builder, open, string};

use guesthouse_weights::gguf::hf::{chat_template, generation_config, hf_config};
use guesthouse_weights::{GgufSource, WeightSource, WeightsError};
use proptest::prelude::*;

fn array(kind: u32, count: u64) -> Vec<u8> {
    let mut out = kind.to_le_bytes().to_vec();
    out.extend(count.to_le_bytes());
    out
}

#[test]
fn a_valid_hand_written_file_opens() {
    let gguf = Builder::new()
        .entry("general.alignment", 4, &64u32.to_le_bytes())
        .tensor("a", &[4, 2], 0, 0)
        .tensor("b", &[32], 8, 64);
    let mut bytes = gguf.data(0).bytes();
    bytes.resize(bytes.len().next_multiple_of(64) + 64 + 34, 0);
    let gguf = open(&bytes).unwrap();
    assert_eq!(gguf.tensor("a").unwrap().info.shape, [2, 4]);
    assert_eq!(gguf.bytes(&gguf.tensors()[1]).unwrap().len(), 34);
}

#[test]
fn every_truncation_of_a_real_file_is_refused() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/qwen2.gguf");
    let bytes = std::fs::read(path).unwrap();
    let header = bytes.len() - 8_000;
    // Each byte of the header, then some of the data.
    for len in (0..header).chain((header..bytes.len()).step_by(97)) {
        let error = open(&bytes[..len]).map(|_| ()).unwrap_err();
        assert!(
            matches!(error, WeightsError::Malformed { .. }),
            "{len}: {error}"
        );
    }
    open(&bytes).unwrap();
}

#[test]
fn other_formats_and_versions_are_named() {
    assert!(
        open(b"")
            .map(|_| ())
            .unwrap_err()
            .to_string()
            .contains("magic")
    );
    assert!(
        open(b"PK\x03\x04....")
            .map(|_| ())
            .unwrap_err()
            .to_string()
            .contains("GGUF")
    );
    let with_version = |version| Builder {
        version,
        ..Builder::new()
    };
    assert!(with_version(1).error().contains("version 1"));
    assert!(
        with_version(3u32.swap_bytes())
            .error()
            .contains("big-endian")
    );
    assert!(matches!(
        with_version(4).open(),
        Err(WeightsError::Unsupported { .. })
    ));
}

#[test]
fn huge_counts_are_refused_before_anything_is_allocated() {
    for count in [u64::MAX, 1 << 40] {
        let tensors = Builder {
            tensor_count: count,
            ..Builder::new()
        };
        assert!(tensors.error().contains("tensor count"));
        let entries = Builder {
            entry_count: count,
            ..Builder::new()
        };
        assert!(entries.error().contains("metadata count"));
        let key = Builder::new().entry("k", 8, &count.to_le_bytes());
        assert!(key.error().contains("at most"), "{}", key.error());
        for kind in [0, 4, 8, 9, 12] {
            let entry = Builder::new().entry("k", 9, &array(kind, count));
            assert!(entry.error().contains("at most"), "{}", entry.error());
        }
    }
    // Below the cap, but more than the file has.
    let entry = Builder::new().entry("k", 9, &array(4, 1 << 20));
    assert!(
        entry.error().contains("claims 1048576 elements"),
        "{}",
        entry.error()
    );
    // Counts that fit the caps but not the file.
    let short = Builder {
        entry_count: 60_000,
        ..Builder::new()
    };
    assert!(matches!(short.open(), Err(WeightsError::Malformed { .. })));
}

#[test]
fn nested_arrays_have_a_limit() {
    let mut value = Vec::new();
    for _ in 0..64 {
        value.extend(array(9, 1));
    }
    let error = Builder::new().entry("k", 9, &value).data(64).error();
    assert!(error.contains("nested"), "{error}");
}

#[test]
fn broken_values_are_refused() {
    let bad_kind = Builder::new().entry("k", 13, &[0; 8]);
    assert!(bad_kind.error().contains("value type 13"));
    let bad_bool = Builder::new().entry("k", 7, &[2]);
    assert!(bad_bool.error().contains("expected 0 or 1"));
    let twice = Builder::new().entry("k", 0, &[1]).entry("k", 0, &[1]);
    assert!(twice.error().contains("appears twice"));
    let mut text = 2u64.to_le_bytes().to_vec();
    text.extend([0xff, 0xfe]);
    assert!(
        Builder::new()
            .entry("k", 8, &text)
            .error()
            .contains("UTF-8")
    );
    assert!(Builder::new().entry("", 0, &[1]).error().contains("key 0"));
    assert!(
        Builder::new()
            .entry("a\nb", 0, &[1])
            .error()
            .contains("control")
    );
    let wrong = Builder::new().entry("split.count", 8, &string("many"));
    assert!(wrong.error().contains("should be an unsigned integer"));
    let split = Builder::new().entry("split.count", 2, &3u16.to_le_bytes());
    assert!(split.error().contains("llama-gguf-split --merge"));
}

#[test]
fn alignments_are_powers_of_two_in_a_sane_range() {
    for alignment in [0u32, 1, 3, 4, 48, 1 << 31] {
        let file = Builder::new().entry("general.alignment", 4, &alignment.to_le_bytes());
        assert!(file.error().contains("alignment"), "{alignment}");
    }
}

#[test]
fn tensors_must_fit_the_file_their_type_and_each_other() {
    let cases = [
        (
            Builder::new().tensor("a", &[16], 0, 32).data(64),
            "needs 64 bytes at offset 32",
        ),
        (
            Builder::new().tensor("a", &[16], 0, u64::MAX - 31).data(64),
            "needs 64 bytes",
        ),
        (
            Builder::new().tensor("a", &[16], 0, 1 << 62).data(64),
            "needs 64 bytes",
        ),
        (
            Builder::new().tensor("a", &[16], 0, 8).data(96),
            "multiple of the alignment",
        ),
        (
            Builder::new().tensor("a", &[33], 8, 0).data(96),
            "blocks of 32",
        ),
        (
            Builder::new().tensor("a", &[128], 12, 0).data(96),
            "blocks of 256",
        ),
        (Builder::new().tensor("a", &[0], 0, 0), "dimension of 0"),
        (
            Builder::new().tensor("a", &[1 << 32, 1 << 32], 0, 0),
            "has shape",
        ),
        (Builder::new().tensor("a", &[u64::MAX], 0, 0), "has shape"),
        (
            Builder::new().tensor("a", &[1; 5], 0, 0).data(64),
            "5 dimensions",
        ),
        (
            Builder::new().tensor("", &[1], 0, 0).data(64),
            "tensor name",
        ),
        (
            Builder::new()
                .tensor("a", &[16], 0, 0)
                .tensor("a", &[16], 0, 64)
                .data(128),
            "appears twice",
        ),
        (
            Builder::new()
                .tensor("a", &[16], 0, 0)
                .tensor("b", &[16], 0, 32)
                .data(128),
            "overlap by 32 bytes",
        ),
        (
            Builder::new()
                .tensor("a", &[16], 0, 32)
                .tensor("b", &[64], 0, 0)
                .data(256),
            "overlap by 224 bytes",
        ),
    ];
    for (file, message) in cases {
        let error = file.error();
        assert!(error.contains(message), "expected {message:?} in: {error}");
    }
}

#[test]
fn other_tensor_types_are_refused_by_name() {
    for (kind, name) in [
        (16, "IQ2_XXS"),
        (23, "IQ4_XS"),
        (40, "NVFP4"),
        (26, "I32"),
        (77, "number 77"),
    ] {
        let error = Builder::new()
            .tensor("blk.0.x", &[256], kind, 0)
            .data(1024)
            .open();
        let error = error.map(|_| ()).unwrap_err();
        assert!(matches!(error, WeightsError::Unsupported { .. }));
        let text = error.to_string();
        assert!(text.contains(name) && text.contains("blk.0.x"), "{text}");
    }
}

#[test]
fn metadata_that_does_not_fit_the_architecture_is_refused() {
    let none = Builder::new().open().unwrap();
    assert!(
        hf_config(&none)
            .unwrap_err()
            .to_string()
            .contains("general.architecture")
    );
    let other = Builder::new()
        .entry("general.architecture", 8, &string("mamba"))
        .open()
        .unwrap();
    let error = hf_config(&other).unwrap_err().to_string();
    assert!(
        error.contains("\"mamba\"") && error.contains("llama, qwen2"),
        "{error}"
    );
    assert!(GgufSource::new(other).is_err());

    let number = |file: Builder, key: &str, n: u32| file.entry(key, 4, &n.to_le_bytes());
    let base = Builder::new()
        .entry("general.architecture", 8, &string("llama"))
        .tensor("token_embd.weight", &[8, 2], 0, 0)
        .tensor("blk.0.attn_q.weight", &[8, 6], 0, 64)
        .data(64 + 192);
    let base = number(base, "llama.embedding_length", 8);
    let base = number(base, "llama.block_count", 1);
    let lacks = hf_config(&base.open().unwrap()).unwrap_err().to_string();
    assert!(lacks.contains("attention.head_count"), "{lacks}");
    // Six rows are three pairs, which two heads cannot share.
    let two = number(base.clone(), "llama.attention.head_count", 2)
        .open()
        .unwrap();
    let error = GgufSource::new(two).map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("6 rows"), "{error}");
    let zero = number(base.clone(), "llama.attention.head_count", 0)
        .open()
        .unwrap();
    assert!(GgufSource::new(zero).is_err());
    let three = number(base, "llama.attention.head_count", 3)
        .open()
        .unwrap();
    GgufSource::new(three).unwrap();
}

/// Everything that a consumer calls; only panics and endless work would be wrong.
fn exercise(bytes: &[u8]) {
    let Ok(gguf) = open(bytes) else { return };
    let _ = hf_config(&gguf);
    let _ = generation_config(&gguf);
    let _ = chat_template(&gguf);
    let Ok(source) = GgufSource::new(gguf) else {
        return;
    };
    for name in source.names() {
        let info = source.info(&name).unwrap();
        assert_eq!(source.read(&name).unwrap().len(), info.byte_len().unwrap());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn mutated_files_never_panic(
        file in prop::sample::select(vec!["llama", "llama-q8_0", "qwen3", "gemma3", "gpt2", "gpt2-q8_0", "deepseek-v3", "bloom", "falcon-40b", "mpt", "starcoder"]),
        changes in prop::collection::vec((0.0..1.0f64, any::<u8>(), any::<bool>()), 1..6),
        cut in prop::option::weighted(0.2, 0.0..1.0f64),
    ) {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/golden/{file}.gguf"));
        let mut bytes = std::fs::read(path).unwrap();
        for (place, byte, in_header) in changes {
            let span = if in_header { 2_000 } else { bytes.len() };
            let at = (place * span as f64) as usize;
            bytes[at] = byte;
        }
        if let Some(cut) = cut {
            bytes.truncate((cut * bytes.len() as f64) as usize);
        }
        exercise(&bytes);
    }
}
