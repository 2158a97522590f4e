//! A bounds-checked little-endian reader that knows its file for messages.

use std::path::Path;

use crate::WeightsError;
use crate::file::Head;

/// The longest string that is accepted; chat templates, the longest real ones, are below 100 kB.
const MAX_STRING: usize = 16 << 20;

pub(super) struct Cursor<'a> {
    path: &'a Path,
    file: &'a [u8],
    /// Bytes of the whole file, of which `file` may be the first part.
    file_len: usize,
    at: usize,
    /// No read goes beyond this byte.
    end: usize,
}

impl<'a> Cursor<'a> {
    pub(super) const fn new(path: &'a Path, head: Head<'a>) -> Self {
        Self {
            path,
            file: head.bytes,
            file_len: head.file_len,
            at: 0,
            end: head.bytes.len(),
        }
    }

    /// Bytes from the start of the file.
    pub(super) const fn position(&self) -> usize {
        self.at
    }

    pub(super) const fn file_len(&self) -> usize {
        self.file_len
    }

    /// Bytes that may still be read.
    pub(super) const fn remaining(&self) -> usize {
        self.end - self.at
    }

    /// Allows at most `bytes` more to be read, as far as the file has them.
    pub(super) fn limit(&mut self, bytes: usize) {
        self.end = self.at.saturating_add(bytes).min(self.file.len());
    }

    pub(super) const fn path(&self) -> &'a Path {
        self.path
    }

    pub(super) fn malformed(&self, what: impl Into<String>) -> WeightsError {
        malformed(self.path, what)
    }

    pub(super) fn unsupported(&self, what: String) -> WeightsError {
        WeightsError::Unsupported {
            path: self.path.to_owned(),
            what,
        }
    }

    /// The next `len` bytes. `what` names them in messages.
    pub(super) fn take(&mut self, len: usize, what: &str) -> Result<&'a [u8], WeightsError> {
        let rest = &self.file[self.at..self.end];
        let bytes = rest.get(..len).ok_or_else(|| {
            let which = if self.end == self.file.len() {
                "file"
            } else {
                "section that is possible here"
            };
            self.malformed(format!(
                "the {which} ends inside '{what}' at byte {}: {len} bytes expected, {} left",
                self.at,
                rest.len()
            ))
        })?;
        self.at += len;
        Ok(bytes)
    }

    pub(super) fn array<const N: usize>(&mut self, what: &str) -> Result<[u8; N], WeightsError> {
        let mut out = [0; N];
        out.copy_from_slice(self.take(N, what)?);
        Ok(out)
    }

    pub(super) fn u32(&mut self, what: &str) -> Result<u32, WeightsError> {
        self.array(what).map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self, what: &str) -> Result<u64, WeightsError> {
        self.array(what).map(u64::from_le_bytes)
    }

    /// A count that must not exceed `max`.
    pub(super) fn count(&mut self, what: &str, max: usize) -> Result<usize, WeightsError> {
        let at = self.at;
        let count = self.u64(what)?;
        match usize::try_from(count) {
            Ok(n) if n <= max => Ok(n),
            _ => Err(self.malformed(format!(
                "its {what} at byte {at} is {count}, at most {max} is possible"
            ))),
        }
    }

    /// A length-prefixed UTF-8 string.
    pub(super) fn string(&mut self, what: &str) -> Result<&'a str, WeightsError> {
        let at = self.at;
        let len = self.count(what, MAX_STRING)?;
        let bytes = self.take(len, what)?;
        std::str::from_utf8(bytes)
            .map_err(|e| self.malformed(format!("{what} at byte {at} is not UTF-8: {e}")))
    }
}

pub(super) fn malformed(path: &Path, what: impl Into<String>) -> WeightsError {
    WeightsError::Malformed {
        path: path.to_owned(),
        format: "GGUF",
        what: what.into(),
    }
}
