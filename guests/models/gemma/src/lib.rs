//! `GemmaForCausalLM`, `Gemma2ForCausalLM` (soft caps, alternating windows, norms around attention and MLP),
//! `Gemma3ForCausalLM` (norms on Q and K, local and global rope) and the language model inside
//! `Gemma3ForConditionalGeneration`.

use guesthouse_sdk::graph::{
    Activation, AttentionParams, Bias, Dims, Model, ModelInfo, Qkv, Rope, Rotation, Scope,
    Sharding, Value, activation, attention, builder,
};
use guesthouse_sdk::{Config, Error};
use serde_json::json;

const FULL: &str = "full_attention";
const SLIDING: &str = "sliding_attention";

#[derive(Clone, Copy, PartialEq)]
enum Generation {
    One,
    Two,
    Three,
}
use Generation::{One, Three, Two};

impl Generation {
    fn of(architecture: &str) -> Self {
        match architecture {
            "GemmaForCausalLM" => One,
            "Gemma2ForCausalLM" => Two,
            _ => Three,
        }
    }

    /// What published configs leave out.
    fn usual(self) -> Dims {
        let two = Dims {
            hidden: 2304,
            ffn: 9216,
            layers: 26,
            heads: 8,
            kv_heads: 4,
            head_dim: 256,
            vocab: 256_000,
            max_position: 8192,
            eps: 1e-6,
        };
        match self {
            One => Dims {
                hidden: 3072,
                ffn: 24_576,
                layers: 28,
                heads: 16,
                kv_heads: 16,
                ..two
            },
            Two => two,
            Three => Dims {
                vocab: 262_208,
                max_position: 131_072,
                ..two
            },
        }
    }
}

struct Gemma;

impl Model for Gemma {
    const ARCHITECTURES: &'static [&'static str] = &[
        "GemmaForCausalLM",
        "Gemma2ForCausalLM",
        "Gemma3ForCausalLM",
        "Gemma3ForConditionalGeneration",
    ];

    fn build(architecture: &str, config: &Config) -> Result<ModelInfo, Error> {
        let generation = Generation::of(architecture);
        let outer = config;
        let config = &config.text()?;
        config.only("use_bidirectional_attention", &[json!(false)])?;
        let dims = generation.usual().or_from(config)?;
        let layer = Layer {
            dims,
            generation,
            act: act(config, generation)?,
            bias: Bias::from_config(config, "attention_bias")?,
        };
        let [global, local] = ropes(config, generation)?.map(|rope| rope.rotation(dims.head_dim));
        let scalar = match generation {
            One => f64::from(dims.head_dim),
            _ => config.opt_f64("query_pre_attn_scalar")?.unwrap_or(256.0),
        };
        let scores = AttentionParams {
            softcap: cap(config, "attn_logit_softcapping", generation, 50.0)?,
            ..attention(scalar.sqrt().recip() as f32, None)
        };

        let model = Scope::root_with(
            "embed_tokens.weight",
            &["model", "language_model.model", "model.language_model"],
        );
        let table = model.param("embed_tokens.weight", &[dims.vocab, dims.hidden]);
        // A weight's value has the model's type, so this is rounded before the product, as in transformers: 55.4 becomes
        // 55.5 in bfloat16.
        let root = builder::weight_value(builder::constant(
            &[1],
            &[f64::from(dims.hidden).sqrt() as f32],
        ));
        let mut x = builder::mul(builder::embedding(table, builder::token_ids()), root);
        for (i, window) in windows(config, generation, dims.layers)?
            .into_iter()
            .enumerate()
        {
            let at = model.enter(format_args!("layers.{i}"));
            let (rotation, window) = match window {
                Layers::Local(window) => (&local, window),
                Layers::Global => (&global, None),
            };
            let scores = AttentionParams {
                window,
                ..scores.clone()
            };
            x = layer.build(&at, x, rotation, &scores);
        }
        let x =
            model.rms_norm_unit_offset("norm", builder::gather_outputs(x), dims.hidden, dims.eps);
        let tied =
            outer.flag("tie_word_embeddings", true)? && config.flag("tie_word_embeddings", true)?;
        let mut logits = if tied {
            builder::linear(x, table, None, Sharding::Column)
        } else {
            let root = Scope::root_with("lm_head.weight", &["", "language_model"]);
            dims.logits(x, None, &root)
        };
        if let Some(cap) = cap(config, "final_logit_softcapping", generation, 30.0)? {
            logits = builder::soft_cap(logits, cap);
        }
        builder::output_logits(logits);
        Ok(dims.info(architecture))
    }
}

