//! Stages, one by one: ids and ranges.

use guesthouse_engine::{Dry, Stage, Watermark};

use super::{Check, clip, wit};
use crate::ComponentError;

/// Longest context of a watermark, tokens.
const WATERMARK_CONTEXT: u32 = 8;

impl Check<'_> {
    pub(super) fn stage(&mut self, stage: wit::Stage) -> Result<Stage, ComponentError> {
        Ok(match stage {
            wit::Stage::AllowedTokens(ids) => {
                self.ids("allowed-tokens", &ids)?;
                self.allow(&ids);
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
            wit::Stage::LogitBias(biases) => self.bias(&biases)?,
            wit::Stage::Penalties(p) => Stage::Penalties {
                repetition: self.above_zero("repetition penalty", p.repetition)?,
                presence: self.finite("presence penalty", p.presence)?,
                frequency: self.finite("frequency penalty", p.frequency)?,
            },
            wit::Stage::Temperature(t) => Stage::Temperature(self.above_zero("temperature", t)?),
            wit::Stage::TopK(k) => Stage::TopK(self.one_or_more("top-k", k)?),
            // 0 keeps the best token alone.
            wit::Stage::TopP(p) => Stage::TopP(self.share("top-p", p)?),
            wit::Stage::MinP(p) => Stage::MinP(self.share("min-p", p)?),
            wit::Stage::TypicalP(p) => Stage::TypicalP(self.number(
                "typical-p",
                p,
                |p| p > 0.0 && p <= 1.0,
                "above 0, at most 1",
            )?),
            wit::Stage::NoRepeatNgram(n) => {
                Stage::NoRepeatNgram(self.one_or_more("no-repeat-ngram", n)?)
            }
            wit::Stage::Dry(dry) => self.dry(dry)?,
            wit::Stage::DynamicTemperature(t) => {
                let min = self.above_zero("dynamic-temperature min", t.min)?;
                let at_least_min = |max: f32| max.is_finite() && max >= min;
                Stage::DynamicTemperature {
                    min,
                    max: self.number(
                        "dynamic-temperature max",
                        t.max,
                        at_least_min,
                        &format!("a finite number of at least min, {min}"),
                    )?,
                    exponent: self.above_zero("dynamic-temperature exponent", t.exponent)?,
                }
            }
            wit::Stage::TopNSigma(n) => Stage::TopNSigma(self.not_negative("top-n-sigma", n)?),
            wit::Stage::EpsilonCutoff(e) => Stage::EpsilonCutoff(self.cutoff("epsilon-cutoff", e)?),
            wit::Stage::EtaCutoff(e) => Stage::EtaCutoff(self.cutoff("eta-cutoff", e)?),
            wit::Stage::TailFree(z) => Stage::TailFree(self.share("tail-free", z)?),
            wit::Stage::Xtc(xtc) => Stage::Xtc {
                probability: self.share("xtc probability", xtc.probability)?,
                threshold: self.share("xtc threshold", xtc.threshold)?,
            },
            wit::Stage::Mirostat1(m) => Stage::Mirostat1 {
                tau: self.above_zero("mirostat1 tau", m.tau)?,
                eta: self.not_negative("mirostat1 eta", m.eta)?,
            },
            wit::Stage::Mirostat2(m) => Stage::Mirostat2 {
                tau: self.above_zero("mirostat2 tau", m.tau)?,
                eta: self.not_negative("mirostat2 eta", m.eta)?,
            },
            wit::Stage::Watermark(mark) => self.watermark(mark)?,
            // The plan's grammar is taken out before its stages are read.
            wit::Stage::Grammar(grammar) => {
                return Err(
                    self.unsupported(format!("a grammar stage ({:?})", clip(&grammar.syntax)))
                );
            }
            wit::Stage::Custom((name, _)) => {
                return Err(self.unsupported(format!("custom stage {:?}", clip(&name))));
            }
        })
    }

    fn bias(&mut self, biases: &[wit::TokenBias]) -> Result<Stage, ComponentError> {
        let ids: Vec<u32> = biases.iter().map(|bias| bias.token).collect();
        self.ids("logit-bias", &ids)?;
        let pairs = biases
            .iter()
            .map(|bias| Ok((bias.token, self.finite("logit-bias", bias.bias)?)));
        Ok(Stage::LogitBias(pairs.collect::<Result<_, _>>()?))
    }

    fn dry(&mut self, dry: wit::Dry) -> Result<Stage, ComponentError> {
        self.ids("dry breakers", &dry.breakers)?;
        let base = |base: f32| base.is_finite() && base >= 1.0;
        Ok(Stage::Dry(Dry {
            multiplier: self.not_negative("dry multiplier", dry.multiplier)?,
            base: self.number("dry base", dry.base, base, "a finite number of at least 1")?,
            allowed_length: self.one_or_more("dry allowed-length", dry.allowed_length)?,
            range: dry.range,
            breakers: dry.breakers,
        }))
    }

    fn watermark(&self, mark: wit::Watermark) -> Result<Stage, ComponentError> {
        if !(1..=WATERMARK_CONTEXT).contains(&mark.context) {
            return Err(self.invalid(format!(
                "watermark context is {}, expected 1 to {WATERMARK_CONTEXT}",
                mark.context
            )));
        }
        Ok(Stage::Watermark(Watermark {
            key: mark.key,
            gamma: self.number(
                "watermark gamma",
                mark.gamma,
                |gamma| gamma > 0.0 && gamma < 1.0,
                "above 0, below 1",
            )?,
            delta: self.finite("watermark delta", mark.delta)?,
            context: mark.context,
        }))
    }

    fn finite(&self, what: &str, found: f32) -> Result<f32, ComponentError> {
        self.number(what, found, f32::is_finite, "a finite number")
    }

    fn above_zero(&self, what: &str, found: f32) -> Result<f32, ComponentError> {
        let fits = |x: f32| x.is_finite() && x > 0.0;
        self.number(what, found, fits, "a finite number above 0")
    }

    fn not_negative(&self, what: &str, found: f32) -> Result<f32, ComponentError> {
        let fits = |x: f32| x.is_finite() && x >= 0.0;
        self.number(what, found, fits, "a finite number of at least 0")
    }

    fn share(&self, what: &str, found: f32) -> Result<f32, ComponentError> {
        self.number(what, found, |x| (0.0..=1.0).contains(&x), "from 0 to 1")
    }

    fn cutoff(&self, what: &str, found: f32) -> Result<f32, ComponentError> {
        self.number(
            what,
            found,
            |x| (0.0..1.0).contains(&x),
            "at least 0, below 1",
        )
    }

    fn one_or_more(&self, what: &str, found: u32) -> Result<u32, ComponentError> {
        if found == 0 {
            return Err(self.invalid(format!("{what} is 0, expected at least 1")));
        }
        Ok(found)
    }
}
