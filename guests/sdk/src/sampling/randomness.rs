//! How a token is drawn: temperature, truncations, seed.

use super::{Draw, DynamicTemperature, Mirostat, ModelFacts, Request, Stage, Xtc};
use crate::Error;

/// vLLM's lower bound: below it logits overflow.
const COLDEST: f32 = 0.01;

/// How a token is drawn.
#[derive(Clone, Debug, PartialEq)]
pub struct Randomness {
    /// Temperature and truncations; none where `temperature` is 0.
    pub stages: Vec<Stage>,
    /// [`Draw::Greedy`] where one token is left in any case, otherwise [`Draw::Sample`].
    pub draw: Draw,
}

impl Randomness {
    /// Refuses what learns from the tokens that the device draws, for samplers that choose tokens themselves.
    ///
    /// # Errors
    /// When mirostat is asked for.
    pub fn without_state(self, sampler: &str) -> Result<Self, Error> {
        let learns = |stage: &Stage| matches!(stage, Stage::Mirostat1(_) | Stage::Mirostat2(_));
        if self.stages.iter().any(learns) {
            return Err(Error::request(format!(
                "mirostat_mode: must be 0 with the sampler {sampler}, which chooses tokens itself"
            )));
        }
        Ok(self)
    }
}

/// Stages of the fields that say how tokens are drawn. In this order:
///
/// | Field | None | |
/// |---|---|---|
/// | `temperature` | 1 | 0 takes the best token, whatever the rest says; from 0.01 |
/// | `dynatemp_min`, `dynatemp_max` | absent | both, in place of `temperature`; with `dynatemp_exponent` (1; above 0) |
/// | `top_n_sigma` | 0, -1 | keeps logits within so many standard deviations of the best (Tang et al. 2024) |
/// | `min_p` | 0 | 0 to 1 |
/// | `typical_p` | 1 | above 0 (Meister et al. 2022) |
/// | `top_k` | 0, -1 | |
/// | `top_p` | 1 | 0 takes the best token |
/// | `epsilon_cutoff`, `eta_cutoff` | 0 | below 1 (Hewitt et al. 2022) |
/// | `tfs` | 1 | above 0: tail-free sampling |
/// | `xtc_probability` | 0 | with `xtc_threshold` (0.1; 0 to 1) |
/// | `mirostat_mode` | 0 | 1 or 2 (Basu et al. 2021), with `mirostat_tau` (5; above 0) and `mirostat_eta` (0.1; 0 to 1) |
///
/// Mirostat stands in place of all truncations, as in llama.cpp: only the temperature comes before it.
///
/// # Errors
/// When a field is out of its range, also where it has no effect.
pub fn randomness(request: &Request, facts: &ModelFacts) -> Result<Randomness, Error> {
    let temperature = request.number("temperature", 0.0..=f64::INFINITY)?;
    let dynamic = dynamic_temperature(request)?;
    let truncations = truncations(request, facts)?;
    let mirostat = mirostat(request)?;

    let temperature = temperature.unwrap_or(1.0);
    if temperature == 0.0 {
        return Ok(Randomness {
            stages: vec![],
            draw: Draw::Greedy,
        });
    }
    let temperature = match dynamic {
        Some(dynamic) => Some(Stage::DynamicTemperature(dynamic)),
        None => (temperature != 1.0).then(|| Stage::Temperature(temperature.max(COLDEST))),
    };
    let rest = match mirostat {
        Some(stage) => Randomness {
            stages: vec![stage],
            draw: Draw::Sample,
        },
        None => truncations,
    };
    Ok(Randomness {
        stages: temperature.into_iter().chain(rest.stages).collect(),
        draw: rest.draw,
    })
}

/// The request's `seed`, any whole number of 64 bits; -1 is vLLM's way to say none.
///
/// # Errors
/// When it is something else.
pub fn seed(request: &Request) -> Result<Option<u64>, Error> {
    let none = request.get("seed").and_then(|seed| seed.as_i64()) == Some(-1);
    Ok(request.bits("seed")?.filter(|_| !none))
}

