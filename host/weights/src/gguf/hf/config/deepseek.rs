//! DeepSeek V2 and V3, which llama.cpp calls by one name.

use serde_json::{Map, Value, json};

use super::{Keys, object, put};
use crate::WeightsError;

/// `expert_gating_func` of V3's scores.
const SIGMOID: u64 = 2;

impl Keys<'_> {
    pub(super) fn deepseek(&self) -> Result<Map<String, Value>, WeightsError> {
        let metadata = self.gguf.metadata();
        let v3 = metadata.u64(&self.key("expert_gating_func"))? == Some(SIGMOID);
        // Files that are made for attention over latents have the widths of those where others have the heads'.
        let width = |mla: &str, plain: &str| match self.count(mla)? {
            Some(n) => Ok(n),
            None => self.need(plain),
        };
        let key = width("attention.key_length_mla", "attention.key_length")?;
        let rope = self.need("rope.dimension_count")?;
        let nope = key.checked_sub(rope).filter(|&n| n > 0).ok_or_else(|| {
            self.malformed(format!("it rotates {rope} of {key} dimensions of a key"))
        })?;
        let groups = self.count("expert_group_count")?.filter(|&n| n > 1);
        let mut config = object(json!({
            "num_key_value_heads": self.heads()?,
            "mlp_bias": false,
            "kv_lora_rank": self.need("attention.kv_lora_rank")?,
            "q_lora_rank": self.count("attention.q_lora_rank")?.filter(|&n| n > 0),
            "qk_nope_head_dim": nope,
            "qk_rope_head_dim": rope,
            "v_head_dim": width("attention.value_length_mla", "attention.value_length")?,
            "moe_intermediate_size": self.need("expert_feed_forward_length")?,
            "n_routed_experts": self.need("expert_count")?,
            "num_experts_per_tok": self.need("expert_used_count")?,
            "n_shared_experts": self.count("expert_shared_count")?,
            "first_k_dense_replace": self.count("leading_dense_block_count")?.unwrap_or(0),
            "routed_scaling_factor": self.float("expert_weights_scale")?.unwrap_or(1.0),
            "norm_topk_prob": metadata.bool(&self.key("expert_weights_norm"))?.unwrap_or(v3),
            "rope_scaling": self.yarn_of_heads()?,
        }));
        if v3 {
            config.insert("architectures".to_owned(), json!(["DeepseekV3ForCausalLM"]));
            config.insert("model_type".to_owned(), json!("deepseek_v3"));
        } else {
            let method = groups.map_or("greedy", |_| "group_limited_greedy");
            config.insert("topk_method".to_owned(), json!(method));
        }
        if v3 || groups.is_some() {
            put(&mut config, "n_group", Some(groups.unwrap_or(1)));
            let top = self.count("expert_group_used_count")?;
            put(
                &mut config,
                "topk_group",
                Some(top.filter(|_| groups.is_some()).unwrap_or(1)),
            );
        }
        Ok(config)
    }

    /// Yarn with the temperature of the scores, of which the file has a tenth; cosines and sines have none of their own in any
    /// published model.
    fn yarn_of_heads(&self) -> Result<Value, WeightsError> {
        let mut scaling = self.rope_scaling()?;
        let tenth = self.float("rope.scaling.yarn_log_multiplier")?;
        if let (Value::Object(map), Some(tenth)) = (&mut scaling, tenth) {
            for key in ["mscale", "mscale_all_dim"] {
                map.insert(key.to_owned(), json!(10.0 * tenth));
            }
        }
        Ok(scaling)
    }
}
