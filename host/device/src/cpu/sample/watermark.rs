//! The soft watermark of Kirchenbauer et al. 2023 ("A watermark for large language models").
//!
//! # Which tokens are green
//! Philox-4x32-10 with the watermark's key (low word, high word) as its key. The tokens before, at most
//! [`Watermark::context`] of them and fewer at a sequence's beginning, are folded oldest first: from `d = philox([n, 0, 0,
//! 0])`, where n is their number, on `d = philox([d0 ^ token, d1, d2, d3])`. Token t has word `t % 4` of `philox([t / 4,
//! d0, d1, d2])` and is green if that is below `gamma · 2^32`. All devices follow this.
//!
//! To detect it, count the green ones among n tokens: without the key their number is binomial, so that
//! `z = (green - gamma · n) / sqrt(n · gamma · (1 - gamma))` is about normal.
//!
//! ```
//! use guesthouse_device::sample::watermark::is_green;
//! use guesthouse_engine::Watermark;
//!
//! let watermark = Watermark { key: 42, gamma: 0.25, delta: 2.0, context: 1 };
//! let green = (0..10_000).filter(|&t| is_green(&watermark, &[17], t)).count();
//! assert!((2300..2700).contains(&green));
//! ```

use guesthouse_engine::{TokenId, Watermark};

use super::philox::philox4x32_10;

/// Whether a token is green after these tokens, of which the last [`Watermark::context`] count. Of a text, `before` is
/// everything before the token, the prompt included.
#[must_use]
pub fn is_green(watermark: &Watermark, before: &[TokenId], token: TokenId) -> bool {
    Green::new(watermark, before).holds(token)
}

/// The green tokens of one position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Green {
    /// Low word, high word.
    pub key: [u32; 2],
    /// Of the tokens before.
    pub digest: [u32; 3],
    /// Words below it are green.
    pub bar: u32,
}

impl Green {
    pub(crate) fn new(watermark: &Watermark, before: &[TokenId]) -> Self {
        let key = [watermark.key as u32, (watermark.key >> 32) as u32];
        let from = before.len().saturating_sub(watermark.context as usize);
        let context = &before[from..];
        let start = philox4x32_10([context.len() as u32, 0, 0, 0], key);
        let [a, b, c, _] = context.iter().fold(start, |[a, b, c, d], token| {
            philox4x32_10([a ^ token, b, c, d], key)
        });
        Self {
            key,
            digest: [a, b, c],
            bar: (f64::from(watermark.gamma) * 4_294_967_296.0) as u32,
        }
    }

    pub(crate) fn holds(&self, token: TokenId) -> bool {
        let [a, b, c] = self.digest;
        philox4x32_10([token / 4, a, b, c], self.key)[token as usize % 4] < self.bar
    }
}
