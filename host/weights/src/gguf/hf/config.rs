//! config.json and generation_config.json from metadata.

use serde_json::{Map, Value, json};

use super::super::cursor::malformed;
use super::super::{Array, Gguf, Value as MetaValue};
use super::family::{Family, Kind};
use super::rope::{self, Factors};
use super::tokenizer::{self, GgufTokenizer};
use crate::{DType, Scheme, WeightsError};

mod current;
mod deepseek;
mod older;

/// Bounds what a guest is asked to build.
const MAX_LAYERS: usize = 4096;

/// The `config.json` of the checkpoint that a file was converted from, as far as the file tells.
///
/// It has the fields that Hugging Face's own config of the architecture has. What only GGUF brings stands under
/// `guesthouse`: `conv1d_transposed: true` when quantized Conv1D weights are presented as `[out, in]`, and
/// `rope_factors`: the name of a tensor with one divisor per rotary frequency, when no `rope_scaling` expresses it.
///
/// # Errors
/// For architectures without a name table, and metadata that is missing or does not fit.
pub fn hf_config(gguf: &Gguf) -> Result<Value, WeightsError> {
    let family = Family::of(gguf)?;
    let keys = Keys::new(gguf, family);
    let mixture = keys.count("expert_count")?.is_some_and(|n| n > 0);
    if mixture && family.kind != Kind::DeepSeek {
        return Err(keys
            .unsupported("it is a mixture of experts, which is not supported in GGUF files yet"));
    }
    let mut config = keys.common()?;
    let own = match family.kind {
        Kind::Gpt2 => keys.gpt2()?,
        Kind::Gemma3 => merge(keys.decoder()?, keys.gemma3()?),
        Kind::Llama => merge(keys.decoder()?, keys.llama()?),
        Kind::Qwen2 | Kind::Qwen3 => merge(keys.decoder()?, keys.qwen()),
        Kind::GptBigCode => keys.bigcode()?,
        Kind::GptNeoX => keys.neox()?,
        Kind::Bloom => keys.bloom()?,
        Kind::Falcon => keys.falcon()?,
        Kind::Mpt => keys.mpt()?,
        Kind::DeepSeek => merge(keys.decoder()?, keys.deepseek()?),
        Kind::Current(family) => keys.current(family)?,
    };
    config = merge(config, own);
    let extra = keys.extra()?;
    if !extra.is_empty() {
        config.insert("guesthouse".to_owned(), Value::Object(extra));
    }
    Ok(Value::Object(config))
}

/// The `generation_config.json`: bos, and every id that ends generation.
///
/// # Errors
/// When the tokenizer's metadata is damaged.
pub fn generation_config(gguf: &Gguf) -> Result<Value, WeightsError> {
    let tokenizer = GgufTokenizer::from_gguf(gguf)?;
    let mut config = Map::new();
    put(&mut config, "bos_token_id", tokenizer.bos);
    config.insert("eos_token_id".to_owned(), json!(tokenizer.end_ids()));
    put(&mut config, "pad_token_id", tokenizer.pad);
    Ok(Value::Object(config))
}

fn put(map: &mut Map<String, Value>, key: &str, value: Option<impl Into<Value>>) {
    if let Some(value) = value {
        map.insert(key.to_owned(), value.into());
    }
}

fn merge(mut a: Map<String, Value>, b: Map<String, Value>) -> Map<String, Value> {
    a.extend(b);
    a
}

fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(map) => map,
        _ => Map::new(),
    }
}

/// The f64 whose shortest decimal is the f32's: 1e-5, not 9.99999974737875e-6.
fn decimal(x: f32) -> f64 {
    x.to_string().parse().unwrap_or_else(|_| f64::from(x))
}

/// The metadata keys of an architecture.
pub(super) struct Keys<'a> {
    gguf: &'a Gguf,
    family: &'static Family,
}

impl<'a> Keys<'a> {
    pub(super) const fn new(gguf: &'a Gguf, family: &'static Family) -> Self {
        Self { gguf, family }
    }

    fn key(&self, key: &str) -> String {
        format!("{}.{key}", self.family.gguf)
    }

    fn malformed(&self, what: impl Into<String>) -> WeightsError {
        malformed(self.gguf.path(), what)
    }

    fn unsupported(&self, what: impl Into<String>) -> WeightsError {
        WeightsError::Unsupported {
            path: self.gguf.path().to_owned(),
            what: what.into(),
        }
    }

