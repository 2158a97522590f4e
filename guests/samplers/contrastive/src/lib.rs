//! Contrastive search (Su et al. 2022): of the likeliest tokens the one whose hidden state is least like those before.
//!
//! | Field | Default | |
//! |---|---|---|
//! | `penalty_alpha` | 0.6 | weight of the likeness, 0 to 1 |
//! | `candidates` | 4 | tokens that are considered, 1 to 32: the paper's k |
//! | `penalty_window` | 512 | positions before that are compared, 1 to 4096 |
//!
//! Besides those the fields of [`constraints`]. Nothing is drawn, so the fields of [`randomness`] are checked and have no effect.
//! It generates one answer, so `n` must be 1.
//!
//! A token's hidden state is known a step after it was chosen. So each step forks the likeliest tokens, the next one sees their
//! states, goes on with the best of them alone, and forks that. Two things differ from the paper, which sees a whole context:
//! the positions before are the prompt's last one and those generated since; and where no state follows, the likeliest token
//! is taken: at the last token that fits, and at an end token, which therefore ends where it is the likeliest of all.

use guesthouse_sdk::Error;
use guesthouse_sdk::sampling::{
    Asked, Draw, ModelFacts, Request, Sampler, SamplingPlan, Stage, constraints, end_tokens,
    randomness,
};
use guesthouse_sdk_step::{Candidate, Choices, Row, Rows, StepSampler, log};
use history::History;

mod history;
#[cfg(test)]
mod tests;

/// Score of a fork that is only looked at, if the host ends it.
const CONSIDERED: f32 = -1.0;

/// Score of the answer.
const CHOSEN: f32 = 0.0;

struct Contrastive {
    stages: Vec<Stage>,
    alpha: f32,
    candidates: usize,
    /// Ascending.
    end_tokens: Vec<u32>,
    max_tokens: u32,
    /// Hidden states of the positions before.
    history: History,
    /// Probability of each choice of the answer before; empty before the first.
    probabilities: Vec<f32>,
}

impl Sampler for Contrastive {
    fn create(request: &Request, facts: ModelFacts) -> Result<Self, Error> {
        if facts.choices != 1 {
            return Err(request.wrong("n", "must be 1 with contrastive search", facts.choices));
        }
        let stages = constraints(request, &facts)?;
        randomness(request, &facts)?;
        let alpha = request.number("penalty_alpha", 0.0..=1.0)?;
        let candidates = request.whole("candidates", 1..=32)?;
        let window = request.whole("penalty_window", 1..=4096)?;
        Ok(Self {
            stages,
            alpha: alpha.unwrap_or(0.6),
            candidates: candidates.unwrap_or(4) as usize,
            end_tokens: end_tokens(request, &facts)?,
            max_tokens: facts.max_tokens,
            history: History::new(window.unwrap_or(512) as usize),
            probabilities: vec![],
        })
    }

    fn plan(&self) -> Result<SamplingPlan, Error> {
        // End tokens are passed over.
        let candidates = (self.candidates + self.end_tokens.len()).min(1024) as u32;
        let asked = Asked::search(candidates).with_hidden();
        Ok(SamplingPlan::new(self.stages.clone(), Draw::Step(asked)))
    }
}

impl StepSampler for Contrastive {
    fn step(&mut self, rows: &Rows) -> Choices {
        let row = self.best(rows);
        self.history.push(row.hidden());
        self.probabilities.clear();
        let mut choices = Choices::new();
        let likeliest = row.tokens()[0];
        if row.generated() + 1 >= self.max_tokens || self.ends(likeliest) {
            choices.finish(&row, likeliest, CHOSEN);
            return choices;
        }
        let goes_on = |candidate: &Candidate| !self.ends(candidate.token);
        let likely: Vec<Candidate> = row
            .candidates()
            .filter(goes_on)
            .take(self.candidates)
            .collect();
        for candidate in likely {
            choices.go_on(&row, candidate.token, CONSIDERED);
            self.probabilities.push(candidate.logprob.exp());
        }
        choices
    }
}

impl Contrastive {
    fn ends(&self, token: u32) -> bool {
        self.end_tokens.binary_search(&token).is_ok()
    }

    /// The fork of the step before whose token is chosen; the first among equals.
    fn best<'a>(&self, rows: &'a Rows) -> Row<'a> {
        let first = rows.get(0);
        if self.probabilities.is_empty() {
            return first;
        }
        let (mut best, mut most) = (first, f32::NEG_INFINITY);
        let mut explained = format!("after {} tokens:", first.generated());
        for row in rows.iter() {
            let p = self.probabilities.get(row.choice()).copied().unwrap_or(0.0);
            let likeness = self.history.likeness(row.hidden());
            let score = (1.0 - self.alpha) * p - self.alpha * likeness;
            explained += &format!(" {} p {p:.3} likeness {likeness:.3};", row.last());
            if score > most {
                (best, most) = (row, score);
            }
        }
        log(&explained);
        best
    }
}

guesthouse_sdk_step::export_step_sampler!(Contrastive);
