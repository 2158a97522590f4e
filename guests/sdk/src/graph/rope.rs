//! Rotary embeddings as `config.json` states them.

use super::Rotation;
use super::builder::{
    self, Llama3, Longrope, PositionScheme, RopeParams, RopeScaling, RopeStyle, Yarn,
};
use crate::{Config, Error};

#[cfg(test)]
mod tests;

/// A config's rope settings, without a head's width.
///
/// Reads `rope_parameters` (transformers 5, flat or one object per layer type) and the older `rope_theta` with
/// `rope_scaling`; every default and every derived factor is that of transformers' `modeling_rope_utils`.
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    /// Base of the frequencies.
    pub theta: f64,
    /// Share of each head that rotates.
    pub partial: f64,
    /// Context extension.
    pub scaling: RopeScaling,
}

/// What a family's configs leave out.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RopeDefaults {
    /// Base of the frequencies.
    pub theta: f64,
    /// Share of each head that rotates.
    pub partial: f64,
}

impl Default for RopeDefaults {
    fn default() -> Self {
        Self {
            theta: 10_000.0,
            partial: 1.0,
        }
    }
}

impl Rope {
    /// The rope of a model whose layers all rotate alike; base 10000 and whole heads where the config says nothing.
    pub fn from_config(config: &Config) -> Result<Self, Error> {
        Self::from_config_or(config, RopeDefaults::default())
    }

    /// The same with what is usual in a family.
    pub fn from_config_or(config: &Config, or: RopeDefaults) -> Result<Self, Error> {
        let given = match config.object("rope_parameters")? {
            Some(p) => Some(p),
            None => config.object("rope_scaling")?,
        };
        Self::parse(config, given.as_ref(), or)
    }

    /// The rope of layers of one type: `rope_parameters.{layer_type}` or, without it, the older form's `scaling`. `theta`
    /// is their base where the object has none.
    pub fn for_layers(
        config: &Config,
        layer_type: &str,
        scaling: Option<Config>,
        theta: f64,
    ) -> Result<Self, Error> {
        let all = config.object("rope_parameters")?;
        let own = all
            .map(|all| all.object(layer_type))
            .transpose()?
            .flatten()
            .or(scaling);
        let given = own
            .as_ref()
            .map(|o| o.opt_f64("rope_theta"))
            .transpose()?
            .flatten();
        Self {
            theta: given.unwrap_or(theta),
            ..Self::parse(
                config,
                own.as_ref(),
                RopeDefaults {
                    theta,
                    ..RopeDefaults::default()
                },
            )?
        }
        .checked(config)
    }

    /// Rotation of heads of `head_dim` elements, halves paired.
    pub fn params(&self, head_dim: u32) -> RopeParams {
        RopeParams {
            start: 0,
            rotary: self.rotary(head_dim),
            theta: self.theta as f32,
            style: RopeStyle::Neox,
            scaling: self.scaling.clone(),
            axis: 0,
        }
    }

    /// The same at standard positions.
    pub fn rotation(&self, head_dim: u32) -> Rotation {
        Rotation {
            positions: builder::positions(&PositionScheme::Standard),
            params: self.params(head_dim),
        }
    }

    /// Pairs 2i with 2i + 1 (GPT-J, Cohere, GLM).
    pub fn interleaved(&self, head_dim: u32) -> Rotation {
        let mut rotation = self.rotation(head_dim);
        rotation.params.style = RopeStyle::Interleaved;
        rotation
    }

    /// The longest context where the config states `stated` tokens. Scalings that stretch positions do so by their factor,
    /// as vLLM has it; configs of longrope and llama3 state the longer context themselves.
    pub fn max_position(&self, stated: u32) -> u32 {
        let stretched = |original: u32, by: f32| (f64::from(original) * f64::from(by)) as u32;
        match self.scaling {
            RopeScaling::Linear(by) => stated.max(stretched(stated, by)),
            RopeScaling::Dynamic((by, original)) => stated.max(stretched(original, by)),
            RopeScaling::Yarn(yarn) => stated.max(stretched(yarn.original, yarn.factor)),
            _ => stated,
        }
    }

    /// Elements of each head that rotate.
    pub fn rotary(&self, head_dim: u32) -> u32 {
        (f64::from(head_dim) * self.partial) as u32
    }

    /// `own` is the rope object, if any; base and share may stand in it or beside it.
    fn parse(config: &Config, own: Option<&Config>, or: RopeDefaults) -> Result<Self, Error> {
        let either = |key: &str| -> Result<Option<f64>, Error> {
            match own.map(|o| o.opt_f64(key)).transpose()?.flatten() {
                Some(x) => Ok(Some(x)),
                None => config.opt_f64(key),
            }
        };
        let theta = either("rope_theta")?.unwrap_or(or.theta);
        let partial = either("partial_rotary_factor")?.unwrap_or(or.partial);
        let scaling = own.map_or(Ok(RopeScaling::None), |o| scaling(config, o))?;
        Self {
            theta,
            partial,
            scaling,
        }
        .checked(config)
    }

