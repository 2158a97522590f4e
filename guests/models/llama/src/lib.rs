//! `LlamaForCausalLM` (Llama 1 to 3.x, SmolLM, and whatever copies them) and `MistralForCausalLM`.

use guesthouse_sdk::graph::{
    Activation, Bias, Dims, Model, ModelInfo, PositionScheme, Rope, RopeParams, RopeScaling, Scope,
    Sharding, Value, activation, attention, builder, kv_cache, merge_heads, split_heads,
};
use guesthouse_sdk::{Config, Error};
use serde_json::json;

struct Llama;

impl Model for Llama {
    const ARCHITECTURES: &'static [&'static str] = &["LlamaForCausalLM", "MistralForCausalLM"];

    fn build(architecture: &str, config: &Config) -> Result<ModelInfo, Error> {
        let mistral = architecture == "MistralForCausalLM";
        let dims = Dims::from_config(config)?;
        let mut rope = Rope::from_config(config)?;
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
        let model = root.enter("model");
        let table = model.param("embed_tokens.weight", &[dims.vocab, dims.hidden]);
        // GGUF stores the finished divisors of the frequencies.
        let rotary = rope.rotary(dims.head_dim);
        if root.has("rope_freqs.weight") {
            rope.scaling = RopeScaling::Factors(root.param("rope_freqs.weight", &[rotary / 2]));
        }
        let rope = rope.params(dims.head_dim);
        let positions = builder::positions(&PositionScheme::Standard);

        let mut x = builder::embedding(table, builder::token_ids());
        for i in 0..dims.layers {
            x = layer.build(
                &model.enter(format_args!("layers.{i}")),
                x,
                positions,
                &rope,
            );
        }
        let x = model.rms_norm("norm", builder::gather_outputs(x), dims.hidden, dims.eps);
        let tied = config.flag("tie_word_embeddings", false)?.then_some(table);
        builder::output_logits(dims.logits(x, tied, &root));
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
    fn build(&self, at: &Scope, x: Value, positions: Value, rope: &RopeParams) -> Value {
        let d = &self.dims;
        let h = at.rms_norm("input_layernorm", x, d.hidden, d.eps);
        let h = self.attention(&at.enter("self_attn"), h, positions, rope);
        let x = builder::add(x, h);
        let h = at.rms_norm("post_attention_layernorm", x, d.hidden, d.eps);
        builder::add(
            x,
            at.enter("mlp")
                .gated_mlp(h, &self.dims, self.act, self.mlp_bias),
        )
    }

    fn attention(&self, at: &Scope, x: Value, positions: Value, rope: &RopeParams) -> Value {
        let d = &self.dims;
        let project = |name, heads| {
            let linear = at.linear_with(
                self.attention_bias,
                name,
                heads * d.head_dim,
                d.hidden,
                Sharding::Column,
            );
            split_heads(linear.apply(x), heads, d.head_dim)
        };
        let (q, k, v) = (
            project("q_proj", d.heads),
            project("k_proj", d.kv_heads),
            project("v_proj", d.kv_heads),
        );
        let q = builder::rope(q, positions, rope);
        let k = builder::rope(k, positions, rope);
        let cache = kv_cache(d.kv_heads, d.head_dim, self.window);
        let o = builder::attention(q, k, v, cache, &attention(d.scale(), self.window));
        let o = merge_heads(o, d.q());
        at.linear_with(
            self.attention_bias,
            "o_proj",
            d.hidden,
            d.q(),
            Sharding::Row,
        )
        .apply(o)
    }
}

guesthouse_sdk::export_model!(Llama);
