//! Beam search: what `generate(num_beams=…, do_sample=False)` of transformers returns.
//!
//! | Field | Default | |
//! |---|---|---|
//! | `beam_width`, or `best_of` | `n` | beams, at least `n` |
//! | `length_penalty` | 1 | a hypothesis of L tokens counts its log-probability / L^this; -10 to 10 |
//! | `early_stopping` | false | true, false or "never": see [`search::Stopping`] |
//!
//! Besides those the fields of [`constraints`]. The fields of [`randomness`] are checked and have no effect, since nothing is
//! drawn. Log-probabilities are those of the constrained distribution, normalised; transformers, which applies its processors to
//! log-probabilities and does not normalise again, counts differently where there are constraints.

use guesthouse_sdk::Error;
use guesthouse_sdk::sampling::{
    Asked, Draw, ModelFacts, Request, Sampler, SamplingPlan, Stage, constraints, end_tokens,
    randomness, seed,
};
use guesthouse_sdk_step::{Choices, Rows, StepSampler};
use search::{Rules, Search, Stopping};

mod search;
#[cfg(test)]
mod tests;

/// Candidates that the host shows at most; a first step needs two per beam.
const CANDIDATES: u32 = 1024;

struct Beam {
    stages: Vec<Stage>,
    search: Search,
}

impl Sampler for Beam {
    fn create(request: &Request, facts: ModelFacts) -> Result<Self, Error> {
        let stages = constraints(request, &facts)?;
        randomness(request, &facts)?;
        seed(request)?;
        request.flag("use_beam_search")?;
        let width = width(request, facts.choices)?;
        let end_tokens = end_tokens(request, &facts)?;
        // So many have at least `width` that do not end.
        let kept = (1 + end_tokens.len()).max(2).saturating_mul(width as usize);
        let rules = Rules {
            width: width as usize,
            kept: kept.min(CANDIDATES as usize),
            end_tokens,
            length_penalty: request
                .number("length_penalty", -10.0..=10.0)?
                .unwrap_or(1.0),
            stopping: stopping(request)?,
            max_tokens: facts.max_tokens,
        };
        Ok(Self {
            stages,
            search: Search::new(rules),
        })
    }

    fn plan(&self) -> Result<SamplingPlan, Error> {
        let asked = Asked::search(self.search.rules().kept as u32);
        Ok(SamplingPlan::new(self.stages.clone(), Draw::Step(asked)))
    }
}

impl StepSampler for Beam {
    fn step(&mut self, rows: &Rows) -> Choices {
        self.search.step(rows)
    }
}

fn width(request: &Request, n: u32) -> Result<u32, Error> {
    let range = n.into()..=i64::from(CANDIDATES / 2);
    let width = request.whole("beam_width", range.clone())?;
    let best_of = request.whole("best_of", range)?;
    match (width, best_of) {
        (Some(width), Some(best_of)) if width != best_of => Err(request.wrong(
            "best_of",
            format!("must equal beam_width, {width}"),
            best_of,
        )),
        (width, best_of) => Ok(width.or(best_of).map_or(n, |width| width as u32)),
    }
}

fn stopping(request: &Request) -> Result<Stopping, Error> {
    let Some(given) = request.get("early_stopping") else {
        return Ok(Stopping::Heuristic);
    };
    match (given.as_bool(), given.as_str()) {
        (Some(true), _) => Ok(Stopping::Early),
        (Some(false), _) => Ok(Stopping::Heuristic),
        (_, Some("never")) => Ok(Stopping::Never),
        _ => Err(request.wrong("early_stopping", "must be true, false or \"never\"", given)),
    }
}

guesthouse_sdk_step::export_step_sampler!(Beam);
