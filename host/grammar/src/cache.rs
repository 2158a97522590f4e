//! Compiled grammars, the most recently used ones within a bound of bytes.

use crate::compile::Compiled;
use std::collections::HashMap;
use std::sync::Arc;

/// SHA-256 of syntax and source.
pub(crate) type Digest = [u8; 32];

/// Grammars by digest.
pub(crate) struct Cache {
    /// With the tick of its last use.
    entries: HashMap<Digest, (Arc<Compiled>, u64)>,
    tick: u64,
    bytes: usize,
    limit: usize,
}

impl Cache {
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            entries: HashMap::new(),
            tick: 0,
            bytes: 0,
            limit,
        }
    }

    pub(crate) fn get(&mut self, digest: &Digest) -> Option<Arc<Compiled>> {
        self.tick += 1;
        let (compiled, used) = self.entries.get_mut(digest)?;
        *used = self.tick;
        Some(Arc::clone(compiled))
    }

    /// One that is larger than the bound is not kept.
    pub(crate) fn put(&mut self, digest: Digest, compiled: Arc<Compiled>) {
        if compiled.bytes > self.limit || self.entries.contains_key(&digest) {
            return;
        }
        self.tick += 1;
        self.bytes += compiled.bytes;
        self.entries.insert(digest, (compiled, self.tick));
        while self.bytes > self.limit {
            let oldest = self.entries.iter().min_by_key(|(_, (_, used))| *used);
            let Some(digest) = oldest.map(|(digest, _)| *digest) else {
                return;
            };
            if let Some((dropped, _)) = self.entries.remove(&digest) {
                self.bytes -= dropped.bytes;
            }
        }
    }

    /// Grammars, and their bytes.
    pub(crate) fn size(&self) -> (usize, usize) {
        (self.entries.len(), self.bytes)
    }
}
