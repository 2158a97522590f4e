//! What a model keeps between steps, in blocks: keys and values, and states of recurrent layers.
//!
//! Each cache (layer) has a buffer of blocks, all of one size. A block of a recurrent layer is one sequence's state; its
//! op knows the order of its floats. A block of keys and values holds, for each KV head, runs of 16 positions:
//! first the keys `[k_dim][16 positions]` (a vector holds one element of several positions, so scores need no sums
//! across lanes), then the values `[16 positions][v_dim rounded up to 16]`. Values that are the prefix of keys stand there
//! too: a score wants positions side by side, a sum of values wants elements side by side.

use guesthouse_engine::{BlockCopy, BlockId};
use guesthouse_graph::ValueLayout;

use super::memory::Buffer;
use crate::error::{DeviceError, Result};

/// Positions of a run.
pub(crate) const RUN: usize = 16;

/// Sizes of one cache, in floats.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KvShape {
    pub group: usize,
    pub heads: usize,
    pub k_dim: usize,
    pub v_dim: usize,
    pub values: ValueLayout,
    /// Positions of a block, a multiple of [`RUN`].
    pub block_size: usize,
}

impl KvShape {
    /// `v_dim` rounded up to whole vectors.
    pub(crate) fn v_pad(&self) -> usize {
        self.v_dim.next_multiple_of(16)
    }

    /// First element of a key that is written from k; those before it are the values.
    pub(crate) fn k_start(&self) -> usize {
        match self.values {
            ValueLayout::Separate => 0,
            ValueLayout::PrefixOfKey => self.v_dim,
        }
    }

    fn run_floats(&self) -> usize {
        RUN * (self.k_dim + self.v_pad())
    }

    fn head_floats(&self) -> usize {
        self.block_size / RUN * self.run_floats()
    }

    /// Floats of a block.
    pub(crate) fn block_floats(&self) -> usize {
        self.heads * self.head_floats()
    }

    /// Offset of the keys of the run that holds `position`, within a cache.
    pub(crate) fn keys(&self, table: &[BlockId], head: usize, position: usize) -> usize {
        let block = table[position / self.block_size].0 as usize;
        let run = position % self.block_size / RUN;
        block * self.block_floats() + head * self.head_floats() + run * self.run_floats()
    }

    /// Offset of the values of that run.
    pub(crate) fn values(&self, table: &[BlockId], head: usize, position: usize) -> usize {
        self.keys(table, head, position) + RUN * self.k_dim
    }
}

/// What one cache's blocks hold.
#[derive(Clone, Copy, Debug)]
pub(crate) enum CacheShape {
    Heads(KvShape),
    /// A state of so many floats.
    State {
        group: usize,
        floats: usize,
    },
}

impl CacheShape {
    pub(crate) fn group(&self) -> usize {
        match self {
            Self::Heads(shape) => shape.group,
            Self::State { group, .. } => *group,
        }
    }

    /// Floats of a block.
    pub(crate) fn block_floats(&self) -> usize {
        match self {
            Self::Heads(shape) => shape.block_floats(),
            Self::State { floats, .. } => *floats,
        }
    }
}

/// One cache.
pub(crate) struct Cache {
    pub shape: CacheShape,
    pub memory: Buffer,
}

/// All caches of a model, by cache id.
pub(crate) struct Kv {
    pub caches: Vec<Cache>,
}

impl Kv {
    /// Allocates `blocks[group]` blocks for each cache.
    pub(crate) fn new(shapes: Vec<CacheShape>, blocks: &[usize]) -> Result<Self> {
        let mut caches = Vec::new();
        for shape in shapes {
            let what = "keys, values and states";
            let bytes = shape.block_floats().checked_mul(4 * blocks[shape.group()]);
            let bytes = bytes.ok_or(DeviceError::Memory {
                what,
                bytes: usize::MAX,
            })?;
            caches.push(Cache {
                shape,
                memory: Buffer::zeroed(bytes, what)?,
            });
        }
        Ok(Self { caches })
    }

    pub(crate) fn bytes(&self) -> usize {
        self.caches.iter().map(|c| c.memory.len()).sum()
    }

    /// Copies blocks; indices were checked against the group's size.
    #[allow(unsafe_code)]
    pub(crate) fn copy(&mut self, copies: &[BlockCopy]) {
        for cache in &mut self.caches {
            let n = cache.shape.block_floats();
            for copy in copies
                .iter()
                .filter(|c| c.group.0 as usize == cache.shape.group())
            {
                let (from, to) = (copy.from.0 as usize * n, copy.to.0 as usize * n);
                let base = cache.memory.floats();
                assert!((from.max(to) + n) * 4 <= cache.memory.len());
                // SAFETY: both blocks lie inside the buffer, which `&mut self` owns; `copy` allows overlap.
                unsafe { std::ptr::copy(base.add(from), base.add(to), n) };
            }
        }
    }
}
