//! Draws among candidates, and which of them stay.
//!
//! All functions take logits in descending order, as a row has them, and answer with places in that order.

#[cfg(test)]
mod tests;

/// Numbers in (0, 1) derived from one: SplitMix64 (Steele et al. 2014) seeded with its bits.
#[derive(Clone, Debug)]
pub struct Uniforms(u64);

impl Uniforms {
    /// Begins with a row's number.
    #[must_use]
    pub fn new(uniform: f32) -> Self {
        Self(u64::from(uniform.to_bits()))
    }
}

impl Iterator for Uniforms {
    type Item = f32;

    fn next(&mut self) -> Option<f32> {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        // 23 bits and a half, exact in f32.
        Some((((z ^ (z >> 31)) >> 41) as f32 + 0.5) / (1 << 23) as f32)
    }
}

/// `softmax(logits)`.
#[must_use]
pub fn softmax(logits: &[f32]) -> Vec<f32> {
    let best = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let weights: Vec<f32> = logits.iter().map(|l| (l - best).exp()).collect();
    let sum: f32 = weights.iter().sum();
    weights.iter().map(|w| w / sum).collect()
}

/// The first place whose cumulative probability is above `uniform`. The order of `logits` is of no matter.
#[must_use]
pub fn sample(logits: &[f32], uniform: f32) -> usize {
    let best = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let weight = |logit: &f32| f64::from((logit - best).exp());
    let mut left = f64::from(uniform) * logits.iter().map(weight).sum::<f64>();
    let place = logits.iter().position(|logit| {
        left -= weight(logit);
        left < 0.0
    });
    // Rounding may leave a little.
    place.unwrap_or(logits.len().saturating_sub(1))
}

/// `n` different places, drawn without replacement by probability (Gumbel top-k; Kool et al. 2019).
#[must_use]
pub fn sample_distinct(logits: &[f32], n: usize, uniforms: Uniforms) -> Vec<usize> {
    let keys: Vec<f32> = logits
        .iter()
        .zip(uniforms)
        .map(|(logit, u)| logit - (-u.ln()).ln())
        .collect();
    let mut order: Vec<usize> = (0..keys.len()).collect();
    order.sort_by(|&a, &b| keys[b].total_cmp(&keys[a]));
    order.truncate(n);
    order
}

/// How many of the best reach the probability `p` together, at least one: `&logits[..top_p(logits, 0.9)]`.
#[must_use]
pub fn top_p(logits: &[f32], p: f32) -> usize {
    let mut sum = 0.0;
    let reached = softmax(logits).iter().position(|q| {
        sum += q;
        sum >= p
    });
    reached.map_or(logits.len(), |last| last + 1)
}

/// How many have at least `p` times the best one's probability: `&logits[..min_p(logits, 0.1)]`.
#[must_use]
pub fn min_p(logits: &[f32], p: f32) -> usize {
    let Some(best) = logits.first() else { return 0 };
    logits.partition_point(|logit| (logit - best).exp() >= p)
}

/// How many are among the k best: `&logits[..top_k(logits, 40)]`.
#[must_use]
pub fn top_k(logits: &[f32], k: usize) -> usize {
    logits.len().min(k)
}
