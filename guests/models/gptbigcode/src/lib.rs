//! `GPTBigCodeForCausalLM` (StarCoder, SantaCoder): GPT-2 with one key head, or as many as query heads. SantaCoder's first
//! form, `GPT2LMHeadCustomModel`, keeps queries apart from keys and values and stores linears the other way round.

use guesthouse_sdk::graph::{
    Bias, Dims, Linear, Mlp, Model, ModelInfo, PositionScheme, Qkv, Scope, Sharding, SizeNames,
    Value, activation, attention, builder,
};
use guesthouse_sdk::{Config, Error};
use serde_json::json;

const NAMES: SizeNames = SizeNames {
    hidden: &["n_embd", "hidden_size"],
    ffn: &["n_inner"],
    layers: &["n_layer", "num_hidden_layers"],
    heads: &["n_head", "num_attention_heads"],
    max_position: &["n_positions", "max_position_embeddings"],
    eps: &["layer_norm_epsilon"],
};
const CUSTOM: &str = "GPT2LMHeadCustomModel";

struct BigCode;

impl Model for BigCode {
    const ARCHITECTURES: &'static [&'static str] = &["GPTBigCodeForCausalLM", CUSTOM];

    fn build(architecture: &str, config: &Config) -> Result<ModelInfo, Error> {
        config.only("add_cross_attention", &[json!(false)])?;
        config.only("scale_attn_by_inverse_layer_idx", &[json!(false)])?;
        let mut dims = Dims::named(config, &NAMES)?;
        let storage = if architecture == CUSTOM {
            config.only("attention_head_type", &[json!("multiquery")])?;
            Storage::Custom
        } else {
            Storage::Linear
        };
        if config.flag("multi_query", true)? {
            dims.kv_heads = 1;
        }
        let act = activation(config, "activation_function", "gelu_pytorch_tanh")?;
        let layer = Layer {
            dims,
            storage,
            mlp: Mlp {
                up: "c_fc",
                down: "c_proj",
                act,
                bias: Bias::Required,
            },
            scale: if config.flag("scale_attn_weights", true)? {
                dims.scale()
            } else {
                1.0
            },
        };

        let model = Scope::root_with("wte.weight", &["transformer", ""]);
        let table = model.param("wte.weight", &[dims.vocab, dims.hidden]);
        let learned = model.param("wpe.weight", &[dims.max_position, dims.hidden]);
        let at = builder::positions(&PositionScheme::Standard);
        let mut x = builder::add(
            builder::embedding(table, builder::token_ids()),
            builder::embedding(learned, at),
        );
        for i in 0..dims.layers {
            x = layer.build(&model.enter(format_args!("h.{i}")), x);
        }
        let x = model.layer_norm("ln_f", builder::gather_outputs(x), dims.hidden, dims.eps);
        let tied = config.flag("tie_word_embeddings", true)?.then_some(table);
        builder::output_logits(dims.logits(x, tied, &Scope::root("")));
        Ok(dims.info(architecture))
    }
}

/// How a checkpoint stores its linears.
#[derive(Clone, Copy)]
enum Storage {
    /// `c_attn` fused, each `[out, in]`.
    Linear,
    /// `q_attn` and `kv_attn`, each `[in, out]`.
    Custom,
}

struct Layer {
    dims: Dims,
    storage: Storage,
    mlp: Mlp,
    scale: f32,
}

impl Layer {
    fn build(&self, at: &Scope, x: Value) -> Value {
        let d = &self.dims;
        let h = at.layer_norm("ln_1", x, d.hidden, d.eps);
        let x = builder::add(x, self.attention(&at.enter("attn"), h));
        let h = at.layer_norm("ln_2", x, d.hidden, d.eps);
        let at = at.enter("mlp");
        let h = match self.storage {
            Storage::Linear => self.mlp.apply(&at, h, d),
            Storage::Custom => {
                let up = turned(&at, self.mlp.up, d.ffn, d.hidden, Sharding::Column);
                let down = turned(&at, self.mlp.down, d.hidden, d.ffn, Sharding::Row);
                down.apply(builder::activate(up.apply(h), self.mlp.act))
            }
        };
        builder::add(x, h)
    }

    fn attention(&self, at: &Scope, x: Value) -> Value {
        let (d, column) = (&self.dims, Sharding::Column);
        let (qkv, out) = match self.storage {
            Storage::Linear => {
                let fused = at.biased("c_attn", d.q() + 2 * d.kv(), d.hidden, column);
                let out = at.biased("c_proj", d.hidden, d.q(), Sharding::Row);
                (Qkv::grouped(&fused, x, d), out)
            }
            Storage::Custom => {
                let q = turned(at, "q_attn", d.q(), d.hidden, column).apply(x);
                let kv = turned(at, "kv_attn", 2 * d.kv(), d.hidden, column);
                let (k, v) = (kv.rows(0, d.kv()), kv.rows(d.kv(), d.kv()));
                let out = turned(at, "c_proj", d.hidden, d.q(), Sharding::Row);
                (Qkv::split(q, k.apply(x), v.apply(x), d), out)
            }
        };
        out.apply(qkv.attend(d, &attention(self.scale, None)))
    }
}

/// A linear stored `[in, out]`.
fn turned(at: &Scope, name: &str, out: u32, inp: u32, sharding: Sharding) -> Linear {
    Linear {
        weight: builder::transpose(at.param(&format!("{name}.weight"), &[inp, out])),
        bias: Some(at.param(&format!("{name}.bias"), &[out])),
        sharding,
    }
}

guesthouse_sdk::export_model!(BigCode);