    /// A number; an array of one number per layer counts when all are equal.
    fn count(&self, key: &str) -> Result<Option<usize>, WeightsError> {
        let key = self.key(key);
        let metadata = self.gguf.metadata();
        let number = match metadata.get(&key) {
            Some(MetaValue::Array(Array::I32(_) | Array::U32(_))) => {
                let values = metadata.i32s(&key)?.unwrap_or_default();
                match values.split_first() {
                    Some((&first, rest)) if first >= 0 && rest.iter().all(|&n| n == first) => {
                        Some(first as u64)
                    }
                    _ => {
                        return Err(self.unsupported(format!(
                            "'{key}' differs between layers, which is not supported in GGUF files"
                        )));
                    }
                }
            }
            _ => metadata.u64(&key)?,
        };
        match number.map(u32::try_from) {
            None => Ok(None),
            Some(Ok(n)) => Ok(Some(n as usize)),
            Some(Err(_)) => {
                Err(self.malformed(format!("its metadata '{key}' is larger than any model's")))
            }
        }
    }

    /// A number that must be there and not be 0.
    fn need(&self, key: &str) -> Result<usize, WeightsError> {
        match self.count(key)? {
            Some(n) if n > 0 => Ok(n),
            Some(_) => Err(self.malformed(format!("its metadata '{}' is 0", self.key(key)))),
            None => Err(self.malformed(format!("its metadata lacks '{}'", self.key(key)))),
        }
    }

    fn float(&self, key: &str) -> Result<Option<f64>, WeightsError> {
        let key = self.key(key);
        match self.gguf.metadata().f32(&key)? {
            Some(x) if !x.is_finite() => {
                Err(self.malformed(format!("its metadata '{key}' is {x}")))
            }
            other => Ok(other.map(decimal)),
        }
    }

    pub(super) fn heads(&self) -> Result<usize, WeightsError> {
        self.need("attention.head_count")
    }

    pub(super) fn kv_heads(&self) -> Result<usize, WeightsError> {
        match self.count("attention.head_count_kv")? {
            Some(0) | None => self.heads(),
            Some(n) => Ok(n),
        }
    }

    fn head_dim(&self) -> Result<usize, WeightsError> {
        if self.family.kind == Kind::DeepSeek {
            // What rotates; the rest of a head has a width of its own.
            return self.need("rope.dimension_count");
        }
        let key_length = match self.count("attention.key_length")? {
            Some(n) if n > 0 => n,
            _ => {
                let (hidden, heads) = (self.need("embedding_length")?, self.heads()?);
                if !hidden.is_multiple_of(heads) {
                    return Err(
                        self.malformed(format!("{heads} heads cannot share {hidden} dimensions"))
                    );
                }
                hidden / heads
            }
        };
        match self.count("attention.value_length")? {
            Some(n) if n != key_length => Err(self.unsupported(format!(
                "its keys have {key_length} dimensions and its values {n}; they must be equal for this architecture"
            ))),
            _ => Ok(key_length),
        }
    }

    fn layers(&self) -> Result<usize, WeightsError> {
        let layers = self.need("block_count")?;
        if layers > MAX_LAYERS {
            return Err(self.malformed(format!(
                "it claims {layers} layers, at most {MAX_LAYERS} are possible"
            )));
        }
        Ok(layers)
    }

    fn has(&self, tensor: &str) -> bool {
        self.gguf.tensor(tensor).is_some()
    }

    /// What every architecture has.
    fn common(&self) -> Result<Map<String, Value>, WeightsError> {
        let embedding = self
            .gguf
            .tensor("token_embd.weight")
            .ok_or_else(|| self.malformed("it lacks the tensor 'token_embd.weight'"))?;
        let [vocab, hidden] = embedding.info.shape[..] else {
            return Err(self.malformed(format!(
                "tensor 'token_embd.weight' has shape {:?}, expected [vocabulary, hidden]",
                embedding.info.shape
            )));
        };
        if hidden != self.need("embedding_length")? {
            return Err(self.malformed(format!(
                "tensor 'token_embd.weight' has {hidden} columns, but '{}' is {}",
                self.key("embedding_length"),
                self.need("embedding_length")?
            )));
        }
        let mut config = object(json!({
            "architectures": [self.family.class],
            "model_type": self.family.model_type,
            "vocab_size": vocab,
            "hidden_size": hidden,
            "num_hidden_layers": self.layers()?,
            "num_attention_heads": self.heads()?,
            "num_key_value_heads": self.kv_heads()?,
            "head_dim": self.head_dim()?,
            "max_position_embeddings": self.need("context_length")?,
            "tie_word_embeddings": !self.has("output.weight"),
        }));
        put(
            &mut config,
            "intermediate_size",
            self.count("feed_forward_length")?,
        );
        let metadata = self.gguf.metadata();
        put(&mut config, "bos_token_id", tokenizer::id(metadata, "bos")?);
        put(&mut config, "eos_token_id", tokenizer::id(metadata, "eos")?);
        put(
            &mut config,
            "pad_token_id",
            tokenizer::id(metadata, "padding")?,
        );
        let dtype = match embedding.info.scheme {
            Scheme::Plain(DType::F32) => Some("float32"),
            Scheme::Plain(DType::F16) => Some("float16"),
            Scheme::Plain(DType::Bf16) => Some("bfloat16"),
            _ => None,
        };
        put(&mut config, "torch_dtype", dtype);
        Ok(config)
    }

