//! Top-k with a temperature that follows the entropy of each row: certain rows are cooled, uncertain ones are warmed.
//!
//! The same sampler as sampler-python and sampler-javascript, token for token.

use guesthouse_sdk::Error;
use guesthouse_sdk::sampling::{Asked, Draw, ModelFacts, Request, Sampler, SamplingPlan, seed};
use guesthouse_sdk_step::{Choices, Rows, StepSampler, log};
use std::ops::RangeInclusive;

#[cfg(test)]
mod tests;

struct Entropic {
    k: u32,
    min: f64,
    max: f64,
    seed: Option<u64>,
}

impl Sampler for Entropic {
    fn create(request: &Request, _: ModelFacts) -> Result<Self, Error> {
        let k = request.whole("k", 1..=1024)?.unwrap_or(20) as u32;
        let min = number(request, "min", 0.01..=100.0)?.unwrap_or(0.3);
        let max = number(request, "max", min..=100.0)?.unwrap_or(f64::max(min, 1.5));
        let seed = seed(request)?;
        Ok(Self { k, min, max, seed })
    }

    /// Once per request: no stages on the device, then the best k candidates of each row come to `step`.
    fn plan(&self) -> Result<SamplingPlan, Error> {
        let draw = Draw::Step(Asked::choices(self.k));
        Ok(SamplingPlan::new(vec![], draw).seeded(self.seed))
    }
}

impl StepSampler for Entropic {
    /// Once per step, with all rows of the request: one token for each.
    fn step(&mut self, rows: &Rows) -> Choices {
        let mut choices = Choices::new();
        for row in rows.iter() {
            let h = f64::from(row.entropy());
            let t = self.temperature(h);
            let logits = row.logits();
            let above = |logit: f32| f64::from(logit) - f64::from(logits[0]);
            let weights: Vec<f64> = logits.iter().map(|&l| exp(above(l) / t)).collect();
            let i = draw(&weights, f64::from(row.uniform()));
            log(&format!(
                "entropy {h:.3}, temperature {t:.3}: candidate {i} of {}",
                self.k
            ));
            choices.go_on(&row, row.tokens()[i], 0.0);
        }
        choices
    }
}

impl Entropic {
    /// Temperature at entropy h (nats): `min` where it is 0, halfway to `max` where it is 1, towards `max` above.
    fn temperature(&self, h: f64) -> f64 {
        self.min + (self.max - self.min) * (h / (1.0 + h))
    }
}

/// e^x for x <= 0, as (1 + x / 2^20)^(2^20). Sums and products round alike in every language; `f64::exp` does not.
fn exp(x: f64) -> f64 {
    let mut y = (1.0 + x / f64::from(1 << 20)).max(0.0);
    for _ in 0..20 {
        y *= y;
    }
    y
}

/// Index of the candidate that the uniform number u picks among the weights.
fn draw(weights: &[f64], u: f64) -> usize {
    let total: f64 = weights.iter().sum();
    let mut reached = 0.0;
    let found = weights.iter().position(|w| {
        reached += w;
        reached > u * total
    });
    found.unwrap_or(0)
}

/// A number, if present, at full precision: [`Request::number`] alone would round it to f32.
fn number(request: &Request, name: &str, range: RangeInclusive<f64>) -> Result<Option<f64>, Error> {
    request.number(name, range)?;
    Ok(request.get(name).and_then(|x| x.as_f64()))
}

guesthouse_sdk_step::export_step_sampler!(Entropic);
