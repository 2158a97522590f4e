//! Philox-4x32-10 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3") and how draws use it.
//!
//! # Counter layout
//! Key: the request's seed, low word then high word. Counter: `[token / 4, position, lineage, purpose]`, where position
//! is the number of tokens before the drawn one and lineage that of the random key. Token t takes word `t % 4` of the
//! result. A word w becomes `u = (w >> 9 + ½) · 2⁻²³`, which f32 represents exactly and which lies in (0, 1). All
//! devices follow this.

use guesthouse_engine::RandomKey;

/// What numbers are for; keeps streams apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Purpose {
    /// Gumbel noise of the token draw.
    Token = 0,
    /// Whether an XTC stage applies: the n-th one of a plan takes word 0 of quad n.
    Xtc = 1,
    /// The number that a guest is given with a row: word 0 of quad 0.
    Guest = 8,
}

/// The ten rounds.
#[must_use]
pub fn philox4x32_10(counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    let ([mut a, mut b, mut c, mut d], [mut k0, mut k1]) = (counter, key);
    for _ in 0..10 {
        let left = u64::from(a) * 0xD251_1F53;
        let right = u64::from(c) * 0xCD9E_8D57;
        (a, b, c, d) = (
            (right >> 32) as u32 ^ b ^ k0,
            right as u32,
            (left >> 32) as u32 ^ d ^ k1,
            left as u32,
        );
        k0 = k0.wrapping_add(0x9E37_79B9);
        k1 = k1.wrapping_add(0xBB67_AE85);
    }
    [a, b, c, d]
}

/// Random words of tokens `4 * quad .. 4 * quad + 4`.
#[must_use]
pub fn words(random: RandomKey, position: u32, purpose: Purpose, quad: u32) -> [u32; 4] {
    let key = [random.seed as u32, (random.seed >> 32) as u32];
    philox4x32_10([quad, position, random.lineage, purpose as u32], key)
}

/// Uniform in (0, 1).
#[must_use]
pub fn uniform(word: u32) -> f32 {
    ((word >> 9) as f32 + 0.5) * 2f32.powi(-23)
}
