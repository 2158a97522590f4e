//! A model's files, read and checked as far as no guest is needed.

use crate::model::{ChatTemplate, LoadError, embedding};
use crate::serving::SamplingDefaults;
use crate::source::LocalModel;
use guesthouse_tokenizer::{GgufVocab, Tokenizer};
use guesthouse_weights::{DType, Gguf, GgufSource, GgufTokenizer, Safetensors, WeightSource, gguf};
use serde::Deserialize;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Largest text file of a model that is read (`tokenizer.json` aside), bytes.
const MAX_TEXT: u64 = 32 << 20;
/// Most tokens of a made-up vocabulary.
const MAX_DUMMY_VOCAB: u32 = 1 << 20;

/// What a model's files say.
pub struct ModelFiles {
    /// `config.json`
    pub config: Value,
    /// `generation_config.json`, or null.
    pub generation: Value,
    /// Files that chat guests read: (name, content).
    pub template_files: Vec<(String, String)>,
    /// The checkpoint, or what stands for it.
    pub weights: Weights,
    /// Stands for the checkpoint in cache keys: path, length and time of each file.
    pub identity: [u8; 32],
    vocabulary: Vocabulary,
}

/// Where weights come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LoadFormat {
    /// What the model has.
    #[default]
    Auto,
    /// Only safetensors in a folder will do.
    Safetensors,
    /// Only a GGUF file will do.
    Gguf,
    /// Small random values; only the folder's `config.json` is needed.
    Dummy,
}

/// A model's weights.
#[derive(Clone)]
pub enum Weights {
    /// Read from files.
    Checkpoint(Arc<dyn WeightSource>),
    /// Made up, of this type, in the shapes that the graph names.
    Dummy(DType),
}

/// Where the tokenizer is described.
enum Vocabulary {
    Folder(PathBuf),
    Gguf(Box<GgufVocab>),
    /// Bytes, then numbers, up to this many tokens: for dummy weights without a tokenizer.
    Dummy(u32),
}

impl ModelFiles {
    /// Reads a model.
    ///
    /// # Errors
    /// When a file is missing or is not what its name says.
    pub fn open(model: &LocalModel, format: LoadFormat) -> Result<Self, LoadError> {
        match (model, format) {
            (LocalModel::Folder(path), LoadFormat::Auto | LoadFormat::Safetensors) => {
                let open = |_| Ok(Weights::Checkpoint(Arc::new(Safetensors::open(path)?)));
                Self::folder(path, open)
            }
            (LocalModel::Folder(path), LoadFormat::Dummy) => Self::folder(path, |dtype| {
                Ok(Weights::Dummy(dtype.unwrap_or(DType::Bf16)))
            }),
            (LocalModel::Gguf(path), LoadFormat::Auto | LoadFormat::Gguf) => Self::gguf(path),
            (LocalModel::Folder(path), LoadFormat::Gguf) => Err(LoadError::file(
                path,
                "is a folder, but --load-format gguf asks for a .gguf file",
            )),
            (LocalModel::Gguf(path), LoadFormat::Safetensors | LoadFormat::Dummy) => {
                Err(LoadError::file(
                    path,
                    "is a file, but this --load-format asks for a folder with config.json",
                ))
            }
        }
    }

    fn folder(
        path: &Path,
        weights: impl FnOnce(Option<DType>) -> Result<Weights, LoadError>,
    ) -> Result<Self, LoadError> {
        let config = read_json(&path.join("config.json"))?.ok_or_else(|| {
            LoadError::file(
                &path.join("config.json"),
                "is missing; is this a Hugging Face model folder?",
            )
        })?;
        let generation = read_json(&path.join("generation_config.json"))?.unwrap_or(Value::Null);
        let config = with_embedding(config, embedding::read(path)?);
        let weights = weights(stated_dtype(&config))?;
        let mut template_files = Vec::new();
        for name in [
            "tokenizer_config.json",
            "chat_template.jinja",
            "config.json",
            "generation_config.json",
        ] {
            if let Some(text) = read_text(&path.join(name))? {
                template_files.push((name.to_owned(), text));
            }
        }
        let vocabulary = match &weights {
            Weights::Dummy(_) if !Tokenizer::is_in(path) => {
                let size = vocab_size(&config).unwrap_or(256);
                Vocabulary::Dummy(size.min(MAX_DUMMY_VOCAB))
            }
            _ => Vocabulary::Folder(path.to_owned()),
        };
        Ok(Self {
            config,
            generation,
            template_files,
            weights,
            identity: identity(path)?,
            vocabulary,
        })
    }

