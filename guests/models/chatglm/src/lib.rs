//! `ChatGLMModel` and `ChatGLMForConditionalGeneration`: two models of one name. [`first`] is ChatGLM-6B, [`second`] ChatGLM2,
//! ChatGLM3 and GLM-4-9B.

use guesthouse_sdk::graph::{Dims, Model, ModelInfo};
use guesthouse_sdk::{Config, Error};
use serde_json::json;

mod first;
mod second;

struct ChatGlm;

impl Model for ChatGlm {
    const ARCHITECTURES: &'static [&'static str] =
        &["ChatGLMModel", "ChatGLMForConditionalGeneration"];

    fn build(architecture: &str, config: &Config) -> Result<ModelInfo, Error> {
        if config.get("pre_seq_len").is_some() {
            let want = "absent, since this guest knows no trained prefix of keys and values";
            return Err(config.wrong("pre_seq_len", want));
        }
        // The model's own form of weights of 4 or 8 bits.
        config.only("quantization_bit", &[json!(0)])?;
        config.only("tie_word_embeddings", &[json!(false)])?;
        let dims = if config.mentions("padded_vocab_size") {
            second::build(config)?
        } else {
            first::build(config)?
        };
        Ok(dims.info(architecture))
    }
}

/// `num_layers`, `num_attention_heads`, `hidden_size` and the rest as both generations name them.
fn sizes(config: &Config) -> Result<Dims, Error> {
    let (hidden, heads) = (
        config.size("hidden_size")?,
        config.size("num_attention_heads")?,
    );
    if !hidden.is_multiple_of(heads) || hidden > 1 << 24 {
        let want = format!("a multiple of num_attention_heads, {heads}, up to 2^24");
        return Err(config.wrong("hidden_size", &want));
    }
    Ok(Dims {
        hidden,
        ffn: 4 * hidden,
        layers: config.size("num_layers")?,
        heads,
        kv_heads: heads,
        head_dim: hidden / heads,
        vocab: 0,
        max_position: 0,
        eps: config.f32_or("layernorm_epsilon", 1e-5)?,
    })
}

guesthouse_sdk::export_model!(ChatGlm);
