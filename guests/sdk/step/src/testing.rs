//! A host for a sampler's own tests: runs it on a model that is a function, without stages and without a device.
//!
//! ```
//! use guesthouse_sdk_step::testing::{Host, Offer};
//! # use guesthouse_sdk::Error;
//! # use guesthouse_sdk::sampling::{Asked, Draw, ModelFacts, Request, Sampler, SamplingPlan};
//! # use guesthouse_sdk_step::{Choices, Rows, StepSampler};
//! # struct Best;
//! # impl Sampler for Best {
//! #     fn create(_: &Request, _: ModelFacts) -> Result<Self, Error> { Ok(Self) }
//! #     fn plan(&self) -> Result<SamplingPlan, Error> {
//! #         Ok(SamplingPlan::new(vec![], Draw::Step(Asked::choices(2))))
//! #     }
//! # }
//! # impl StepSampler for Best {
//! #     fn step(&mut self, rows: &Rows) -> Choices {
//! #         let mut choices = Choices::new();
//! #         for row in rows.iter() { choices.go_on(&row, row.tokens()[0], 0.0); }
//! #         choices
//! #     }
//! # }
//! // After token t, token t + 1 is the likeliest; 3 ends.
//! let model = |generated: &[u32]| {
//!     let next = generated.last().map_or(0, |t| t + 1);
//!     Offer::of_logits((0..4).map(|t| if t == next { 1.0 } else { 0.0 }).collect())
//! };
//! let host = Host { model: &model, stop_tokens: vec![3], max_tokens: 10, wanted: 1, vocab: 4 };
//! let answers = host.run::<Best>("{}").unwrap();
//! assert_eq!(answers[0].tokens, [0, 1, 2, 3]);
//! ```

use crate::bindings::exports::guesthouse::sampling::stepping as wit;
use crate::{Rows, StepSampler, Uniforms, Verdict};
use guesthouse_sdk::Error;
use guesthouse_sdk::sampling::{Asked, Draw, ModelFacts, Request};

#[cfg(test)]
mod tests;

/// What the model says after some tokens.
#[derive(Clone, Debug, PartialEq)]
pub struct Offer {
    /// Best tokens first.
    pub tokens: Vec<u32>,
    /// Their logits.
    pub logits: Vec<f32>,
    /// Of the whole row.
    pub log_sum_exp: f32,
    /// Of the last position; as wide for all offers.
    pub hidden: Vec<f32>,
}

impl Offer {
    /// A whole row, by token id.
    #[must_use]
    pub fn of_logits(logits: Vec<f32>) -> Self {
        let best = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum: f32 = logits.iter().map(|l| (l - best).exp()).sum();
        let mut tokens: Vec<u32> = (0..logits.len() as u32).collect();
        tokens.sort_by(|&a, &b| logits[b as usize].total_cmp(&logits[a as usize]));
        Self {
            logits: tokens.iter().map(|t| logits[*t as usize]).collect(),
            tokens,
            log_sum_exp: best + sum.ln(),
            hidden: vec![],
        }
    }

    /// A whole row of probabilities, by token id.
    #[must_use]
    pub fn of_probabilities(probabilities: &[f32]) -> Self {
        Self::of_logits(probabilities.iter().map(|p| p.ln()).collect())
    }
}

/// A host for one request.
pub struct Host<'a> {
    /// What comes after the generated tokens.
    pub model: &'a dyn Fn(&[u32]) -> Offer,
    /// They end a branch.
    pub stop_tokens: Vec<u32>,
    /// So many end a branch too.
    pub max_tokens: u32,
    /// Choices that the client wants.
    pub wanted: u32,
    /// Size of the vocabulary.
    pub vocab: u32,
}

/// One branch.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Branch {
    /// What it generated.
    pub tokens: Vec<u32>,
    /// The last score it was given.
    pub score: f32,
    /// Its number.
    number: u32,
    /// Which choice of the answer before it continues.
    choice: u32,
}