    fn gguf(path: &Path) -> Result<Self, LoadError> {
        let file = Arc::new(Gguf::open(path)?);
        let config = gguf::hf::hf_config(&file)?;
        let generation = gguf::hf::generation_config(&file)?;
        let vocab = GgufTokenizer::from_gguf(&file)?;
        let token = |id: Option<u32>| {
            id.and_then(|i| vocab.tokens.get(i as usize))
                .map_or(Value::Null, |t| json!(t))
        };
        let tokenizer_config = json!({
            "bos_token": token(vocab.bos),
            "eos_token": token(vocab.eos),
            "unk_token": token(vocab.unk),
            "pad_token": token(vocab.pad),
            "chat_template": vocab.chat_template,
        });
        let template_files = vec![
            ("tokenizer_config.json".into(), tokenizer_config.to_string()),
            ("config.json".into(), config.to_string()),
        ];
        let vocabulary = Vocabulary::Gguf(Box::new(vocabulary(vocab)));
        let weights = Weights::Checkpoint(Arc::new(GgufSource::new(file)?));
        Ok(Self {
            config,
            generation,
            template_files,
            weights,
            identity: identity(path)?,
            vocabulary,
        })
    }

    /// Builds the tokenizer.
    ///
    /// # Errors
    /// When the model has none, or it is malformed.
    pub fn tokenizer(&self) -> Result<Arc<Tokenizer>, LoadError> {
        Ok(Arc::new(match &self.vocabulary {
            Vocabulary::Folder(path) => Tokenizer::from_hf_dir(path)?,
            Vocabulary::Gguf(vocab) => Tokenizer::from_gguf(vocab.as_ref().clone())?,
            Vocabulary::Dummy(size) => Tokenizer::from_gguf(dummy_vocabulary(*size))?,
        }))
    }

    /// Type of the checkpoint's numbers, as its configuration says; none for GGUF and where it says nothing.
    #[must_use]
    pub fn dtype(&self) -> Option<DType> {
        match (&self.weights, &self.vocabulary) {
            (_, Vocabulary::Gguf(_)) => None,
            (Weights::Dummy(dtype), _) => Some(*dtype),
            (Weights::Checkpoint(_), _) => stated_dtype(&self.config),
        }
    }

    /// `vocab_size` of the configuration.
    #[must_use]
    pub fn vocab_size(&self) -> Option<u32> {
        vocab_size(&self.config)
    }

    /// Whether the model brings a chat template of its own.
    #[must_use]
    pub fn chat_template(&self) -> ChatTemplate {
        let shipped = self.template_files.iter().any(|(name, content)| {
            let config = || serde_json::from_str::<Value>(content).unwrap_or_default();
            match name.as_str() {
                "chat_template.jinja" => true,
                "tokenizer_config.json" => {
                    config().get("chat_template").is_some_and(|t| !t.is_null())
                }
                _ => false,
            }
        });
        if shipped {
            ChatTemplate::Shipped
        } else {
            ChatTemplate::Absent
        }
    }

    /// `architectures` of the configuration.
    #[must_use]
    pub fn architectures(&self) -> Vec<&str> {
        let list = self.config.get("architectures").and_then(Value::as_array);
        list.into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .collect()
    }

