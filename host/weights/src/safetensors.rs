//! Safetensors checkpoints: one file, or a folder with an index of shards.
//!
//! The format is <https://github.com/huggingface/safetensors#format>. Headers are checked in full
//! before anything is read, and pickled checkpoints are never opened.

mod folder;
mod fp8;
mod header;
mod mxfp4;

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::path::{Path, PathBuf};

use crate::file::WeightsFile;
use crate::{TensorInfo, WeightSource, WeightsError, legacy, prefix};

/// A [`WeightSource`] over the tensors of one or more safetensors files.
///
/// Checkpoints of the same architecture differ in a leading `transformer.` or `model.`, depending on which class saved
/// them. A name that is not found is therefore looked up again without that prefix, then with one added; then a `weight`
/// as `gamma` and a `bias` as `beta`, as old checkpoints call those of norms.
///
/// `x_blocks` and `x_scales` of gpt-oss's MXFP4 checkpoints are one tensor, `x`; so are `x` and `x_scale_inv` of DeepSeek's FP8
/// checkpoints, in bf16.
#[derive(Debug)]
pub struct Safetensors {
    path: PathBuf,
    shards: Vec<WeightsFile>,
    tensors: BTreeMap<String, Stored>,
}

#[derive(Debug)]
struct Stored {
    shard: usize,
    info: TensorInfo,
    /// Bytes from the start of the shard's file.
    range: Range<usize>,
    /// Shard and bytes of the scales of a tensor in two parts.
    scales: Option<(usize, Range<usize>)>,
}

impl Safetensors {
    /// Opens a `.safetensors` file, or a folder that has an index, `model.safetensors` or other `.safetensors` files.
    ///
    /// # Errors
    /// [`WeightsError::NoWeights`] and [`WeightsError::PickleOnly`] for folders without usable files,
    /// [`WeightsError::Malformed`] for damaged or hostile ones, [`WeightsError::Unsupported`] for exotic element types.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, WeightsError> {
        let path = path.as_ref();
        if !path.is_dir() {
            let mut source = Self::empty(path);
            source.add_file(path)?;
            return source.joined();
        }
        match folder::find(path)? {
            folder::Layout::Files(files) => {
                let mut source = Self::empty(path);
                for file in files {
                    source.add_file(&file)?;
                }
                source.joined()
            }
            folder::Layout::Indexed(index) => Self::open_indexed(path, &index),
        }
    }

    fn empty(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
            shards: Vec::new(),
            tensors: BTreeMap::new(),
        }
    }

    /// Opens a shard and returns its tensors.
    fn shard(&mut self, file: &Path) -> Result<Vec<(String, Stored)>, WeightsError> {
        let opened = WeightsFile::open(file)?;
        let entries = opened.parse_head(|head| header::parse(file, head))?;
        let shard = self.shards.len();
        self.shards.push(opened);
        let stored = |e: header::Entry| {
            let (info, range) = (e.info, e.range);
            let scales = None;
            (
                e.name,
                Stored {
                    shard,
                    info,
                    range,
                    scales,
                },
            )
        };
        Ok(entries.into_iter().map(stored).collect())
    }

    fn add_file(&mut self, file: &Path) -> Result<(), WeightsError> {
        for (name, stored) in self.shard(file)? {
            if let Some(earlier) = self.tensors.get(&name) {
                let first = self.shards[earlier.shard].path().display();
                let what = format!("tensor '{name}' is already in {first}");
                return Err(header::malformed(file, what));
            }
            self.tensors.insert(name, stored);
        }
        Ok(())
    }

    /// Takes exactly the tensors that the index names, each from the shard that it names.
    fn open_indexed(folder: &Path, index: &folder::Index) -> Result<Self, WeightsError> {
        let mut source = Self::empty(folder);
        for (file, names) in &index.shards {
            let path = folder.join(file);
            if !path.is_file() {
                return Err(index.malformed(format!(
                    "it names the shard '{file}', which is not in the folder"
                )));
            }
            let mut stored: HashMap<String, Stored> = source.shard(&path)?.into_iter().collect();
            for name in names {
                let tensor = stored.remove(name).ok_or_else(|| {
                    index.malformed(format!(
                        "it places tensor '{name}' in '{file}', which has no such tensor"
                    ))
                })?;
                source.tensors.insert(name.clone(), tensor);
            }
        }
        source.joined()
    }

    /// With tensors in two parts as one.
    fn joined(mut self) -> Result<Self, WeightsError> {
        mxfp4::join(&mut self.tensors);
        fp8::join(&self.path, &mut self.tensors)?;
        Ok(self)
    }

    /// The stored tensor that `name` means, by the rules of [`Safetensors`].
    fn find(&self, name: &str) -> Option<(&String, &Stored)> {
        let get = |name: &str| self.tensors.get_key_value(name);
        prefix::find(name, get).or_else(|| prefix::find(&legacy::old_name(name)?, get))
    }
}

impl WeightSource for Safetensors {
    fn info(&self, name: &str) -> Option<TensorInfo> {
        self.find(name).map(|(_, stored)| stored.info.clone())
    }

    fn names(&self) -> Vec<String> {
        self.tensors.keys().cloned().collect()
    }

    fn resolve(&self, name: &str) -> Option<String> {
        self.find(name).map(|(stored_name, _)| stored_name.clone())
    }

    fn read(&self, name: &str) -> Result<Cow<'_, [u8]>, WeightsError> {
        let (_, stored) = self
            .find(name)
            .ok_or_else(|| WeightsError::missing(name, self.path.display().to_string()))?;
        let part = |shard: usize, range: &Range<usize>| self.shards[shard].bytes(range.clone());
        let bytes = part(stored.shard, &stored.range)?;
        match &stored.scales {
            None => Ok(Cow::Owned(bytes)),
            Some((shard, range)) => {
                let scales = part(*shard, range)?;
                Ok(Cow::Owned(match stored.info.scheme.plain() {
                    Some(_) => fp8::expand(stored.info.cols(), &bytes, &scales)?,
                    None => mxfp4::blocks(&bytes, &scales),
                }))
            }
        }
    }
}
