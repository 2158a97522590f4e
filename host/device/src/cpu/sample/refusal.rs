//! Stages that no device can apply.

use guesthouse_engine::Stage;

use super::stage_name;

/// Why a plan with two mirostat stages is refused: there is one state.
pub(crate) const TWO_MIROSTATS: &str =
    "the plan has two mirostat stages; a sequence has one mirostat state";

/// Why a stage cannot be applied, if so: parameters outside their ranges, or a stage that this version does not know.
pub(crate) fn refusal(stage: &Stage) -> Option<String> {
    let expected = expectation(stage)?;
    Some(match stage {
        Stage::Watermark(w) => format!(
            "watermark with gamma {}, delta {} and a context of {}: expected {expected}",
            w.gamma, w.delta, w.context
        ),
        Stage::Dry(d) => format!(
            "dry with multiplier {} and base {}: expected {expected}",
            d.multiplier, d.base
        ),
        _ if stage_name(stage) == "unknown" => {
            format!("this device does not know the sampling stage {stage:?}; {expected}")
        }
        _ => format!("sampling stage {stage:?}: expected {expected}"),
    })
}

/// What a stage's parameters should be, where they are not.
fn expectation(stage: &Stage) -> Option<&'static str> {
    let unit = |x: f32| (0.0..=1.0).contains(&x);
    let positive = |x: f32| x > 0.0 && x.is_finite();
    let (good, expected) = match *stage {
        Stage::NoRepeatNgram(n) => (n > 0, "1 token or more"),
        Stage::Dry(ref d) => (
            d.multiplier >= 0.0 && d.multiplier.is_finite() && d.base >= 1.0 && d.base.is_finite(),
            "finite numbers, a multiplier of 0 or more and a base of 1 or more",
        ),
        Stage::DynamicTemperature { min, max, exponent } => (
            positive(min) && max >= min && max.is_finite() && positive(exponent),
            "finite numbers above 0, max not below min",
        ),
        Stage::TopNSigma(n) => (n >= 0.0 && n.is_finite(), "a finite number of 0 or more"),
        Stage::EpsilonCutoff(x) | Stage::EtaCutoff(x) => (unit(x), "a number from 0 to 1"),
        Stage::TailFree(z) => (z >= 0.0, "a number of 0 or more"),
        Stage::Xtc {
            probability,
            threshold,
        } => (
            unit(probability) && unit(threshold),
            "two numbers from 0 to 1",
        ),
        Stage::Mirostat1 { tau, eta } | Stage::Mirostat2 { tau, eta } => (
            tau >= 0.0 && tau.is_finite() && eta >= 0.0 && eta.is_finite(),
            "finite numbers of 0 or more",
        ),
        Stage::Watermark(w) => (
            w.gamma > 0.0 && w.gamma < 1.0 && w.delta.is_finite() && (1..=8).contains(&w.context),
            "gamma above 0 and below 1, a finite delta, a context of 1 to 8 tokens",
        ),
        ref other => (stage_name(other) != "unknown", "update the server"),
    };
    (!good).then_some(expected)
}
