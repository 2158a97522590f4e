//! What the golden tests share. The fixtures are made by `make_golden.py`.

use std::path::{Path, PathBuf};

use guesthouse_tokenizer::{GgufVocab, Segment, Tokenizer};
use guesthouse_weights::{Gguf, GgufTokenizer};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

#[derive(Deserialize)]
pub struct Golden {
    pub parts: Option<Value>,
    pub texts: Vec<Text>,
    pub segments: Vec<Case>,
}

#[derive(Deserialize)]
pub struct Text {
    pub text: String,
    pub plain: Vec<u32>,
    pub raw: Vec<u32>,
    pub special: Vec<u32>,
    pub decoded: String,
    pub skipped: String,
}

#[derive(Deserialize)]
pub struct Case {
    pub segments: Vec<(String, String)>,
    pub ids: Vec<u32>,
}

pub fn read(name: &str) -> String {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("tests/golden")
        .join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

pub fn load<T: DeserializeOwned>(name: &str) -> T {
    serde_json::from_str(&read(name)).unwrap()
}

/// The fixtures with a `tokenizer.json`: their names, the file's text, and what is expected of it.
pub fn hf_fixtures() -> Vec<(&'static str, String, Golden)> {
    ["bpe", "spm_legacy", "spm_first", "metaspace", "gemma"]
        .into_iter()
        .map(|name| {
            let golden: Golden = load(&format!("{name}.json"));
            let file = if name == "bpe" { "bpe" } else { "spm" };
            let mut json: Value = load(&format!("{file}.tokenizer.json"));
            if let Some(Value::Object(parts)) = &golden.parts {
                for (key, value) in parts {
                    json[key] = value.clone();
                }
            }
            (name, json.to_string(), golden)
        })
        .collect()
}

pub fn segments(tokenizer: &Tokenizer, case: &Case) -> Vec<Segment> {
    case.segments
        .iter()
        .map(|(kind, text)| match kind.as_str() {
            "c" => Segment::Control(tokenizer.token_to_id(text).unwrap()),
            _ => Segment::Text(text.clone()),
        })
        .collect()
}

/// The byte-level fixture as a GGUF vocabulary, without its added tokens.
pub fn bpe_gguf(pre: &str) -> GgufVocab {
    let json: Value = load("bpe.tokenizer.json");
    let mut tokens: Vec<(u64, String)> = json["model"]["vocab"]
        .as_object()
        .unwrap()
        .iter()
        .map(|(token, id)| (id.as_u64().unwrap(), token.clone()))
        .collect();
    tokens.sort_unstable();
    let merges = json["model"]["merges"].as_array().unwrap();
    GgufVocab {
        model: "gpt2".into(),
        pre: Some(pre.into()),
        tokens: tokens.into_iter().map(|(_, token)| token).collect(),
        merges: Some(
            merges
                .iter()
                .map(|pair| {
                    let pair: Vec<_> = pair
                        .as_array()
                        .unwrap()
                        .iter()
                        .map(|t| t.as_str().unwrap())
                        .collect();
                    pair.join(" ")
                })
                .collect(),
        ),
        ..GgufVocab::default()
    }
}

/// The SentencePiece model as GGUF holds it.
pub fn spm_gguf() -> GgufVocab {
    #[derive(Deserialize)]
    struct Model {
        tokens: Vec<String>,
        scores: Vec<f32>,
        types: Vec<i32>,
    }
    let model: Model = load("spm_gguf.json");
    GgufVocab {
        model: "llama".into(),
        tokens: model.tokens,
        scores: Some(model.scores),
        token_types: Some(model.types),
        bos: Some(1),
        eos: Some(2),
        unk: Some(0),
        ..GgufVocab::default()
    }
}

/// The vocabulary inside a GGUF file.
pub fn vocab_of(path: &Path) -> Result<GgufVocab, String> {
    let gguf = Gguf::open(path).map_err(|e| e.to_string())?;
    let t = GgufTokenizer::from_gguf(&gguf).map_err(|e| e.to_string())?;
    Ok(GgufVocab {
        model: t.model,
        pre: t.pre,
        tokens: t.tokens,
        scores: t.scores,
        token_types: t.token_types,
        merges: t.merges,
        bos: t.bos,
        eos: t.eos,
        unk: t.unk,
        pad: t.pad,
        eot: t.eot,
        add_bos: t.add_bos,
        add_eos: t.add_eos,
        add_space_prefix: t.add_space_prefix,
    })
}
