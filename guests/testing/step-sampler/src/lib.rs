//! A step sampler to measure and to test the host with: top-k 50 and top-p 0.9 over 256 candidates.
//!
//! With `"rotate": true` the n-th step takes candidate n instead, which shows whether the sampler's state is what its calls
//! made it; with `"panic_at": n` the n-th step panics.

use guesthouse_sdk::Error;
use guesthouse_sdk::sampling::{Asked, Draw, ModelFacts, Request, Sampler, SamplingPlan};
use guesthouse_sdk_step::{Choices, Rows, StepSampler};

const CANDIDATES: u32 = 256;
const TOP_K: usize = 50;
const TOP_P: f32 = 0.9;

struct TopKTopP {
    candidates: u32,
    rotate: bool,
    panic_at: Option<i64>,
    steps: usize,
}

impl Sampler for TopKTopP {
    fn create(request: &Request, facts: ModelFacts) -> Result<Self, Error> {
        let rotate = request.flag("rotate")?;
        Ok(Self {
            candidates: CANDIDATES.min(facts.vocab_size),
            rotate: rotate.unwrap_or(false),
            panic_at: request.whole("panic_at", 0..=i64::MAX)?,
            steps: 0,
        })
    }

    fn plan(&self) -> Result<SamplingPlan, Error> {
        let asked = Asked::choices(self.candidates);
        Ok(SamplingPlan::new(vec![], Draw::Step(asked)))
    }
}

impl StepSampler for TopKTopP {
    fn step(&mut self, rows: &Rows) -> Choices {
        if self.panic_at == Some(self.steps as i64) {
            panic!("step {} is the last", self.steps);
        }
        let mut choices = Choices::new();
        for row in rows.iter() {
            let tokens = row.tokens();
            let i = if self.rotate {
                self.steps % tokens.len()
            } else {
                draw(row.logits(), row.uniform())
            };
            choices.go_on(&row, tokens[i], 0.0);
        }
        self.steps += 1;
        choices
    }
}

/// Index of a draw among the best [`TOP_K`] logits, descending, as far as their probabilities reach [`TOP_P`].
fn draw(logits: &[f32], uniform: f32) -> usize {
    let best = &logits[..logits.len().min(TOP_K)];
    let mut weights = [0.0; TOP_K];
    let mut total = 0.0;
    for (weight, &logit) in weights.iter_mut().zip(best) {
        *weight = exp(logit - best[0]);
        total += *weight;
    }
    let mut kept = 0.0;
    let mut count = 0;
    while count < best.len() && kept < TOP_P * total {
        kept += weights[count];
        count += 1;
    }
    let mut left = uniform * kept;
    for (i, weight) in weights[..count].iter().enumerate() {
        left -= weight;
        if left < 0.0 {
            return i;
        }
    }
    count.saturating_sub(1)
}

/// e^x for x <= 0, within 1e-5 of it.
fn exp(x: f32) -> f32 {
    let scaled = x * std::f32::consts::LOG2_E;
    if scaled < -126.0 {
        return 0.0;
    }
    let whole = scaled.floor();
    let part = scaled - whole;
    // Taylor series of 2^part around 0.5.
    let t = (part - 0.5) * std::f32::consts::LN_2;
    let series = 1.0 + t * (1.0 + t * (0.5 + t * (1.0 / 6.0 + t * (1.0 / 24.0 + t / 120.0))));
    let power = f32::from_bits(((whole as i32 + 127) as u32) << 23);
    power * std::f32::consts::SQRT_2 * series
}

guesthouse_sdk_step::export_step_sampler!(TopKTopP);
