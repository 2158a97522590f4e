//! What a model's folder says, and what is said when it is not one.
#![allow(clippy::unwrap_used, clippy::panic)]

mod docs;
mod ir;

use super::load::{LoadError, build_graph, on_device};
use super::{DeviceChoice, GuestChoice, LoadFormat, LoadOptions, ModelFiles, Target};
use crate::model::testing::modules;
use crate::source::LocalModel;
use guesthouse_tokenizer::AddSpecial;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../tests/golden/cases")
        .join(name)
}

/// A copy of the golden Llama with a changed configuration.
fn changed(change: impl FnOnce(&mut Value)) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let source = golden("llama");
    let text = std::fs::read_to_string(source.join("config.json")).unwrap();
    let mut config = serde_json::from_str(&text).unwrap();
    change(&mut config);
    std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    let weights = "model.safetensors";
    std::fs::copy(source.join(weights), folder.path().join(weights)).unwrap();
    folder
}

fn open(path: &Path) -> Result<ModelFiles, LoadError> {
    ModelFiles::open(&LocalModel::Folder(path.to_owned()), LoadFormat::Auto)
}

fn refusal(path: &Path, options: &LoadOptions) -> String {
    let modules = modules();
    let loaded = open(path).and_then(|files| on_device(&files, &modules, options));
    loaded.err().unwrap().to_string()
}

#[test]
fn a_folder_without_config_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let error = open(folder.path()).err().unwrap().to_string();
    assert!(error.contains("config.json is missing"), "{error}");
}

#[test]
fn config_that_is_not_json_is_named() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("config.json"), "{").unwrap();
    let error = open(folder.path()).err().unwrap().to_string();
    assert!(error.contains("config.json is not JSON"), "{error}");
}

#[test]
fn an_unknown_architecture_is_refused_with_those_known() {
    let folder = changed(|c| c["architectures"] = json!(["OracleForCausalLM"]));
    let error = refusal(folder.path(), &LoadOptions::default());
    for words in [
        "OracleForCausalLM",
        "LlamaForCausalLM",
        "Gemma3ForCausalLM",
        "--graph-module",
    ] {
        assert!(error.contains(words), "{error}");
    }
}

#[test]
fn shapes_that_do_not_fit_the_checkpoint_name_the_weight() {
    let folder = changed(|c| c["intermediate_size"] = json!(95));
    let error = refusal(folder.path(), &LoadOptions::default());
    assert!(
        error.contains("mlp") && error.contains("95") && error.contains("96"),
        "{error}"
    );
}

#[test]
fn missing_tensors_are_named() {
    let folder = changed(|c| c["num_hidden_layers"] = json!(4));
    let error = refusal(folder.path(), &LoadOptions::default());
    assert!(error.contains("model.layers.3."), "{error}");
}

#[test]
fn a_context_beyond_the_models_is_refused() {
    let options = LoadOptions {
        max_model_len: Some(100_000),
        ..LoadOptions::default()
    };
    let error = refusal(&golden("llama"), &options);
    assert!(error.contains("100000") && error.contains("512"), "{error}");
}

#[test]
fn a_truncated_checkpoint_is_refused() {
    let folder = changed(|_| {});
    let path = folder.path().join("model.safetensors");
    let data = std::fs::read(&path).unwrap();
    std::fs::write(&path, &data[..data.len() - 100]).unwrap();
    let error = open(folder.path()).err().unwrap().to_string();
    assert!(error.contains("model.safetensors"), "{error}");
}

/// A folder that holds this configuration and nothing else.
fn only_config(config: &Path) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::copy(config, folder.path().join("config.json")).unwrap();
    folder
}

fn open_dummy(folder: &Path) -> ModelFiles {
    ModelFiles::open(&LocalModel::Folder(folder.to_owned()), LoadFormat::Dummy).unwrap()
}

/// Numbers of parameters as the models' authors (and transformers' `num_parameters()`) give them.
#[test]
fn published_configs_have_their_published_size_without_a_checkpoint() {
    let modules = modules();
    let configs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/models/configs");
    for (name, parameters) in [
        ("llama-3.1-8b", 8_030_261_248u64),
        ("llama-3.1-70b", 70_553_706_496),
        ("llama-3.2-1b", 1_235_814_400),
        ("qwen3-8b", 8_190_735_360),
        ("qwen2.5-0.5b", 494_032_768),
    ] {
        let folder = only_config(&configs.join(format!("{name}.json")));
        let files = open_dummy(folder.path());
        assert_eq!(files.dtype(), Some(guesthouse_weights::DType::Bf16));
        let built = build_graph(&modules, &files, &GuestChoice::default()).unwrap();
        let names = built.weights.names();
        let elements = |n: &String| built.weights.info(n).unwrap().elements().unwrap() as u64;
        let counted: u64 = names.iter().map(elements).sum();
        assert_eq!(counted, parameters, "{name}");
        assert!(built.weights.dummy(&names[0]).is_some(), "{name}");
    }
}

#[test]
fn dummy_weights_load_without_checkpoint_and_tokenizer() {
    let modules = modules();
    for name in ["llama", "qwen2", "qwen3", "gpt2", "gemma3"] {
        let folder = only_config(&golden(name).join("config.json"));
        let files = open_dummy(folder.path());
        let options = LoadOptions {
            device: DeviceChoice::Cpu,
            load_format: LoadFormat::Dummy,
            max_model_len: Some(64),
            ..LoadOptions::default()
        };
        let loaded = on_device(&files, &modules, &options).unwrap();
        assert_eq!(loaded.max_len, 64, "{name}");
        assert_eq!(loaded.target, Target::Cpu);
    }
    let refused = open(only_config(&golden("llama").join("config.json")).path());
    assert!(refused.is_err(), "only dummy weights need no checkpoint");
}

