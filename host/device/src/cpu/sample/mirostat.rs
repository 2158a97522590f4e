//! Mirostat (Basu et al. 2021, "Mirostat: a neural text decoding algorithm that directly controls perplexity").
//!
//! Surprise is measured in bits under the distribution that enters the stage. The bound `mu` begins at `2 tau`, and after
//! a token becomes `mu - eta · (surprise - tau)`.
//!
//! - Algorithm 1 estimates Zipf's exponent from the best [`BEST`] tokens (equation 30 and what is before it) and keeps the
//!   best `k = ((s - 1) · 2^mu / (1 - N^(1 - s)))^(1/s)` tokens, rounded to the nearest and at least 1, where N is the size
//!   of the vocabulary; ties with the k-th are kept, as by top-k.
//! - Algorithm 2 keeps the tokens whose surprise is at most mu, and the best one.

use guesthouse_engine::Stage;

/// Tokens from which Zipf's exponent is estimated: the paper's m.
pub(crate) const BEST: usize = 100;

/// A stage's parameters and its state before a token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Mirostat {
    pub tau: f32,
    pub eta: f32,
    pub mu: f32,
}

impl Mirostat {
    /// Of a mirostat stage; `mu` is none at a sequence's beginning.
    pub(crate) fn of(stage: &Stage, mu: Option<f32>) -> Option<Self> {
        match *stage {
            Stage::Mirostat1 { tau, eta } | Stage::Mirostat2 { tau, eta } => Some(Self {
                tau,
                eta,
                mu: mu.unwrap_or(2.0 * tau),
            }),
            _ => None,
        }
    }

    /// Bound for the token after one of this surprise.
    pub(crate) fn after(self, surprise: f32) -> f32 {
        let error = f64::from(surprise) - f64::from(self.tau);
        (f64::from(self.mu) - f64::from(self.eta) * error) as f32
    }

    /// Log-probability, nats, of a token as surprising as may be.
    pub(crate) fn log_bar(self) -> f64 {
        -f64::from(self.mu) * std::f64::consts::LN_2
    }

    /// Tokens that the first algorithm keeps, 1 to the vocabulary's size.
    pub(crate) fn count(self, s: f64, vocab: usize) -> u32 {
        let log_n = (vocab as f64).ln();
        let epsilon = s - 1.0;
        // (1 - N^-e) / e, whose limit at e = 0 is ln N.
        let share = if epsilon == 0.0 {
            log_n
        } else {
            -(-epsilon * log_n).exp_m1() / epsilon
        };
        let k = (f64::from(self.mu).exp2() / share).powf(1.0 / s).round();
        // Also where the estimate is no number: a single token.
        if k >= vocab as f64 {
            vocab as u32
        } else if k >= 1.0 {
            k as u32
        } else {
            1
        }
    }
}

/// Surprise in bits of a log-probability in nats.
pub(crate) fn surprise(log_prob: f32) -> f32 {
    (-f64::from(log_prob) / std::f64::consts::LN_2) as f32
}

/// Least-squares estimate of Zipf's exponent from the best logits, best first: `Σ t b / Σ t²` over neighbours i and i + 1,
/// where `t = ln((i + 1) / i)` and b is the difference of their log-probabilities.
pub(crate) fn zipf_exponent(best: &[f32]) -> f64 {
    let (mut products, mut squares) = (0f64, 0f64);
    for (i, pair) in best.windows(2).enumerate() {
        let t = ((i + 2) as f64 / (i + 1) as f64).ln();
        products += t * (f64::from(pair[0]) - f64::from(pair[1]));
        squares += t * t;
    }
    products / squares
}
