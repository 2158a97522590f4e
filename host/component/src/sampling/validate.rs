//! Checks what a sampler guest answered and turns it into the engine's plan.

use guesthouse_engine::{Draw, SamplingPlan, Stage};

use super::PlannedSampling;
use super::wit;
use crate::ComponentError;

/// Stages of one plan.
const STAGES: usize = 64;
/// Token ids of one plan, in all its lists.
const TOKENS: usize = 2 << 20;
/// Sequences of one `bad-words` stage.
const BAD_WORDS: usize = 10_000;
/// Length of one of them, tokens.
const BAD_WORD: usize = 256;
const FUNCTION: &str = "sampler.plan";

struct Check<'a> {
    module: &'a str,
    vocab: u32,
    tokens: usize,
    /// Which tokens the allow and ban lists leave; made by the first of them.
    left: Option<Vec<bool>>,
}

/// The plan with every id and number checked.
pub(super) fn plan(
    module: &str,
    vocab: u32,
    plan: wit::SamplingPlan,
) -> Result<PlannedSampling, ComponentError> {
    let mut check = Check {
        module,
        vocab,
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
    let draw = match plan.draw {
        wit::Draw::Greedy => Draw::Greedy,
        wit::Draw::Sample => Draw::Sample,
        wit::Draw::Step(asked) => {
            let n = asked.candidates;
            return Err(check.unsupported(format!("draw step({n}) (tier 2)")));
        }
        wit::Draw::Logits(_) => return Err(check.unsupported("draw logits (tier 3)".into())),
    };
    let stages = plan
        .stages
        .into_iter()
        .map(|stage| check.stage(stage))
        .collect::<Result<Vec<_>, _>>()?;
    if check.left.is_some_and(|left| !left.contains(&true)) {
        let reason = "its allowed and banned tokens leave no token to draw".to_owned();
        return Err(ComponentError::InvalidAnswer {
            module: module.into(),
            function: FUNCTION,
            reason,
        });
    }
    Ok(PlannedSampling {
        plan: SamplingPlan { stages, draw },
        seed: plan.seed,
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

    fn stage(&mut self, stage: wit::Stage) -> Result<Stage, ComponentError> {
        Ok(match stage {
            wit::Stage::AllowedTokens(ids) => {
                self.ids("allowed-tokens", &ids)?;
                let mut allowed = vec![false; self.vocab as usize];
                ids.iter().for_each(|&id| allowed[id as usize] = true);
                self.left()
                    .iter_mut()
                    .zip(allowed)
                    .for_each(|(left, allowed)| *left &= allowed);
                Stage::AllowedTokens(ids)
            }
            wit::Stage::BannedTokens(ids) => {
                self.ids("banned-tokens", &ids)?;
                self.ban(&ids);
                Stage::BannedTokens(ids)
            }
            wit::Stage::MinTokens(stage) => {
                self.ids("min-tokens", &stage.banned)?;
                if stage.count > 0 {
                    self.ban(&stage.banned);
                }
                Stage::MinTokens {
                    count: stage.count,
                    banned: stage.banned,
                }
            }
            wit::Stage::BadWords(words) => self.bad_words(words)?,
            wit::Stage::LogitBias(biases) => {
                let ids: Vec<u32> = biases.iter().map(|bias| bias.token).collect();
                self.ids("logit-bias", &ids)?;
                for bias in &biases {
                    self.number("logit-bias", bias.bias, f32::is_finite, "a finite number")?;
                }
                Stage::LogitBias(
                    biases
                        .into_iter()
                        .map(|bias| (bias.token, bias.bias))
                        .collect(),
                )
            }
            wit::Stage::Penalties(p) => {
                let positive = |x: f32| x.is_finite() && x > 0.0;
                self.number(
                    "repetition penalty",
                    p.repetition,
                    positive,
                    "a finite number above 0",
                )?;
                self.number(
                    "presence penalty",
                    p.presence,
                    f32::is_finite,
                    "a finite number",
                )?;
                self.number(
                    "frequency penalty",
                    p.frequency,
                    f32::is_finite,
                    "a finite number",
                )?;
                Stage::Penalties {
                    repetition: p.repetition,
                    presence: p.presence,
                    frequency: p.frequency,
                }
            }
            wit::Stage::Temperature(t) => {
                self.number(
                    "temperature",
                    t,
                    |t| t.is_finite() && t > 0.0,
                    "a finite number above 0",
                )?;
                Stage::Temperature(t)
            }
            wit::Stage::TopK(0) => {
                return Err(self.invalid("top-k is 0, expected at least 1".into()));
            }
            wit::Stage::TopK(k) => Stage::TopK(k),
            // 0 keeps the best token alone.
            wit::Stage::TopP(p) => {
                Stage::TopP(self.number("top-p", p, |p| (0.0..=1.0).contains(&p), "from 0 to 1")?)
            }
            wit::Stage::MinP(p) => {
                Stage::MinP(self.number("min-p", p, |p| (0.0..=1.0).contains(&p), "from 0 to 1")?)
            }
            wit::Stage::TypicalP(p) => Stage::TypicalP(self.number(
                "typical-p",
                p,
                |p| p > 0.0 && p <= 1.0,
                "above 0, at most 1",
            )?),
            wit::Stage::Grammar(grammar) => {
                return Err(
                    self.unsupported(format!("a grammar stage ({:?})", clip(&grammar.syntax)))
                );
            }
            wit::Stage::NoRepeatNgram(_)
            | wit::Stage::Dry(_)
            | wit::Stage::DynamicTemperature(_)
            | wit::Stage::TopNSigma(_)
            | wit::Stage::EpsilonCutoff(_)
            | wit::Stage::EtaCutoff(_)
            | wit::Stage::TailFree(_)
            | wit::Stage::Xtc(_)
            | wit::Stage::Mirostat1(_)
            | wit::Stage::Mirostat2(_)
            | wit::Stage::Watermark(_) => return Err(self.unsupported("this stage".into())),
            wit::Stage::Custom((name, _)) => {
                return Err(self.unsupported(format!("custom stage {:?}", clip(&name))));
            }
        })
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
