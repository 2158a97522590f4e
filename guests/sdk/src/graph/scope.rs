//! Places in a model.

use super::Dims;
use super::builder::{
    self, Activation, Gate, NormRounding, RmsNormParams, Sharding, Value, Weight,
};
use crate::{Config, Error};
use std::fmt::Display;

/// A place in the model, like `model.layers.3.mlp`.
///
/// It prefixes the names of weights and is what errors, dumps and profiles call the ops that follow. Dropping it goes back
/// to the place it was entered from.
#[must_use = "the scope ends when it is dropped"]
pub struct Scope {
    path: String,
    parent: String,
}

impl Scope {
    /// The outermost place; `prefix` stands before every weight ("" or "transformer").
    pub fn root(prefix: &str) -> Self {
        builder::scope(prefix);
        Self {
            path: prefix.into(),
            parent: String::new(),
        }
    }

    /// The outermost place of a checkpoint that comes with one of several prefixes: the first under which `weight` is.
    pub fn root_with(weight: &str, prefixes: &[&str]) -> Self {
        let has = |p: &&&str| builder::has_param(&join(p, weight));
        Self::root(
            prefixes
                .iter()
                .find(has)
                .or(prefixes.first())
                .copied()
                .unwrap_or(""),
        )
    }

    /// A place inside this one.
    pub fn enter(&self, name: impl Display) -> Self {
        let path = join(&self.path, &name.to_string());
        builder::scope(&path);
        Self {
            path,
            parent: self.path.clone(),
        }
    }

    /// Full name of something in this place.
    pub fn name(&self, name: &str) -> String {
        join(&self.path, name)
    }

    /// Whether the checkpoint has a tensor of this name here.
    pub fn has(&self, name: &str) -> bool {
        builder::has_param(&self.name(name))
    }

    /// A checkpoint tensor, checked against `shape`.
    pub fn param(&self, name: &str, shape: &[u32]) -> Weight {
        builder::param(&self.name(name), shape)
    }

    /// `{name}.weight [out, in]`, and `{name}.bias [out]` if the checkpoint has it.
    pub fn linear(&self, name: &str, out: u32, inp: u32, sharding: Sharding) -> Linear {
        let bias = format!("{name}.bias");
        let bias = self.has(&bias).then(|| self.param(&bias, &[out]));
        Linear {
            weight: self.param(&format!("{name}.weight"), &[out, inp]),
            bias,
            sharding,
        }
    }

    /// `{name}.weight [out, in]` and `{name}.bias [out]`, which must be there.
    pub fn biased(&self, name: &str, out: u32, inp: u32, sharding: Sharding) -> Linear {
        let bias = Some(self.param(&format!("{name}.bias"), &[out]));
        Linear {
            weight: self.param(&format!("{name}.weight"), &[out, inp]),
            bias,
            sharding,
        }
    }

    /// [`Self::biased`] or [`Self::linear`].
    pub fn linear_with(
        &self,
        bias: Bias,
        name: &str,
        out: u32,
        inp: u32,
        sharding: Sharding,
    ) -> Linear {
        match bias {
            Bias::Required => self.biased(name, out, inp, sharding),
            Bias::IfPresent => self.linear(name, out, inp, sharding),
        }
    }

    /// An attention's output linear, `x [heads · d]` → `[hidden]`.
    pub fn out(&self, name: &str, x: Value, dims: &Dims, bias: Bias) -> Value {
        self.linear_with(bias, name, dims.hidden, dims.q(), Sharding::Row)
            .apply(x)
    }

    /// `down_proj(act(gate_proj(x)) · up_proj(x))` for `x [hidden]`.
    pub fn gated_mlp(&self, x: Value, dims: &Dims, act: Activation, bias: Bias) -> Value {
        let Dims { hidden, ffn, .. } = *dims;
        let up = |name| {
            self.linear_with(bias, name, ffn, hidden, Sharding::Column)
                .apply(x)
        };
        let y = builder::gated(up("gate_proj"), up("up_proj"), Gate::Plain(act));
        self.linear_with(bias, "down_proj", hidden, ffn, Sharding::Row)
            .apply(y)
    }

    /// The same with gate and up in one linear, `gate_up_proj`, gate first.
    pub fn fused_gated_mlp(&self, x: Value, dims: &Dims, act: Activation) -> Value {
        let Dims { hidden, ffn, .. } = *dims;
        let both = self.linear("gate_up_proj", 2 * ffn, hidden, Sharding::Column);
        let gate = both.rows(0, ffn).apply(x);
        let up = both.rows(ffn, ffn).apply(x);
        let y = builder::gated(gate, up, Gate::Plain(act));
        self.linear("down_proj", hidden, ffn, Sharding::Row)
            .apply(y)
    }

