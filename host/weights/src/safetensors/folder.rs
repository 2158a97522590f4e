//! Which files of a model folder hold its weights.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::path::{Component, Path, PathBuf};

use serde::Deserialize;

use crate::WeightsError;
use crate::json::UniqueMap;

const INDEX: &str = "model.safetensors.index.json";
const SINGLE: &str = "model.safetensors";
const EXTENSION: &str = "safetensors";

/// Extensions under which pickled checkpoints are found.
const PICKLED: [&str; 5] = ["bin", "pt", "pth", "ckpt", "pkl"];

/// An index of a thousand shards with a million tensors stays below this.
const MAX_INDEX_BYTES: u64 = 100_000_000;

pub(super) enum Layout {
    /// All tensors of these files.
    Files(Vec<PathBuf>),
    /// Exactly the tensors that an index names.
    Indexed(Index),
}

pub(super) struct Index {
    path: PathBuf,
    /// File name within the folder → the tensors to take from it.
    pub(super) shards: BTreeMap<String, Vec<String>>,
}

impl Index {
    pub(super) fn malformed(&self, what: impl Into<String>) -> WeightsError {
        malformed(&self.path, what)
    }
}

fn malformed(path: &Path, what: impl Into<String>) -> WeightsError {
    WeightsError::Malformed {
        path: path.to_owned(),
        format: "safetensors index",
        what: what.into(),
    }
}

pub(super) fn find(folder: &Path) -> Result<Layout, WeightsError> {
    let index = folder.join(INDEX);
    if index.is_file() {
        return read_index(&index).map(Layout::Indexed);
    }
    let single = folder.join(SINGLE);
    if single.is_file() {
        return Ok(Layout::Files(vec![single]));
    }

    let mut files = Vec::new();
    let mut pickled = Vec::new();
    for entry in fs::read_dir(folder).map_err(|e| WeightsError::io(folder, e))? {
        let path = entry.map_err(|e| WeightsError::io(folder, e))?.path();
        let extension = path
            .extension()
            .and_then(|e| e.to_str())
            .unwrap_or_default();
        if extension == EXTENSION && !is_adapter(&path) {
            files.push(path);
        } else if PICKLED.contains(&extension) && !is_training_state(&path) {
            pickled.extend(path.file_name().map(|n| n.to_string_lossy().into_owned()));
        }
    }
    files.sort();
    pickled.sort();
    match (files.is_empty(), pickled.is_empty()) {
        (false, _) => Ok(Layout::Files(files)),
        (true, false) => Err(WeightsError::pickle_only(folder, &pickled)),
        (true, true) => Err(WeightsError::NoWeights {
            folder: folder.to_owned(),
        }),
    }
}

fn stem_starts_with(path: &Path, prefix: &str) -> bool {
    path.file_name()
        .and_then(|n| n.to_str())
        .is_some_and(|n| n.starts_with(prefix))
}

fn is_adapter(path: &Path) -> bool {
    stem_starts_with(path, "adapter_")
}

fn is_training_state(path: &Path) -> bool {
    ["training_args", "optimizer", "scheduler", "rng_state"]
        .iter()
        .any(|prefix| stem_starts_with(path, prefix))
}

#[derive(Deserialize)]
struct RawIndex {
    weight_map: UniqueMap<String>,
}

fn read_index(path: &Path) -> Result<Index, WeightsError> {
    let io = |e| WeightsError::io(path, e);
    let mut text = Vec::new();
    fs::File::open(path)
        .map_err(io)?
        .take(MAX_INDEX_BYTES + 1)
        .read_to_end(&mut text)
        .map_err(io)?;
    if text.len() as u64 > MAX_INDEX_BYTES {
        return Err(malformed(
            path,
            format!("it is larger than {MAX_INDEX_BYTES} bytes"),
        ));
    }
    let raw: RawIndex = serde_json::from_slice(&text)
        .map_err(|e| malformed(path, format!("expected an object with 'weight_map': {e}")))?;
    let mut shards: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (tensor, file) in raw.weight_map.0 {
        if !is_plain_name(&file) {
            return Err(malformed(
                path,
                format!(
                    "it places tensor '{tensor}' in '{file}'; shards must be files directly in the folder"
                ),
            ));
        }
        shards.entry(file).or_default().push(tensor);
    }
    Ok(Index {
        path: path.to_owned(),
        shards,
    })
}

/// A file name with the right extension and nothing that could lead out of the folder, on any system.
fn is_plain_name(file: &str) -> bool {
    let mut parts = Path::new(file).components();
    matches!(
        (parts.next(), parts.next()),
        (Some(Component::Normal(_)), None)
    ) && !file.contains(['/', '\\', ':', '\0'])
        && Path::new(file).extension().is_some_and(|e| e == EXTENSION)
}
