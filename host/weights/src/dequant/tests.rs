#![allow(clippy::unwrap_used)]

use super::dequantize;
use crate::{BlockType, DType, Scheme, WeightsError};

#[test]
fn small_floats_have_the_values_of_their_papers() {
    // Table 1 of arXiv:2209.05433: largest and smallest magnitudes of both formats.
    let cases = [
        (DType::F8E4M3, 0x7e, 448.0),
        (DType::F8E4M3, 0x08, 2f32.powi(-6)),
        (DType::F8E4M3, 0x01, 2f32.powi(-9)),
        (DType::F8E4M3, 0xb8, -1.0),
        (DType::F8E5M2, 0x7b, 57344.0),
        (DType::F8E5M2, 0x01, 2f32.powi(-16)),
        (DType::F8E5M2, 0x3c, 1.0),
    ];
    for (dtype, byte, value) in cases {
        let mut out = [0.0];
        dequantize(Scheme::Plain(dtype), &[byte], &mut out).unwrap();
        assert_eq!(out[0], value, "{dtype} {byte:#x}");
    }
    let mut out = [0.0];
    dequantize(Scheme::Plain(DType::F8E4M3), &[0xff], &mut out).unwrap();
    assert!(out[0].is_nan());
}

#[test]
fn integers_keep_their_value() {
    let mut out = [0.0; 2];
    dequantize(Scheme::Plain(DType::I16), &[0xff, 0xff, 2, 1], &mut out).unwrap();
    assert_eq!(out, [-1.0, 258.0]);
    dequantize(Scheme::Plain(DType::Bool), &[0, 2], &mut out).unwrap();
    assert_eq!(out, [0.0, 1.0]);
}

#[test]
fn partial_blocks_are_refused() {
    let q4 = Scheme::Block(BlockType::Q4_0);
    let short = dequantize(q4, &[0; 17], &mut [0.0; 32]).unwrap_err();
    assert!(matches!(short, WeightsError::Size { .. }), "{short}");
    assert!(dequantize(q4, &[0; 18], &mut [0.0; 31]).is_err());
    assert!(dequantize(Scheme::Mxfp4, &[0; 16], &mut [0.0; 32]).is_err());
}

#[test]
fn mxfp4_has_the_values_of_its_specification() {
    // OCP MX 1.0: e2m1 values 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives; e8m0 128 is 2, 126 a half.
    let magnitudes = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
    for (e, scale) in [(128, 2.0), (126, 0.5), (0, 2f32.powi(-127))] {
        let mut block = vec![e];
        // Elements 0..16 count upwards, 16..32 downwards.
        block.extend((0..16u8).map(|i| i | (15 - i) << 4));
        let mut out = [f32::NAN; 32];
        dequantize(Scheme::Mxfp4, &block, &mut out).unwrap();
        for i in 0..16 {
            let sign = if i < 8 { 1.0 } else { -1.0 };
            assert_eq!(out[i], sign * magnitudes[i % 8] * scale, "element {i}");
            assert_eq!(out[31 - i], out[i], "element {}", 31 - i);
        }
    }
    let mut out = [0.0; 32];
    dequantize(Scheme::Mxfp4, &[255; 17], &mut out).unwrap();
    assert!(out.iter().all(|x| x.is_nan()));
}