    /// What the architectures with RMS norms and rotary embeddings share.
    fn decoder(&self) -> Result<Map<String, Value>, WeightsError> {
        self.rms_normed(&self.rope_scaling()?)
    }

    /// The same with this `rope_scaling`.
    fn rms_normed(&self, scaling: &Value) -> Result<Map<String, Value>, WeightsError> {
        let eps = self.key("attention.layer_norm_rms_epsilon");
        let eps = self
            .float("attention.layer_norm_rms_epsilon")?
            .ok_or_else(|| self.malformed(format!("its metadata lacks '{eps}'")))?;
        let config = object(json!({ "rms_norm_eps": eps }));
        Ok(merge(self.rotated(scaling)?, config))
    }

    /// MLP, rope and biases.
    fn rotated(&self, scaling: &Value) -> Result<Map<String, Value>, WeightsError> {
        let mut config = object(json!({
            "intermediate_size": self.need("feed_forward_length")?,
            "rope_theta": self.float("rope.freq_base")?.unwrap_or(10_000.0),
            "rope_scaling": scaling,
            "hidden_act": "silu",
            "attention_bias": self.has("blk.0.attn_q.bias"),
        }));
        let head_dim = self.head_dim()?;
        if let Some(rotary) = self
            .count("rope.dimension_count")?
            .filter(|&n| n != head_dim)
        {
            if rotary == 0 || rotary > head_dim || !rotary.is_multiple_of(2) {
                return Err(self.malformed(format!(
                    "it rotates {rotary} of {head_dim} dimensions of a head"
                )));
            }
            let factor = rotary as f64 / head_dim as f64;
            config.insert("partial_rotary_factor".to_owned(), json!(factor));
        }
        Ok(config)
    }

    fn rope_scaling(&self) -> Result<Value, WeightsError> {
        if let Some(Factors::Llama3(scaling)) = rope::factors(self.gguf)? {
            return Ok(scaling);
        }
        let key = self.key("rope.scaling.type");
        let kind = self.gguf.metadata().str(&key)?;
        // Before `scaling.factor` there was `scale_linear`.
        let factor = match self.float("rope.scaling.factor")? {
            Some(factor) => Some(factor),
            None => self.float("rope.scale_linear")?,
        };
        let factor = factor.filter(|&f| f != 0.0 && f != 1.0);
        let mut scaling = match (kind, factor) {
            (Some("none"), _) | (None | Some("linear"), None) => return Ok(Value::Null),
            (None | Some("linear"), Some(factor)) => {
                return Ok(json!({ "rope_type": "linear", "factor": factor }));
            }
            (Some("yarn"), Some(factor)) => {
                object(json!({ "rope_type": "yarn", "factor": factor }))
            }
            (Some(other), _) => {
                return Err(self.unsupported(format!(
                    "its rotary scaling is {other:?} with factor {factor:?}; none, linear and yarn (with a factor) are supported"
                )));
            }
        };
        if let Some(factor) = self
            .float("rope.scaling.attn_factor")?
            .filter(|&f| f != 1.0)
        {
            return Err(self.unsupported(format!(
                "its rotary scaling has the attention factor {factor}, only 1 is supported"
            )));
        }
        let original = self.count("rope.scaling.original_context_length")?;
        put(&mut scaling, "original_max_position_embeddings", original);
        put(
            &mut scaling,
            "beta_fast",
            self.float("rope.scaling.yarn_beta_fast")?,
        );
        put(
            &mut scaling,
            "beta_slow",
            self.float("rope.scaling.yarn_beta_slow")?,
        );
        Ok(Value::Object(scaling))
    }

