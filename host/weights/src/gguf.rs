//! GGUF files, versions 2 and 3, little-endian.
//!
//! The format is <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>. [`Gguf`] is the file as it is; [`hf`]
//! presents it as the Hugging Face checkpoint that it was converted from.

mod cursor;
pub mod hf;
mod metadata;
mod tensors;

use std::collections::HashMap;
use std::path::Path;

use crate::WeightsError;
use crate::file::{Head, WeightsFile};

use cursor::Cursor;
pub use metadata::{Array, Metadata, Value};
pub use tensors::GgufTensor;

/// An open GGUF file whose header, metadata and tensor table have been checked in full.
#[derive(Debug)]
pub struct Gguf {
    file: WeightsFile,
    version: u32,
    metadata: Metadata,
    tensors: Vec<GgufTensor>,
    /// Name → position in `tensors`.
    by_name: HashMap<String, usize>,
}

const MAGIC: [u8; 4] = *b"GGUF";
const VERSIONS: std::ops::RangeInclusive<u32> = 2..=3;

impl Gguf {
    /// Opens and checks a file.
    ///
    /// # Errors
    /// [`WeightsError::Malformed`] for damaged or hostile files; [`WeightsError::Unsupported`] for other versions,
    /// big-endian and split files, and tensor types that have no [`crate::Scheme`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self, WeightsError> {
        let file = WeightsFile::open(path.as_ref())?;
        let (version, metadata, tensors) = file.parse_head(|head| parse(file.path(), head))?;
        let by_name = tensors.iter().enumerate();
        let by_name = by_name.map(|(i, t)| (t.name.clone(), i)).collect();
        Ok(Self {
            file,
            version,
            metadata,
            tensors,
            by_name,
        })
    }

    /// The file.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.file.path()
    }

    /// Version of the format, 2 or 3.
    #[must_use]
    pub const fn version(&self) -> u32 {
        self.version
    }

    /// The key-value section.
    #[must_use]
    pub const fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// All tensors in file order.
    #[must_use]
    pub fn tensors(&self) -> &[GgufTensor] {
        &self.tensors
    }

    /// A tensor by its GGUF name.
    #[must_use]
    pub fn tensor(&self, name: &str) -> Option<&GgufTensor> {
        self.by_name.get(name).map(|&i| &self.tensors[i])
    }

    /// The bytes of a tensor of this file, rows of blocks as stored.
    ///
    /// # Errors
    /// [`WeightsError::Shrank`] when the file has become shorter.
    pub fn bytes(&self, tensor: &GgufTensor) -> Result<Vec<u8>, WeightsError> {
        self.file.bytes(tensor.range.clone())
    }

    /// The bytes of one of `count` equal parts of a tensor.
    fn part(
        &self,
        tensor: &GgufTensor,
        index: usize,
        count: usize,
    ) -> Result<Vec<u8>, WeightsError> {
        let len = tensor.range.len() / count;
        let start = tensor.range.start + index * len;
        self.file.bytes(start..start + len)
    }
}

fn parse(path: &Path, head: Head<'_>) -> Result<(u32, Metadata, Vec<GgufTensor>), WeightsError> {
    let mut cursor = Cursor::new(path, head);
    let magic = cursor.array::<4>("magic")?;
    if magic != MAGIC {
        return Err(cursor.malformed(format!(
            "expected it to begin with \"GGUF\", found bytes {magic:02x?}"
        )));
    }
    let version = cursor.u32("version")?;
    if !VERSIONS.contains(&version) {
        let what = if VERSIONS.contains(&version.swap_bytes()) {
            "a big-endian GGUF file; only little-endian ones are supported, convert it with gguf-py's gguf_convert_endian"
                .to_owned()
        } else {
            format!(
                "GGUF version {version}; versions 2 and 3 are supported, convert the model again with a current llama.cpp"
            )
        };
        return Err(cursor.unsupported(what));
    }
    let tensor_count = cursor.count("tensor count", tensors::MAX_TENSORS)?;
    let entry_count = cursor.count("metadata count", metadata::MAX_ENTRIES)?;
    let metadata = Metadata::parse(&mut cursor, entry_count)?;
    if metadata.u64("split.count")?.is_some_and(|n| n > 1) {
        return Err(cursor.unsupported(
            "one part of a split model; join the parts with: llama-gguf-split --merge FIRST-PART OUTPUT.gguf".to_owned(),
        ));
    }
    let alignment = tensors::alignment(&metadata, &cursor)?;
    let tensors = tensors::parse(&mut cursor, tensor_count, alignment)?;
    Ok((version, metadata, tensors))
}
