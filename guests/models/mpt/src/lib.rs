//! `MPTForCausalLM` (llm-foundry) and `MptForCausalLM` (transformers): ALiBi, clipped and normed projections.

use guesthouse_sdk::graph::{
    Activation, AttentionParams, Bias, Dims, Mlp, Model, ModelInfo, PositionScheme, Qkv, Scope,
    Sharding, SizeNames, Value, alibi, attention, builder,
};
use guesthouse_sdk::{Config, Error};
use serde_json::json;

const NAMES: SizeNames = SizeNames {
    hidden: &["d_model", "hidden_size"],
    ffn: &[],
    layers: &["n_layers", "num_hidden_layers"],
    heads: &["n_heads", "num_attention_heads"],
    max_position: &["max_seq_len"],
    eps: &["layer_norm_epsilon"],
};

struct Mpt;

impl Model for Mpt {
    const ARCHITECTURES: &'static [&'static str] = &["MPTForCausalLM", "MptForCausalLM"];

    fn build(architecture: &str, config: &Config) -> Result<ModelInfo, Error> {
        let attn = config.object("attn_config")?;
        let attn = attn.map_or_else(|| Config::parse("{}"), Ok)?;
        for key in ["prefix_lm", "qk_gn", "rope", "attn_uses_sequence_id"] {
            attn.only(key, &[json!(false)])?;
        }
        attn.only("sliding_window_size", &[json!(-1)])?;
        let norms = [json!("low_precision_layernorm"), json!("layernorm")];
        config.only("norm_type", &norms)?;
        if let Some(ffn) = config.object("ffn_config")? {
            ffn.only("ffn_type", &[json!("mptmlp")])?;
        }
        let dims = Dims::named(config, &NAMES)?;
        let kinds = [
            "multihead_attention",
            "multiquery_attention",
            "grouped_query_attention",
        ];
        attn.only("attn_type", &kinds.map(|k| json!(k)))?;
        let kv_heads = match attn.opt_str("attn_type")? {
            Some("multiquery_attention") => 1,
            Some("grouped_query_attention") => attn.size("kv_n_heads")?,
            _ => dims.heads,
        };
        let dims = Dims {
            ffn: ffn(config, &dims)?,
            ..dims.with_kv_heads(kv_heads, &attn, "kv_n_heads")?
        };
        let scale = attn.opt_f32("softmax_scale")?;
        let mut scores = attention(scale.unwrap_or(dims.scale()), None);
        if attn.flag("alibi", true)? {
            let max = attn.opt_f64("alibi_bias_max")?.unwrap_or(8.0);
            scores.alibi = Some(alibi(dims.heads, max));
        }
        let bias = if config.flag("no_bias", true)? {
            Bias::IfPresent
        } else {
            Bias::Required
        };
        let layer = Layer {
            dims,
            bias,
            clip: attn.opt_f32("clip_qkv")?.filter(|&c| c != 0.0),
            norm_qk: attn.flag("qk_ln", false)?,
            mlp: Mlp {
                up: "up_proj",
                down: "down_proj",
                act: Activation::Gelu,
                bias,
            },
            scores,
        };

        let model = Scope::root_with("wte.weight", &["transformer", "", "model"]);
        let table = model.param("wte.weight", &[dims.vocab, dims.hidden]);
        let mut x = builder::embedding(table, builder::token_ids());
        if layer.scores.alibi.is_none() && config.flag("learned_pos_emb", true)? {
            let learned = model.param("wpe.weight", &[dims.max_position, dims.hidden]);
            let at = builder::positions(&PositionScheme::Standard);
            x = builder::add(x, builder::embedding(learned, at));
        }
        for i in 0..dims.layers {
            x = layer.build(&model.enter(format_args!("blocks.{i}")), x);
        }
        let x = model.layer_norm("norm_f", builder::gather_outputs(x), dims.hidden, dims.eps);
        let tied = config.flag("tie_word_embeddings", true)?.then_some(table);
        let logits = dims.logits(x, tied, &Scope::root(""));
        builder::output_logits(match config.get("logit_scale") {
            None => logits,
            Some(v) if v == "inv_sqrt_d_model" => {
                builder::scale(logits, f64::from(dims.hidden).sqrt().recip() as f32)
            }
            Some(_) => builder::scale(logits, config.f32("logit_scale")?),
        });
        Ok(dims.info(architecture))
    }
}

/// Width of the MLP; the ratio need not be whole.
fn ffn(config: &Config, dims: &Dims) -> Result<u32, Error> {
    let ratio = config.opt_f64("expansion_ratio")?.unwrap_or(4.0);
    let width = f64::from(dims.hidden) * ratio;
    if (1.0..f64::from(u32::MAX)).contains(&width) {
        Ok(width as u32)
    } else {
        Err(config.wrong("expansion_ratio", "a number above 0"))
    }
}

struct Layer {
    dims: Dims,
    bias: Bias,
    clip: Option<f32>,
    norm_qk: bool,
    mlp: Mlp,
    scores: AttentionParams,
}

impl Layer {
    fn build(&self, at: &Scope, x: Value) -> Value {
        let d = &self.dims;
        let h = at.layer_norm("norm_1", x, d.hidden, d.eps);
        let x = builder::add(x, self.attention(&at.enter("attn"), h));
        let h = at.layer_norm("norm_2", x, d.hidden, d.eps);
        builder::add(x, self.mlp.apply(&at.enter("ffn"), h, d))
    }

    fn attention(&self, at: &Scope, x: Value) -> Value {
        let d = &self.dims;
        let rows = d.q() + 2 * d.kv();
        let fused = at.linear_with(self.bias, "Wqkv", rows, d.hidden, Sharding::Column);
        let clip = |x| self.clip.map_or(x, |c| builder::clamp(x, -c, c));
        // Over all heads at once.
        let norm = |name, x, width| {
            if self.norm_qk {
                at.layer_norm(name, x, width, d.eps)
            } else {
                x
            }
        };
        let part = |start, len| clip(fused.rows(start, len).apply(x));
        let q = norm("q_ln", part(0, d.q()), d.q());
        let k = norm("k_ln", part(d.q(), d.kv()), d.kv());
        let v = part(d.q() + d.kv(), d.kv());
        let o = Qkv::split(q, k, v, d).attend(d, &self.scores);
        at.out("out_proj", o, d, self.bias)
    }
}

guesthouse_sdk::export_model!(Mpt);
