//! `LlamaForCausalLM` (Llama 1 to 3.x, SmolLM, and whatever copies them) and `MistralForCausalLM`.

use guesthouse_sdk::graph::{
    Activation, Bias, Dims, Embedding, Head, Model, ModelInfo, Qkv, Rope, RopeScaling, Rotation,
    Scope, Value, activation, attention, builder,
};
use guesthouse_sdk::{Config, Error};
use serde_json::json;

struct Llama;

impl Model for Llama {
    const ARCHITECTURES: &'static [&'static str] = &["LlamaForCausalLM", "MistralForCausalLM"];

    fn build(architecture: &str, config: &Config) -> Result<ModelInfo, Error> {
        let mistral = architecture == "MistralForCausalLM";
        let mut dims = Dims::from_config(config)?;
        let mut rope = Rope::from_config(config)?;
        dims.max_position = rope.max_position(dims.max_position);
        // Later descendants of Mistral mix layer types under names of their own; Llama has none.
        config.layer_types(
            dims.layers,
            &["full_attention", "sliding_attention"],
            |_| String::new(),
        )?;
        for key in [
            "attention_multiplier",
            "embedding_multiplier",
            "residual_multiplier",
            "logits_scaling",
        ] {
            config.only(key, &[json!(1), json!(1.0)])?;
        }
        let layer = Layer {
            dims,
            window: if mistral {
                mistral_window(config)?
            } else {
                None
            },
            act: activation(config, "hidden_act", "silu")?,
            attention_bias: Bias::from_config(config, "attention_bias")?,
            mlp_bias: Bias::from_config(config, "mlp_bias")?,
        };

        let root = Scope::root("");
        // Embedding models are published without the prefix.
        let model = Scope::root_with("embed_tokens.weight", &["model", ""]);
        let table = model.param("embed_tokens.weight", &[dims.vocab, dims.hidden]);
        // GGUF stores the finished divisors of the frequencies.
        let rotary = rope.rotary(dims.head_dim);
        if root.has("rope_freqs.weight") {
            rope.scaling = RopeScaling::Factors(root.param("rope_freqs.weight", &[rotary / 2]));
        }
        let rotation = rope.rotation(dims.head_dim);

        let mut x = builder::embedding(table, builder::token_ids());
        for i in 0..dims.layers {
            x = layer.build(&model.enter(format_args!("layers.{i}")), x, &rotation);
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

/// Absent is Mistral 7B's own 4096, `null` is none, as in transformers.
fn mistral_window(config: &Config) -> Result<Option<u32>, Error> {
    if config.mentions("sliding_window") {
        config.opt_size("sliding_window")
    } else {
        Ok(Some(4096))
    }
}

/// Pre-norm attention and SwiGLU.
struct Layer {
    dims: Dims,
    window: Option<u32>,
    act: Activation,
    attention_bias: Bias,
    mlp_bias: Bias,
}

impl Layer {
    fn build(&self, at: &Scope, x: Value, rotation: &Rotation) -> Value {
        let d = &self.dims;
        let h = at.rms_norm("input_layernorm", x, d.hidden, d.eps);
        let h = self.attention(&at.enter("self_attn"), h, rotation);
        let x = builder::add(x, h);
        let h = at.rms_norm("post_attention_layernorm", x, d.hidden, d.eps);
        builder::add(
            x,
            at.enter("mlp")
                .gated_mlp(h, &self.dims, self.act, self.mlp_bias),
        )
    }

    fn attention(&self, at: &Scope, x: Value, rotation: &Rotation) -> Value {
        let (d, bias) = (&self.dims, self.attention_bias);
        let o = Qkv::project(at, x, d, bias)
            .rotate(rotation)
            .attend(d, &attention(d.scale(), self.window));
        at.out("o_proj", o, d, bias)
    }
}

guesthouse_sdk::export_model!(Llama);
