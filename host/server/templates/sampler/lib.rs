//! `{{name}}`: a sampler that chooses tokens itself, to be changed into yours.
//!
//! The host makes one object per request. `plan` says what the device does to each row of logits and what of it the guest
//! sees; then `step` is called once per step, with all rows of the request, and answers with a token for each.

use guesthouse_sdk::Error;
use guesthouse_sdk::sampling::{
    Asked, Draw, ModelFacts, Request, Sampler, SamplingPlan, Stage, constraints, seed,
};
use guesthouse_sdk_step::{Choices, Rows, StepSampler, log, random};

#[cfg(test)]
mod tests;

struct Guest {
    stages: Vec<Stage>,
    seed: Option<u64>,
    /// Candidates of less than this share of the best one's probability are never drawn.
    min_p: f32,
}

impl Sampler for Guest {
    fn create(request: &Request, facts: ModelFacts) -> Result<Self, Error> {
        Ok(Self {
            // Structured output, bias, penalties and the like, as every request has them.
            stages: constraints(request, &facts)?,
            seed: seed(request)?,
            // A field of the request or of its `sampler_args`. The error is the client's: HTTP 400.
            min_p: request.number("min_p", 0.0..=1.0)?.unwrap_or(0.1),
        })
    }

    fn plan(&self) -> Result<SamplingPlan, Error> {
        // Up to 1024 candidates. `Asked::search` lets branches fork; `with_hidden` shows hidden states too.
        let draw = Draw::Step(Asked::choices(64));
        Ok(SamplingPlan::new(self.stages.clone(), draw).seeded(self.seed))
    }
}

impl StepSampler for Guest {
    fn step(&mut self, rows: &Rows) -> Choices {
        let mut choices = Choices::new();
        for row in rows.iter() {
            // Best first, after the stages.
            let kept = &row.logits()[..random::min_p(row.logits(), self.min_p)];
            // The uniform number comes from the request's seed: equal seeds, equal answers.
            let place = random::sample(kept, row.uniform());
            // `guesthouse sample --trace` shows it.
            log(&format!(
                "{} candidates kept, number {place} drawn",
                kept.len()
            ));
            // The score is for searches.
            choices.go_on(&row, row.tokens()[place], 0.0);
        }
        choices
    }
}

guesthouse_sdk_step::export_step_sampler!(Guest);
