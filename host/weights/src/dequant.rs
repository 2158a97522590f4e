//! Scalar dequantization: the exact reference for every faster kernel.
//!
//! The arithmetic is that of ggml's `dequantize_row_*`: f16 scales widened to f32, products and sums rounded to f32 in
//! the same order, no fused multiply-add. Results are bit-identical to gguf-py's `gguf.quants.dequantize`.

mod k_quants;
mod legacy;
mod mxfp4;

use half::{bf16, f16};

use crate::{BlockType, DType, Scheme, WeightsError};

/// Expands `bytes` (whole blocks or elements of `scheme`) into `out`.
///
/// # Errors
/// [`WeightsError::Size`] when `bytes` and `out` do not have the same, whole number of blocks.
pub fn dequantize(scheme: Scheme, bytes: &[u8], out: &mut [f32]) -> Result<(), WeightsError> {
    if scheme.row_bytes(out.len()) != Some(bytes.len()) {
        let (unit, unit_bytes) = scheme.unit();
        return Err(WeightsError::Size {
            scheme: scheme.to_string(),
            expected: format!("{unit_bytes} bytes for each {unit} elements"),
            found: format!("{} bytes and {} elements", bytes.len(), out.len()),
        });
    }
    match scheme {
        Scheme::Plain(dtype) => plain(dtype, bytes, out),
        Scheme::Block(block) => blocks(block, bytes, out),
        Scheme::Mxfp4 => mxfp4::blocks(bytes, out),
    }
    Ok(())
}

/// Both slices hold whole blocks, the same number of them.
fn blocks(block: BlockType, bytes: &[u8], out: &mut [f32]) {
    let one: fn(&[u8], &mut [f32]) = match block {
        BlockType::Q4_0 => legacy::q4_0,
        BlockType::Q4_1 => legacy::q4_1,
        BlockType::Q5_0 => legacy::q5_0,
        BlockType::Q5_1 => legacy::q5_1,
        BlockType::Q8_0 => legacy::q8_0,
        BlockType::Q2K => k_quants::q2_k,
        BlockType::Q3K => k_quants::q3_k,
        BlockType::Q4K => k_quants::q4_k,
        BlockType::Q5K => k_quants::q5_k,
        BlockType::Q6K => k_quants::q6_k,
    };
    let pairs = bytes
        .chunks_exact(block.block_bytes())
        .zip(out.chunks_exact_mut(block.block_len()));
    for (bytes, out) in pairs {
        one(bytes, out);
    }
}

fn plain(dtype: DType, bytes: &[u8], out: &mut [f32]) {
    match dtype {
        DType::F32 => each(bytes, out, f32::from_le_bytes),
        DType::F16 => each(bytes, out, |b| f16::from_le_bytes(b).to_f32()),
        DType::Bf16 => each(bytes, out, |b| bf16::from_le_bytes(b).to_f32()),
        DType::F8E4M3 => each(bytes, out, |[b]| e4m3(b)),
        // The upper byte of an f16.
        DType::F8E5M2 => each(bytes, out, |[b]| f16::from_le_bytes([0, b]).to_f32()),
        DType::I64 => each(bytes, out, |b| i64::from_le_bytes(b) as f32),
        DType::I32 => each(bytes, out, |b| i32::from_le_bytes(b) as f32),
        DType::I16 => each(bytes, out, |b| f32::from(i16::from_le_bytes(b))),
        DType::I8 => each(bytes, out, |[b]| f32::from(b as i8)),
        DType::U8 => each(bytes, out, |[b]| f32::from(b)),
        DType::Bool => each(bytes, out, |[b]| f32::from(u8::from(b != 0))),
    }
}

fn each<const N: usize>(bytes: &[u8], out: &mut [f32], convert: impl Fn([u8; N]) -> f32) {
    let (elements, _) = bytes.as_chunks::<N>();
    for (&element, out) in elements.iter().zip(out) {
        *out = convert(element);
    }
}

/// E4M3 "fn" (Micikevicius et al. 2022, arXiv:2209.05433): bias 7, no infinities, 0x7f and 0xff are NaN.
fn e4m3(byte: u8) -> f32 {
    let magnitude = match (byte >> 3 & 15, byte & 7) {
        (15, 7) => f32::NAN,
        (0, mantissa) => f32::from(mantissa) * 2f32.powi(-9),
        (exponent, mantissa) => f32::from(8 + mantissa) * 2f32.powi(i32::from(exponent) - 10),
    };
    if byte & 0x80 == 0 {
        magnitude
    } else {
        -magnitude
    }
}

/// The f16 at byte `at`, widened.
fn scale(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

#[cfg(test)]
mod tests;
