//! The files of sentence-transformers, which make an embedding model of a decoder.
//!
//! `modules.json` lists what a text goes through: `Transformer`, then `Pooling` with a folder of its own, then perhaps
//! `Normalize`. A model without that file generates.

use super::LoadError;
use super::files::read_json;
use serde_json::{Value, json};
use std::path::{Component, Path};

/// What the guest is told, if the folder is an embedding model: `{"pooling": "last" | "mean", "normalize": bool}`.
///
/// # Errors
/// When a file is malformed, or a step is one that the host does not have.
pub(super) fn read(folder: &Path) -> Result<Option<Value>, LoadError> {
    let path = folder.join("modules.json");
    let Some(modules) = read_json(&path)? else {
        return Ok(None);
    };
    let bad = |what: &str| LoadError::file(&path, what);
    let modules = modules
        .as_array()
        .ok_or_else(|| bad("is not a list of modules"))?;
    let (mut pooling, mut normalize) = (None, false);
    for module in modules {
        let text = |key: &str| module.get(key).and_then(Value::as_str);
        let kind = text("type").ok_or_else(|| bad("has a module without a type"))?;
        match kind.rsplit('.').next().unwrap_or_default() {
            "Transformer" => {}
            "Pooling" => {
                let inside = Path::new(text("path").unwrap_or_default());
                if inside
                    .components()
                    .any(|c| !matches!(c, Component::Normal(_)))
                {
                    return Err(bad("names a folder outside the model's own"));
                }
                pooling = Some(pooling_of(&folder.join(inside).join("config.json"))?);
            }
            "Normalize" => normalize = true,
            other => {
                return Err(bad(&format!(
                    "has a module {other}; Transformer, Pooling and Normalize are supported. Without the file the model generates"
                )));
            }
        }
    }
    let pooling = pooling.ok_or_else(|| bad("has no Pooling module"))?;
    Ok(Some(json!({ "pooling": pooling, "normalize": normalize })))
}

fn pooling_of(path: &Path) -> Result<&'static str, LoadError> {
    let config = read_json(path)?.ok_or_else(|| LoadError::file(path, "is missing"))?;
    let on = |key: &str| config.get(key).and_then(Value::as_bool) == Some(true);
    let modes = config.as_object().into_iter().flatten();
    let chosen: Vec<&str> = modes
        .map(|(key, _)| key.as_str())
        .filter(|key| key.starts_with("pooling_mode_") && on(key))
        .collect();
    match chosen[..] {
        ["pooling_mode_lasttoken"] => Ok("last"),
        ["pooling_mode_mean_tokens"] => Ok("mean"),
        _ => Err(LoadError::file(
            path,
            &format!(
                "pools by {chosen:?}; pooling_mode_lasttoken or pooling_mode_mean_tokens is supported"
            ),
        )),
    }
}

#[cfg(test)]
mod tests;
