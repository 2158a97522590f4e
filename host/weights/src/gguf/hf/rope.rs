//! Rotary frequency factors, which the converter precomputes from Llama 3's `rope_scaling`.

use serde_json::{Value, json};

use super::super::Gguf;
use super::family::{Family, Kind};
use crate::{WeightsError, dequantize};

/// The tensor that holds one divisor per rotary frequency.
pub(super) const TENSOR: &str = "rope_freqs.weight";

/// Divisors of longrope, for long and for short sequences; config.json says them.
pub(super) const LONG: &str = "rope_factors_long.weight";
pub(super) const SHORT: &str = "rope_factors_short.weight";

/// What a file's factors amount to.
#[derive(Debug)]
pub(super) enum Factors {
    /// All 1: no scaling.
    Identity,
    /// Llama 3's scaling with this `rope_scaling` object.
    Llama3(Value),
    /// No known rule gives them; guests must read the tensor.
    Other,
}

impl Factors {
    /// Whether config.json can say it, so that the tensor need not be shown.
    pub(super) const fn expressible(&self) -> bool {
        !matches!(self, Self::Other)
    }
}

/// The factors of a file that has any.
pub(super) fn factors(gguf: &Gguf) -> Result<Option<Factors>, WeightsError> {
    let Some(tensor) = gguf.tensor(TENSOR) else {
        return Ok(None);
    };
    let family = Family::of(gguf)?;
    if family.kind != Kind::Llama || tensor.info.shape.len() != 1 || tensor.info.cols() > 4096 {
        return Ok(Some(Factors::Other));
    }
    let mut values = vec![0.0; tensor.info.cols()];
    dequantize(tensor.info.scheme, &gguf.bytes(tensor)?, &mut values)?;
    if values.iter().all(|&v| v == 1.0) {
        return Ok(Some(Factors::Identity));
    }
    let metadata = gguf.metadata();
    let base = metadata.f32("llama.rope.freq_base")?.unwrap_or(10_000.0);
    let told = metadata.u32("llama.rope.scaling.original_context_length")?;
    let lengths = told.into_iter().chain([8192]);
    Ok(Some(
        lengths
            .filter_map(|original| Llama3::fit(&values, f64::from(base), original))
            .map(|rule| Factors::Llama3(rule.to_json()))
            .next()
            .unwrap_or(Factors::Other),
    ))
}

/// The rule of `LlamaForCausalLM` with `rope_type: llama3`. All its public checkpoints use 1 and 4 for the two ramps.
struct Llama3 {
    factor: f64,
    original: u32,
}

const LOW: f64 = 1.0;
const HIGH: f64 = 4.0;

impl Llama3 {
    /// The rule that gives `values`, if there is one: the lowest frequency is divided by the whole factor.
    fn fit(values: &[f32], base: f64, original: u32) -> Option<Self> {
        let factor = f64::from(*values.last()?);
        let rule = Self { factor, original };
        let dims = 2 * values.len();
        let fits = values.iter().enumerate().all(|(i, &value)| {
            let frequency = base.powf(-((2 * i) as f64) / dims as f64);
            let expected = rule.divisor(frequency);
            (f64::from(value) - expected).abs() <= 1e-4 * expected
        });
        (factor > 1.0 && fits).then_some(rule)
    }

    fn divisor(&self, frequency: f64) -> f64 {
        let turns = f64::from(self.original) * frequency / std::f64::consts::TAU;
        if turns > HIGH {
            1.0
        } else if turns < LOW {
            self.factor
        } else {
            let smooth = (turns - LOW) / (HIGH - LOW);
            1.0 / ((1.0 - smooth) / self.factor + smooth)
        }
    }

    fn to_json(&self) -> Value {
        json!({
            "rope_type": "llama3",
            "factor": self.factor,
            "low_freq_factor": LOW,
            "high_freq_factor": HIGH,
            "original_max_position_embeddings": self.original,
        })
    }
}