    /// Root mean square norm of `x […, d]` by `{name}.weight [d]`, rounded as Llama does.
    pub fn rms_norm(&self, name: &str, x: Value, d: u32, eps: f32) -> Value {
        let params = RmsNormParams {
            eps,
            offset: 0.0,
            rounding: NormRounding::CastThenWeight,
        };
        builder::rms_norm(x, Some(self.param(&format!("{name}.weight"), &[d])), params)
    }

    /// The same, multiplied before rounding.
    pub fn rms_norm_f32(&self, name: &str, x: Value, d: u32, eps: f32) -> Value {
        let params = RmsNormParams {
            eps,
            offset: 0.0,
            rounding: NormRounding::WeightThenCast,
        };
        builder::rms_norm(x, Some(self.param(&format!("{name}.weight"), &[d])), params)
    }

    /// Gemma's form of it: one plus the weight, multiplied before rounding.
    pub fn rms_norm_unit_offset(&self, name: &str, x: Value, d: u32, eps: f32) -> Value {
        let params = RmsNormParams {
            eps,
            offset: 1.0,
            rounding: NormRounding::WeightThenCast,
        };
        builder::rms_norm(x, Some(self.param(&format!("{name}.weight"), &[d])), params)
    }

    /// Layer norm of `x […, d]` by `{name}.weight [d]` and, if the checkpoint has it, `{name}.bias [d]`.
    pub fn layer_norm(&self, name: &str, x: Value, d: u32, eps: f32) -> Value {
        let bias = format!("{name}.bias");
        let bias = self.has(&bias).then(|| self.param(&bias, &[d]));
        builder::layer_norm(
            x,
            Some(self.param(&format!("{name}.weight"), &[d])),
            bias,
            eps,
        )
    }
}

impl Drop for Scope {
    fn drop(&mut self) {
        builder::scope(&self.parent);
    }
}

fn join(a: &str, b: &str) -> String {
    if a.is_empty() {
        b.into()
    } else {
        format!("{a}.{b}")
    }
}

/// Whether a linear has a bias.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bias {
    /// The config says so.
    Required,
    /// The config says nothing or no; quantized checkpoints carry zero biases that no config mentions.
    IfPresent,
}

impl Bias {
    /// From a flag like `attention_bias`, absent for false.
    pub fn from_config(config: &Config, key: &str) -> Result<Self, Error> {
        Self::from_config_or(config, key, Self::IfPresent)
    }

    /// From a flag like `enable_bias`, with what its absence means.
    pub fn from_config_or(config: &Config, key: &str, absent: Self) -> Result<Self, Error> {
        Ok(if config.flag(key, absent == Self::Required)? {
            Self::Required
        } else {
            Self::IfPresent
        })
    }
}

/// An MLP without a gate: names of its two linears, and what it does.
#[derive(Clone, Copy, Debug)]
pub struct Mlp {
    /// Name of the first linear, `[ffn, hidden]`.
    pub up: &'static str,
    /// Name of the second, `[hidden, ffn]`.
    pub down: &'static str,
    /// Between the two.
    pub act: Activation,
    /// Of both.
    pub bias: Bias,
}

impl Mlp {
    /// `down(act(up(x)))` for `x [hidden]`.
    pub fn apply(&self, at: &Scope, x: Value, dims: &Dims) -> Value {
        let Dims { hidden, ffn, .. } = *dims;
        let up = at.linear_with(self.bias, self.up, ffn, hidden, Sharding::Column);
        let down = at.linear_with(self.bias, self.down, hidden, ffn, Sharding::Row);
        down.apply(builder::activate(up.apply(x), self.act))
    }
}

/// A weight `[out, in]` with its bias and its tensor-parallel split.
#[derive(Clone, Copy, Debug)]
pub struct Linear {
    /// `[out, in]`
    pub weight: Weight,
    /// `[out]`
    pub bias: Option<Weight>,
    /// How ranks hold it.
    pub sharding: Sharding,
}

impl Linear {
    /// The `len` outputs from `start` on.
    pub fn rows(&self, start: u32, len: u32) -> Self {
        Self {
            weight: builder::rows(self.weight, start, len),
            bias: self.bias.map(|b| builder::rows(b, start, len)),
            ..*self
        }
    }

    /// Output `index[i]` as output i.
    pub fn select_rows(&self, index: &[u32]) -> Self {
        Self {
            weight: builder::select_rows(self.weight, index),
            bias: self.bias.map(|b| builder::select_rows(b, index)),
            ..*self
        }
    }

    /// `x [in]` → `[out]`
    pub fn apply(&self, x: Value) -> Value {
        builder::linear(x, self.weight, self.bias, self.sharding)
    }
}
