//! StarCoder, GPT-NeoX, BLOOM, Falcon and MPT.

use serde_json::{Map, Value, json};

use super::{Keys, object};
use crate::WeightsError;

type Fields = Result<Map<String, Value>, WeightsError>;

impl Keys<'_> {
    /// Rows of a tensor of the first layer.
    fn rows(&self, tensor: &str) -> Result<usize, WeightsError> {
        let name = format!("blk.0.{tensor}.weight");
        let stored = self.gguf.tensor(&name);
        let rows = stored.and_then(|t| t.info.shape.first().copied());
        rows.ok_or_else(|| self.malformed(format!("it lacks the tensor '{name}'")))
    }

    pub(super) fn bigcode(&self) -> Fields {
        let hidden = self.need("embedding_length")?;
        // The metadata claim one key head and an MLP of four times the width, whatever the model has.
        let rows = self.rows("attn_qkv")?;
        let multi_query = rows == hidden + 2 * self.head_dim()?;
        if !multi_query && rows != 3 * hidden {
            return Err(self.malformed(format!(
                "tensor 'blk.0.attn_qkv.weight' has {rows} rows, which fit neither one key head nor {}",
                self.heads()?
            )));
        }
        Ok(object(json!({
            "n_embd": hidden,
            "n_layer": self.layers()?,
            "n_head": self.heads()?,
            "n_positions": self.need("context_length")?,
            "n_inner": self.rows("ffn_up")?,
            "layer_norm_epsilon": self.layer_norm_eps()?,
            "activation_function": "gelu_pytorch_tanh",
            "scale_attn_weights": true,
            "multi_query": multi_query,
        })))
    }

    pub(super) fn neox(&self) -> Fields {
        let head_dim = self.head_dim()?;
        let rotary = self.count("rope.dimension_count")?.unwrap_or(head_dim);
        if rotary == 0 || rotary > head_dim {
            return Err(self.malformed(format!(
                "it rotates {rotary} of {head_dim} dimensions of a head"
            )));
        }
        let parallel = self.key("use_parallel_residual");
        Ok(object(json!({
            "intermediate_size": self.need("feed_forward_length")?,
            "layer_norm_eps": self.layer_norm_eps()?,
            "hidden_act": "gelu",
            "use_parallel_residual": self.gguf.metadata().bool(&parallel)?.unwrap_or(true),
            "attention_bias": self.has("blk.0.attn_qkv.bias"),
            "rotary_emb_base": self.float("rope.freq_base")?.unwrap_or(10_000.0),
            "rotary_pct": rotary as f64 / head_dim as f64,
            "rope_scaling": self.rope_scaling()?,
        })))
    }

    pub(super) fn bloom(&self) -> Fields {
        Ok(object(json!({
            "n_layer": self.layers()?,
            "n_head": self.heads()?,
            "seq_length": self.need("context_length")?,
            "layer_norm_epsilon": self.layer_norm_eps()?,
            "apply_residual_connection_post_layernorm": false,
        })))
    }

    pub(super) fn falcon(&self) -> Fields {
        if self.has("blk.0.attn_qkv.bias") {
            return Err(self.unsupported(
                "its projections have biases, as those of Falcon RW, whose ALiBi a GGUF file does not record; it can be served from its safetensors checkpoint",
            ));
        }
        let (kv_heads, two_norms) = (self.kv_heads()?, self.has("blk.0.attn_norm_2.weight"));
        let new = kv_heads != 1 || two_norms;
        Ok(object(json!({
            "num_kv_heads": kv_heads,
            "new_decoder_architecture": new,
            "multi_query": true,
            "parallel_attn": true,
            "num_ln_in_parallel_attn": new.then_some(if two_norms { 2 } else { 1 }),
            "alibi": false,
            "bias": false,
            "activation": "gelu",
            "ffn_hidden_size": self.rows("ffn_up")?,
            "layer_norm_epsilon": self.layer_norm_eps()?,
            "rope_theta": self.float("rope.freq_base")?.unwrap_or(10_000.0),
            "rope_scaling": self.rope_scaling()?,
        })))
    }

    pub(super) fn mpt(&self) -> Fields {
        let hidden = self.need("embedding_length")?;
        let (heads, kv_heads) = (self.heads()?, self.kv_heads()?);
        let alibi = self.float("attention.max_alibi_bias")?.filter(|&b| b > 0.0);
        let mut attention = object(json!({
            "attn_type": "multihead_attention",
            "alibi": alibi.is_some(),
            "clip_qkv": self.float("attention.clamp_kqv")?.filter(|&c| c > 0.0),
            "qk_ln": self.has("blk.0.attn_q_norm.weight"),
            "prefix_lm": false,
            "softmax_scale": null,
        }));
        if let Some(max) = alibi {
            attention.insert("alibi_bias_max".to_owned(), json!(max));
        }
        if kv_heads != heads {
            attention.insert("attn_type".to_owned(), json!("grouped_query_attention"));
            attention.insert("kv_n_heads".to_owned(), json!(kv_heads));
        }
        Ok(object(json!({
            "d_model": hidden,
            "n_layers": self.layers()?,
            "n_heads": heads,
            "max_seq_len": self.need("context_length")?,
            "expansion_ratio": self.rows("ffn_up")? as f64 / hidden as f64,
            "attn_config": attention,
            "no_bias": !self.has("blk.0.attn_qkv.bias"),
            "learned_pos_emb": self.has("position_embd.weight"),
            "norm_type": "low_precision_layernorm",
            "layer_norm_epsilon": self.layer_norm_eps()?,
        })))
    }
}
