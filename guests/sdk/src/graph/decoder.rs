//! What nearly every decoder repeats.

use super::builder::{
    self, Activation, AttentionParams, Cache, CacheKind, CacheSpec, Mask, Sharding, Value, Weight,
};
use super::{ModelInfo, Scope};
use crate::{Config, Error};

/// The sizes that configs of the Llama kind state.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dims {
    /// Width of the residual stream.
    pub hidden: u32,
    /// Width of the MLP.
    pub ffn: u32,
    /// Decoder layers.
    pub layers: u32,
    /// Query heads.
    pub heads: u32,
    /// Key and value heads.
    pub kv_heads: u32,
    /// Elements of a head.
    pub head_dim: u32,
    /// Rows of the embedding table.
    pub vocab: u32,
    /// Longest context, tokens.
    pub max_position: u32,
    /// Added to the mean square of norms.
    pub eps: f32,
}

impl Dims {
    /// Reads `hidden_size`, `intermediate_size`, `num_hidden_layers`, `num_attention_heads`, `num_key_value_heads`
    /// (default: all heads), `head_dim` (default: hidden / heads), `vocab_size`, `max_position_embeddings` (default 2048)
    /// and `rms_norm_eps` (default 1e-6).
    pub fn from_config(config: &Config) -> Result<Self, Error> {
        let heads = config.size("num_attention_heads")?;
        let hidden = config.size("hidden_size")?;
        let head_dim = match config.opt_size("head_dim")? {
            Some(d) => d,
            None if hidden % heads == 0 => hidden / heads,
            None => {
                return Err(config.wrong(
                    "hidden_size",
                    &format!("a multiple of num_attention_heads, {heads}"),
                ));
            }
        };
        let dims = Self {
            hidden,
            ffn: config.size("intermediate_size")?,
            layers: config.size("num_hidden_layers")?,
            heads,
            kv_heads: config.opt_size("num_key_value_heads")?.unwrap_or(heads),
            head_dim,
            vocab: config.size("vocab_size")?,
            max_position: config.opt_size("max_position_embeddings")?.unwrap_or(2048),
            eps: config.f32_or("rms_norm_eps", 1e-6)?,
        };
        dims.checked(config)
    }

    /// The same fields, with `self` where the config says nothing: for families whose configs leave out what is usual.
    pub fn or_from(self, config: &Config) -> Result<Self, Error> {
        let or = |key, default| Ok::<_, Error>(config.opt_size(key)?.unwrap_or(default));
        let dims = Self {
            hidden: or("hidden_size", self.hidden)?,
            ffn: or("intermediate_size", self.ffn)?,
            layers: or("num_hidden_layers", self.layers)?,
            heads: or("num_attention_heads", self.heads)?,
            kv_heads: or("num_key_value_heads", self.kv_heads)?,
            head_dim: or("head_dim", self.head_dim)?,
            vocab: or("vocab_size", self.vocab)?,
            max_position: or("max_position_embeddings", self.max_position)?,
            eps: config.f32_or("rms_norm_eps", self.eps)?,
        };
        dims.checked(config)
    }

    /// Reads the sizes of a model of the GPT-2 kind: heads divide `hidden_size`, every query head has a key head, the MLP
    /// is four times as wide where the config does not say, the context 2048 long, and norms add 1e-5.
    pub fn named(config: &Config, names: &SizeNames) -> Result<Self, Error> {
        let (hidden, heads) = (config.size_of(names.hidden)?, config.size_of(names.heads)?);
        if !hidden.is_multiple_of(heads) || hidden > 1 << 24 {
            return Err(config.wrong(
                config.first_of(names.hidden),
                &format!(
                    "a multiple of {}, {heads}, up to 2^24",
                    config.first_of(names.heads)
                ),
            ));
        }
        let dims = Self {
            hidden,
            ffn: config.opt_size_of(names.ffn)?.unwrap_or(4 * hidden),
            layers: config.size_of(names.layers)?,
            heads,
            kv_heads: heads,
            head_dim: hidden / heads,
            vocab: config.size("vocab_size")?,
            max_position: config.opt_size_of(names.max_position)?.unwrap_or(2048),
            eps: config.f32_or(config.first_of(names.eps), 1e-5)?,
        };
        Ok(dims)
    }

    /// The same with other key heads, which must divide the query heads; `key` is the field that says so.
    pub fn with_kv_heads(self, kv_heads: u32, config: &Config, key: &str) -> Result<Self, Error> {
        if kv_heads == 0 || !self.heads.is_multiple_of(kv_heads) {
            let want = format!("a divisor of the number of heads, {}", self.heads);
            return Err(config.wrong(key, &want));
        }
        Ok(Self { kv_heads, ..self })
    }

