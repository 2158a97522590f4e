//! Read-only file mappings, the crate's only `unsafe`.
//!
//! A mapped file that becomes shorter kills the process with SIGBUS when a page beyond its new end is touched. Three
//! things keep that from happening in service: every access compares the file's present length with the mapping right
//! before it hands out bytes; consumers copy what they read into memory of their own; and a source is dropped when
//! loading is done, so a file that shrinks later harms nothing. What remains is the moment between the check and the
//! copy, while a model loads: replace model files by renaming a new one into place, never by truncating them.

use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};

use memmap2::Mmap;

use crate::WeightsError;

/// A whole file, mapped read-only. The mapping lives as long as this value.
#[derive(Debug)]
pub(crate) struct Mapping {
    map: Mmap,
    file: File,
    path: PathBuf,
}

impl Mapping {
    /// Maps all of `path`, which must be a regular file.
    #[allow(unsafe_code)]
    pub(crate) fn open(path: &Path) -> Result<Self, WeightsError> {
        let io = |e| WeightsError::io(path, e);
        // Asked before opening: opening a pipe would wait for a writer.
        if !std::fs::metadata(path).map_err(io)?.is_file() {
            return Err(io(std::io::Error::other("not a regular file")));
        }
        let file = File::open(path).map_err(io)?;
        // SAFETY: the mapping is read-only and private to this process. Its bytes are only ever interpreted as plain
        // numbers and text that are validated on use, so another process that writes the file can change values but
        // cannot break an invariant. A file that shrinks is caught by `bytes` up to the race that the module
        // describes; losing that race ends the process by signal and never yields wrong memory.
        let map = unsafe { Mmap::map(&file) }.map_err(io)?;
        Ok(Self {
            map,
            file,
            path: path.to_owned(),
        })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Bytes mapped.
    pub(crate) fn len(&self) -> usize {
        self.map.len()
    }

    /// The bytes of `range`, after checking that the file still has all its mapped bytes.
    pub(crate) fn bytes(&self, range: Range<usize>) -> Result<&[u8], WeightsError> {
        let mapped = self.map.len() as u64;
        let now = self
            .file
            .metadata()
            .map_err(|e| WeightsError::io(&self.path, e))?
            .len();
        if now < mapped {
            return Err(WeightsError::Shrank {
                path: self.path.clone(),
                mapped,
                now,
            });
        }
        self.map
            .get(range.clone())
            .ok_or_else(|| WeightsError::Malformed {
                path: self.path.clone(),
                format: "weights",
                what: format!(
                    "bytes {}..{} lie beyond its {mapped} bytes",
                    range.start, range.end
                ),
            })
    }

    /// The whole file.
    pub(crate) fn all(&self) -> Result<&[u8], WeightsError> {
        self.bytes(0..self.len())
    }
}

#[cfg(test)]
mod tests;