/// Gemma 1's configs said `gelu` in `hidden_act` where the tanh form was meant, until `hidden_activation` replaced it.
fn act(config: &Config, generation: Generation) -> Result<Activation, Error> {
    let old = generation == One && config.get("hidden_activation").is_none();
    if old && config.opt_str("hidden_act")? != Some("gelu") {
        return activation(config, "hidden_act", "gelu_pytorch_tanh");
    }
    activation(config, "hidden_activation", "gelu_pytorch_tanh")
}

/// Gemma 2's caps are `usual` where absent and none where `null`.
fn cap(config: &Config, key: &str, of: Generation, usual: f32) -> Result<Option<f32>, Error> {
    match of {
        One => Ok(None),
        Two if !config.mentions(key) => Ok(Some(usual)),
        _ => config.opt_f32(key),
    }
}

/// Ropes of global and of local layers, which differ in Gemma 3 alone. Its older form scales global layers only; local
/// ones have a base of their own.
fn ropes(config: &Config, of: Generation) -> Result<[Rope; 2], Error> {
    if of != Three {
        let rope = Rope::from_config(config)?;
        return Ok([rope.clone(), rope]);
    }
    let theta = |key, default| Ok::<_, Error>(config.opt_f64(key)?.unwrap_or(default));
    let scaling = config.object("rope_scaling")?;
    Ok([
        Rope::for_layers(config, FULL, scaling, theta("rope_theta", 1e6)?)?,
        Rope::for_layers(config, SLIDING, None, theta("rope_local_base_freq", 1e4)?)?,
    ])
}

#[derive(Clone, Copy)]
enum Layers {
    Local(Option<u32>),
    Global,
}

/// Which layers are local, and their window.
fn windows(config: &Config, of: Generation, layers: u32) -> Result<Vec<Layers>, Error> {
    let pattern = match of {
        One => return Ok(vec![Layers::Global; layers as usize]),
        Two => 2,
        Three => config.opt_size("sliding_window_pattern")?.unwrap_or(6),
    };
    let types = config.layer_types(layers, &[FULL, SLIDING], |i| {
        let global = (i + 1).is_multiple_of(pattern);
        if global { FULL } else { SLIDING }.into()
    })?;
    let window = if config.mentions("sliding_window") {
        config.opt_size("sliding_window")?
    } else {
        Some(4096)
    };
    let layer = |kind: &String| {
        if kind == SLIDING {
            Layers::Local(window)
        } else {
            Layers::Global
        }
    };
    Ok(types.iter().map(layer).collect())
}

/// Attention and MLP, with norms after them too from Gemma 2 on.
struct Layer {
    dims: Dims,
    generation: Generation,
    act: Activation,
    bias: Bias,
}

impl Layer {
    fn build(&self, at: &Scope, x: Value, rotation: &Rotation, scores: &AttentionParams) -> Value {
        let norm = |name, x| at.rms_norm_unit_offset(name, x, self.dims.hidden, self.dims.eps);
        let mlp = |x| {
            at.enter("mlp")
                .gated_mlp(x, &self.dims, self.act, Bias::IfPresent)
        };
        let h = norm("input_layernorm", x);
        let h = self.attention(&at.enter("self_attn"), h, rotation, scores);
        if self.generation == One {
            let x = builder::add(x, h);
            return builder::add(x, mlp(norm("post_attention_layernorm", x)));
        }
        let x = builder::add(x, norm("post_attention_layernorm", h));
        let h = mlp(norm("pre_feedforward_layernorm", x));
        builder::add(x, norm("post_feedforward_layernorm", h))
    }

    fn attention(
        &self,
        at: &Scope,
        x: Value,
        rotation: &Rotation,
        scores: &AttentionParams,
    ) -> Value {
        let d = &self.dims;
        let mut qkv = Qkv::project(at, x, d, self.bias);
        if self.generation == Three {
            qkv = qkv.norm(|name, x| at.rms_norm_unit_offset(name, x, d.head_dim, d.eps));
        }
        let o = qkv.rotate(rotation).attend(d, scores);
        at.out("o_proj", o, d, self.bias)
    }
}

guesthouse_sdk::export_model!(Gemma);
