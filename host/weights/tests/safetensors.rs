//! Safetensors files and folders, good, damaged and hostile.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::fs;
use std::path::Path;

use guesthouse_weights::{
    DType, Safetensors, Scheme, TensorInfo, WeightSource, WeightsError, dequantize,
};
use proptest::prelude::*;

fn file(header: &str, data: &[u8]) -> Vec<u8> {
    let mut out = (header.len() as u64).to_le_bytes().to_vec();
    out.extend(header.as_bytes());
    out.extend(data);
    out
}

fn open(bytes: &[u8]) -> Result<Safetensors, WeightsError> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.safetensors");
    fs::write(&path, bytes).unwrap();
    Safetensors::open(path)
}

fn error(header: &str, data: &[u8]) -> String {
    open(&file(header, data))
        .map(|_| ())
        .unwrap_err()
        .to_string()
}

/// One f32 tensor `[1]` of this name.
fn one(name: &str, value: f32) -> Vec<u8> {
    let header = format!(r#"{{"{name}":{{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}}}"#);
    file(&header, &value.to_le_bytes())
}

#[test]
fn tensors_are_found_in_any_order_with_metadata_and_padding() {
    let header = r#"{"__metadata__":{"format":"pt"},
        "b":{"dtype":"BF16","shape":[2,1],"data_offsets":[4,8]},
        "a":{"dtype":"I32","shape":[],"data_offsets":[0,4]},
        "e":{"dtype":"F8_E4M3","shape":[0,5],"data_offsets":[8,8]}}    "#;
    let source = open(&file(header, &[1, 2, 3, 4, 5, 6, 7, 8])).unwrap();
    assert_eq!(source.names(), ["a", "b", "e"]);
    assert_eq!(source.info("b"), Some(TensorInfo::new([2, 1], DType::Bf16)));
    assert_eq!(source.info("a"), Some(TensorInfo::new([], DType::I32)));
    assert_eq!(*source.read("b").unwrap(), [5, 6, 7, 8]);
    assert_eq!(*source.read("a").unwrap(), [1, 2, 3, 4]);
    assert!(source.read("e").unwrap().is_empty());
    let missing = source.read("c").unwrap_err();
    assert_eq!(missing.label(), "weights_missing_tensor");
}

/// 130 rows of 129 columns of E4M3, with a scale for each of four blocks.
fn fp8(scale_shape: &str, scale_bytes: usize) -> Vec<u8> {
    let end = 130 * 129;
    let header = format!(
        r#"{{"w":{{"dtype":"F8_E4M3","shape":[130,129],"data_offsets":[0,{end}]}},
            "w_scale_inv":{{"dtype":"F32","shape":{scale_shape},"data_offsets":[{end},{}]}}}}"#,
        end + scale_bytes
    );
    // 0x38 is 1, 0x40 is 2.
    let mut data: Vec<u8> = (0..end)
        .map(|i| if i % 3 == 0 { 0x40 } else { 0x38 })
        .collect();
    let scales = [0.5f32, 3.0, 0.25, 100.0];
    data.extend(
        scales
            .iter()
            .flat_map(|s| s.to_le_bytes())
            .take(scale_bytes),
    );
    file(&header, &data)
}

#[test]
fn fp8_blocks_are_the_matrices_they_stand_for() {
    let source = open(&fp8("[2,2]", 16)).unwrap();
    assert_eq!(source.names(), ["w"]);
    assert_eq!(
        source.info("w"),
        Some(TensorInfo::new([130, 129], DType::Bf16))
    );
    assert!(source.info("w_scale_inv").is_none());
    let bytes = source.read("w").unwrap();
    let at = |row: usize, col: usize| {
        let i = 2 * (row * 129 + col);
        // bf16 is the upper half of f32.
        f32::from_le_bytes([0, 0, bytes[i], bytes[i + 1]])
    };
    assert_eq!((at(0, 0), at(0, 1)), (1.0, 0.5));
    // (127, 128) is element 16511, (128, 0) 16512, (129, 128) 16769.
    assert_eq!((at(127, 128), at(128, 0), at(129, 128)), (3.0, 0.5, 100.0));
}