/// Every text becomes its bytes and comes back; every id has a text, or streams would seem to hang.
#[test]
fn the_dummy_tokenizer_speaks_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let config = json!({"architectures": ["LlamaForCausalLM"], "vocab_size": 300});
    std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    let tokenizer = open_dummy(folder.path()).tokenizer().unwrap();
    assert_eq!(tokenizer.vocab_size(), 300);
    let all: Vec<u8> = (0..=255).collect();
    let ids: Vec<u32> = (0..256).collect();
    let bytes: Vec<u8> = ids
        .iter()
        .flat_map(|&id| tokenizer.token_bytes(id))
        .collect();
    assert_eq!(bytes, all);
    assert_eq!(tokenizer.token_bytes(299), b" t299");
    for text in ["hello world", "naïve  \n\t— 語", " leading"] {
        let ids = tokenizer.encode_raw(text, AddSpecial::No).unwrap();
        let expected: Vec<u32> = text.bytes().map(u32::from).collect();
        assert_eq!(ids, expected, "{text:?}");
    }
}

#[test]
fn formats_that_do_not_fit_are_refused() {
    let refuse = |model: &LocalModel, format| {
        let error = ModelFiles::open(model, format).err().unwrap();
        error.to_string()
    };
    let folder = LocalModel::Folder(golden("llama"));
    assert!(refuse(&folder, LoadFormat::Gguf).contains("--load-format gguf"));
    let file = LocalModel::Gguf(golden("llama").join("model.gguf"));
    for format in [LoadFormat::Safetensors, LoadFormat::Dummy] {
        assert!(refuse(&file, format).contains("--load-format"));
    }
}

/// A safetensors file with other names, and with more tensors of zeros.
fn rewritten(
    bytes: &[u8],
    rename: impl Fn(&str) -> String,
    more: &[(&str, &str, &[usize])],
) -> Vec<u8> {
    let (length, rest) = bytes.split_first_chunk::<8>().unwrap();
    let (header, data) = rest.split_at(u64::from_le_bytes(*length) as usize);
    let header: serde_json::Map<String, Value> = serde_json::from_slice(header).unwrap();
    let mut renamed: serde_json::Map<String, Value> = header
        .into_iter()
        .filter(|(name, _)| name != "__metadata__")
        .map(|(name, tensor)| (rename(&name), tensor))
        .collect();
    let mut data = data.to_vec();
    for (name, dtype, shape) in more {
        let size = if *dtype == "F32" { 4 } else { 1 };
        let (start, bytes) = (data.len(), shape.iter().product::<usize>() * size);
        data.resize(start + bytes, 0);
        renamed.insert(
            (*name).to_owned(),
            json!({"dtype": dtype, "shape": shape, "data_offsets": [start, data.len()]}),
        );
    }
    let header = Value::Object(renamed).to_string();
    let length = (header.len() as u64).to_le_bytes();
    [&length[..], header.as_bytes(), &data].concat()
}

/// Norms under their old names, masks saved with the weights: what GPT-2 checkpoints of 2019 hold.
#[test]
fn checkpoints_with_old_names_and_buffers_load_whole() {
    let (folder, source) = (tempfile::tempdir().unwrap(), golden("gpt2"));
    std::fs::copy(
        source.join("config.json"),
        folder.path().join("config.json"),
    )
    .unwrap();
    let bytes = std::fs::read(source.join("model.safetensors")).unwrap();
    let old = |name: &str| {
        if !name.contains("ln_") {
            return name.to_owned();
        }
        name.replace(".weight", ".gamma").replace(".bias", ".beta")
    };
    let buffers = [
        ("transformer.h.0.attn.bias", "F32", &[1, 1, 16, 16][..]),
        ("transformer.h.1.attn.bias", "U8", &[1, 1, 16, 16]),
        ("transformer.h.0.attn.masked_bias", "F32", &[]),
        ("transformer.h.0.attn.rotary_emb.inv_freq", "F32", &[8]),
    ];
    let stray = ("transformer.h.0.attn.extra", "F32", &[2][..]);
    let file = folder.path().join("model.safetensors");
    let modules = modules();
    let build = |path: &Path| {
        let files = ModelFiles::open(&LocalModel::Folder(path.to_owned()), LoadFormat::Auto);
        build_graph(&modules, &files.unwrap(), &GuestChoice::default()).unwrap()
    };
    std::fs::write(&file, rewritten(&bytes, old, &buffers)).unwrap();
    let built = build(folder.path());
    assert_eq!(built.unused, Vec::<String>::new());
    let plain = build(&source);
    for at in ["weight", "bias"] {
        let name = format!("transformer.h.1.ln_2.{at}");
        assert_eq!(
            built.weights.read(&name).unwrap(),
            plain.weights.read(&name).unwrap()
        );
    }
    assert_eq!(built.graph.nodes.len(), plain.graph.nodes.len());

    // What is no buffer is still told.
    std::fs::write(&file, rewritten(&bytes, old, &[stray])).unwrap();
    assert_eq!(build(folder.path()).unused, [stray.0]);
}
