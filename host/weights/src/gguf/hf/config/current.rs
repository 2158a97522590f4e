//! Gemma 1 and 2, Phi, StableLM, InternLM 2, Command R, OLMo 2, Granite, SmolLM 3, GLM-4 and MiniCPM.

use serde_json::{Map, Value, json};

use super::super::family::Current;
use super::super::rope;
use super::{Keys, merge, object, put};
use crate::{WeightsError, dequantize};

type Fields = Result<Map<String, Value>, WeightsError>;

const GEMMA2_27B_LAYERS: usize = 46;

impl Keys<'_> {
    pub(super) fn current(&self, family: Current) -> Fields {
        Ok(match family {
            Current::Gemma => merge(self.decoder()?, tanh_gelu()),
            Current::Gemma2 => merge(self.decoder()?, self.gemma2()?),
            Current::Phi2 => merge(
                self.layer_normed()?,
                object(json!({"hidden_act": "gelu_new"})),
            ),
            Current::Phi3 => self.phi3()?,
            Current::StableLm => merge(self.layer_normed()?, self.stablelm()?),
            Current::InternLm2 => {
                let bias = self.has("blk.0.attn_q.bias");
                merge(self.decoder()?, object(json!({ "bias": bias })))
            }
            Current::Cohere | Current::Cohere2 => merge(self.layer_normed()?, self.cohere()?),
            Current::Olmo2 => self.olmo2()?,
            Current::Granite => merge(self.decoder()?, self.granite()?),
            Current::SmolLm3 => {
                let bias = self.has("blk.0.ffn_gate.bias");
                merge(self.decoder()?, object(json!({ "mlp_bias": bias })))
            }
            Current::Glm4 => merge(self.decoder()?, self.share_that_rotates()?),
            Current::MiniCpm => merge(self.decoder()?, self.minicpm()?),
        })
    }

    /// Layer norms, and a rope whose share is stated, since these families' own default is not the whole.
    fn layer_normed(&self) -> Fields {
        let eps = object(json!({ "layer_norm_eps": self.layer_norm_eps()? }));
        Ok(merge(
            merge(
                self.rotated(&self.rope_scaling()?)?,
                self.share_that_rotates()?,
            ),
            eps,
        ))
    }

    fn share_that_rotates(&self) -> Fields {
        let head_dim = self.head_dim()?;
        let rotary = self.count("rope.dimension_count")?.unwrap_or(head_dim);
        let share = rotary as f64 / head_dim as f64;
        Ok(object(json!({ "partial_rotary_factor": share })))
    }

    fn gemma2(&self) -> Fields {
        // The file does not record the scale; llama.cpp, too, tells the one model that differs by its depth.
        let scalar = if self.layers()? == GEMMA2_27B_LAYERS {
            self.need("embedding_length")? / self.heads()?
        } else {
            self.head_dim()?
        };
        let mut config = merge(
            tanh_gelu(),
            object(json!({ "query_pre_attn_scalar": scalar })),
        );
        put(
            &mut config,
            "sliding_window",
            self.count("attention.sliding_window")?,
        );
        for key in ["attn_logit_softcapping", "final_logit_softcapping"] {
            put(&mut config, key, self.float(key)?);
        }
        Ok(config)
    }

    fn phi3(&self) -> Fields {
        let long = self.factors(rope::LONG)?;
        let short = self.factors(rope::SHORT)?;
        let mut config = match (short, long) {
            (None, None) => self.decoder()?,
            (Some(short), Some(long)) => {
                let original = self.need("rope.scaling.original_context_length")?;
                let mut scaling = object(json!({
                    "rope_type": "longrope",
                    "short_factor": short,
                    "long_factor": long,
                    "original_max_position_embeddings": original,
                }));
                put(
                    &mut scaling,
                    "attention_factor",
                    self.float("rope.scaling.attn_factor")?,
                );
                let scaling = json!({
                    "rope_scaling": scaling,
                    "original_max_position_embeddings": original,
                });
                merge(self.rms_normed(&Value::Null)?, object(scaling))
            }
            _ => {
                return Err(self.malformed(format!(
                    "it has only one of the tensors '{}' and '{}'",
                    rope::SHORT,
                    rope::LONG
                )));
            }
        };
        let window = self.count("attention.sliding_window")?.filter(|&w| w > 0);
        config.insert("sliding_window".to_owned(), json!(window));
        Ok(config)
    }

    /// A tensor of rope divisors.
    fn factors(&self, name: &str) -> Result<Option<Vec<f32>>, WeightsError> {
        let Some(tensor) = self.gguf.tensor(name) else {
            return Ok(None);
        };
        if tensor.info.shape.len() != 1 || tensor.info.cols() > 4096 {
            let shape = &tensor.info.shape;
            return Err(self.malformed(format!(
                "tensor '{name}' has shape {shape:?}, expected [rotary / 2]"
            )));
        }
        let mut values = vec![0.0; tensor.info.cols()];
        dequantize(tensor.info.scheme, &self.gguf.bytes(tensor)?, &mut values)?;
        Ok(Some(values))
    }

    fn stablelm(&self) -> Fields {
        let parallel = self.key("use_parallel_residual");
        Ok(object(json!({
            "use_qkv_bias": self.has("blk.0.attn_q.bias"),
            "qk_layernorm": self.has("blk.0.attn_q_norm.weight"),
            "use_parallel_residual": self.gguf.metadata().bool(&parallel)?.unwrap_or(false),
        })))
    }

    fn cohere(&self) -> Fields {
        let mut config = object(json!({
            "use_qk_norm": self.has("blk.0.attn_q_norm.weight"),
            "logit_scale": self.float("logit_scale")?
                .ok_or_else(|| self.malformed(format!("its metadata lacks '{}'", self.key("logit_scale"))))?,
        }));
        put(
            &mut config,
            "sliding_window",
            self.count("attention.sliding_window")?,
        );
        Ok(config)
    }

    fn olmo2(&self) -> Fields {
        if self
            .count("attention.sliding_window")?
            .is_some_and(|w| w > 0)
        {
            return Err(self.unsupported(
                "its layers have windows, as OLMo 3's; it can be served from its safetensors checkpoint with a guest for it",
            ));
        }
        self.decoder()
    }

    fn granite(&self) -> Fields {
        let mut config = object(json!({ "mlp_bias": self.has("blk.0.ffn_gate.bias") }));
        for (key, field) in [
            ("attention.scale", "attention_multiplier"),
            ("embedding_scale", "embedding_multiplier"),
            ("residual_scale", "residual_multiplier"),
            ("logit_scale", "logits_scaling"),
        ] {
            put(&mut config, field, self.float(key)?.filter(|&x| x != 0.0));
        }
        Ok(config)
    }

    /// Files older than the keys are of the first model, whose numbers llama.cpp assumes too.
    fn minicpm(&self) -> Fields {
        let root = (self.layers()? as f64).sqrt();
        let hidden = self.need("embedding_length")? as f64;
        let base = match self.float("logit_scale")?.filter(|&x| x > 0.0) {
            Some(scale) => (hidden / scale).round().max(1.0),
            None => 256.0,
        };
        Ok(object(json!({
            "scale_emb": self.float("embedding_scale")?.unwrap_or(12.0),
            "scale_depth": self.float("residual_scale")?.map_or(1.4, |scale| scale * root),
            "dim_model_base": base as u64,
        })))
    }
}

fn tanh_gelu() -> Map<String, Value> {
    object(json!({"hidden_act": "gelu_pytorch_tanh", "hidden_activation": "gelu_pytorch_tanh"}))
}
