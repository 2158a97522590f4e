//! Super-blocks of 256 elements.

use super::scale;

/// `[scales: 16][qs: 64][d: f16][dmin: f16]`. Sub-blocks of 16; a scale byte is scale (low nibble) and minimum (high).
/// Each 32 bytes of `qs` hold 128 elements, two bits per group of 32.
pub(super) fn q2_k(block: &[u8], out: &mut [f32]) {
    let (scales, qs) = (&block[..16], &block[16..80]);
    let (d, dmin) = (scale(block, 80), scale(block, 82));
    for (sub, (out, &s)) in out.chunks_exact_mut(16).zip(scales).enumerate() {
        let (dl, ml) = (d * f32::from(s & 15), dmin * f32::from(s >> 4));
        let (at, shift) = two_bit_group(sub);
        for (out, &byte) in out.iter_mut().zip(&qs[at..at + 16]) {
            *out = dl * f32::from(byte >> shift & 3) - ml;
        }
    }
}

/// `[hmask: 32][qs: 64][scales: 12][d: f16]`. Sub-blocks of 16 with 6-bit scales around 32; quants are two bits of `qs`
/// minus 4 where the bit of `hmask` is clear (bit n belongs to the n-th 32 elements).
pub(super) fn q3_k(block: &[u8], out: &mut [f32]) {
    let (hmask, qs, scales) = (&block[..32], &block[32..96], &block[96..108]);
    let d = scale(block, 108);
    for (sub, out) in out.chunks_exact_mut(16).enumerate() {
        // Low four bits: byte sub % 8, low nibble for the first eight. High two: byte 8 + sub % 4, pair sub / 4.
        let low = scales[sub % 8] >> (4 * (sub / 8)) & 15;
        let high = scales[8 + sub % 4] >> (2 * (sub / 4)) & 3;
        let dl = d * (f32::from(low | high << 4) - 32.0);
        let (at, shift) = two_bit_group(sub);
        let half = sub % 2 * 16;
        let bits = qs[at..at + 16].iter().zip(&hmask[half..half + 16]);
        for (out, (&byte, &mask)) in out.iter_mut().zip(bits) {
            let offset = if mask >> (sub / 2) & 1 == 1 { 0.0 } else { 4.0 };
            *out = dl * (f32::from(byte >> shift & 3) - offset);
        }
    }
}

/// First byte and shift of the 16 two-bit quants of sub-block `sub`.
const fn two_bit_group(sub: usize) -> (usize, usize) {
    (sub / 8 * 32 + sub % 2 * 16, sub % 8 / 2 * 2)
}

/// `[d: f16][dmin: f16][scales: 12][qs: 128]`. Sub-blocks of 32; each 32 bytes of `qs` hold two of them, low nibbles first.
pub(super) fn q4_k(block: &[u8], out: &mut [f32]) {
    let (d, dmin) = (scale(block, 0), scale(block, 2));
    let (scales, qs) = (&block[4..16], &block[16..144]);
    for (sub, out) in out.chunks_exact_mut(32).enumerate() {
        let (sc, m) = scale_min(scales, sub);
        let (dl, ml) = (d * sc, dmin * m);
        let at = sub / 2 * 32;
        for (out, &byte) in out.iter_mut().zip(&qs[at..at + 32]) {
            *out = dl * f32::from(byte >> (sub % 2 * 4) & 15) - ml;
        }
    }
}

/// `[d: f16][dmin: f16][scales: 12][qh: 32][qs: 128]`. As [`q4_k`]; bit `sub` of `qh[i]` is the fifth bit of element i.
pub(super) fn q5_k(block: &[u8], out: &mut [f32]) {
    let (d, dmin) = (scale(block, 0), scale(block, 2));
    let (scales, qh, qs) = (&block[4..16], &block[16..48], &block[48..176]);
    for (sub, out) in out.chunks_exact_mut(32).enumerate() {
        let (sc, m) = scale_min(scales, sub);
        let (dl, ml) = (d * sc, dmin * m);
        let at = sub / 2 * 32;
        for (out, (&byte, &high)) in out.iter_mut().zip(qs[at..at + 32].iter().zip(qh)) {
            let q = byte >> (sub % 2 * 4) & 15 | (high >> sub & 1) << 4;
            *out = dl * f32::from(q) - ml;
        }
    }
}

/// The 6-bit scale and minimum of sub-block `sub` (of 8) from 12 packed bytes: the first four pairs are the low six bits
/// of bytes 0–3 and 4–7; of the others, bytes 8–11 hold the low nibbles and the top bits of bytes 0–7 the rest.
fn scale_min(packed: &[u8], sub: usize) -> (f32, f32) {
    let (sc, m) = if sub < 4 {
        (packed[sub] & 63, packed[sub + 4] & 63)
    } else {
        (
            packed[sub + 4] & 15 | packed[sub - 4] >> 6 << 4,
            packed[sub + 4] >> 4 | packed[sub] >> 6 << 4,
        )
    };
    (f32::from(sc), f32::from(m))
}

/// `[ql: 128][qh: 64][scales: 16 × i8][d: f16]`, value d·scale·(q − 32), sub-blocks of 16.
/// Each half (128 elements, four groups of 32) has 64 bytes of `ql` and 32 of `qh`: groups 0 and 1 are the low nibbles of
/// the two runs of 32 bytes, groups 2 and 3 the high ones; `qh[i]` has two bits per group.
pub(super) fn q6_k(block: &[u8], out: &mut [f32]) {
    let (ql, qh, scales) = (&block[..128], &block[128..192], &block[192..208]);
    let d = scale(block, 208);
    for (sub, (out, &s)) in out.chunks_exact_mut(16).zip(scales).enumerate() {
        let dl = d * f32::from(s as i8);
        let (half, group, within) = (sub / 8, sub % 8 / 2, sub % 2 * 16);
        let low_at = half * 64 + group % 2 * 32 + within;
        let high_at = half * 32 + within;
        let bits = ql[low_at..low_at + 16]
            .iter()
            .zip(&qh[high_at..high_at + 16]);
        for (out, (&low, &high)) in out.iter_mut().zip(bits) {
            let q = low >> (group / 2 * 4) & 15 | (high >> (group * 2) & 3) << 4;
            *out = dl * (f32::from(q) - 32.0);
        }
    }
}
