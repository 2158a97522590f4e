#![allow(clippy::unwrap_used, unsafe_code)]

use guesthouse_weights::{
    BlockType, DType, MemorySource, Scheme, TensorInfo, WeightSource, dequantize,
};

use super::*;

fn schemes() -> Vec<Scheme> {
    let plain = [DType::F32, DType::F16, DType::Bf16].map(Scheme::Plain);
    plain
        .into_iter()
        .chain(BlockType::ALL.map(Scheme::Block))
        .chain([Scheme::Mxfp4])
        .collect()
}

fn isas() -> Vec<Isa> {
    vec![Isa::detect(), Isa::Portable]
}

/// Raw bytes of a random matrix and what the reference makes of them.
fn matrix(scheme: Scheme, rows: usize, cols: usize) -> (Vec<u8>, Vec<f32>) {
    let info = TensorInfo::new([rows, cols], scheme);
    let source = MemorySource::dummy([("w".to_owned(), info)], 7).unwrap();
    let bytes = source.read("w").unwrap().into_owned();
    let mut values = vec![0f32; rows * cols];
    dequantize(scheme, &bytes, &mut values).unwrap();
    (bytes, values)
}

fn noise(n: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..n).map(|_| next()).collect()
}

fn product(isa: Isa, m: &PackedMatrix, bias: Option<&[f32]>, x: &[f32], tokens: usize) -> Vec<f32> {
    let mut y = vec![f32::NAN; tokens * m.rows()];
    let mut scratch = Scratch::new();
    for panel in 0..m.panels() {
        let product = PanelProduct {
            matrix: m,
            panel,
            bias,
            x: x.as_ptr(),
            x_stride: m.cols(),
            tokens,
            y: y.as_mut_ptr(),
            y_stride: m.rows(),
        };
        // SAFETY: x and y hold `tokens` rows.
        unsafe { product.run(isa, &mut scratch) };
    }
    y
}

fn shapes(scheme: Scheme) -> Vec<(usize, usize)> {
    match scheme.unit().0 {
        1 => vec![(1, 1), (5, 8), (16, 7), (17, 256), (33, 259), (40, 576)],
        32 => vec![(1, 32), (17, 96), (32, 256), (35, 576)],
        _ => vec![(1, 256), (17, 512), (40, 768)],
    }
}

#[test]
fn unpacked_rows_equal_the_reference_dequantization() {
    for scheme in schemes() {
        for (rows, cols) in shapes(scheme) {
            let (bytes, want) = matrix(scheme, rows, cols);
            let m = PackedMatrix::new(Format::of(scheme).unwrap(), rows, cols, &bytes, 2);
            for isa in isas() {
                for row in 0..rows {
                    let mut got = vec![f32::NAN; cols];
                    unpack_row(isa, &m, row, &mut got, &mut Scratch::new());
                    // Equal as numbers: the sign of zero may differ.
                    assert_eq!(
                        got,
                        want[row * cols..(row + 1) * cols],
                        "{scheme} {rows}x{cols} row {row} {}",
                        isa.name()
                    );
                }
            }
        }
    }
}

#[test]
fn products_are_close_to_f64_and_the_same_for_one_token_and_many() {
    for scheme in schemes() {
        for (rows, cols) in shapes(scheme) {
            let (bytes, w) = matrix(scheme, rows, cols);
            let m = PackedMatrix::new(Format::of(scheme).unwrap(), rows, cols, &bytes, 1);
            let bias = noise(rows, 3);
            for isa in isas() {
                for tokens in [1, 2, 3, 4, 5, 6, 7, 13] {
                    let x = noise(tokens * cols, 5);
                    let got = product(isa, &m, Some(&bias), &x, tokens);
                    for t in 0..tokens {
                        let x = &x[t * cols..(t + 1) * cols];
                        for r in 0..rows {
                            let terms = w[r * cols..(r + 1) * cols]
                                .iter()
                                .zip(x)
                                .map(|(w, x)| f64::from(w * x));
                            let exact: f64 = w[r * cols..(r + 1) * cols]
                                .iter()
                                .zip(x)
                                .map(|(&w, &x)| f64::from(w) * f64::from(x))
                                .sum();
                            let size: f64 =
                                terms.map(f64::abs).sum::<f64>() + f64::from(bias[r].abs());
                            let error =
                                (f64::from(got[t * rows + r]) - exact - f64::from(bias[r])).abs();
                            assert!(
                                error <= 1e-6 * size + 1e-12,
                                "{scheme} {rows}x{cols}: error {error} of {size}"
                            );
                        }
                        let alone = product(isa, &m, Some(&bias), x, 1);
                        let same = alone
                            .iter()
                            .zip(&got[t * rows..])
                            .all(|(a, b)| a.to_bits() == b.to_bits());
                        assert!(
                            same,
                            "{scheme} {rows}x{cols}: token {t} of {tokens} differs from itself alone"
                        );
                    }
                }
            }
        }
    }
}