    fn checked(self, config: &Config) -> Result<Self, Error> {
        if !(self.theta > 0.0 && self.theta < f64::from(f32::MAX)) {
            return Err(config.wrong("rope_theta", "a number above 0"));
        }
        if !(self.partial > 0.0 && self.partial <= 1.0) {
            return Err(config.wrong("partial_rotary_factor", "a number above 0 and up to 1"));
        }
        Ok(self)
    }
}

/// Fields of each kind of rope beside type, base and share. Others could change the maths, so they are refused.
fn fields(kind: &str) -> Option<&'static [&'static str]> {
    Some(match kind {
        "default" => &["factor", "original_max_position_embeddings"],
        "linear" | "dynamic" => &["factor", "original_max_position_embeddings"],
        "yarn" => &[
            "factor",
            "original_max_position_embeddings",
            "attention_factor",
            "beta_fast",
            "beta_slow",
            "mscale",
            "mscale_all_dim",
            "truncate",
        ],
        "llama3" => &[
            "factor",
            "original_max_position_embeddings",
            "low_freq_factor",
            "high_freq_factor",
        ],
        "longrope" => &[
            "factor",
            "original_max_position_embeddings",
            "attention_factor",
            "short_factor",
            "long_factor",
        ],
        _ => return None,
    })
}

fn scaling(config: &Config, own: &Config) -> Result<RopeScaling, Error> {
    let key = if own.get("rope_type").is_some() {
        "rope_type"
    } else {
        "type"
    };
    let kind = match own.opt_str(key)?.unwrap_or("default") {
        "su" => "longrope", // Phi-3's first name for it
        kind => kind,
    };
    let known = fields(kind)
        .ok_or_else(|| own.wrong(key, "default, linear, dynamic, yarn, llama3 or longrope"))?;
    let general = [
        "rope_type",
        "type",
        "rope_theta",
        "partial_rotary_factor",
        "finetuned",
    ];
    if let Some(odd) = own
        .keys()
        .find(|k| own.get(k).is_some() && !known.contains(k) && !general.contains(k))
    {
        return Err(own.wrong(
            odd,
            &format!("no such field, since rope of type {kind} has none"),
        ));
    }
    let max = || config.size("max_position_embeddings");
    let original = || match config.opt_size("original_max_position_embeddings")? {
        Some(n) => Ok(n),
        None => own
            .opt_size("original_max_position_embeddings")?
            .map_or_else(max, Ok),
    };
    let positive = |o: &Config, key: &str| {
        let x = o.f64(key)?;
        if x > 0.0 {
            Ok(x)
        } else {
            Err(o.wrong(key, "a number above 0"))
        }
    };
    // Yarn and longrope infer the stretch from the two context lengths.
    let factor = || match own.get("factor") {
        Some(_) => positive(own, "factor"),
        None => Ok(f64::from(max()?) / f64::from(original()?)),
    };
    Ok(match kind {
        "linear" => RopeScaling::Linear(positive(own, "factor")? as f32),
        "dynamic" => RopeScaling::Dynamic((positive(own, "factor")? as f32, max()?)),
        "yarn" => {
            let factor = factor()?;
            let or = |key, default| {
                Ok::<_, Error>(own.opt_f64(key)?.filter(|x| *x != 0.0).unwrap_or(default))
            };
            let (mscale, all_dim) = (or("mscale", 0.0)?, or("mscale_all_dim", 0.0)?);
            let attention_factor = match own.opt_f64("attention_factor")? {
                Some(x) => x,
                None if mscale != 0.0 && all_dim != 0.0 => {
                    yarn_mscale(factor, mscale) / yarn_mscale(factor, all_dim)
                }
                None => yarn_mscale(factor, 1.0),
            };
            RopeScaling::Yarn(Yarn {
                factor: factor as f32,
                original: original()?,
                beta_fast: or("beta_fast", 32.0)? as f32,
                beta_slow: or("beta_slow", 1.0)? as f32,
                attention_factor: attention_factor as f32,
                truncate: own.flag("truncate", true)?,
            })
        }
        "llama3" => RopeScaling::Llama3(Llama3 {
            factor: positive(own, "factor")? as f32,
            low: positive(own, "low_freq_factor")? as f32,
            high: positive(own, "high_freq_factor")? as f32,
            original: original()?,
        }),
        "longrope" => {
            let (factor, original) = (factor()?, original()?);
            let list = |key| {
                own.opt_f32s(key)?
                    .ok_or_else(|| own.wrong(key, "a list of numbers"))
            };
            let attention_factor = match own.opt_f64("attention_factor")? {
                Some(x) => x,
                None if factor <= 1.0 => 1.0,
                None => (1.0 + factor.ln() / f64::from(original).ln()).sqrt(),
            };
            RopeScaling::Longrope(Longrope {
                short: list("short_factor")?,
                long: list("long_factor")?,
                original,
                attention_factor: attention_factor as f32,
            })
        }
        _ => RopeScaling::None,
    })
}

/// Peng et al. 2023, eq. 22, with DeepSeek's multiplier.
pub fn yarn_mscale(factor: f64, mscale: f64) -> f64 {
    if factor <= 1.0 {
        1.0
    } else {
        0.1 * mscale * factor.ln() + 1.0
    }
}
