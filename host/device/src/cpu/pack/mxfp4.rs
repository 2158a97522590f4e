//! Panel blocks of MXFP4: 16 scale bytes, then planes of 5-bit quants, 16 rows side by side.
//!
//! An element is kept as twice its value plus 12, which lies in 0..=24, so that it is `a·q + b` with a half the scale.

use super::PANEL;
use super::planes::nibble;

/// Columns of a block.
pub(crate) const LEN: usize = 32;
/// The fifth bits, a u32 per row.
pub(crate) const HIGH: usize = PANEL;
/// The low four bits, four u32 of 8 columns per row.
pub(crate) const LOW: usize = HIGH + 4 * PANEL;
/// Bytes of a panel block.
pub(crate) const BYTES: usize = LOW + 16 * PANEL;

/// Twice the value of each e2m1 code, plus 12.
const QUANTS: [u8; 16] = [12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0];

/// Writes a row's block into row `r` of a panel block that was zero there.
pub(super) fn pack(bytes: &[u8; 17], r: usize, out: &mut [u8]) {
    let [scale, pairs @ ..] = bytes;
    out[r] = *scale;
    for k in 0..LEN {
        let q = QUANTS[usize::from(pairs[k % 16] >> (k / 16 * 4) & 15)];
        nibble(k, q & 15, r, &mut out[LOW..]);
        out[HIGH + 4 * r + k / 8] |= (q >> 4) << (k % 8);
    }
}
