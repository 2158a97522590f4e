//! Whether an answer can be applied. Whoever runs guests checks too; the engine relies on nobody.

use super::rows::Source;
use crate::{Branching, Choice, ChooserError};
use std::collections::BTreeSet;

pub(super) const STEP: &str = "stepping.step";
pub(super) const SELECT: &str = "stepping.select";

/// Finished branches that a search may keep per branch that may live at once.
const FINISHED_PER_BRANCH: usize = 64;

/// What an answer is checked against.
pub(super) struct Rules<'a> {
    pub(super) module: &'a str,
    pub(super) branching: Branching,
    pub(super) vocab: u32,
    pub(super) max_branches: u32,
}

impl Rules<'_> {
    fn fault<T>(&self, function: &str, what: std::fmt::Arguments<'_>) -> Result<T, ChooserError> {
        Err(ChooserError(format!(
            "sampler module {}: {function} {what}",
            self.module
        )))
    }

    /// Each choice by itself, and that choices do not fork.
    pub(super) fn check_choices(
        &self,
        sources: &[Source<'_>],
        choices: &[Choice],
    ) -> Result<(), ChooserError> {
        let mut named = BTreeSet::new();
        for choice in choices {
            let Choice {
                row, token, score, ..
            } = *choice;
            let Some(source) = sources.get(row as usize) else {
                let rows = sources.len();
                return self.fault(
                    STEP,
                    format_args!("named row {row}, but there are {rows} rows"),
                );
            };
            if token >= self.vocab {
                let vocab = self.vocab;
                return self.fault(
                    STEP,
                    format_args!(
                        "chose token {token} for row {row}, which is outside the vocabulary of {vocab} tokens"
                    ),
                );
            }
            if let Source::Candidates(candidates) = source
                && !candidates.tokens.contains(&token)
            {
                let count = candidates.tokens.len();
                return self.fault(
                    STEP,
                    format_args!(
                        "chose token {token} for row {row}, which is none of its {count} candidates"
                    ),
                );
            }
            if score.is_nan() {
                return self.fault(
                    STEP,
                    format_args!("scored token {token} of row {row} with NaN"),
                );
            }
            if !named.insert(row) && self.branching == Branching::Choices {
                return self.fault(
                    STEP,
                    format_args!(
                        "chose more than one token for row {row}, but only a search may fork"
                    ),
                );
            }
        }
        Ok(())
    }

    /// How many branches a search has.
    pub(super) fn check_counts(&self, live: usize, finished: usize) -> Result<(), ChooserError> {
        let most = self.max_branches as usize;
        if live > most {
            return self.fault(
                STEP,
                format_args!("continued {live} branches, but at most {most} may live at once"),
            );
        }
        let most = most * FINISHED_PER_BRANCH;
        if finished > most {
            return self.fault(
                STEP,
                format_args!("finished {finished} branches, but at most {most} are kept"),
            );
        }
        Ok(())
    }

    /// Indices into the finished branches.
    pub(super) fn check_selection(
        &self,
        selected: &[u32],
        finished: usize,
        wanted: u32,
    ) -> Result<(), ChooserError> {
        if selected.is_empty() {
            return self.fault(SELECT, format_args!("returned none of {finished} branches"));
        }
        if selected.len() > wanted as usize {
            let count = selected.len();
            return self.fault(
                SELECT,
                format_args!("returned {count} branches, but at most {wanted} are wanted"),
            );
        }
        let mut seen = BTreeSet::new();
        for &index in selected {
            if index as usize >= finished {
                return self.fault(
                    SELECT,
                    format_args!(
                        "returned index {index}, but there are {finished} finished branches"
                    ),
                );
            }
            if !seen.insert(index) {
                return self.fault(SELECT, format_args!("returned index {index} twice"));
            }
        }
        Ok(())
    }

    /// The search has something to select from.
    pub(super) fn check_end(&self, finished: usize) -> Result<(), ChooserError> {
        if finished == 0 {
            return self.fault(
                STEP,
                format_args!("ended all branches, and none had finished"),
            );
        }
        Ok(())
    }
}
