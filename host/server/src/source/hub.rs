//! `org/name` on the Hugging Face hub, through the `hf-hub` crate and its cache, which Python's `huggingface_hub` shares.
//!
//! `HF_HOME`, `HF_TOKEN`, `HF_ENDPOINT` and `HF_HUB_OFFLINE` mean what they mean there.

use super::{LocalModel, ModelRef, SourceError};
use hf_hub::api::sync::ApiBuilder;
use hf_hub::{Cache, Repo, RepoType};
use std::path::{Path, PathBuf};

/// Files beside the weights that a model may have.
const WANTED: &[&str] = &[
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "spiece.model",
    "sentencepiece.bpe.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "vocab.json",
    "merges.txt",
    "model.safetensors.index.json",
    "modules.json",
    "1_Pooling/config.json",
];

/// `org/name`, `org/name@revision` or `org/name/file.gguf`.
pub(super) fn parse(text: &str, revision: Option<&str>) -> Option<ModelRef> {
    let (text, at) = match text.split_once('@') {
        Some((t, r)) => (t, Some(r)),
        None => (text, None),
    };
    let part = |s: &str| {
        !s.is_empty()
            && s != "."
            && s != ".."
            && s.len() <= 96
            && s.chars()
                .all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'))
    };
    let parts: Vec<&str> = text.split('/').collect();
    let (repo, file) = match parts.as_slice() {
        [org, name] => (format!("{org}/{name}"), None),
        [org, name, file @ ..] if file.last().is_some_and(|f| f.ends_with(".gguf")) => {
            (format!("{org}/{name}"), Some(file.join("/")))
        }
        _ => return None,
    };
    let revision = at.or(revision).unwrap_or("main");
    let revision_ok = !revision.is_empty() && revision.split('/').all(part);
    (parts.iter().all(|p| part(p)) && revision_ok).then(|| ModelRef::Hub {
        repo,
        revision: revision.into(),
        file,
    })
}

pub(super) fn fetch(
    repo: &str,
    revision: &str,
    file: Option<&str>,
) -> Result<LocalModel, SourceError> {
    let endpoint = std::env::var("HF_ENDPOINT").unwrap_or_else(|_| "https://huggingface.co".into());
    let fail = |message: String| SourceError::Hub {
        repo: repo.into(),
        endpoint: endpoint.clone(),
        message,
    };
    let handle = Repo::with_revision(repo.into(), RepoType::Model, revision.into());
    let offline = std::env::var("HF_HUB_OFFLINE")
        .is_ok_and(|v| matches!(v.to_ascii_lowercase().as_str(), "1" | "true" | "yes" | "on"));
    if offline {
        return cached(handle, file)
            .ok_or_else(|| fail("HF_HUB_OFFLINE is set and the cache does not hold it".into()));
    }
    let mut builder = ApiBuilder::from_env().with_retries(3);
    if let Some(token) = std::env::var("HF_TOKEN").ok().filter(|t| !t.is_empty()) {
        builder = builder.with_token(Some(token));
    }
    let api = builder
        .build()
        .map_err(|e| fail(e.to_string()))?
        .repo(handle.clone());
    let info =
        match api.info() {
            Ok(info) => info,
            // An unreachable hub does not stop a model that is already here.
            Err(error) => {
                return cached(handle, file).map_or_else(
                || Err(fail(format!("{error}; for gated or private models set HF_TOKEN"))),
                |local| {
                    tracing::warn!(%error, repo, "the hub did not answer; using the cached copy");
                    Ok(local)
                },
            );
            }
        };
    let names: Vec<&str> = info.siblings.iter().map(|s| s.rfilename.as_str()).collect();
    let wanted = choose(repo, &names, file)?;
    let mut paths = Vec::new();
    for name in &wanted {
        paths.push(api.get(name).map_err(|e| fail(format!("{name}: {e}")))?);
    }
    locate(&wanted, &paths).ok_or_else(|| fail("nothing to load".into()))
}

/// Names of the files to fetch.
fn choose(repo: &str, names: &[&str], file: Option<&str>) -> Result<Vec<String>, SourceError> {
    let no_weights = |found: String| SourceError::NoWeights {
        repo: repo.into(),
        found,
    };
    if let Some(file) = file {
        return if names.contains(&file) {
            Ok(vec![file.into()])
        } else {
            Err(no_weights(format!("there is no {file}")))
        };
    }
    let safetensors: Vec<&str> = names
        .iter()
        .copied()
        .filter(|n| n.ends_with(".safetensors") && !n.contains('/'))
        .collect();
    if !safetensors.is_empty() {
        // Some repositories carry a second, consolidated copy beside the sharded one.
        let indexed = names.contains(&"model.safetensors.index.json");
        let weights = safetensors.iter().filter(|n| {
            if indexed {
                n.starts_with("model-")
            } else {
                **n == "model.safetensors" || safetensors.len() == 1
            }
        });
        let tables = names
            .iter()
            .filter(|n| n.ends_with(".tiktoken") && !n.contains('/'));
        let all = WANTED.iter().filter(|w| names.contains(*w));
        let all = all.chain(tables).chain(weights);
        return Ok(all.map(|s| (*s).to_owned()).collect());
    }
    let gguf: Vec<&str> = names
        .iter()
        .copied()
        .filter(|n| n.ends_with(".gguf"))
        .collect();
    match gguf.as_slice() {
        [one] => Ok(vec![(*one).to_owned()]),
        [] if names.iter().any(|n| n.ends_with(".bin")) => Err(no_weights(format!(
            "its weights are pickle files (.bin), which are never loaded; fetch them with `hf download {repo} --local-dir FOLDER`, \
                 then name FOLDER here to be told the command that converts them"
        ))),
        [] => Err(no_weights("no weights at all".into())),
        many => Err(no_weights(format!(
            "name one of its files, {repo}/{}",
            many.join(&format!(" or {repo}/"))
        ))),
    }
}

fn cached(handle: Repo, file: Option<&str>) -> Option<LocalModel> {
    let cache = Cache::from_env().repo(handle);
    if let Some(file) = file {
        return cache.get(file).map(LocalModel::Gguf);
    }
    let folder = cache.get("config.json")?.parent()?.to_owned();
    let complete = std::fs::read_dir(&folder)
        .ok()?
        .flatten()
        .any(|e| e.path().extension().is_some_and(|x| x == "safetensors"));
    complete.then_some(LocalModel::Folder(folder))
}

fn locate(names: &[String], paths: &[PathBuf]) -> Option<LocalModel> {
    if let Some(i) = names.iter().position(|n| n.ends_with(".gguf")) {
        return Some(LocalModel::Gguf(paths[i].clone()));
    }
    let config = names.iter().position(|n| n == "config.json")?;
    paths[config]
        .parent()
        .map(Path::to_owned)
        .map(LocalModel::Folder)
}
