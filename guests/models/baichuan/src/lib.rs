//! `BaiChuanForCausalLM` (Baichuan-7B) and `BaichuanForCausalLM` (Baichuan-13B, Baichuan 2): Q, K and V in one matrix; the 7B models
//! rotate, the 13B ones have `ALiBi`; Baichuan 2 has a head whose rows are divided by their lengths.

use guesthouse_sdk::graph::{
    AttentionParams, Bias, Dims, Linear, Model, ModelInfo, Qkv, Rope, Scope, Sharding, Value,
    activation, alibi, attention, builder,
};
use guesthouse_sdk::{Config, Error};
use serde_json::json;

/// Of Baichuan 2.
const NORM_HEAD_VOCAB: u32 = 125_696;

struct Baichuan;

impl Model for Baichuan {
    const ARCHITECTURES: &'static [&'static str] = &["BaiChuanForCausalLM", "BaichuanForCausalLM"];

    fn build(architecture: &str, config: &Config) -> Result<ModelInfo, Error> {
        config.only("tie_word_embeddings", &[json!(false)])?;
        let mut dims = Dims::from_config(config)?;
        if !config.mentions("max_position_embeddings") {
            dims.max_position = config.opt_size("model_max_length")?.unwrap_or(4096);
        }
        let act = activation(config, "hidden_act", "silu")?;
        let rotation = match rotates(architecture, config, dims.hidden) {
            true => Some(Rope::from_config(config)?.rotation(dims.head_dim)),
            false => None,
        };
        let scores = AttentionParams {
            alibi: rotation.is_none().then(|| alibi(dims.heads, 8.0)),
            ..attention(dims.scale(), None)
        };

        let root = Scope::root("");
        let model = root.enter("model");
        let table = model.param("embed_tokens.weight", &[dims.vocab, dims.hidden]);
        let mut x = builder::embedding(table, builder::token_ids());
        for i in 0..dims.layers {
            let at = model.enter(format_args!("layers.{i}"));
            let h = at.rms_norm("input_layernorm", x, dims.hidden, dims.eps);
            let inner = at.enter("self_attn");
            let fused = inner.linear("W_pack", 3 * dims.q(), dims.hidden, Sharding::Column);
            let mut qkv = Qkv::fused(&fused, h, &dims);
            if let Some(rotation) = &rotation {
                qkv = qkv.rotate(rotation);
            }
            let o = qkv.attend(&dims, &scores);
            x = builder::add(x, inner.out("o_proj", o, &dims, Bias::IfPresent));
            drop(inner);
            let h = at.rms_norm("post_attention_layernorm", x, dims.hidden, dims.eps);
            let mlp = at.enter("mlp");
            x = builder::add(x, mlp.gated_mlp(h, &dims, act, Bias::IfPresent));
        }
        let x = model.rms_norm("norm", builder::gather_outputs(x), dims.hidden, dims.eps);
        builder::output_logits(head(config, &root, x, &dims));
        Ok(dims.info(architecture))
    }
}

/// Only the configs of the 7B models have `max_position_embeddings`, unless a fine-tune has added it to 13B.
fn rotates(architecture: &str, config: &Config, hidden: u32) -> bool {
    match (architecture, hidden) {
        ("BaiChuanForCausalLM", _) | (_, 4096) => true,
        (_, 5120) => false,
        _ => config.mentions("max_position_embeddings"),
    }
}

/// Baichuan 2 is told by its vocabulary, or by the loss that keeps its head in bounds.
fn head(config: &Config, root: &Scope, x: Value, dims: &Dims) -> Value {
    let mut head: Linear = root.linear("lm_head", dims.vocab, dims.hidden, Sharding::Column);
    if dims.vocab == NORM_HEAD_VOCAB || config.mentions("z_loss_weight") {
        head.weight = builder::normalize_rows(head.weight, 1e-12);
    }
    head.apply(x)
}

guesthouse_sdk::export_model!(Baichuan);
