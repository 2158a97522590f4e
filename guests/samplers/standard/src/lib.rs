//! The sampler of every ordinary request: no call per step, all of it is the plan.
//!
//! Fields, their ranges and the order of stages are those of vLLM's V1 sampler as far as it has them. [`constraints`] comes
//! first, then [`randomness`], whose tables name every field.

use guesthouse_sdk::Error;
use guesthouse_sdk::sampling::{
    ModelFacts, Request, Sampler, SamplingPlan, constraints, randomness, seed,
};

#[cfg(test)]
mod tests;

struct Standard {
    plan: SamplingPlan,
}

impl Sampler for Standard {
    fn create(request: &Request, facts: ModelFacts) -> Result<Self, Error> {
        let mut stages = constraints(request, &facts)?;
        let randomness = randomness(request, &facts)?;
        stages.extend(randomness.stages);
        Ok(Self {
            plan: SamplingPlan::new(stages, randomness.draw).seeded(seed(request)?),
        })
    }

    fn plan(&self) -> Result<SamplingPlan, Error> {
        Ok(self.plan.clone())
    }
}

guesthouse_sdk::export_sampler!(Standard);
