//! Checks what a sampler guest answered and turns it into the engine's plan.

use guesthouse_engine::{Asked, Branching, Draw, Hidden, SamplingPlan, Stage};

use super::wit;
use super::{Grammar, PlannedSampling};
use crate::ComponentError;

mod stages;

/// Stages of one plan.
const STAGES: usize = 64;
/// Token ids of one plan, in all its lists.
const TOKENS: usize = 2 << 20;
/// Sequences of one `bad-words` stage.
const BAD_WORDS: usize = 10_000;
/// Length of one of them, tokens.
const BAD_WORD: usize = 256;
/// Candidates that a guest may ask for.
const CANDIDATES: u32 = 1024;
const FUNCTION: &str = "sampler.plan";

/// What the checks need to know of the module and the model.
pub(super) struct Facts<'a> {
    pub(super) module: &'a str,
    pub(super) vocab: u32,
    pub(super) stepping: Stepping,
}

/// Whether the module exports `guesthouse:sampling/stepping`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stepping {
    Exported,
    Missing,
}

struct Check<'a> {
    module: &'a str,
    vocab: u32,
    tokens: usize,
    /// Which tokens the allow and ban lists leave; made by the first of them.
    left: Option<Vec<bool>>,
}

/// The plan with every id and number checked.
pub(super) fn plan(
    facts: &Facts<'_>,
    plan: wit::SamplingPlan,
) -> Result<PlannedSampling, ComponentError> {
    let mut check = Check {
        module: facts.module,
        vocab: facts.vocab,
        tokens: 0,
        left: None,
    };
    if let Some(attr) = plan.ext.first() {
        return Err(check.unsupported(format!("plan setting {:?}", clip(&attr.key))));
    }
    if plan.stages.len() > STAGES {
        return Err(check.invalid(format!(
            "{} stages, expected at most {STAGES}",
            plan.stages.len()
        )));
    }
    let draw = check.draw(plan.draw, facts.stepping)?;
    let mut grammar = None;
    let mut stages = Vec::with_capacity(plan.stages.len());
    for stage in plan.stages {
        match stage {
            wit::Stage::Grammar(found) => {
                if grammar.is_some() {
                    return Err(check.invalid("2 grammar stages, expected at most 1".into()));
                }
                grammar = Some(Grammar {
                    syntax: found.syntax,
                    source: found.source,
                });
            }
            stage => stages.push(check.stage(stage)?),
        }
    }
    check.mirostat(&stages, draw)?;
    if check
        .left
        .as_ref()
        .is_some_and(|left| !left.contains(&true))
    {
        return Err(check.invalid("its allowed and banned tokens leave no token to draw".into()));
    }
    Ok(PlannedSampling {
        plan: SamplingPlan { stages, draw },
        seed: plan.seed,
        grammar,
    })
}

impl Check<'_> {
    fn invalid(&self, reason: String) -> ComponentError {
        ComponentError::InvalidAnswer {
            module: self.module.into(),
            function: FUNCTION,
            reason,
        }
    }

    fn unsupported(&self, what: String) -> ComponentError {
        ComponentError::Unsupported {
            module: self.module.into(),
            function: FUNCTION,
            what,
        }
    }

    fn draw(&self, draw: wit::Draw, stepping: Stepping) -> Result<Draw, ComponentError> {
        let (name, asked) = match draw {
            wit::Draw::Greedy => return Ok(Draw::Greedy),
            wit::Draw::Sample => return Ok(Draw::Sample),
            wit::Draw::Step(asked) => ("step", asked),
            wit::Draw::Logits(asked) => ("logits", asked),
        };
        if stepping == Stepping::Missing {
            return Err(self.invalid(format!(
                "draw {name}, but the module does not export guesthouse:sampling/stepping"
            )));
        }
        let whole = matches!(draw, wit::Draw::Logits(_));
        if !whole && !(1..=CANDIDATES).contains(&asked.candidates) {
            return Err(self.invalid(format!(
                "draw step asks for {} candidates, expected 1 to {CANDIDATES}",
                asked.candidates
            )));
        }
        let asked = Asked {
            candidates: if whole { 1 } else { asked.candidates },
            branching: if asked.search {
                Branching::Search
            } else {
                Branching::Choices
            },
            hidden: if asked.hidden {
                Hidden::Shown
            } else {
                Hidden::Kept
            },
        };
        Ok(if whole {
            Draw::Row(asked)
        } else {
            Draw::Candidates(asked)
        })
    }

    /// Mirostat keeps one state, which follows from the token that the device draws.
    fn mirostat(&self, stages: &[Stage], draw: Draw) -> Result<(), ComponentError> {
        let count = stages
            .iter()
            .filter(|stage| matches!(stage, Stage::Mirostat1 { .. } | Stage::Mirostat2 { .. }))
            .count();
        if count > 1 {
            return Err(self.invalid(format!("{count} mirostat stages, expected at most 1")));
        }
        let name = match draw {
            Draw::Greedy => "greedy",
            Draw::Candidates(_) => "step",
            Draw::Row(_) => "logits",
            Draw::Sample => return Ok(()),
        };
        if count == 1 {
            return Err(self.invalid(format!(
                "a mirostat stage with draw {name}, expected draw sample"
            )));
        }
        Ok(())
    }

    fn bad_words(&mut self, words: Vec<Vec<u32>>) -> Result<Stage, ComponentError> {
        if words.len() > BAD_WORDS {
            return Err(self.invalid(format!(
                "{} bad words, expected at most {BAD_WORDS}",
                words.len()
            )));
        }
        for word in &words {
            if word.is_empty() || word.len() > BAD_WORD {
                return Err(self.invalid(format!(
                    "a bad word of {} tokens, expected 1 to {BAD_WORD}",
                    word.len()
                )));
            }
            self.ids("bad-words", word)?;
            if word.len() == 1 {
                self.ban(word);
            }
        }
        Ok(Stage::BadWords(words))
    }

    fn ids(&mut self, stage: &str, ids: &[u32]) -> Result<(), ComponentError> {
        self.tokens += ids.len();
        if self.tokens > TOKENS {
            return Err(self.invalid(format!("more than {TOKENS} token ids")));
        }
        match ids.iter().find(|&&id| id >= self.vocab) {
            Some(id) => Err(self.invalid(format!(
                "token {id} in {stage}, expected ids below {}",
                self.vocab
            ))),
            None => Ok(()),
        }
    }

    fn number(
        &self,
        what: &str,
        found: f32,
        fits: impl Fn(f32) -> bool,
        expected: &str,
    ) -> Result<f32, ComponentError> {
        if fits(found) {
            Ok(found)
        } else {
            Err(self.invalid(format!("{what} is {found}, expected {expected}")))
        }
    }

    fn left(&mut self) -> &mut Vec<bool> {
        self.left
            .get_or_insert_with(|| vec![true; self.vocab as usize])
    }

    fn allow(&mut self, ids: &[u32]) {
        let mut allowed = vec![false; self.vocab as usize];
        ids.iter().for_each(|&id| allowed[id as usize] = true);
        let left = self.left();
        left.iter_mut()
            .zip(allowed)
            .for_each(|(left, allowed)| *left &= allowed);
    }

    fn ban(&mut self, ids: &[u32]) {
        let left = self.left();
        ids.iter().for_each(|&id| left[id as usize] = false);
    }
}

/// A guest's word, short enough for an error message.
fn clip(text: &str) -> &str {
    &text[..text.floor_char_boundary(64)]
}

#[cfg(test)]
mod tests;
