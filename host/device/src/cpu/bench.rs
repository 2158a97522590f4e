//! Timing of the matrix kernels by themselves, for `examples/bench_gemm.rs`.

#![allow(unsafe_code)]

use std::time::Instant;

use guesthouse_weights::{MemorySource, Scheme, TensorInfo, WeightSource};

use super::gemm::{PanelProduct, Scratch};
use super::pack::{Format, PackedMatrix};
use super::simd::Isa;

/// Seconds per product of a random `[rows, cols]` matrix with `tokens` rows of x, on one thread; and the matrix's bytes.
/// None for a scheme without kernels.
#[must_use]
pub fn time_product(
    scheme: Scheme,
    rows: usize,
    cols: usize,
    tokens: usize,
    repeats: usize,
) -> Option<(f64, usize)> {
    let info = TensorInfo::new([rows, cols], scheme);
    let source = MemorySource::dummy([("w".to_owned(), info)], 1).ok()?;
    let matrix = PackedMatrix::new(Format::of(scheme)?, rows, cols, &source.read("w").ok()?, 1);
    let x: Vec<f32> = (0..tokens * cols)
        .map(|i| (i % 17) as f32 * 0.1 - 0.8)
        .collect();
    let mut y = vec![0f32; tokens * rows];
    let mut scratch = Scratch::new();
    let isa = Isa::detect();
    let mut best = f64::INFINITY;
    for _ in 0..repeats {
        let start = Instant::now();
        for panel in 0..matrix.panels() {
            let product = PanelProduct {
                matrix: &matrix,
                panel,
                bias: None,
                x: x.as_ptr(),
                x_stride: cols,
                tokens,
                y: y.as_mut_ptr(),
                y_stride: rows,
            };
            // SAFETY: x has tokens × cols elements and y tokens × rows.
            unsafe { product.run(isa, &mut scratch) };
        }
        best = best.min(start.elapsed().as_secs_f64());
    }
    std::hint::black_box(&y);
    Some((best, matrix.bytes()))
}
