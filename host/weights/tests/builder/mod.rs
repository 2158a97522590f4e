//! GGUF files written by hand, good or bad. Each test program uses a part of it.

#![allow(dead_code, unreachable_pub)]

use std::io::Write;

use guesthouse_weights::{Gguf, WeightsError};

/// Writes the format by hand.
#[derive(Clone)]
pub struct Builder {
    pub version: u32,
    pub tensor_count: u64,
    pub entry_count: u64,
    pub entries: Vec<u8>,
    pub tensors: Vec<u8>,
    pub data: usize,
}

impl Builder {
    pub fn new() -> Self {
        Self {
            version: 3,
            tensor_count: 0,
            entry_count: 0,
            entries: Vec::new(),
            tensors: Vec::new(),
            data: 0,
        }
    }

    pub fn entry(mut self, key: &str, kind: u32, value: &[u8]) -> Self {
        self.entry_count += 1;
        self.entries.extend(string(key));
        self.entries.extend(kind.to_le_bytes());
        self.entries.extend(value);
        self
    }

    /// `dims` innermost first, as in the file.
    pub fn tensor(mut self, name: &str, dims: &[u64], kind: u32, offset: u64) -> Self {
        self.tensor_count += 1;
        self.tensors.extend(string(name));
        self.tensors.extend((dims.len() as u32).to_le_bytes());
        self.tensors
            .extend(dims.iter().flat_map(|d| d.to_le_bytes()));
        self.tensors.extend(kind.to_le_bytes());
        self.tensors.extend(offset.to_le_bytes());
        self
    }

    pub fn data(mut self, bytes: usize) -> Self {
        self.data = bytes;
        self
    }

    pub fn bytes(&self) -> Vec<u8> {
        let mut out = b"GGUF".to_vec();
        out.extend(self.version.to_le_bytes());
        out.extend(self.tensor_count.to_le_bytes());
        out.extend(self.entry_count.to_le_bytes());
        out.extend(&self.entries);
        out.extend(&self.tensors);
        out.resize(out.len().next_multiple_of(32) + self.data, 0);
        out
    }

    pub fn open(&self) -> Result<Gguf, WeightsError> {
        open(&self.bytes())
    }

    /// The message of the error that opening gives.
    pub fn error(&self) -> String {
        self.open().map(|_| ()).unwrap_err().to_string()
    }
}

pub fn string(text: &str) -> Vec<u8> {
    let mut out = (text.len() as u64).to_le_bytes().to_vec();
    out.extend(text.as_bytes());
    out
}

pub fn open(bytes: &[u8]) -> Result<Gguf, WeightsError> {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(bytes).unwrap();
    Gguf::open(file.path())
}
