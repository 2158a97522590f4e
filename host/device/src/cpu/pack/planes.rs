//! Bit planes of quantized blocks, 16 rows side by side.
//!
//! Offsets are bytes into a panel block. `d`, `m`: f16 per row. Nibbles: a u32 per row holds 8 consecutive columns, the
//! first in the low bits; bytes: 4 columns; crumbs (2 bits): 16; bits: 32, or 16 in a u16.

use guesthouse_weights::BlockType;

use super::PANEL;

/// Where the parts of a panel block stand. Parts a type lacks are at its end.
pub(crate) struct Layout {
    /// Scale (f16) at 0 in all types; minimum (f16).
    pub min: usize,
    /// Sub-block scales, a byte per row and sub-block.
    pub scales: usize,
    /// Sub-block minimums, likewise.
    pub mins: usize,
    /// High bits of the quants.
    pub high: usize,
    /// Low bits of the quants.
    pub low: usize,
    /// Length.
    pub bytes: usize,
}

const fn layout(sizes: [usize; 5]) -> Layout {
    let [min, scales, mins, high, low] = sizes;
    let at = 2 * PANEL;
    Layout {
        min: at,
        scales: at + min,
        mins: at + min + scales,
        high: at + min + scales + mins,
        low: at + min + scales + mins + high,
        bytes: at + min + scales + mins + high + low,
    }
}

/// The layout of a type.
pub(crate) const fn of(block: BlockType) -> Layout {
    const P: usize = PANEL;
    match block {
        BlockType::Q4_0 => layout([0, 0, 0, 0, 16 * P]),
        BlockType::Q4_1 => layout([2 * P, 0, 0, 0, 16 * P]),
        BlockType::Q5_0 => layout([0, 0, 0, 4 * P, 16 * P]),
        BlockType::Q5_1 => layout([2 * P, 0, 0, 4 * P, 16 * P]),
        BlockType::Q8_0 => layout([0, 0, 0, 0, 32 * P]),
        BlockType::Q2K => layout([2 * P, 16 * P, 0, 0, 64 * P]),
        BlockType::Q3K => layout([0, 16 * P, 0, 32 * P, 64 * P]),
        BlockType::Q4K => layout([2 * P, 8 * P, 8 * P, 0, 128 * P]),
        BlockType::Q5K => layout([2 * P, 8 * P, 8 * P, 32 * P, 128 * P]),
        BlockType::Q6K => layout([0, 16 * P, 0, 64 * P, 128 * P]),
    }
}

/// Bytes of a panel block.
pub(crate) const fn bytes(block: BlockType) -> usize {
    of(block).bytes
}

