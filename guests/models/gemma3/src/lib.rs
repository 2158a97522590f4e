//! `Gemma3ForCausalLM`, and the language model inside `Gemma3ForConditionalGeneration`.

use guesthouse_sdk::graph::{
    Activation, AttentionParams, Bias, Dims, Model, ModelInfo, PositionScheme, Rope, RopeParams,
    Scope, Sharding, Value, activation, attention, builder, kv_cache, merge_heads, split_heads,
};
use guesthouse_sdk::{Config, Error};
use serde_json::json;

const FULL: &str = "full_attention";
const SLIDING: &str = "sliding_attention";

/// What published configs leave out.
const USUAL: Dims = Dims {
    hidden: 2304,
    ffn: 9216,
    layers: 26,
    heads: 8,
    kv_heads: 4,
    head_dim: 256,
    vocab: 262_208,
    max_position: 131_072,
    eps: 1e-6,
};

struct Gemma3;

impl Model for Gemma3 {
    const ARCHITECTURES: &'static [&'static str] =
        &["Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"];

    fn build(architecture: &str, config: &Config) -> Result<ModelInfo, Error> {
        let outer = config;
        let config = &config.text()?;
        config.only("use_bidirectional_attention", &[json!(false)])?;
        let dims = USUAL.or_from(config)?;
        let pattern = config.opt_size("sliding_window_pattern")?.unwrap_or(6);
        let by_pattern = |i: u32| {
            if (i + 1).is_multiple_of(pattern) {
                FULL
            } else {
                SLIDING
            }
            .into()
        };
        let types = config.layer_types(dims.layers, &[FULL, SLIDING], by_pattern)?;
        let window = if config.mentions("sliding_window") {
            config.opt_size("sliding_window")?
        } else {
            Some(4096)
        };

        // The older form scales global layers only; local ones have a base of their own.
        let theta = |key, default| Ok::<_, Error>(config.opt_f64(key)?.unwrap_or(default));
        let global = Rope::for_layers(
            config,
            FULL,
            config.object("rope_scaling")?,
            theta("rope_theta", 1e6)?,
        )?;
        let local = Rope::for_layers(config, SLIDING, None, theta("rope_local_base_freq", 1e4)?)?;
        let (global, local) = (global.params(dims.head_dim), local.params(dims.head_dim));

        let scale = config
            .opt_f64("query_pre_attn_scalar")?
            .unwrap_or(256.0)
            .sqrt()
            .recip() as f32;
        let softcap = config.opt_f32("attn_logit_softcapping")?;
        let scores = |window| AttentionParams {
            softcap,
            ..attention(scale, window)
        };
        let layer = Layer {
            dims,
            act: activation(config, "hidden_activation", "gelu_pytorch_tanh")?,
            bias: Bias::from_config(config, "attention_bias")?,
        };

        let model = Scope::root_with(
            "embed_tokens.weight",
            &["model", "language_model.model", "model.language_model"],
        );
        let table = model.param("embed_tokens.weight", &[dims.vocab, dims.hidden]);
        let positions = builder::positions(&PositionScheme::Standard);
        // A weight's value has the model's type, so this is rounded before the product, as in transformers: 55.4 becomes
        // 55.5 in bfloat16.
        let root = builder::weight_value(builder::constant(
            &[1],
            &[f64::from(dims.hidden).sqrt() as f32],
        ));
        let mut x = builder::embedding(table, builder::token_ids());
        x = builder::mul(x, root);
        for (i, kind) in types.iter().enumerate() {
            let (rope, scores) = if kind == SLIDING {
                (&local, scores(window))
            } else {
                (&global, scores(None))
            };
            x = layer.build(
                &model.enter(format_args!("layers.{i}")),
                x,
                positions,
                rope,
                &scores,
            );
        }
        let x =
            model.rms_norm_unit_offset("norm", builder::gather_outputs(x), dims.hidden, dims.eps);
        let tied =
            outer.flag("tie_word_embeddings", true)? && config.flag("tie_word_embeddings", true)?;
        let mut logits = if tied {
            builder::linear(x, table, None, Sharding::Column)
        } else {
            let root = Scope::root_with("lm_head.weight", &["", "language_model"]);
            root.linear("lm_head", dims.vocab, dims.hidden, Sharding::Column)
                .apply(x)
        };
        if let Some(cap) = config.opt_f32("final_logit_softcapping")? {
            logits = builder::soft_cap(logits, cap);
        }
        builder::output_logits(logits);
        Ok(dims.info(architecture))
    }
}

/// Norms before and after attention and MLP.
struct Layer {
    dims: Dims,
    act: Activation,
    bias: Bias,
}

impl Layer {
    fn build(
        &self,
        at: &Scope,
        x: Value,
        positions: Value,
        rope: &RopeParams,
        scores: &AttentionParams,
    ) -> Value {
        let norm = |name, x| at.rms_norm_unit_offset(name, x, self.dims.hidden, self.dims.eps);
        let h = norm("input_layernorm", x);
        let h = self.attention(&at.enter("self_attn"), h, positions, rope, scores);
        let x = builder::add(x, norm("post_attention_layernorm", h));
        let h = norm("pre_feedforward_layernorm", x);
        let h = at
            .enter("mlp")
            .gated_mlp(h, &self.dims, self.act, Bias::IfPresent);
        builder::add(x, norm("post_feedforward_layernorm", h))
    }

    fn attention(
        &self,
        at: &Scope,
        x: Value,
        positions: Value,
        rope: &RopeParams,
        scores: &AttentionParams,
    ) -> Value {
        let d = &self.dims;
        let project = |name, heads| {
            let linear = at.linear_with(
                self.bias,
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
        let turn = |name, x| {
            builder::rope(
                at.rms_norm_unit_offset(name, x, d.head_dim, d.eps),
                positions,
                rope,
            )
        };
        let (q, k) = (turn("q_norm", q), turn("k_norm", k));
        let o = builder::attention(
            q,
            k,
            v,
            kv_cache(d.kv_heads, d.head_dim, scores.window),
            scores,
        );
        at.linear_with(self.bias, "o_proj", d.hidden, d.q(), Sharding::Row)
            .apply(merge_heads(o, d.q()))
    }
}

guesthouse_sdk::export_model!(Gemma3);
