//! Dequantization against gguf-py, bit for bit; the file itself was written by the official safetensors library.

#![allow(clippy::unwrap_used)]

use std::path::Path;

use guesthouse_weights::{BlockType, DType, Safetensors, Scheme, WeightSource, dequantize};

#[test]
fn every_block_type_equals_gguf_py_bit_for_bit() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/quants.safetensors");
    let golden = Safetensors::open(path).unwrap();
    assert_eq!(golden.names().len(), 2 * BlockType::ALL.len());
    for block in BlockType::ALL {
        let name = block.to_string().to_uppercase();
        let bytes = golden.read(&format!("{name}.bytes")).unwrap();
        let values_name = format!("{name}.values");
        let values = golden.read(&values_name).unwrap();
        let info = golden.info(&values_name).unwrap();
        assert_eq!(info.scheme, Scheme::Plain(DType::F32));
        let expected: Vec<u32> = values
            .as_chunks()
            .0
            .iter()
            .map(|&b| u32::from_le_bytes(b))
            .collect();
        assert_eq!(expected.len(), info.shape[0]);

        let mut out = vec![0.0; expected.len()];
        dequantize(Scheme::Block(block), &bytes, &mut out).unwrap();
        let different = out
            .iter()
            .zip(&expected)
            .position(|(a, &b)| a.to_bits() != b);
        assert_eq!(different, None, "{block}");
        assert!(out.iter().any(|v| v.abs() > 0.01), "{block}");
    }
}
