#![allow(clippy::unwrap_used)]

use super::MemorySource;
use crate::{BlockType, DType, Scheme, TensorInfo, WeightSource, WeightsError, dequantize};

#[test]
fn dummy_values_are_small_and_repeatable() {
    let plain = [
        DType::F32,
        DType::F16,
        DType::Bf16,
        DType::F8E4M3,
        DType::F8E5M2,
    ];
    let schemes = plain
        .map(Scheme::Plain)
        .into_iter()
        .chain(BlockType::ALL.map(Scheme::Block));
    for scheme in schemes {
        let list = || vec![("w".to_owned(), TensorInfo::new([8, 256], scheme))];
        let a = MemorySource::dummy(list(), 7).unwrap();
        let b = MemorySource::dummy(list(), 7).unwrap();
        let c = MemorySource::dummy(list(), 8).unwrap();
        assert_eq!(a.read("w").unwrap(), b.read("w").unwrap());
        assert_ne!(a.read("w").unwrap(), c.read("w").unwrap());
        let mut out = vec![0.0; 8 * 256];
        dequantize(scheme, &a.read("w").unwrap(), &mut out).unwrap();
        let max = out.iter().fold(0.0f32, |m, v| m.max(v.abs()));
        assert!(max > 0.005 && max < 0.11, "{scheme}: {max}");
    }
}

#[test]
fn wrong_sizes_are_refused() {
    let mut source = MemorySource::new();
    let error = source
        .insert("w", TensorInfo::new([2, 32], BlockType::Q8_0), vec![0; 67])
        .unwrap_err();
    assert!(matches!(error, WeightsError::Size { .. }));
    assert!(source.insert_f32("v", [3], &[1.0, 2.0]).is_err());
    let ragged = vec![("w".to_owned(), TensorInfo::new([2, 33], BlockType::Q8_0))];
    assert!(MemorySource::dummy(ragged, 0).is_err());
    assert!(matches!(
        source.read("w"),
        Err(WeightsError::MissingTensor { .. })
    ));
}
