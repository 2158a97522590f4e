//! `Qwen2ForCausalLM` (Qwen 1.5, 2, 2.5: biased Q, K and V) and `Qwen3ForCausalLM` (norms on Q and K).

use guesthouse_sdk::graph::{
    Activation, Bias, Dims, Embedding, Head, Model, ModelInfo, Qkv, Rope, Rotation, Scope, Value,
    activation, attention, builder,
};
use guesthouse_sdk::{Config, Error};

const FULL: &str = "full_attention";
const SLIDING: &str = "sliding_attention";

struct Qwen;

impl Model for Qwen {
    const ARCHITECTURES: &'static [&'static str] = &["Qwen2ForCausalLM", "Qwen3ForCausalLM"];

    fn build(architecture: &str, config: &Config) -> Result<ModelInfo, Error> {
        let qwen3 = architecture == "Qwen3ForCausalLM";
        let mut dims = Dims::from_config(config)?;
        if qwen3 && config.get("head_dim").is_none() {
            dims.head_dim = 128;
            dims = dims.checked(config)?;
        }
        if config.flag("use_mrope", false)? {
            return Err(config.wrong(
                "use_mrope",
                "false, since this guest has no positions in three dimensions",
            ));
        }
        let rope = Rope::from_config(config)?;
        dims.max_position = rope.max_position(dims.max_position);
        let rotation = rope.rotation(dims.head_dim);
        let windows = windows(config, dims.layers)?;
        // Qwen 2 has biases on Q, K and V always and on the output never; the field, which GGUF files lead to, is Qwen 3's.
        let bias = Bias::from_config(config, "attention_bias")?;
        let (qkv_bias, o_bias) = if qwen3 {
            (bias, bias)
        } else {
            (Bias::Required, Bias::IfPresent)
        };
        let layer = Layer {
            dims,
            act: activation(config, "hidden_act", "silu")?,
            qkv_bias,
            o_bias,
            qk_norm: qwen3,
        };

        let root = Scope::root("");
        // Embedding models are published without the prefix.
        let model = Scope::root_with("embed_tokens.weight", &["model", ""]);
        let table = model.param("embed_tokens.weight", &[dims.vocab, dims.hidden]);
        let mut x = builder::embedding(table, builder::token_ids());
        for (i, window) in windows.into_iter().enumerate() {
            let at = model.enter(format_args!("layers.{i}"));
            x = layer.build(&at, x, &rotation, window);
        }
        let head = Head {
            at: &root,
            tied: config.flag("tie_word_embeddings", false)?.then_some(table),
            embedding: Embedding::from_config(config)?,
        };
        dims.output(
            x,
            |x| model.rms_norm("norm", x, dims.hidden, dims.eps),
            &head,
        );
        Ok(dims.info(architecture))
    }
}

/// Each layer's window. Without `layer_types`, the layers from `max_window_layers` on have one.
fn windows(config: &Config, layers: u32) -> Result<Vec<Option<u32>>, Error> {
    let window = match config.flag("use_sliding_window", false)? {
        true if config.mentions("sliding_window") => config.opt_size("sliding_window")?,
        true => Some(4096),
        false => None,
    };
    let full_layers = config.u32_or("max_window_layers", 28)?;
    let types = config.layer_types(layers, &[FULL, SLIDING], |i| {
        if i < full_layers { FULL } else { SLIDING }.into()
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
    qkv_bias: Bias,
    o_bias: Bias,
    qk_norm: bool,
}

impl Layer {
    fn build(&self, at: &Scope, x: Value, rotation: &Rotation, window: Option<u32>) -> Value {
        let d = &self.dims;
        let h = at.rms_norm("input_layernorm", x, d.hidden, d.eps);
        let h = self.attention(&at.enter("self_attn"), h, rotation, window);
        let x = builder::add(x, h);
        let h = at.rms_norm("post_attention_layernorm", x, d.hidden, d.eps);
        let h = at.enter("mlp").gated_mlp(h, d, self.act, Bias::IfPresent);
        builder::add(x, h)
    }

    fn attention(&self, at: &Scope, x: Value, rotation: &Rotation, window: Option<u32>) -> Value {
        let d = &self.dims;
        let mut qkv = Qkv::project(at, x, d, self.qkv_bias);
        if self.qk_norm {
            qkv = qkv.norm(|name, x| at.rms_norm(name, x, d.head_dim, d.eps));
        }
        let o = qkv
            .rotate(rotation)
            .attend(d, &attention(d.scale(), window));
        at.out("o_proj", o, d, self.o_bias)
    }
}

guesthouse_sdk::export_model!(Qwen);