impl Host<'_> {
    /// Generates until nothing is left to do: for a search the selected branches, otherwise all.
    ///
    /// # Errors
    /// When the sampler refuses the request, or does what a host refuses.
    pub fn run<S: StepSampler>(&self, request: &str) -> Result<Vec<Branch>, Error> {
        let facts = ModelFacts {
            vocab_size: self.vocab,
            stop_tokens: self.stop_tokens.clone(),
            max_len: u32::MAX,
            prompt_len: 1,
            max_tokens: self.max_tokens,
            choices: self.wanted,
        };
        let mut sampler = S::create(&Request::parse(request)?, facts)?;
        let (asked, whole) = match sampler.plan()?.draw {
            Draw::Step(asked) => (asked, false),
            Draw::Logits(asked) => (asked, true),
            draw => return Err(wrong(format!("the plan's draw is {draw:?}"))),
        };
        let branches = if asked.search { 1 } else { self.wanted };
        let first = |number| Branch {
            number,
            choice: number,
            ..Branch::default()
        };
        let mut running: Vec<Branch> = (0..branches).map(first).collect();
        let (mut finished, mut born) = (Vec::new(), branches);
        while !running.is_empty() {
            let choices = self.ask(&mut sampler, &running, asked, whole)?.into_wit();
            let mut next = Vec::new();
            for i in 0..choices.parent.len() {
                let parent = choices.parent[i] as usize;
                let from = running
                    .get(parent)
                    .ok_or_else(|| wrong(format!("choice {i} continues row {parent}")))?;
                let mut branch = from.clone();
                branch.tokens.push(choices.token[i]);
                branch.score = choices.score[i];
                branch.choice = i as u32;
                if branch.score.is_nan() {
                    return Err(wrong(format!("choice {i} has a score of NaN")));
                }
                if choices.parent[..i].contains(&choices.parent[i]) {
                    if !asked.search {
                        return Err(wrong(format!("choice {i} forks row {parent}")));
                    }
                    branch.number = born;
                    born += 1;
                }
                let ended = choices.flags[i] == 1
                    || self.stop_tokens.contains(&choices.token[i])
                    || branch.tokens.len() >= self.max_tokens as usize;
                if ended { &mut finished } else { &mut next }.push(branch);
            }
            running = next;
        }
        if !asked.search {
            finished.sort_by_key(|branch| branch.number);
            return Ok(finished);
        }
        let told = wit::Finished {
            branches: finished.iter().map(|b| b.number).collect(),
            scores: finished.iter().map(|b| b.score).collect(),
            lengths: finished.iter().map(|b| b.tokens.len() as u32).collect(),
            wanted: self.wanted,
        };
        let selected = sampler.select(&told);
        let pick = |i: u32| {
            let branch = finished.get(i as usize).cloned();
            branch.ok_or_else(|| wrong(format!("{i} of {} branches is selected", finished.len())))
        };
        selected.into_iter().map(pick).collect()
    }

    fn ask<S: StepSampler>(
        &self,
        sampler: &mut S,
        running: &[Branch],
        asked: Asked,
        whole: bool,
    ) -> Result<crate::Choices, Error> {
        let offers: Vec<Offer> = running.iter().map(|b| (self.model)(&b.tokens)).collect();
        let uniform = |b: &Branch| {
            let place = b.number as f32 + b.tokens.len() as f32 / 1024.0;
            Uniforms::new(place).next().unwrap_or(0.5)
        };
        let rows = wit::Rows {
            branches: running.iter().map(|b| b.number).collect(),
            choices: running.iter().map(|b| b.choice).collect(),
            last: running
                .iter()
                .map(|b| b.tokens.last().copied().unwrap_or(0))
                .collect(),
            lengths: running.iter().map(|b| b.tokens.len() as u32).collect(),
            uniform: running.iter().map(uniform).collect(),
            hidden: if asked.hidden {
                offers.iter().flat_map(|o| o.hidden.clone()).collect()
            } else {
                vec![]
            },
        };
        if whole {
            let mut logits = vec![f32::NEG_INFINITY; offers.len() * self.vocab as usize];
            for (offer, row) in offers.iter().zip(logits.chunks_mut(self.vocab as usize)) {
                for (token, logit) in offer.tokens.iter().zip(&offer.logits) {
                    row[*token as usize] = *logit;
                }
            }
            let rows = Rows::whole(rows, logits);
            let told = rows.clone();
            return Ok(match sampler.step_logits(rows) {
                Verdict::Choices(choices) => choices,
                Verdict::Logits(logits) => draw(&told, &logits, self.vocab as usize),
            });
        }
        let n = asked.candidates as usize;
        let (mut tokens, mut logits, mut entropy) = (vec![], vec![], vec![]);
        for offer in &offers {
            tokens.extend(padded(&offer.tokens, n, 0));
            logits.extend(padded(&offer.logits, n, f32::NEG_INFINITY));
            let terms = offer.logits.iter().map(|l| l - offer.log_sum_exp);
            entropy.push(
                -terms
                    .filter(|l| l.is_finite())
                    .map(|l| l.exp() * l)
                    .sum::<f32>(),
            );
        }
        let candidates = wit::Candidates {
            n: asked.candidates,
            tokens,
            logits,
            log_sum_exp: offers.iter().map(|o| o.log_sum_exp).collect(),
            entropy,
        };
        let rows = Rows::new(rows, candidates);
        let choices = sampler.step(&rows);
        let answer = choices.clone().into_wit();
        for (parent, token) in answer.parent.iter().zip(&answer.token) {
            let row = *parent as usize;
            if row < rows.len() && !rows.get(row).tokens().contains(token) {
                return Err(wrong(format!("token {token} is no candidate of row {row}")));
            }
        }
        Ok(choices)
    }
}

/// The host's own draw from logits that a sampler gave back.
fn draw(rows: &crate::WholeRows, logits: &[f32], vocab: usize) -> crate::Choices {
    let mut choices = crate::Choices::new();
    for (row, logits) in rows.iter().zip(logits.chunks(vocab)) {
        let token = crate::random::sample(logits, row.uniform());
        choices.go_on(&row, token as u32, 0.0);
    }
    choices
}

fn padded<T: Copy>(list: &[T], n: usize, with: T) -> impl Iterator<Item = T> {
    let rest = n.saturating_sub(list.len());
    list.iter()
        .take(n)
        .copied()
        .chain(std::iter::repeat_n(with, rest))
}

fn wrong(what: String) -> Error {
    Error::Other(what)
}
