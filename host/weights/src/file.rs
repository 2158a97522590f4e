//! Files of weights, read by position.
//!
//! Nothing is mapped: a mapped file that becomes shorter kills the process with SIGBUS when a page beyond its new end is
//! touched, and a server may load one model while it serves others. A read of such a file is an error instead. What is
//! read costs memory until its consumer has copied it, which is one tensor at a time.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use crate::WeightsError;

/// Longest first part of a file that is read to find its tensors; headers are longer in no file that is accepted.
const MOST_HEAD: usize = 1 << 30;
/// Shortest such part.
const LEAST_HEAD: usize = 1 << 20;

/// An open file with the length that it had then.
#[derive(Debug)]
pub(crate) struct WeightsFile {
    file: File,
    path: PathBuf,
    len: usize,
}

/// The first bytes of a file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Head<'a> {
    pub(crate) bytes: &'a [u8],
    /// Bytes of the whole file, at least as many.
    pub(crate) file_len: usize,
}

impl WeightsFile {
    /// Opens `path`, which must be a regular file.
    pub(crate) fn open(path: &Path) -> Result<Self, WeightsError> {
        let io = |e| WeightsError::io(path, e);
        // Asked before opening: opening a pipe would wait for a writer.
        if !std::fs::metadata(path).map_err(io)?.is_file() {
            return Err(io(std::io::Error::other("not a regular file")));
        }
        let file = File::open(path).map_err(io)?;
        let len = file.metadata().map_err(io)?.len();
        let len = usize::try_from(len)
            .map_err(|_| io(std::io::Error::other("too long for this machine")))?;
        Ok(Self {
            file,
            path: path.to_owned(),
            len,
        })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The bytes of `range`, if the file still has as many as when it was opened.
    pub(crate) fn bytes(&self, range: Range<usize>) -> Result<Vec<u8>, WeightsError> {
        let io = |e| WeightsError::io(&self.path, e);
        let wanted = range.end.checked_sub(range.start);
        let Some(wanted) = wanted.filter(|_| range.end <= self.len) else {
            return Err(WeightsError::Malformed {
                path: self.path.clone(),
                format: "weights",
                what: format!(
                    "bytes {}..{} lie beyond its {} bytes",
                    range.start, range.end, self.len
                ),
            });
        };
        let shrank = || -> Result<(), WeightsError> {
            let now = self.file.metadata().map_err(io)?.len();
            if now >= self.len as u64 {
                return Ok(());
            }
            Err(WeightsError::Shrank {
                path: self.path.clone(),
                before: self.len as u64,
                now,
            })
        };
        // A file that is being replaced has neither the old model's values nor the new one's.
        shrank()?;
        let mut bytes = vec![0; wanted];
        let read = self.file.read_exact_at(&mut bytes, range.start as u64);
        if let Err(error) = read {
            shrank()?;
            return Err(io(error));
        }
        Ok(bytes)
    }

    /// What `parse` finds in the first part of the file. It is called with longer parts while it fails, as an error may
    /// come of where the part ends; the last call has the whole file or the longest part.
    pub(crate) fn parse_head<T>(
        &self,
        parse: impl Fn(Head<'_>) -> Result<T, WeightsError>,
    ) -> Result<T, WeightsError> {
        let mut part = LEAST_HEAD;
        loop {
            let end = part.min(self.len);
            let bytes = self.bytes(0..end)?;
            let file_len = self.len;
            let found = parse(Head {
                bytes: &bytes,
                file_len,
            });
            if found.is_ok() || end == self.len || part >= MOST_HEAD {
                return found;
            }
            part *= 8;
        }
    }
}

#[cfg(test)]
mod tests;
