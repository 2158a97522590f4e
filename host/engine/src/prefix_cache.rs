//! Finds blocks that earlier sequences computed.
//!
//! A block becomes findable when the step that completed it was *collected*, not when it was launched: only then are
//! its tokens known and the step known to have succeeded.

use crate::block_pool::{BlockPool, PrefixKey};
use crate::layout::Layout;
use crate::sequence::Table;
use crate::{CacheSalt, EngineConfig, ExecutorInfo, GroupInfo, GroupKind, PrefixCaching, TokenId};
use sha2::{Digest, Sha256};

/// Rules of the prefix cache; the blocks themselves are in the [`BlockPool`].
#[derive(Debug)]
pub(crate) struct PrefixCache {
    enabled: bool,
}

/// A usable beginning of a sequence.
#[derive(Debug, Default)]
pub(crate) struct Hit {
    /// Positions it covers: a multiple of the block size, and at least one less than the sequence has.
    pub(crate) tokens: u32,
    /// Per group, a block table; `None` where a window no longer reaches.
    pub(crate) tables: Vec<Table>,
}

/// Key of the block that follows the one of `parent`.
pub(crate) fn chain(parent: Option<&PrefixKey>, salt: &CacheSalt, tokens: &[TokenId]) -> PrefixKey {
    let mut hash = Sha256::new();
    hash.update(parent.map_or(&salt.0, |key| &key.0));
    for token in tokens {
        hash.update(token.to_le_bytes());
    }
    PrefixKey(hash.finalize().into())
}

/// The salt of what differs from `salt`'s blocks by a length.
pub(crate) fn by_length(salt: &CacheSalt, len: u32) -> CacheSalt {
    let mut hash = Sha256::new();
    hash.update(salt.0);
    hash.update(b"length");
    hash.update(len.to_le_bytes());
    CacheSalt(hash.finalize().into())
}

/// Extends `keys` to the first `blocks` blocks of `tokens`.
pub(crate) fn extend_keys(
    keys: &mut Vec<PrefixKey>,
    salt: &CacheSalt,
    tokens: &[TokenId],
    block_size: u32,
    blocks: usize,
) {
    for block in tokens
        .chunks_exact(block_size as usize)
        .take(blocks)
        .skip(keys.len())
    {
        keys.push(chain(keys.last(), salt, block));
    }
}

impl PrefixCache {
    /// Recurrent state exists only at a sequence's end, and prefix-LM prompts depend on what follows them: neither
    /// can be shared.
    pub(crate) fn new(info: &ExecutorInfo, config: &EngineConfig) -> Self {
        let sharable = info
            .groups
            .iter()
            .all(|group| group.kind != GroupKind::Recurrent);
        let enabled = config.prefix_cache == PrefixCaching::On
            && sharable
            && !info.groups.is_empty()
            && !info.whole_prompt;
        Self { enabled }
    }

    pub(crate) fn is_enabled(&self) -> bool {
        self.enabled
    }

    /// The longest usable beginning: all its blocks in full groups, and in window groups those that the next token
    /// sees. `keys` are those of the sequence's complete blocks; `len` is its length.
    pub(crate) fn lookup(
        &self,
        layout: &Layout,
        pool: &BlockPool,
        keys: &[PrefixKey],
        len: u32,
    ) -> Hit {
        let none = Hit {
            tokens: 0,
            tables: layout.groups().map(|_| Table::default()).collect(),
        };
        if !self.enabled || len == 0 {
            return none;
        }
        let most = keys.len().min(((len - 1) / layout.block_size()) as usize);
        let found: Vec<Vec<bool>> = layout
            .groups()
            .map(|(group, _)| {
                keys[..most]
                    .iter()
                    .map(|key| pool.contains(group, key))
                    .collect()
            })
            .collect();
        let first = |info: GroupInfo, blocks: usize| {
            layout.first_visible(info, blocks as u32 * layout.block_size())
        };
        let usable = |blocks: usize| {
            layout.groups().zip(&found).all(|((_, info), found)| {
                found[first(info, blocks).min(blocks)..blocks]
                    .iter()
                    .all(|&found| found)
            })
        };
        // Full groups bound the search: beyond their first gap nothing is usable.
        let bound = layout
            .groups()
            .zip(&found)
            .filter(|((_, info), _)| info.kind == GroupKind::Full)
            .map(|(_, found)| found.iter().take_while(|&&found| found).count())
            .min()
            .unwrap_or(most);
        let Some(blocks) = (1..=bound).rev().find(|&blocks| usable(blocks)) else {
            return none;
        };
        let tables = layout
            .groups()
            .map(|(group, info)| {
                let start = first(info, blocks).min(blocks);
                // What was found above is still there: nothing was allocated since.
                Table::new(
                    start,
                    keys[start..blocks]
                        .iter()
                        .filter_map(|key| pool.lookup(group, key)),
                )
            })
            .collect();
        Hit {
            tokens: blocks as u32 * layout.block_size(),
            tables,
        }
    }
}

#[cfg(test)]
mod tests;
