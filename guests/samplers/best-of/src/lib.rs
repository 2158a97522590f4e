//! Best of several: `best_of` independent samples, of which the `n` with the highest log-probability per token are returned.
//!
//! | Field | Default | |
//! |---|---|---|
//! | `best_of` | `n` | samples, `n` to 64 |
//! | `rank_by` | "mean" | "mean" log-probability per token, as OpenAI's completions do, or the "sum" |
//!
//! Besides those the fields of [`constraints`] and [`randomness`], but for mirostat. Log-probabilities are those that the tokens
//! are drawn with. A token is drawn among the 1024 best; where more than those stay, their share is lost.

use guesthouse_sdk::Error;
use guesthouse_sdk::sampling::{
    Asked, Draw, ModelFacts, Request, Sampler, SamplingPlan, constraints, randomness, seed,
};
use guesthouse_sdk_step::{Choices, Row, Rows, StepSampler};

#[cfg(test)]
mod tests;

/// Samples at once.
const MOST: u32 = 64;

/// Tokens that are drawn among.
const CANDIDATES: u32 = 1024;

/// What samples are ranked by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rank {
    Mean,
    Sum,
}

struct BestOf {
    plan: SamplingPlan,
    takes_best: bool,
    samples: usize,
    rank: Rank,
    /// Log-probability of each choice of the answer before; empty before the first.
    logprobs: Vec<f64>,
}

impl Sampler for BestOf {
    fn create(request: &Request, facts: ModelFacts) -> Result<Self, Error> {
        let mut stages = constraints(request, &facts)?;
        let randomness = randomness(request, &facts)?.without_state("best-of")?;
        stages.extend(randomness.stages);
        let samples = request.whole("best_of", facts.choices.into()..=MOST.into())?;
        let candidates = CANDIDATES.min(facts.vocab_size);
        Ok(Self {
            plan: SamplingPlan::new(stages, Draw::Step(Asked::search(candidates)))
                .seeded(seed(request)?),
            takes_best: randomness.draw == Draw::Greedy,
            samples: samples.map_or(facts.choices as usize, |samples| samples as usize),
            rank: rank(request)?,
            logprobs: vec![],
        })
    }

    fn plan(&self) -> Result<SamplingPlan, Error> {
        Ok(self.plan.clone())
    }
}

impl StepSampler for BestOf {
    fn step(&mut self, rows: &Rows) -> Choices {
        let mut choices = Choices::new();
        let before = std::mem::take(&mut self.logprobs);
        if before.is_empty() {
            let root = rows.get(0);
            for uniform in root.uniforms().take(self.samples) {
                self.draw(&root, uniform, 0.0, &mut choices);
            }
        } else {
            for row in rows.iter() {
                let logprob = before.get(row.choice()).copied().unwrap_or(0.0);
                self.draw(&row, row.uniform(), logprob, &mut choices);
            }
        }
        choices
    }
}

impl BestOf {
    fn draw(&mut self, row: &Row<'_>, uniform: f32, before: f64, choices: &mut Choices) {
        let place = if self.takes_best {
            0
        } else {
            row.sample(uniform)
        };
        let logprob = before + f64::from(row.logprob(place));
        let score = match self.rank {
            Rank::Sum => logprob,
            Rank::Mean => logprob / f64::from(row.generated() + 1),
        };
        choices.go_on(row, row.tokens()[place], score as f32);
        self.logprobs.push(logprob);
    }
}

fn rank(request: &Request) -> Result<Rank, Error> {
    let Some(given) = request.get("rank_by") else {
        return Ok(Rank::Mean);
    };
    match given.as_str() {
        Some("mean") => Ok(Rank::Mean),
        Some("sum") => Ok(Rank::Sum),
        _ => Err(request.wrong("rank_by", "must be \"mean\" or \"sum\"", given)),
    }
}

guesthouse_sdk_step::export_step_sampler!(BestOf);
