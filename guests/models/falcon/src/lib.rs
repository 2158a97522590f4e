//! `FalconForCausalLM` and its first name, `RWForCausalLM`: rope or ALiBi, one key head, some or all, attention and MLP side
//! by side under one norm or two, or in sequence.

use guesthouse_sdk::graph::{
    AttentionParams, Bias, Dims, Mlp, Model, ModelInfo, Qkv, Rope, Rotation, Scope, Sharding,
    SizeNames, Value, Weight, activation, alibi_slopes, attention, builder,
};
use guesthouse_sdk::{Config, Error};
use serde_json::json;

const NAMES: SizeNames = SizeNames {
    hidden: &["n_embed", "hidden_size"],
    ffn: &["ffn_hidden_size"],
    layers: &["num_hidden_layers", "n_layer"],
    heads: &["num_attention_heads", "n_head"],
    max_position: &["max_position_embeddings"],
    eps: &["layer_norm_epsilon"],
};
const KV_HEADS: [&str; 2] = ["num_kv_heads", "n_head_kv"];

struct Falcon;

impl Model for Falcon {
    const ARCHITECTURES: &'static [&'static str] = &["FalconForCausalLM", "RWForCausalLM"];

    fn build(architecture: &str, config: &Config) -> Result<ModelInfo, Error> {
        config.only("apply_residual_connection_post_layernorm", &[json!(false)])?;
        let dims = Dims::named(config, &NAMES)?;
        // RW's 40B says so by `n_head_kv` alone.
        let one_key = config.flag("multi_query", config.get("n_head_kv").is_none())?;
        let grouped = config.get("n_head_kv").is_some() && !one_key;
        let new = config.flag("new_decoder_architecture", grouped)?;
        let kv_heads = match one_key {
            _ if new => config.opt_size_of(&KV_HEADS)?.unwrap_or(dims.heads),
            true => 1,
            false => dims.heads,
        };
        let dims = dims.with_kv_heads(kv_heads, config, config.first_of(&KV_HEADS))?;
        let parallel = new || config.flag("parallel_attn", true)?;
        let norms = config.opt_size("num_ln_in_parallel_attn")?;
        let norms = norms.unwrap_or(if new { 2 } else { 1 });
        if parallel && norms > if new { 2 } else { 1 } {
            let want = "1, or 2 in the new decoder architecture";
            return Err(config.wrong("num_ln_in_parallel_attn", want));
        }
        let bias = Bias::from_config(config, "bias")?;
        let mut scores = attention(dims.scale(), None);
        let rotation = if config.flag("alibi", false)? {
            scores.alibi = Some(slopes(&dims));
            None
        } else {
            Some(Rope::from_config(config)?.rotation(dims.head_dim))
        };
        let layer = Layer {
            dims,
            bias,
            rotation,
            scores,
            mlp: Mlp {
                up: "dense_h_to_4h",
                down: "dense_4h_to_h",
                act: activation(config, "activation", "gelu")?,
                bias,
            },
            norms: match (parallel, norms) {
                (false, _) => Norms::Sequential,
                (true, 1) => Norms::Shared,
                (true, _) => Norms::Two,
            },
        };

        let model = Scope::root_with("word_embeddings.weight", &["transformer", ""]);
        let table = model.param("word_embeddings.weight", &[dims.vocab, dims.hidden]);
        let mut x = builder::embedding(table, builder::token_ids());
        for i in 0..dims.layers {
            x = layer.build(&model.enter(format_args!("h.{i}")), x);
        }
        let x = model.layer_norm("ln_f", builder::gather_outputs(x), dims.hidden, dims.eps);
        let tied = config.flag("tie_word_embeddings", true)?.then_some(table);
        builder::output_logits(dims.logits(x, tied, &Scope::root("")));
        Ok(dims.info(architecture))
    }
}

/// ALiBi is added before scores are scaled, and its slopes have been rounded to bfloat16.
fn slopes(dims: &Dims) -> Weight {
    let rounded = |x: f32| {
        let bits = x.to_bits();
        f32::from_bits((bits + 0x7fff + (bits >> 16 & 1)) & 0xffff_0000)
    };
    let slopes = alibi_slopes(dims.heads, 8.0);
    let scaled: Vec<f32> = slopes.iter().map(|s| rounded(*s) * dims.scale()).collect();
    builder::constant(&[dims.heads], &scaled)
}

/// Norms of a layer.
enum Norms {
    /// Before attention; before the MLP, which follows it.
    Sequential,
    /// One for attention and MLP side by side.
    Shared,
    /// One each, side by side.
    Two,
}

struct Layer {
    dims: Dims,
    bias: Bias,
    rotation: Option<Rotation>,
    scores: AttentionParams,
    mlp: Mlp,
    norms: Norms,
}

impl Layer {
    fn build(&self, at: &Scope, x: Value) -> Value {
        let norm = |name, x| at.layer_norm(name, x, self.dims.hidden, self.dims.eps);
        let attend = |x| self.attention(&at.enter("self_attention"), x);
        let mlp = |x| self.mlp.apply(&at.enter("mlp"), x, &self.dims);
        let (attended, h) = match self.norms {
            Norms::Sequential => {
                let x = builder::add(attend(norm("input_layernorm", x)), x);
                return builder::add(mlp(norm("post_attention_layernorm", x)), x);
            }
            Norms::Shared => {
                let h = norm("input_layernorm", x);
                (attend(h), h)
            }
            Norms::Two => (attend(norm("ln_attn", x)), norm("ln_mlp", x)),
        };
        builder::add(builder::add(mlp(h), attended), x)
    }

    fn attention(&self, at: &Scope, x: Value) -> Value {
        let d = &self.dims;
        let rows = d.q() + 2 * d.kv();
        let fused = at.linear_with(
            self.bias,
            "query_key_value",
            rows,
            d.hidden,
            Sharding::Column,
        );
        let mut qkv = Qkv::grouped(&fused, x, d);
        if let Some(rotation) = &self.rotation {
            qkv = qkv.rotate(rotation);
        }
        at.out("dense", qkv.attend(d, &self.scores), d, self.bias)
    }
}

guesthouse_sdk::export_model!(Falcon);