    /// Tokens that end an answer: `eos_token_id` of both configurations and the tokenizer's own.
    #[must_use]
    pub fn stop_tokens(&self, tokenizer: &Tokenizer) -> Vec<u32> {
        let mut all: Vec<u32> = [&self.generation, &self.config]
            .into_iter()
            .filter_map(|c| c.get("eos_token_id"))
            .flat_map(|v| match v {
                Value::Array(ids) => ids.iter().filter_map(Value::as_u64).collect(),
                other => other.as_u64().into_iter().collect::<Vec<_>>(),
            })
            .filter_map(|id| u32::try_from(id).ok())
            .chain(tokenizer.eos_id())
            .collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Sampling settings that the model's authors recommend; with `do_sample` false the numbers beside it mean nothing.
    #[must_use]
    pub fn sampling_defaults(&self) -> SamplingDefaults {
        let g = &self.generation;
        let number = |key: &str| g.get(key).and_then(Value::as_f64);
        SamplingDefaults {
            temperature: number("temperature"),
            top_p: number("top_p"),
            top_k: g.get("top_k").and_then(Value::as_i64),
            min_p: number("min_p"),
            typical_p: number("typical_p"),
            repetition_penalty: number("repetition_penalty"),
            max_tokens: g
                .get("max_new_tokens")
                .and_then(Value::as_u64)
                .and_then(|n| u32::try_from(n).ok()),
        }
    }
}

fn vocabulary(v: GgufTokenizer) -> GgufVocab {
    GgufVocab {
        model: v.model,
        pre: v.pre,
        tokens: v.tokens,
        scores: v.scores,
        token_types: v.token_types,
        merges: v.merges,
        bos: v.bos,
        eos: v.eos,
        unk: v.unk,
        pad: v.pad,
        eot: v.eot,
        add_bos: v.add_bos,
        add_eos: v.add_eos,
        add_space_prefix: v.add_space_prefix,
    }
}

/// A configuration with what the guest is told of an embedding model: `guesthouse.embedding`.
fn with_embedding(mut config: Value, embedding: Option<Value>) -> Value {
    if let (Some(embedding), Some(fields)) = (embedding, config.as_object_mut()) {
        fields.insert("guesthouse".to_owned(), json!({ "embedding": embedding }));
    }
    config
}

/// `dtype`, or `torch_dtype` as it was called before, of a configuration or its text part.
fn stated_dtype(config: &Value) -> Option<DType> {
    let parts = [Some(config), config.get("text_config")];
    let stated = parts
        .into_iter()
        .flatten()
        .flat_map(|c| [c.get("dtype"), c.get("torch_dtype")])
        .flatten()
        .find_map(Value::as_str)?;
    match stated.strip_prefix("torch.").unwrap_or(stated) {
        "float32" | "float" => Some(DType::F32),
        "float16" | "half" => Some(DType::F16),
        "bfloat16" => Some(DType::Bf16),
        _ => None,
    }
}

fn vocab_size(config: &Value) -> Option<u32> {
    let parts = [Some(config), config.get("text_config")];
    let size = parts
        .into_iter()
        .flatten()
        .find_map(|c| c.get("vocab_size"))
        .and_then(Value::as_u64);
    size.and_then(|n| u32::try_from(n).ok())
}

/// The 256 bytes, in byte-level BPE's spelling, then words that say their own id. Without merges every text becomes its
/// bytes, and every id has a text.
fn dummy_vocabulary(size: u32) -> GgufVocab {
    let spelling = |byte: u8| match byte {
        b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF => char::from(byte),
        0..=0x20 => char::from_u32(0x100 + u32::from(byte)).unwrap_or('?'),
        0x7F..=0xA0 => char::from_u32(0x121 + u32::from(byte) - 0x7F).unwrap_or('?'),
        0xAD => '\u{143}',
    };
    let bytes = (0..=u8::MAX).map(|b| spelling(b).to_string());
    let words = (256..).map(|id: u32| format!("\u{120}t{id}"));
    GgufVocab {
        model: "gpt2".to_owned(),
        pre: Some("gpt-2".to_owned()),
        tokens: bytes.chain(words).take(size as usize).collect(),
        merges: Some(Vec::new()),
        add_bos: Some(false),
        ..GgufVocab::default()
    }
}

pub(super) fn read_text(path: &Path) -> Result<Option<String>, LoadError> {
    let metadata = match std::fs::metadata(path) {
        Ok(m) => m,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(LoadError::file(path, &e.to_string())),
    };
    if metadata.len() > MAX_TEXT {
        return Err(LoadError::file(
            path,
            &format!("has {} bytes; at most {MAX_TEXT} are read", metadata.len()),
        ));
    }
    std::fs::read_to_string(path)
        .map(Some)
        .map_err(|e| LoadError::file(path, &e.to_string()))
}

pub(super) fn read_json(path: &Path) -> Result<Option<Value>, LoadError> {
    let Some(text) = read_text(path)? else {
        return Ok(None);
    };
    serde_json::from_str(&text)
        .map(Some)
        .map_err(|e| LoadError::file(path, &format!("is not JSON: {e}")))
}

fn identity(path: &Path) -> Result<[u8; 32], LoadError> {
    let mut files = vec![path.to_owned()];
    if path.is_dir() {
        let entries = std::fs::read_dir(path).map_err(|e| LoadError::file(path, &e.to_string()))?;
        files = entries
            .flatten()
            .map(|e| e.path())
            .filter(|p| p.is_file())
            .collect();
        files.sort();
    }
    let mut hash = Sha256::new();
    for file in files {
        let m = std::fs::metadata(&file).map_err(|e| LoadError::file(&file, &e.to_string()))?;
        let time = m
            .modified()
            .ok()
            .and_then(|t| t.duration_since(std::time::UNIX_EPOCH).ok())
            .map_or(0, |d| d.as_nanos());
        hash.update(format!("{}\0{}\0{time}\0", file.display(), m.len()));
    }
    Ok(hash.finalize().into())
}
