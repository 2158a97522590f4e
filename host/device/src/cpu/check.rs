//! The matrix kernels against the reference dequantization, on the machine at hand (`guesthouse doctor`).

#![allow(unsafe_code)]

use guesthouse_weights::{
    BlockType, DType, MemorySource, Scheme, TensorInfo, WeightSource, dequantize,
};

use super::gemm::{PanelProduct, Scratch};
use super::pack::{Format, PackedMatrix};
use super::simd::Isa;

/// Rows, columns and tokens of the product: more than one panel, a whole number of every block, an odd token count.
const SHAPE: (usize, usize, usize) = (40, 512, 5);

/// Name of the instruction set whose kernels this machine runs.
#[must_use]
pub fn instruction_set() -> &'static str {
    Isa::detect().name()
}

/// A scheme's kernel against its reference.
#[derive(Clone, Debug, PartialEq)]
pub struct KernelCheck {
    /// Storage of the matrix.
    pub scheme: Scheme,
    /// Largest difference to an f64 product, as a share of the largest result. Rounding in f32 stays below 1e-5.
    pub error: f64,
}

/// Multiplies a random matrix of each scheme. None stands for a kernel that could not be checked.
#[must_use]
pub fn check_kernels() -> Vec<Option<KernelCheck>> {
    use BlockType::{Q2K, Q3K, Q4_0, Q4_1, Q4K, Q5_0, Q5_1, Q5K, Q6K, Q8_0};
    let plain = [DType::F32, DType::F16, DType::Bf16].map(Scheme::Plain);
    let blocks = [Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2K, Q3K, Q4K, Q5K, Q6K].map(Scheme::Block);
    plain
        .into_iter()
        .chain(blocks)
        .chain([Scheme::Mxfp4])
        .map(check)
        .collect()
}

fn check(scheme: Scheme) -> Option<KernelCheck> {
    let (rows, cols, tokens) = SHAPE;
    let source =
        MemorySource::dummy([("w".to_owned(), TensorInfo::new([rows, cols], scheme))], 1).ok()?;
    let bytes = source.read("w").ok()?;
    let matrix = PackedMatrix::new(Format::of(scheme)?, rows, cols, &bytes, 1);
    let mut w = vec![0f32; rows * cols];
    dequantize(scheme, &bytes, &mut w).ok()?;
    let x: Vec<f32> = (0..tokens * cols)
        .map(|i| (i % 17) as f32 * 0.1 - 0.8)
        .collect();
    let mut y = vec![f32::NAN; tokens * rows];
    let mut scratch = Scratch::new();
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
        unsafe { product.run(Isa::detect(), &mut scratch) };
    }
    let (mut worst, mut largest) = (0f64, f64::MIN_POSITIVE);
    for token in 0..tokens {
        for row in 0..rows {
            let exact: f64 = (0..cols)
                .map(|k| f64::from(w[row * cols + k]) * f64::from(x[token * cols + k]))
                .sum();
            let found = f64::from(y[token * rows + row]);
            worst = if found.is_finite() {
                worst.max((found - exact).abs())
            } else {
                f64::INFINITY
            };
            largest = largest.max(exact.abs());
        }
    }
    Some(KernelCheck {
        scheme,
        error: worst / largest,
    })
}
