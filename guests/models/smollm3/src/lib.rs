//! `SmolLM3ForCausalLM`: a Llama in which some layers know no positions.

use guesthouse_sdk::graph::{
    Activation, Bias, Dims, Model, ModelInfo, Qkv, Rope, RopeDefaults, Rotation, Scope, Value,
    activation, attention, builder,
};
use guesthouse_sdk::{Config, Error};

const FULL: &str = "full_attention";
const SLIDING: &str = "sliding_attention";

struct SmolLm3;

impl Model for SmolLm3 {
    const ARCHITECTURES: &'static [&'static str] = &["SmolLM3ForCausalLM"];

    fn build(architecture: &str, config: &Config) -> Result<ModelInfo, Error> {
        let dims = Dims::from_config(config)?;
        let usual = RopeDefaults {
            theta: 2_000_000.0,
            ..RopeDefaults::default()
        };
        let rotation = Rope::from_config_or(config, usual)?.rotation(dims.head_dim);
        let rotates = rotates(config, dims.layers)?;
        let windows = windows(config, &rotates)?;
        let layer = Layer {
            dims,
            act: activation(config, "hidden_act", "silu")?,
            attention_bias: Bias::from_config(config, "attention_bias")?,
            mlp_bias: Bias::from_config(config, "mlp_bias")?,
        };

        let root = Scope::root("");
        let model = root.enter("model");
        let table = model.param("embed_tokens.weight", &[dims.vocab, dims.hidden]);
        let mut x = builder::embedding(table, builder::token_ids());
        for (i, (rotates, window)) in rotates.into_iter().zip(windows).enumerate() {
            let at = model.enter(format_args!("layers.{i}"));
            x = layer.build(&at, x, rotates.then_some(&rotation), window);
        }
        let x = model.rms_norm("norm", builder::gather_outputs(x), dims.hidden, dims.eps);
        let tied = config.flag("tie_word_embeddings", true)?.then_some(table);
        builder::output_logits(dims.logits(x, tied, &root));
        Ok(dims.info(architecture))
    }
}

/// Which layers rotate. Against its name, `no_rope_layers` has 1 for those that do.
fn rotates(config: &Config, layers: u32) -> Result<Vec<bool>, Error> {
    let key = "no_rope_layers";
    let Some(flags) = config.opt_f32s(key)? else {
        let interval = config.opt_size("no_rope_layer_interval")?.unwrap_or(4);
        return Ok((1..=layers).map(|n| !n.is_multiple_of(interval)).collect());
    };
    if flags.len() < layers as usize {
        return Err(config.wrong(key, &format!("one number per layer, {layers}")));
    }
    Ok(flags[..layers as usize].iter().map(|&x| x != 0.0).collect())
}

/// Each layer's window; without `layer_types`, layers that do not rotate have it.
fn windows(config: &Config, rotates: &[bool]) -> Result<Vec<Option<u32>>, Error> {
    let window = match config.flag("use_sliding_window", false)? {
        true => config.opt_size("sliding_window")?,
        false => None,
    };
    let types = config.layer_types(rotates.len() as u32, &[FULL, SLIDING], |i| {
        let full = rotates[i as usize];
        if full { FULL } else { SLIDING }.into()
    })?;
    Ok(types
        .iter()
        .map(|t| window.filter(|_| t == SLIDING))
        .collect())
}

/// Pre-norm attention and SwiGLU.
struct Layer {
    dims: Dims,
    act: Activation,
    attention_bias: Bias,
    mlp_bias: Bias,
}

impl Layer {
    fn build(
        &self,
        at: &Scope,
        x: Value,
        rotation: Option<&Rotation>,
        window: Option<u32>,
    ) -> Value {
        let d = &self.dims;
        let h = at.rms_norm("input_layernorm", x, d.hidden, d.eps);
        let h = self.attention(&at.enter("self_attn"), h, rotation, window);
        let x = builder::add(x, h);
        let h = at.rms_norm("post_attention_layernorm", x, d.hidden, d.eps);
        builder::add(x, at.enter("mlp").gated_mlp(h, d, self.act, self.mlp_bias))
    }

    fn attention(
        &self,
        at: &Scope,
        x: Value,
        rotation: Option<&Rotation>,
        window: Option<u32>,
    ) -> Value {
        let (d, bias) = (&self.dims, self.attention_bias);
        let mut qkv = Qkv::project(at, x, d, bias);
        if let Some(rotation) = rotation {
            qkv = qkv.rotate(rotation);
        }
        let o = qkv.attend(d, &attention(d.scale(), window));
        at.out("o_proj", o, d, bias)
    }
}

guesthouse_sdk::export_model!(SmolLm3);
