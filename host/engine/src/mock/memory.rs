//! KV blocks that remember what was written.

use crate::{BlockCopy, BlockId, ExecutorInfo, GroupKind, TokenId};

/// One position of a block, or a recurrent state after that position.
#[derive(Clone, Copy, Debug)]
struct Entry {
    position: u32,
    token: TokenId,
    /// Hash of the entry and of all it saw.
    value: u64,
}

/// All blocks of all groups.
#[derive(Debug)]
pub(super) struct Memory {
    block_size: u32,
    kinds: Vec<GroupKind>,
    /// `[group][block][position in block]`
    groups: Vec<Vec<Vec<Option<Entry>>>>,
}

/// SplitMix64's finaliser over both.
pub(super) fn mix(a: u64, b: u64) -> u64 {
    let mut z = a
        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
        .wrapping_add(b)
        .wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Memory {
    pub(super) fn new(info: &ExecutorInfo) -> Self {
        let block = vec![None; info.block_size as usize];
        Self {
            block_size: info.block_size,
            kinds: info.groups.iter().map(|group| group.kind).collect(),
            groups: info
                .groups
                .iter()
                .map(|group| vec![block.clone(); group.blocks as usize])
                .collect(),
        }
    }

    pub(super) fn copy(&mut self, copy: BlockCopy) -> Result<(), String> {
        let group = self
            .groups
            .get_mut(copy.group.0 as usize)
            .ok_or("a copy names no group")?;
        let source = group
            .get(copy.from.0 as usize)
            .ok_or("a copy's source does not exist")?
            .clone();
        *group
            .get_mut(copy.to.0 as usize)
            .ok_or("a copy's target does not exist")? = source;
        Ok(())
    }

    /// Writes position `position` in every group, and returns the hash of what a query there sees.
    pub(super) fn compute(
        &mut self,
        tables: &[Vec<BlockId>],
        history: &[TokenId],
        position: u32,
    ) -> Result<u64, String> {
        let token = *history
            .get(position as usize)
            .ok_or_else(|| format!("no token at position {position}"))?;
        if tables.is_empty() {
            return Ok(history[..=position as usize]
                .iter()
                .fold(1, |hash, token| mix(hash, u64::from(*token))));
        }
        let mut result = 0;
        for (group, table) in tables.iter().enumerate() {
            let seen = match self.kinds[group] {
                GroupKind::Recurrent => self.state(group, table, history, position)?,
                GroupKind::Full => self.visible(group, table, history, 0..position)?,
                GroupKind::Window { window } => self.visible(
                    group,
                    table,
                    history,
                    (position + 1).saturating_sub(window)..position,
                )?,
            };
            let value = mix(mix(seen, u64::from(token)), u64::from(position));
            let block = match self.kinds[group] {
                GroupKind::Recurrent => 0,
                _ => position / self.block_size,
            };
            let offset = if self.kinds[group] == GroupKind::Recurrent {
                0
            } else {
                position % self.block_size
            };
            let id = table
                .get(block as usize)
                .ok_or_else(|| format!("no block for position {position}"))?;
            let block = self.groups[group]
                .get_mut(id.0 as usize)
                .ok_or("a block does not exist")?;
            block[offset as usize] = Some(Entry {
                position,
                token,
                value,
            });
            result = mix(result, value);
        }
        Ok(result)
    }

    fn state(
        &self,
        group: usize,
        table: &[BlockId],
        history: &[TokenId],
        position: u32,
    ) -> Result<u64, String> {
        if position == 0 {
            return Ok(0);
        }
        let id = table.first().ok_or("no state block")?;
        match self.groups[group]
            .get(id.0 as usize)
            .and_then(|block| block[0])
        {
            Some(entry)
                if entry.position + 1 == position
                    && history[entry.position as usize] == entry.token =>
            {
                Ok(entry.value)
            }
            other => Err(format!(
                "group {group}: state before position {position} is {other:?}"
            )),
        }
    }

    /// Hash of the entries at `positions`, which must be those of `history`.
    fn visible(
        &self,
        group: usize,
        table: &[BlockId],
        history: &[TokenId],
        positions: std::ops::Range<u32>,
    ) -> Result<u64, String> {
        let mut hash = 0;
        for position in positions {
            let id = table
                .get((position / self.block_size) as usize)
                .ok_or("a block table is too short")?;
            let block = self.groups[group].get(id.0 as usize);
            match block.and_then(|block| block[(position % self.block_size) as usize]) {
                Some(entry)
                    if entry.position == position && entry.token == history[position as usize] =>
                {
                    hash = mix(hash, entry.value);
                }
                other => {
                    return Err(format!(
                        "group {group}, block {}: stale {other:?} for position {position}",
                        id.0
                    ));
                }
            }
        }
        Ok(hash)
    }
}
