#![allow(clippy::unwrap_used)]

use super::*;
use crate::dequantize;

/// The formula of [`DummyFill`], written out in 64-bit arithmetic.
fn slow(fill: DummyFill, index: u64) -> f64 {
    let m = |x: u64| x & 0xFFFF_FFFF;
    let mut x =
        m(m(index) * 0x9E37_79B9 % (1 << 32) + u64::from(fill.seed) + (index >> 32) * 0x85EB_CA6B);
    x ^= x >> 16;
    x = m(x * 0x7FEB_352D);
    x ^= x >> 15;
    x = m(x * 0x846C_A68B);
    x ^= x >> 16;
    let signed = if x >= 1 << 31 {
        x as f64 - 4_294_967_296.0
    } else {
        x as f64
    };
    f64::from(fill.offset) + f64::from(fill.scale) * signed / 2_147_483_648.0
}

fn source(shape: &[usize], dtype: DType) -> DummySource {
    let info = |shape: &[usize]| TensorInfo::new(shape, dtype);
    DummySource::new([
        ("a.weight".to_owned(), info(shape)),
        ("b.weight".to_owned(), info(shape)),
        ("a.norm.weight".to_owned(), info(&shape[..1])),
        ("a.bias".to_owned(), info(&shape[..1])),
    ])
    .unwrap()
}

fn values(source: &DummySource, name: &str) -> Vec<f32> {
    let info = source.info(name).unwrap();
    let mut out = vec![0.0; info.elements().unwrap()];
    dequantize(info.scheme, &source.read(name).unwrap(), &mut out).unwrap();
    out
}

#[test]
fn reading_gives_the_stated_values_in_every_type() {
    for (dtype, rounding) in [(DType::F32, 1e-6), (DType::F16, 5e-4), (DType::Bf16, 4e-3)] {
        let source = source(&[640, 48], dtype);
        for name in source.names() {
            let fill = source.dummy(&name).unwrap();
            for (i, found) in values(&source, &name).into_iter().enumerate() {
                let exact = slow(fill, i as u64);
                let error = (f64::from(found) - exact).abs();
                assert!(error <= rounding * exact.abs().max(0.01), "{name} {i}");
            }
        }
    }
}

#[test]
fn indices_beyond_32_bits_have_values_of_their_own() {
    let fill = DummyFill {
        seed: 7,
        offset: 0.0,
        scale: 1.0,
    };
    for index in [0, 1, u64::from(u32::MAX), 1 << 32, (1 << 33) + 5] {
        assert!((f64::from(fill.value(index)) - slow(fill, index)).abs() < 1e-6);
    }
    assert!((fill.value(5) - fill.value((1 << 32) + 5)).abs() > 1e-6);
}

#[test]
fn chunks_join_without_a_seam_and_names_differ() {
    // More than two chunks.
    let source = source(&[2100, 1024], DType::F32);
    let (a, b) = (values(&source, "a.weight"), values(&source, "b.weight"));
    let fill = source.dummy("a.weight").unwrap();
    for at in [0, CHUNK - 1, CHUNK, 2 * CHUNK, a.len() - 1] {
        assert_eq!(a[at].to_bits(), fill.value(at as u64).to_bits());
    }
    assert!(a.iter().zip(&b).filter(|(x, y)| x == y).count() < 100);
    // Uniform with variance 1 / cols: mean 0, and a row's length is 1.
    let n = a.len() as f64;
    let mean = a.iter().map(|&x| f64::from(x)).sum::<f64>() / n;
    let square = a.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / n;
    assert!(mean.abs() < 1e-4, "{mean}");
    assert!((square * 1024.0 - 1.0).abs() < 0.01, "{square}");
    let norms = values(&source, "a.norm.weight");
    assert!(norms.iter().all(|&x| (0.9..=1.1).contains(&x)));
}

#[test]
fn what_cannot_be_made_up_is_refused() {
    let make = |shape: Vec<usize>, scheme: Scheme| {
        DummySource::new([("w".to_owned(), TensorInfo::new(shape, scheme))])
    };
    assert!(make(vec![2, 2], DType::I32.into()).is_err());
    assert!(make(vec![usize::MAX, 2], DType::F32.into()).is_err());
    assert!(
        make(vec![2, 2], DType::F32.into())
            .unwrap()
            .read("other")
            .is_err()
    );
}
