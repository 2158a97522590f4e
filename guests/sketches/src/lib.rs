//! Graphs of architectures that strain the interface, one file each:
//!
//! - [`deepseek`]: latent attention, grouped routing with a correction, shared experts, yarn;
//! - [`gpt_oss`]: sinks, alternating windows, biased experts with a clamped gate;
//! - [`chatglm`]: a prefix-LM mask, positions in two dimensions, scaled residuals;
//! - [`qwen1`]: scores that grow with the logarithm of the position, NTK by length;
//! - [`baichuan`]: ALiBi over heads that are no power of two, a head with normalised rows.
//!
//! They are built and checked at full size without weights. DeepSeek-V3 and gpt-oss are also compared with transformers at
//! toy size (`tests/golden/sketches.py`).

use guesthouse_sdk::graph::{
    Activation, ExpertsParams, Gate, GateLayout, Linear, Model, ModelInfo, Scope, Sharding, Value,
    Weight, builder,
};
use guesthouse_sdk::{Config, Error};

mod baichuan;
mod chatglm;
mod deepseek;
mod gpt_oss;
mod qwen1;

struct Sketches;

impl Model for Sketches {
    const ARCHITECTURES: &'static [&'static str] = &[
        "DeepseekV3ForCausalLM",
        "GptOssForCausalLM",
        "ChatGLMModel",
        "QWenLMHeadModel",
        "BaichuanForCausalLM",
    ];

    fn build(architecture: &str, config: &Config) -> Result<ModelInfo, Error> {
        let (vocab_size, max_position) = match architecture {
            "DeepseekV3ForCausalLM" => deepseek::build(config)?,
            "GptOssForCausalLM" => gpt_oss::build(config)?,
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

/// Experts that the checkpoint stores one by one, as a merged layer.
fn stacked_experts(at: &Scope, count: u32, hidden: u32, ffn: u32) -> ExpertsParams {
    let each = |e: u32, name: &str, shape: [u32; 2]| {
        at.param(&format!("experts.{e}.{name}.weight"), &shape)
    };
    let rows: Vec<Weight> = (0..count)
        .flat_map(|e| {
            [
                each(e, "gate_proj", [ffn, hidden]),
                each(e, "up_proj", [ffn, hidden]),
            ]
        })
        .collect();
    let down: Vec<Weight> = (0..count)
        .map(|e| each(e, "down_proj", [hidden, ffn]))
        .collect();
    ExpertsParams {
        gate_up: builder::reshape_weight(builder::concat_rows(&rows), &[count, 2 * ffn, hidden]),
        gate_up_bias: None,
        down: builder::reshape_weight(builder::concat_rows(&down), &[count, hidden, ffn]),
        down_bias: None,
        layout: GateLayout::Halves,
        gate: Gate::Plain(Activation::Silu),
        ext: vec![],
    }
}

guesthouse_sdk::export_model!(Sketches);
