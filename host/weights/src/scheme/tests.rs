#![allow(clippy::unwrap_used)]

use super::{BlockType, Scheme};
use crate::DType;

#[test]
fn row_bytes_follow_the_block_sizes_of_ggml() {
    // (block, elements, bytes) from gguf-py's GGML_QUANT_SIZES.
    let sizes = [
        (BlockType::Q4_0, 32, 18),
        (BlockType::Q4_1, 32, 20),
        (BlockType::Q5_0, 32, 22),
        (BlockType::Q5_1, 32, 24),
        (BlockType::Q8_0, 32, 34),
        (BlockType::Q2K, 256, 84),
        (BlockType::Q3K, 256, 110),
        (BlockType::Q4K, 256, 144),
        (BlockType::Q5K, 256, 176),
        (BlockType::Q6K, 256, 210),
    ];
    for (block, len, bytes) in sizes {
        assert_eq!(Scheme::Block(block).row_bytes(3 * len), Some(3 * bytes));
        assert_eq!(Scheme::Block(block).row_bytes(len + 1), None);
    }
    assert_eq!(Scheme::Mxfp4.row_bytes(64), Some(34));
    assert_eq!(Scheme::Plain(DType::Bf16).row_bytes(7), Some(14));
    assert_eq!(Scheme::Plain(DType::F32).row_bytes(usize::MAX), None);
}

#[test]
fn names_round_trip_through_serde() {
    let schemes = [
        Scheme::Plain(DType::F32),
        Scheme::Block(BlockType::Q4K),
        Scheme::Block(BlockType::Q4_0),
        Scheme::Mxfp4,
    ];
    let json = serde_json::to_string(&schemes).unwrap();
    assert_eq!(json, r#"["f32","q4_K","q4_0","mxfp4"]"#);
    assert_eq!(serde_json::from_str::<Vec<Scheme>>(&json).unwrap(), schemes);
    assert!(serde_json::from_str::<Scheme>("\"q9_K\"").is_err());
}