#[test]
fn scales_of_other_blocks_are_refused() {
    for (shape, bytes) in [("[2]", 8), ("[1,3]", 12)] {
        let error = open(&fp8(shape, bytes)).map(|_| ()).unwrap_err();
        assert_eq!(error.label(), "weights_unsupported");
        let text = error.to_string();
        assert!(
            text.contains("'w' [130, 129]") && text.contains("convert"),
            "{text}"
        );
    }
    let alone = one("w_scale_inv", 1.0);
    let text = open(&alone).map(|_| ()).unwrap_err().to_string();
    assert!(
        text.contains("'w', which is not in the checkpoint"),
        "{text}"
    );
}

#[test]
fn every_truncation_is_refused() {
    let bytes = one("weight", 1.0);
    for len in 0..bytes.len() {
        let error = open(&bytes[..len]).map(|_| ()).unwrap_err();
        assert!(
            matches!(error, WeightsError::Malformed { .. }),
            "{len}: {error}"
        );
    }
}

#[test]
fn headers_are_checked() {
    let t = |dtype: &str, shape: &str, begin: u64, end: u64| {
        format!(r#"{{"dtype":"{dtype}","shape":{shape},"data_offsets":[{begin},{end}]}}"#)
    };
    let f32s = |n: u64, begin, end| t("F32", &format!("[{n}]"), begin, end);
    let cases = [
        (
            format!(r#"{{"a":{}}}"#, f32s(2, 0, 4)),
            "needs 8 bytes, its data_offsets span 4",
        ),
        (
            format!(r#"{{"a":{}}}"#, f32s(4, 0, 16)),
            "the data has 8 bytes",
        ),
        (
            format!(r#"{{"a":{}}}"#, f32s(1, 8, 4)),
            "data_offsets [8, 4]",
        ),
        (
            format!(r#"{{"a":{}}}"#, f32s(1, u64::MAX - 3, u64::MAX)),
            "the data has 8 bytes",
        ),
        (format!(r#"{{"a":{}}}"#, f32s(u64::MAX, 0, 8)), "overflows"),
        (
            format!(r#"{{"a":{}}}"#, t("F32", "[4294967296,4294967296]", 0, 8)),
            "overflows",
        ),
        (
            format!(r#"{{"a":{}}}"#, t("F32", "[-2]", 0, 8)),
            "needs dtype, shape",
        ),
        (
            format!(r#"{{"a":{},"b":{}}}"#, f32s(2, 0, 8), f32s(1, 4, 8)),
            "'b' overlaps 'a' by 4",
        ),
        (
            format!(r#"{{"a":{}}}"#, f32s(1, 4, 8)),
            "4 bytes between 'the header' and 'a'",
        ),
        (format!(r#"{{"a":{}}}"#, f32s(1, 0, 4)), "4 bytes after 'a'"),
        (
            format!(r#"{{"a":{},"a":{}}}"#, f32s(1, 0, 4), f32s(1, 4, 8)),
            "'a' appears twice",
        ),
        (r#"{"a":3}"#.to_owned(), "needs dtype, shape"),
        ("[]".to_owned(), "expected an object"),
        ("{".to_owned(), "not the expected JSON"),
        (
            format!(r#"{{"a":{}}}"#, t("F32", &format!("{:?}", [1; 40]), 0, 8)),
            "40 dimensions",
        ),
    ];
    for (header, message) in cases {
        let text = error(&header, &[0; 8]);
        assert!(text.contains(message), "expected {message:?} in: {text}");
    }
    let exotic = error(&format!(r#"{{"a":{}}}"#, t("F64", "[1]", 0, 8)), &[0; 8]);
    assert!(
        exotic.contains("\"F64\"") && exotic.contains("BF16"),
        "{exotic}"
    );
}

#[test]
fn absurd_header_sizes_are_refused() {
    for claim in [u64::MAX, 1 << 62, 200_000_000, 100] {
        let mut bytes = claim.to_le_bytes().to_vec();
        bytes.extend(b"{}");
        let text = open(&bytes).map(|_| ()).unwrap_err().to_string();
        assert!(text.contains(&format!("claims {claim} bytes")), "{text}");
    }
}

#[test]
fn names_are_found_with_and_without_their_prefix() {
    let old = open(&one("h.0.ln_1.weight", 1.0)).unwrap();
    let asked = "transformer.h.0.ln_1.weight";
    assert!(old.info(asked).is_some());
    assert_eq!(old.resolve(asked).as_deref(), Some("h.0.ln_1.weight"));
    assert_eq!(*old.read(asked).unwrap(), 1f32.to_le_bytes());
    let new = open(&one("model.norm.weight", 2.0)).unwrap();
    assert!(new.info("norm.weight").is_some());
    assert!(new.info("model.norm.weight").is_some());
    assert!(new.info("transformer.norm.weight").is_none());
    assert_eq!(new.resolve("norm").as_deref(), None);
}

fn write(dir: &Path, name: &str, bytes: impl AsRef<[u8]>) {
    fs::write(dir.join(name), bytes).unwrap();
}

fn folder_error(dir: &Path) -> WeightsError {
    Safetensors::open(dir).map(|_| ()).unwrap_err()
}

const INDEX: &str = "model.safetensors.index.json";

#[test]
fn an_index_decides_which_tensor_comes_from_which_shard() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    write(dir, "a.safetensors", one("x", 1.0));
    write(dir, "b.safetensors", one("y", 2.0));
    write(dir, "unlisted.safetensors", "garbage");
    let index =
        r#"{"metadata":{"total_size":8},"weight_map":{"x":"a.safetensors","y":"b.safetensors"}}"#;
    write(dir, INDEX, index);
    let source = Safetensors::open(dir).unwrap();
    assert_eq!(source.names(), ["x", "y"]);
    assert_eq!(*source.read("y").unwrap(), 2f32.to_le_bytes());

    let cases = [
        (
            r#"{"weight_map":{"x":"c.safetensors"}}"#,
            "'c.safetensors', which is not in the folder",
        ),
        (
            r#"{"weight_map":{"z":"a.safetensors"}}"#,
            "has no such tensor",
        ),
        (
            r#"{"weight_map":{"x":"a.safetensors","x":"b.safetensors"}}"#,
            "'x' appears twice",
        ),
        (r#"{"weight_map":{"x":3}}"#, "weight_map"),
        (r#"{}"#, "weight_map"),
        ("", "weight_map"),
    ];
    for (index, message) in cases {
        write(dir, INDEX, index);
        let text = folder_error(dir).to_string();
        assert!(text.contains(message), "expected {message:?} in: {text}");
    }
}

#[test]
fn an_index_cannot_lead_out_of_its_folder() {
    let outer = tempfile::tempdir().unwrap();
    write(outer.path(), "secret.safetensors", one("x", 1.0));
    let dir = outer.path().join("model");
    fs::create_dir(&dir).unwrap();
    let absolute = outer
        .path()
        .join("secret.safetensors")
        .display()
        .to_string();
    let shards = [
        "../secret.safetensors",
        "./../secret.safetensors",
        "..\\\\secret.safetensors",
        "C:secret.safetensors",
        "",
        "..",
        ".",
        "a/b.safetensors",
        "x\\u0000.safetensors",
        "config.json",
        absolute.as_str(),
    ];
    for shard in shards {
        write(
            &dir,
            INDEX,
            format!(r#"{{"weight_map":{{"x":"{shard}"}}}}"#),
        );
        let text = folder_error(&dir).to_string();
        assert!(text.contains("directly in the folder"), "{shard}: {text}");
    }
}

#[test]
fn folders_without_an_index_use_what_is_there() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    assert!(matches!(folder_error(dir), WeightsError::NoWeights { .. }));
    write(dir, "part-1.safetensors", one("x", 1.0));
    write(dir, "part-2.safetensors", one("y", 2.0));
    write(dir, "adapter_model.safetensors", "not a model");
    assert_eq!(Safetensors::open(dir).unwrap().names(), ["x", "y"]);
    write(dir, "part-3.safetensors", one("x", 3.0));
    assert!(folder_error(dir).to_string().contains("'x' is already in"));
    write(dir, "model.safetensors", one("z", 4.0));
    assert_eq!(Safetensors::open(dir).unwrap().names(), ["z"]);
}

#[test]
fn pickled_weights_are_refused_with_the_command_that_converts_them() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().join("it's a model");
    fs::create_dir(&dir).unwrap();
    write(&dir, "training_args.bin", "x");
    assert!(matches!(folder_error(&dir), WeightsError::NoWeights { .. }));
    write(&dir, "pytorch_model.bin", "x");
    let error = folder_error(&dir);
    assert!(matches!(error, WeightsError::PickleOnly { .. }));
    let text = error.to_string();
    assert!(
        text.contains("'pytorch_model.bin'") && text.contains("weights_only=True"),
        "{text}"
    );
    assert!(
        text.contains(r"it'\''s a model/pytorch_model.bin'"),
        "{text}"
    );
    assert!(!text.contains("training_args"), "{text}");
    // The index of pickled shards does not hide what its files are.
    write(&dir, "pytorch_model.bin.index.json", "{}");
    write(&dir, "pytorch_model-2.bin", "x");
    let text = folder_error(&dir).to_string();
    assert!(text.ends_with(r"a model/pytorch_model.bin'"), "{text}");
    assert!(text.contains("a model/pytorch_model-2.bin' "), "{text}");
}

#[test]
fn old_names_of_norms_are_found() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), "a.safetensors", one("h.0.ln_1.gamma", 1.0));
    write(dir.path(), "b.safetensors", one("h.0.ln_1.beta", 2.0));
    let source = Safetensors::open(dir.path()).unwrap();
    for (name, stored) in [("weight", "gamma"), ("bias", "beta")] {
        let found = source.resolve(&format!("transformer.h.0.ln_1.{name}"));
        assert_eq!(found, Some(format!("h.0.ln_1.{stored}")));
    }
    // A name of its own comes first.
    write(dir.path(), "c.safetensors", one("h.0.ln_1.weight", 3.0));
    let source = Safetensors::open(dir.path()).unwrap();
    let found = source.resolve("h.0.ln_1.weight");
    assert_eq!(found.as_deref(), Some("h.0.ln_1.weight"));
    assert_eq!(source.info("h.0.ln_1.scale"), None);
}

#[test]
fn a_shard_that_shrinks_is_noticed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.safetensors");
    fs::write(&path, one("x", 1.0)).unwrap();
    let source = Safetensors::open(&path).unwrap();
    fs::OpenOptions::new()
        .write(true)
        .open(&path)
        .unwrap()
        .set_len(3)
        .unwrap();
    assert!(matches!(source.read("x"), Err(WeightsError::Shrank { .. })));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn mutated_files_never_panic(
        changes in prop::collection::vec((0.0..1.0f64, any::<u8>()), 1..5),
        cut in prop::option::weighted(0.2, 0.0..1.0f64),
    ) {
        let header = r#"{"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},
            "b":{"dtype":"F16","shape":[5],"data_offsets":[24,34]}}"#;
        let mut bytes = file(header, &[1; 34]);
        for (place, byte) in changes {
            let at = (place * bytes.len() as f64) as usize;
            bytes[at] = byte;
        }
        if let Some(cut) = cut {
            bytes.truncate((cut * bytes.len() as f64) as usize);
        }
        if let Ok(source) = open(&bytes) {
            for name in source.names() {
                let needed = source.info(&name).unwrap().byte_len();
                prop_assert_eq!(Some(source.read(&name).unwrap().len()), needed);
            }
        }
    }
}

#[test]
fn blocks_and_scales_of_mxfp4_are_one_tensor() {
    // Two rows of 32: pairs count 0, 1, 2, … 15 and repeat; scales 1 and 4.
    let header = r#"{"x_blocks":{"dtype":"U8","shape":[2,1,16],"data_offsets":[0,32]},
        "x_scales":{"dtype":"U8","shape":[2,1],"data_offsets":[32,34]},
        "y_blocks":{"dtype":"U8","shape":[2,1,16],"data_offsets":[34,66]},
        "y_scales":{"dtype":"U8","shape":[1,2],"data_offsets":[66,68]}}"#;
    let pairs: Vec<u8> = (0..32)
        .map(|i: u8| (2 * i % 16) | (((2 * i + 1) % 16) << 4))
        .collect();
    let data = [&pairs[..], &[127, 129], &pairs[..], &[127, 129]].concat();
    let source = open(&file(header, &data)).unwrap();
    // Parts that do not fit stay what they are.
    assert_eq!(source.names(), ["x", "y_blocks", "y_scales"]);
    let info = source.info("x").unwrap();
    assert_eq!(info, TensorInfo::new([2, 32], Scheme::Mxfp4));
    let mut values = vec![0.0; 64];
    dequantize(info.scheme, &source.read("x").unwrap(), &mut values).unwrap();
    let e2m1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
    for (i, &value) in values.iter().enumerate() {
        let sign = if i % 16 < 8 { 1.0 } else { -1.0 };
        let scale = if i < 32 { 1.0 } else { 4.0 };
        assert_eq!(value, sign * scale * e2m1[i % 8], "element {i}");
    }
}