/// Writes a row's block (in GGML's layout) into row `r` of a panel block that was zero there.
pub(crate) fn pack(block: BlockType, bytes: &[u8], r: usize, out: &mut [u8]) {
    let at = of(block);
    let mut half = |from: usize, to: usize| {
        out[to + 2 * r..to + 2 * r + 2].copy_from_slice(&bytes[from..from + 2]);
    };
    match block {
        BlockType::Q4_0 => {
            half(0, 0);
            low_nibbles(&bytes[2..18], r, &mut out[at.low..]);
        }
        BlockType::Q4_1 => {
            half(0, 0);
            half(2, at.min);
            low_nibbles(&bytes[4..20], r, &mut out[at.low..]);
        }
        BlockType::Q5_0 => {
            half(0, 0);
            out[at.high + 4 * r..at.high + 4 * r + 4].copy_from_slice(&bytes[2..6]);
            low_nibbles(&bytes[6..22], r, &mut out[at.low..]);
        }
        BlockType::Q5_1 => {
            half(0, 0);
            half(2, at.min);
            out[at.high + 4 * r..at.high + 4 * r + 4].copy_from_slice(&bytes[4..8]);
            low_nibbles(&bytes[8..24], r, &mut out[at.low..]);
        }
        BlockType::Q8_0 => {
            half(0, 0);
            for (k, &q) in bytes[2..34].iter().enumerate() {
                // Biased by 128 to be unsigned.
                out[at.low + k / 4 * 4 * PANEL + 4 * r + k % 4] = q ^ 0x80;
            }
        }
        BlockType::Q2K => {
            half(80, 0);
            half(82, at.min);
            for (sub, &s) in bytes[..16].iter().enumerate() {
                out[at.scales + sub * PANEL + r] = s;
            }
            for k in 0..256 {
                crumb(k, two_bits(&bytes[16..80], k), r, &mut out[at.low..]);
            }
        }
        BlockType::Q3K => {
            half(108, 0);
            for sub in 0..16 {
                out[at.scales + sub * PANEL + r] = q3_scale(&bytes[96..108], sub).cast_unsigned();
            }
            for k in 0..256 {
                crumb(k, two_bits(&bytes[32..96], k), r, &mut out[at.low..]);
                let bit = bytes[k % 32] >> (k / 32) & 1;
                out[at.high + k / 16 * 2 * PANEL + 2 * r + k % 16 / 8] |= bit << (k % 8);
            }
        }
        BlockType::Q4K | BlockType::Q5K => {
            half(0, 0);
            half(2, at.min);
            for sub in 0..8 {
                let (s, m) = k_scale_min(&bytes[4..16], sub);
                out[at.scales + sub * PANEL + r] = s;
                out[at.mins + sub * PANEL + r] = m;
            }
            let qs = if block == BlockType::Q4K {
                &bytes[16..144]
            } else {
                &bytes[48..176]
            };
            for k in 0..256 {
                let byte = qs[k / 64 * 32 + k % 32];
                nibble(k, byte >> (k / 32 % 2 * 4) & 15, r, &mut out[at.low..]);
                if block == BlockType::Q5K {
                    let bit = bytes[16 + k % 32] >> (k / 32) & 1;
                    out[at.high + k / 32 * 4 * PANEL + 4 * r + k % 32 / 8] |= bit << (k % 8);
                }
            }
        }
        BlockType::Q6K => {
            half(208, 0);
            for sub in 0..16 {
                out[at.scales + sub * PANEL + r] = bytes[192 + sub];
            }
            for k in 0..256 {
                let (side, group, i) = (k / 128, k % 128 / 32, k % 32);
                let low = bytes[side * 64 + group % 2 * 32 + i] >> (group / 2 * 4) & 15;
                let high = bytes[128 + side * 32 + i] >> (group * 2) & 3;
                nibble(k, low, r, &mut out[at.low..]);
                crumb(k, high, r, &mut out[at.high..]);
            }
        }
    }
}

/// Sixteen bytes whose low nibbles are columns 0–15 and high nibbles 16–31.
fn low_nibbles(bytes: &[u8], r: usize, out: &mut [u8]) {
    for (i, &byte) in bytes.iter().enumerate() {
        nibble(i, byte & 15, r, out);
        nibble(i + 16, byte >> 4, r, out);
    }
}

pub(super) fn nibble(k: usize, q: u8, r: usize, out: &mut [u8]) {
    out[k / 8 * 4 * PANEL + 4 * r + k % 8 / 2] |= q << (k % 2 * 4);
}

fn crumb(k: usize, q: u8, r: usize, out: &mut [u8]) {
    out[k / 16 * 4 * PANEL + 4 * r + k % 16 / 4] |= q << (k % 4 * 2);
}

/// Quant `k` of Q2_K's and Q3_K's 64 bytes: each 32 bytes hold 128, two bits per group of 32.
fn two_bits(qs: &[u8], k: usize) -> u8 {
    qs[k / 128 * 32 + k % 32] >> (k % 128 / 32 * 2) & 3
}

/// Six-bit scale of Q3_K minus 32.
fn q3_scale(packed: &[u8], sub: usize) -> i8 {
    let low = packed[sub % 8] >> (4 * (sub / 8)) & 15;
    let high = packed[8 + sub % 4] >> (2 * (sub / 4)) & 3;
    (low | high << 4).cast_signed() - 32
}

/// Six-bit scale and minimum of Q4_K and Q5_K.
fn k_scale_min(packed: &[u8], sub: usize) -> (u8, u8) {
    if sub < 4 {
        (packed[sub] & 63, packed[sub + 4] & 63)
    } else {
        (
            packed[sub + 4] & 15 | packed[sub - 4] >> 6 << 4,
            packed[sub + 4] >> 4 | packed[sub] >> 6 << 4,
        )
    }
}
