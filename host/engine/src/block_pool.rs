//! Reference-counted KV blocks.
//!
//! A block is in exactly one of three states: *free* (no reference, no key), *cached* (no reference, a key; in LRU
//! order, taken when no free block is left), or *used* (referenced; with or without a key).

use crate::{BlockId, ExecutorInfo, GroupId};
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Identity of a full block's contents: the chain of all tokens up to its end, and the salt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PrefixKey(pub(crate) [u8; 32]);

/// One reference to a block; cloning shares the block, dropping the last one returns it to its pool.
#[derive(Debug)]
pub(crate) struct BlockHandle {
    id: BlockId,
    group: Arc<Mutex<Group>>,
}

/// All groups' blocks.
#[derive(Debug)]
pub(crate) struct BlockPool {
    groups: Vec<Arc<Mutex<Group>>>,
}

#[derive(Debug)]
struct Group {
    blocks: Vec<Block>,
    free: Vec<u32>,
    /// Cached blocks by the time of their last use, oldest first.
    lru: BTreeMap<u64, u32>,
    index: HashMap<PrefixKey, u32>,
    /// Next stamp of [`Group::lru`].
    clock: u64,
    used: u32,
}

#[derive(Clone, Debug, Default)]
struct Block {
    refs: u32,
    key: Option<PrefixKey>,
    /// Key into [`Group::lru`] while cached.
    stamp: u64,
}

fn lock(group: &Mutex<Group>) -> MutexGuard<'_, Group> {
    group.lock().unwrap_or_else(PoisonError::into_inner)
}

impl BlockPool {
    pub(crate) fn new(info: &ExecutorInfo) -> Self {
        let groups = info
            .groups
            .iter()
            .map(|group| Arc::new(Mutex::new(Group::new(group.blocks))))
            .collect();
        Self { groups }
    }

    /// Blocks that [`allocate`](Self::allocate) can still hand out.
    pub(crate) fn available(&self, group: GroupId) -> u32 {
        let group = lock(&self.groups[group.0 as usize]);
        group.blocks.len() as u32 - group.used
    }

    /// A block with unspecified contents; evicts the least recently used cached block when none is free.
    pub(crate) fn allocate(&self, group: GroupId) -> Option<BlockHandle> {
        let shared = &self.groups[group.0 as usize];
        let index = lock(shared).take()?;
        Some(BlockHandle {
            id: BlockId(index),
            group: Arc::clone(shared),
        })
    }

    /// The block with these contents.
    pub(crate) fn lookup(&self, group: GroupId, key: &PrefixKey) -> Option<BlockHandle> {
        let shared = &self.groups[group.0 as usize];
        let mut inner = lock(shared);
        let index = *inner.index.get(key)?;
        inner.acquire(index);
        drop(inner);
        Some(BlockHandle {
            id: BlockId(index),
            group: Arc::clone(shared),
        })
    }

    pub(crate) fn contains(&self, group: GroupId, key: &PrefixKey) -> bool {
        lock(&self.groups[group.0 as usize]).index.contains_key(key)
    }

    /// Referenced blocks of all groups.
    pub(crate) fn used(&self) -> u64 {
        self.groups
            .iter()
            .map(|group| u64::from(lock(group).used))
            .sum()
    }

    pub(crate) fn total(&self) -> u64 {
        self.groups
            .iter()
            .map(|group| lock(group).blocks.len() as u64)
            .sum()
    }

    /// References of each block of a group.
    pub(crate) fn references(&self, group: GroupId) -> Vec<u32> {
        lock(&self.groups[group.0 as usize])
            .blocks
            .iter()
            .map(|block| block.refs)
            .collect()
    }

    /// Every block is in exactly one state, and keys and index are inverse to each other.
    pub(crate) fn check_integrity(&self) -> Result<(), String> {
        for (number, group) in self.groups.iter().enumerate() {
            lock(group)
                .check()
                .map_err(|what| format!("cache group {number}: {what}"))?;
        }
        Ok(())
    }
}

