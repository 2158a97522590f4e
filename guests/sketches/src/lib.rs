//! Graphs of architectures that strain the interface, one file each:
//!
//! - [`chatglm`]: a prefix-LM mask, positions in two dimensions, scaled residuals;
//! - [`qwen1`]: scores that grow with the logarithm of the position, NTK by length;
//! - [`baichuan`]: ALiBi over heads that are no power of two, a head with normalised rows.
//!
//! They are built and checked at full size without weights (`tests/golden/sketches.py`).

use guesthouse_sdk::graph::{
    Activation, Gate, Linear, Model, ModelInfo, Scope, Sharding, Value, builder,
};
use guesthouse_sdk::{Config, Error};

mod baichuan;
mod chatglm;
mod qwen1;

struct Sketches;

impl Model for Sketches {
    const ARCHITECTURES: &'static [&'static str] =
        &["ChatGLMModel", "QWenLMHeadModel", "BaichuanForCausalLM"];

    fn build(architecture: &str, config: &Config) -> Result<ModelInfo, Error> {
        let (vocab_size, max_position) = match architecture {
            "ChatGLMModel" => chatglm::build(config)?,
            "QWenLMHeadModel" => qwen1::build(config)?,
            _ => baichuan::build(config)?,
        };
        Ok(ModelInfo {
            architecture: architecture.into(),
            vocab_size,
            max_position,
            ext: vec![],
        })
    }
}

/// Vocabulary and longest context.
type Sizes = (u32, u32);

/// `{name}.weight`, without looking for a bias.
fn plain(at: &Scope, name: &str, out: u32, inp: u32, sharding: Sharding) -> Linear {
    Linear {
        weight: at.param(&format!("{name}.weight"), &[out, inp]),
        bias: None,
        sharding,
    }
}

/// Rows `start..start + len` of a linear that holds several.
fn part(of: &Linear, start: u32, len: u32) -> Linear {
    let bias = of.bias.map(|b| builder::rows(b, start, len));
    Linear {
        weight: builder::rows(of.weight, start, len),
        bias,
        ..*of
    }
}

/// SwiGLU with Llama's names.
fn swiglu(at: &Scope, x: Value, hidden: u32, ffn: u32) -> Value {
    let up = |name| plain(at, name, ffn, hidden, Sharding::Column).apply(x);
    let y = builder::gated(
        up("gate_proj"),
        up("up_proj"),
        Gate::Plain(Activation::Silu),
    );
    plain(at, "down_proj", hidden, ffn, Sharding::Row).apply(y)
}

guesthouse_sdk::export_model!(Sketches);
