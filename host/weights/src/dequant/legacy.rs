//! Blocks of 32 elements. Element `i < 16` is the low nibble of byte `i`, element `i + 16` its high nibble.

use super::scale;

/// `[d: f16][qs: 16]`, value d·(q − 8).
pub(super) fn q4_0(block: &[u8], out: &mut [f32]) {
    let d = scale(block, 0);
    for (i, &byte) in block[2..18].iter().enumerate() {
        out[i] = d * (f32::from(byte & 15) - 8.0);
        out[i + 16] = d * (f32::from(byte >> 4) - 8.0);
    }
}

/// `[d: f16][m: f16][qs: 16]`, value d·q + m.
pub(super) fn q4_1(block: &[u8], out: &mut [f32]) {
    let (d, m) = (scale(block, 0), scale(block, 2));
    for (i, &byte) in block[4..20].iter().enumerate() {
        out[i] = d * f32::from(byte & 15) + m;
        out[i + 16] = d * f32::from(byte >> 4) + m;
    }
}

/// The fifth bits of elements `i` and `i + 16`, in place (0 or 16), from the little-endian bit field at `at`.
fn fifth_bits(block: &[u8], at: usize, i: usize) -> (u8, u8) {
    let bit = |n: usize| (block[at + n / 8] >> (n % 8) & 1) << 4;
    (bit(i), bit(i + 16))
}

/// `[d: f16][qh: 4][qs: 16]`, value d·(q − 16).
pub(super) fn q5_0(block: &[u8], out: &mut [f32]) {
    let d = scale(block, 0);
    for (i, &byte) in block[6..22].iter().enumerate() {
        let (low, high) = fifth_bits(block, 2, i);
        out[i] = d * (f32::from(byte & 15 | low) - 16.0);
        out[i + 16] = d * (f32::from(byte >> 4 | high) - 16.0);
    }
}

/// `[d: f16][m: f16][qh: 4][qs: 16]`, value d·q + m.
pub(super) fn q5_1(block: &[u8], out: &mut [f32]) {
    let (d, m) = (scale(block, 0), scale(block, 2));
    for (i, &byte) in block[8..24].iter().enumerate() {
        let (low, high) = fifth_bits(block, 4, i);
        out[i] = d * f32::from(byte & 15 | low) + m;
        out[i + 16] = d * f32::from(byte >> 4 | high) + m;
    }
}

/// `[d: f16][qs: 32 × i8]`, value d·q, in order.
pub(super) fn q8_0(block: &[u8], out: &mut [f32]) {
    let d = scale(block, 0);
    for (out, &byte) in out.iter_mut().zip(&block[2..34]) {
        *out = d * f32::from(byte as i8);
    }
}