    /// Itself if heads are consistent and widths bounded, so that products of two fit in 32 bits. For those who changed a
    /// field after reading it.
    pub fn checked(self, config: &Config) -> Result<Self, Error> {
        if !self.heads.is_multiple_of(self.kv_heads) {
            let want = format!("a divisor of num_attention_heads, {}", self.heads);
            return Err(config.wrong("num_key_value_heads", &want));
        }
        if self
            .heads
            .checked_mul(self.head_dim)
            .is_none_or(|q| q > 1 << 24)
        {
            return Err(config.wrong(
                "num_attention_heads",
                "a number of heads whose elements are at most 2^24",
            ));
        }
        Ok(self)
    }

    /// Elements of all query heads.
    pub fn q(&self) -> u32 {
        self.heads * self.head_dim
    }

    /// Elements of all key or value heads.
    pub fn kv(&self) -> u32 {
        self.kv_heads * self.head_dim
    }

    /// What the guest answers.
    pub fn info(&self, architecture: &str) -> ModelInfo {
        ModelInfo {
            architecture: architecture.into(),
            vocab_size: self.vocab,
            max_position: self.max_position,
            ext: vec![],
        }
    }

    /// Scores from `x [hidden]`: by the embedding table where the config ties the two, else by `lm_head` in `at`.
    pub fn logits(&self, x: Value, tied: Option<Weight>, at: &Scope) -> Value {
        match tied {
            Some(table) => builder::linear(x, table, None, Sharding::Column),
            None => at
                .linear("lm_head", self.vocab, self.hidden, Sharding::Column)
                .apply(x),
        }
    }

    /// `1 / sqrt(head_dim)`
    pub fn scale(&self) -> f32 {
        (1.0 / f64::from(self.head_dim).sqrt()) as f32
    }
}

/// What a family's configs call their sizes: of several names, the first that a config has counts.
#[derive(Clone, Copy, Debug)]
pub struct SizeNames<'a> {
    /// Width of the residual stream.
    pub hidden: &'a [&'a str],
    /// Width of the MLP.
    pub ffn: &'a [&'a str],
    /// Decoder layers.
    pub layers: &'a [&'a str],
    /// Query heads.
    pub heads: &'a [&'a str],
    /// Longest context, tokens.
    pub max_position: &'a [&'a str],
    /// Added to the variance in norms.
    pub eps: &'a [&'a str],
}

/// A cache of keys and values of one width, over all positions or the last `window`.
pub fn kv_cache(kv_heads: u32, head_dim: u32, window: Option<u32>) -> Cache {
    builder::declare_cache(&CacheSpec {
        kind: window.map_or(CacheKind::Full, CacheKind::Window),
        kv_heads,
        k_dim: head_dim,
        v_dim: head_dim,
        v_in_k: false,
        replicated: false,
        ext: vec![],
    })
}

/// The cache of latent attention: latents of `rank` elements, each with `rope` rotated ones behind it.
pub fn latent_cache(rank: u32, rope: u32) -> Cache {
    builder::declare_cache(&CacheSpec {
        kind: CacheKind::Full,
        kv_heads: 1,
        k_dim: rank + rope,
        v_dim: rank,
        v_in_k: true,
        replicated: true,
        ext: vec![],
    })
}

/// Causal attention, scores times `scale`, over `window` positions or all.
pub fn attention(scale: f32, window: Option<u32>) -> AttentionParams {
    AttentionParams {
        scale,
        mask: Mask::Causal,
        window,
        softcap: None,
        alibi: None,
        sinks: None,
        ext: vec![],
    }
}

/// `[heads · d]` → `[heads, d]`
pub fn split_heads(x: Value, heads: u32, d: u32) -> Value {
    builder::reshape(x, &[heads, d])
}

/// `[heads, d]` → `[heads · d]`; `width` is the product.
pub fn merge_heads(x: Value, width: u32) -> Value {
    builder::reshape(x, &[width])
}

/// The activation that Hugging Face calls by the name in field `key`.
pub fn activation(config: &Config, key: &str, default: &str) -> Result<Activation, Error> {
    Ok(match config.opt_str(key)?.unwrap_or(default) {
        "silu" | "swish" => Activation::Silu,
        "gelu" => Activation::Gelu,
        "gelu_new" | "gelu_pytorch_tanh" | "gelu_fast" => Activation::GeluTanh,
        "quick_gelu" => Activation::QuickGelu,
        "relu" => Activation::Relu,
        "relu2" => Activation::Relu2,
        "sigmoid" => Activation::Sigmoid,
        "tanh" => Activation::Tanh,
        _ => {
            return Err(config.wrong(
                key,
                "an activation that this guest knows (silu, gelu, gelu_new, relu, …)",
            ));
        }
    })
}