impl BlockHandle {
    pub(crate) fn id(&self) -> BlockId {
        self.id
    }

    /// Whether this is the only reference and the prefix cache does not know the block, so that it may be written.
    pub(crate) fn is_exclusive(&self) -> bool {
        let group = lock(&self.group);
        let block = &group.blocks[self.id.0 as usize];
        block.refs == 1 && block.key.is_none()
    }

    /// Makes the block findable. The first block with given contents stays the one that is found.
    pub(crate) fn publish(&self, key: PrefixKey) {
        let mut group = lock(&self.group);
        if group.blocks[self.id.0 as usize].key.is_none() && !group.index.contains_key(&key) {
            group.blocks[self.id.0 as usize].key = Some(key);
            group.index.insert(key, self.id.0);
        }
    }
}

impl Clone for BlockHandle {
    fn clone(&self) -> Self {
        lock(&self.group).acquire(self.id.0);
        Self {
            id: self.id,
            group: Arc::clone(&self.group),
        }
    }
}

impl Drop for BlockHandle {
    fn drop(&mut self) {
        lock(&self.group).release(self.id.0);
    }
}

impl Group {
    fn new(blocks: u32) -> Self {
        Self {
            blocks: vec![Block::default(); blocks as usize],
            free: (0..blocks).rev().collect(),
            lru: BTreeMap::new(),
            index: HashMap::new(),
            clock: 0,
            used: 0,
        }
    }

    fn take(&mut self) -> Option<u32> {
        let index = match self.free.pop() {
            Some(index) => index,
            None => {
                let (_, index) = self.lru.pop_first()?;
                if let Some(key) = self.blocks[index as usize].key.take() {
                    self.index.remove(&key);
                }
                index
            }
        };
        self.blocks[index as usize].refs = 1;
        self.used += 1;
        Some(index)
    }

    fn acquire(&mut self, index: u32) {
        let block = &mut self.blocks[index as usize];
        block.refs += 1;
        if block.refs == 1 {
            self.lru.remove(&block.stamp);
            self.used += 1;
        }
    }

    fn release(&mut self, index: u32) {
        let block = &mut self.blocks[index as usize];
        block.refs -= 1;
        if block.refs > 0 {
            return;
        }
        self.used -= 1;
        if block.key.is_some() {
            block.stamp = self.clock;
            self.lru.insert(self.clock, index);
            self.clock += 1;
        } else {
            self.free.push(index);
        }
    }

    fn check(&self) -> Result<(), String> {
        let mut listed = vec![0u32; self.blocks.len()];
        for &index in self.free.iter().chain(self.lru.values()) {
            listed[index as usize] += 1;
        }
        let mut used = 0;
        for (index, block) in self.blocks.iter().enumerate() {
            let expected = u32::from(block.refs == 0);
            used += 1 - expected;
            if listed[index] != expected {
                return Err(format!(
                    "block {index} with {} references is listed {} times",
                    block.refs, listed[index]
                ));
            }
            if let Some(key) = &block.key
                && self.index.get(key) != Some(&(index as u32))
            {
                return Err(format!("block {index} has a key that does not find it"));
            }
        }
        if used != self.used {
            return Err(format!(
                "{used} blocks are referenced, but {} are counted",
                self.used
            ));
        }
        if let Some(index) = self
            .free
            .iter()
            .find(|&&index| self.blocks[index as usize].key.is_some())
        {
            return Err(format!("free block {index} has a key"));
        }
        if let Some((stamp, index)) = self.lru.iter().find(|&(&stamp, &index)| {
            self.blocks[index as usize].key.is_none() || self.blocks[index as usize].stamp != stamp
        }) {
            return Err(format!(
                "cached block {index} has no key, or another stamp than {stamp}"
            ));
        }
        let keyed = self
            .blocks
            .iter()
            .filter(|block| block.key.is_some())
            .count();
        if keyed != self.index.len() {
            return Err(format!(
                "{keyed} blocks have keys, but the index has {}",
                self.index.len()
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