    fn llama(&self) -> Result<Map<String, Value>, WeightsError> {
        let mut config = object(json!({ "mlp_bias": self.has("blk.0.ffn_gate.bias") }));
        // Only Mistral's first model had a window; the converter calls it by this architecture too.
        if let Some(window) = self.count("attention.sliding_window")?.filter(|&w| w > 0) {
            config.insert("architectures".to_owned(), json!(["MistralForCausalLM"]));
            config.insert("model_type".to_owned(), json!("mistral"));
            config.insert("sliding_window".to_owned(), json!(window));
        }
        Ok(config)
    }

    fn qwen(&self) -> Map<String, Value> {
        object(json!({ "use_sliding_window": false, "sliding_window": null }))
    }

    fn gemma3(&self) -> Result<Map<String, Value>, WeightsError> {
        let layers = self.layers()?;
        let head_dim = self.head_dim()?;
        // The file does not record the scale; llama.cpp, too, tells the one model that differs by its depth.
        let scalar = if layers == GEMMA3_27B_LAYERS {
            self.need("embedding_length")? / self.heads()?
        } else {
            head_dim
        };
        let window = self.count("attention.sliding_window")?.filter(|&w| w > 0);
        let windows = self.gemma3_windows(layers)?;
        let kinds: Vec<&str> = windows
            .into_iter()
            .map(|windowed| {
                if windowed && window.is_some() {
                    "sliding_attention"
                } else {
                    "full_attention"
                }
            })
            .collect();
        let mut config = object(json!({
            "hidden_activation": "gelu_pytorch_tanh",
            "hidden_act": "gelu_pytorch_tanh",
            "query_pre_attn_scalar": scalar,
            "rope_theta": self.float("rope.freq_base")?.unwrap_or(1_000_000.0),
            "rope_local_base_freq": self.float("rope.freq_base_swa")?.unwrap_or(10_000.0),
            "layer_types": kinds,
            "attn_logit_softcapping": null,
        }));
        put(&mut config, "sliding_window", window);
        config.insert(
            "final_logit_softcapping".to_owned(),
            json!(self.float("final_logit_softcapping")?),
        );
        Ok(config)
    }

    /// For each layer, whether it attends to a window.
    fn gemma3_windows(&self, layers: usize) -> Result<Vec<bool>, WeightsError> {
        let key = self.key("attention.sliding_window_pattern");
        let every = match self.gguf.metadata().get(&key) {
            None => GEMMA3_PATTERN,
            Some(MetaValue::Array(Array::Bool(windows))) if windows.len() == layers => {
                return Ok(windows.clone());
            }
            Some(value) => value.as_u64().filter(|&n| n > 0).ok_or_else(|| {
                self.malformed(format!(
                    "its metadata '{key}' should be a positive number or {layers} booleans"
                ))
            })?,
        };
        Ok((1..=layers as u64)
            .map(|n| !n.is_multiple_of(every))
            .collect())
    }

    fn gpt2(&self) -> Result<Map<String, Value>, WeightsError> {
        let hidden = self.need("embedding_length")?;
        let inner = self.count("feed_forward_length")?;
        Ok(object(json!({
            "n_embd": hidden,
            "n_layer": self.layers()?,
            "n_head": self.heads()?,
            "n_positions": self.need("context_length")?,
            "n_ctx": self.need("context_length")?,
            "n_inner": inner,
            "intermediate_size": inner.unwrap_or(4 * hidden),
            "layer_norm_epsilon": self.layer_norm_eps()?,
            "activation_function": "gelu_new",
            "scale_attn_weights": true,
        })))
    }

    fn layer_norm_eps(&self) -> Result<f64, WeightsError> {
        let key = "attention.layer_norm_epsilon";
        self.float(key)?
            .ok_or_else(|| self.malformed(format!("its metadata lacks '{}'", self.key(key))))
    }

    /// The `guesthouse` object.
    fn extra(&self) -> Result<Map<String, Value>, WeightsError> {
        let mut extra = Map::new();
        if self.family.keeps_conv1d_transposed(self.gguf) {
            extra.insert("conv1d_transposed".to_owned(), json!(true));
        }
        if let Some(Factors::Other) = rope::factors(self.gguf)? {
            extra.insert("rope_factors".to_owned(), json!(rope::TENSOR));
        }
        Ok(extra)
    }
}

const GEMMA3_27B_LAYERS: usize = 62;
/// Every sixth layer attends to everything.
const GEMMA3_PATTERN: u64 = 6;
