//! What a model's folder says, and what is said when it is not one.
#![allow(clippy::unwrap_used, clippy::panic)]

use super::load::{LoadError, on_device};
use super::{LoadFormat, LoadOptions, ModelFiles};
use crate::source::LocalModel;
use guesthouse_component::{Runtime, RuntimeConfig};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../tests/golden")
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
    let runtime = Runtime::new(RuntimeConfig::default()).unwrap();
    let loaded = open(path).and_then(|files| on_device(&files, &runtime, options));
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