fn dynamic_temperature(request: &Request) -> Result<Option<DynamicTemperature>, Error> {
    let min = request.number("dynatemp_min", 0.0..=f64::INFINITY)?;
    let max = request.number("dynatemp_max", 0.0..=f64::INFINITY)?;
    let exponent = request.above_zero("dynatemp_exponent", f64::INFINITY)?;
    match (min, max) {
        (None, None) => Ok(None),
        (Some(min), Some(max)) if min <= max => Ok(Some(DynamicTemperature {
            min: min.max(COLDEST),
            max: max.max(COLDEST),
            exponent: exponent.unwrap_or(1.0),
        })),
        (Some(min), Some(max)) => {
            let wanted = format!("must be at least dynatemp_min, {min}");
            Err(request.wrong("dynatemp_max", wanted, max))
        }
        (Some(_), None) => {
            Err(request.wrong("dynatemp_max", "must come with dynatemp_min", "none"))
        }
        (None, Some(_)) => {
            Err(request.wrong("dynatemp_min", "must come with dynatemp_max", "none"))
        }
    }
}

fn truncations(request: &Request, facts: &ModelFacts) -> Result<Randomness, Error> {
    let top_n_sigma = request.number("top_n_sigma", -1.0..=f64::INFINITY)?;
    let min_p = request.number("min_p", 0.0..=1.0)?.unwrap_or(0.0);
    let typical_p = request.above_zero("typical_p", 1.0)?;
    let top_k = request.whole("top_k", -1..=u32::MAX.into())?;
    let top_p = request.number("top_p", 0.0..=1.0)?.unwrap_or(1.0);
    let epsilon = cutoff(request, "epsilon_cutoff")?;
    let eta = cutoff(request, "eta_cutoff")?;
    let tfs = request.above_zero("tfs", 1.0)?;
    let xtc = xtc(request)?;

    let below_one = |x: &f32| *x < 1.0;
    let in_vocabulary = |k: &i64| *k > 0 && *k < facts.vocab_size.into();
    let stages = [
        top_n_sigma.filter(|n| *n > 0.0).map(Stage::TopNSigma),
        (min_p > 0.0).then_some(Stage::MinP(min_p)),
        typical_p.filter(below_one).map(Stage::TypicalP),
        top_k.filter(in_vocabulary).map(|k| Stage::TopK(k as u32)),
        below_one(&top_p).then_some(Stage::TopP(top_p)),
        epsilon.map(Stage::EpsilonCutoff),
        eta.map(Stage::EtaCutoff),
        tfs.filter(below_one).map(Stage::TailFree),
        xtc.map(Stage::Xtc),
    ];
    Ok(Randomness {
        stages: stages.into_iter().flatten().collect(),
        // One token is left: it is taken without a draw.
        draw: if top_p == 0.0 || min_p == 1.0 {
            Draw::Greedy
        } else {
            Draw::Sample
        },
    })
}

fn cutoff(request: &Request, key: &str) -> Result<Option<f32>, Error> {
    match request.number(key, 0.0..=1.0)? {
        Some(1.0) => Err(request.wrong(key, "must be below 1", 1)),
        found => Ok(found.filter(|x| *x > 0.0)),
    }
}

fn xtc(request: &Request) -> Result<Option<Xtc>, Error> {
    let probability = request.number("xtc_probability", 0.0..=1.0)?;
    let threshold = request.number("xtc_threshold", 0.0..=1.0)?;
    Ok(probability.filter(|p| *p > 0.0).map(|probability| Xtc {
        probability,
        threshold: threshold.unwrap_or(0.1),
    }))
}

fn mirostat(request: &Request) -> Result<Option<Stage>, Error> {
    let mode = request.whole("mirostat_mode", 0..=2)?;
    let tau = request.above_zero("mirostat_tau", f64::INFINITY)?;
    let eta = request.number("mirostat_eta", 0.0..=1.0)?;
    let mirostat = Mirostat {
        tau: tau.unwrap_or(5.0),
        eta: eta.unwrap_or(0.1),
    };
    Ok(match mode {
        Some(1) => Some(Stage::Mirostat1(mirostat)),
        Some(2) => Some(Stage::Mirostat2(mirostat)),
        _ => None,
    })
}
