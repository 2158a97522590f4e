//! A small tree-of-thought search (after Yao et al. 2023), with the model's own log-probabilities as judge.
//!
//! | Field | Default | |
//! |---|---|---|
//! | `depth` | 16 | tokens of a thought, 1 to 4096 |
//! | `branch` | 3 | ways in which a thought goes on, 1 to 16 |
//! | `beam` | 2 | thoughts that are kept, 1 to 16 |
//! | `separator_token_ids` | none | tokens that end a thought early |
//!
//! Besides those the fields of [`constraints`] and [`randomness`], but for mirostat; `n` is at most `beam` · `branch`.
//!
//! A thought is `depth` tokens, or fewer that end with a separator; its first token is where ways part, the others are drawn one
//! by one (with `temperature` 0 the best are taken). Where a thought ends:
//!
//! 1. of all branches the `beam` with the best log-probability per token stay, the others end;
//! 2. of those, each whose thought is complete goes on with `branch` different tokens, drawn without replacement.
//!
//! Branches that reach an end token are finished, with their log-probability per token as score. The search ends when there are as
//! many as `beam` and as `n`, or at the length limit, where all branches finish; the best `n` are returned, fewer if there are
//! fewer.

use guesthouse_sdk::Error;
use guesthouse_sdk::sampling::{
    Asked, Draw, ModelFacts, Request, Sampler, SamplingPlan, constraints, end_tokens, randomness,
    seed,
};
use guesthouse_sdk_step::{Choices, Row, Rows, StepSampler, log};

#[cfg(test)]
mod tests;

/// Tokens that are drawn among.
const CANDIDATES: u32 = 256;

struct Tree {
    plan: SamplingPlan,
    takes_best: bool,
    depth: u32,
    branch: usize,
    beam: usize,
    separators: Vec<u32>,
    end_tokens: Vec<u32>,
    /// Finished branches after which the search ends.
    enough: usize,
    finished: usize,
    /// Of each choice of the answer before; empty before the first.
    paths: Vec<Path>,
}

/// A branch's way so far.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Path {
    logprob: f64,
    /// Tokens of its last thought.
    thought: u32,
}

impl Sampler for Tree {
    fn create(request: &Request, facts: ModelFacts) -> Result<Self, Error> {
        let mut stages = constraints(request, &facts)?;
        let randomness = randomness(request, &facts)?.without_state("tree")?;
        stages.extend(randomness.stages);
        let branch = request.whole("branch", 1..=16)?.unwrap_or(3) as usize;
        let beam = request.whole("beam", 1..=16)?.unwrap_or(2) as usize;
        let wanted = facts.choices as usize;
        if wanted > branch * beam {
            let most = format!("must be at most beam · branch, {}", branch * beam);
            return Err(request.wrong("n", most, wanted));
        }
        let separators = request.tokens("separator_token_ids", facts.vocab_size)?;
        let candidates = CANDIDATES.min(facts.vocab_size);
        Ok(Self {
            plan: SamplingPlan::new(stages, Draw::Step(Asked::search(candidates)))
                .seeded(seed(request)?),
            takes_best: randomness.draw == Draw::Greedy,
            depth: request.whole("depth", 1..=4096)?.unwrap_or(16) as u32,
            branch,
            beam,
            separators: separators.unwrap_or_default(),
            end_tokens: end_tokens(request, &facts)?,
            enough: beam.max(wanted),
            finished: 0,
            paths: vec![],
        })
    }

    fn plan(&self) -> Result<SamplingPlan, Error> {
        Ok(self.plan.clone())
    }
}

impl StepSampler for Tree {
    fn step(&mut self, rows: &Rows) -> Choices {
        let before = std::mem::take(&mut self.paths);
        let mut live: Vec<(Row<'_>, Path)> = rows
            .iter()
            .map(|row| (row, before.get(row.choice()).copied().unwrap_or_default()))
            .collect();
        if live.iter().any(|(row, path)| self.parts(row, path)) {
            self.prune(&mut live);
        }
        let (mut ended, mut going) = (vec![], vec![]);
        for (row, path) in live {
            for place in self.places(&row, &path) {
                let token = row.tokens()[place];
                let next = Path {
                    logprob: path.logprob + f64::from(row.logprob(place)),
                    thought: if self.parts(&row, &path) {
                        1
                    } else {
                        path.thought + 1
                    },
                };
                let ends = self.end_tokens.binary_search(&token).is_ok();
                if ends { &mut ended } else { &mut going }.push((row, token, next));
            }
        }
        self.finished += ended.len();
        if self.finished >= self.enough {
            log(&format!("{} branches have finished", self.finished));
            going.clear();
        }
        let mut choices = Choices::new();
        for (row, token, next) in ended {
            choices.finish(&row, token, mean(next.logprob, row.generated() + 1));
            self.paths.push(next);
        }
        for (row, token, next) in going {
            choices.go_on(&row, token, mean(next.logprob, row.generated() + 1));
            self.paths.push(next);
        }
        choices
    }
}

impl Tree {
    /// Whether a row's token begins a thought.
    fn parts(&self, row: &Row<'_>, path: &Path) -> bool {
        path.thought == 0 || path.thought >= self.depth || self.separators.contains(&row.last())
    }

    /// The best stay, in the order of their rows.
    fn prune(&self, live: &mut Vec<(Row<'_>, Path)>) {
        if live.len() <= self.beam {
            return;
        }
        live.sort_by(|(a, x), (b, y)| {
            mean(y.logprob, b.generated()).total_cmp(&mean(x.logprob, a.generated()))
        });
        for (row, path) in &live[self.beam..] {
            let score = mean(path.logprob, row.generated());
            log(&format!(
                "branch {} ends at {score:.3} per token",
                row.branch()
            ));
        }
        live.truncate(self.beam);
        live.sort_by_key(|(row, _)| row.index());
    }

    /// Which candidates a branch goes on with.
    fn places(&self, row: &Row<'_>, path: &Path) -> Vec<usize> {
        match (self.parts(row, path), self.takes_best) {
            (false, true) => vec![0],
            (false, false) => vec![row.sample(row.uniform())],
            (true, true) => (0..row.tokens().len().min(self.branch)).collect(),
            (true, false) => row.sample_distinct(self.branch),
        }
    }
}

/// Log-probability per token.
fn mean(logprob: f64, tokens: u32) -> f32 {
    (logprob / f64::from(tokens.max(1))) as f32
}

guesthouse_sdk_step::export_step_sampler!(Tree);
