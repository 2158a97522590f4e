//! The search, as transformers 5 does it for a batch of one.

use guesthouse_sdk_step::{Choices, Rows, log};

/// When the search ends, once there are as many finished hypotheses as beams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stopping {
    /// At once: `early_stopping=True`.
    Early,
    /// When the best running hypothesis, at its present length, counts no more than the worst finished one:
    /// `early_stopping=False`.
    Heuristic,
    /// As before, but at the length limit if the length penalty is above 0: `early_stopping="never"`.
    Never,
}

/// What does not change during a search.
#[derive(Clone, Debug, PartialEq)]
pub struct Rules {
    /// Beams.
    pub width: usize,
    /// Best continuations that are looked at in each step.
    pub kept: usize,
    /// Ascending.
    pub end_tokens: Vec<u32>,
    pub length_penalty: f32,
    pub stopping: Stopping,
    /// Tokens of the longest hypothesis.
    pub max_tokens: u32,
}

impl Rules {
    /// What a hypothesis of so many tokens counts.
    fn score(&self, logprob: f64, tokens: u32) -> f64 {
        logprob / f64::from(tokens).powf(self.length_penalty.into())
    }
}

/// A search under way.
#[derive(Clone, Debug)]
pub struct Search {
    rules: Rules,
    /// Log-probability of each choice of the answer before, of the finished ones too.
    logprobs: Vec<f64>,
    /// Scores of the best finished hypotheses, best first; at most as many as beams.
    finished: Vec<f64>,
}

/// A hypothesis that is one token longer than a row's.
#[derive(Clone, Copy, Debug)]
struct Continuation {
    row: usize,
    token: u32,
    logprob: f64,
}

impl Search {
    pub fn new(rules: Rules) -> Self {
        Self {
            rules,
            logprobs: vec![0.0],
            finished: vec![],
        }
    }

    pub fn rules(&self) -> &Rules {
        &self.rules
    }

    /// Of the best `kept` continuations those among the first `width` that end are finished, and the first `width` that do not
    /// end go on.
    pub fn step(&mut self, rows: &Rows) -> Choices {
        let tokens = rows.get(0).generated() + 1;
        let best = self.continuations(rows);
        let is_last = tokens >= self.rules.max_tokens;
        let (mut ended, mut going) = (vec![], vec![]);
        for (rank, next) in best.into_iter().enumerate() {
            if is_last || self.rules.end_tokens.binary_search(&next.token).is_ok() {
                if rank < self.rules.width && self.finish(self.rules.score(next.logprob, tokens)) {
                    ended.push(next);
                }
            } else if going.len() < self.rules.width {
                going.push(next);
            }
        }
        if let Some(best) = going.first()
            && self.is_over(best.logprob, tokens)
        {
            log(&format!(
                "no running hypothesis can be among the best; {:?}",
                self.finished
            ));
            going.clear();
        }
        let mut choices = Choices::new();
        self.logprobs.clear();
        for (next, ends) in ended
            .iter()
            .map(|next| (next, true))
            .chain(going.iter().map(|next| (next, false)))
        {
            let (row, score) = (
                rows.get(next.row),
                self.rules.score(next.logprob, tokens) as f32,
            );
            if ends {
                log(&format!(
                    "a hypothesis of {tokens} tokens ends with {} and counts {score}",
                    next.token
                ));
                choices.finish(&row, next.token, score);
            } else {
                choices.go_on(&row, next.token, score);
            }
            self.logprobs.push(next.logprob);
        }
        choices
    }

    /// The best of all rows, best first.
    fn continuations(&self, rows: &Rows) -> Vec<Continuation> {
        let mut all: Vec<Continuation> = rows
            .iter()
            .flat_map(|row| {
                let before = self.logprobs.get(row.choice()).copied().unwrap_or(0.0);
                row.candidates().map(move |candidate| Continuation {
                    row: row.index(),
                    token: candidate.token,
                    logprob: before + f64::from(candidate.logprob),
                })
            })
            .collect();
        all.sort_by(|a, b| b.logprob.total_cmp(&a.logprob));
        all.truncate(self.rules.kept);
        all
    }

    /// Whether a hypothesis with this score is among the best finished ones.
    fn finish(&mut self, score: f64) -> bool {
        let place = self.finished.partition_point(|other| *other >= score);
        self.finished.insert(place, score);
        self.finished.truncate(self.rules.width);
        place < self.rules.width
    }

    /// Whether the finished hypotheses stay what they are, whatever comes of the best running one.
    fn is_over(&self, logprob: f64, tokens: u32) -> bool {
        let Some(worst) = self.finished.get(self.rules.width - 1) else {
            return false;
        };
        let at = match self.rules.stopping {
            Stopping::Early => return true,
            Stopping::Never if self.rules.length_penalty > 0.0 => self.rules.max_tokens,
            Stopping::Heuristic | Stopping::Never => tokens,
        };
        self.rules.score(logprob, at) <= *worst
    }
}
