//! How tokens map to blocks, per cache group.

use crate::{ExecutorInfo, GroupId, GroupInfo, GroupKind};

/// Block arithmetic of an executor.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    block_size: u32,
    groups: Vec<GroupInfo>,
}

impl Layout {
    pub(crate) fn new(info: &ExecutorInfo) -> Self {
        Self {
            block_size: info.block_size.max(1),
            groups: info.groups.clone(),
        }
    }

    pub(crate) fn block_size(&self) -> u32 {
        self.block_size
    }

    pub(crate) fn groups(&self) -> impl Iterator<Item = (GroupId, GroupInfo)> + '_ {
        self.groups
            .iter()
            .enumerate()
            .map(|(index, info)| (GroupId(index as u32), *info))
    }

    /// Whether blocks of different sequences may be the same one.
    pub(crate) fn shares_blocks(&self) -> bool {
        self.groups
            .iter()
            .all(|group| group.kind != GroupKind::Recurrent)
    }

    /// Length of a block table that holds `tokens` positions.
    pub(crate) fn entries(&self, group: GroupInfo, tokens: u32) -> usize {
        match group.kind {
            GroupKind::Recurrent => usize::from(tokens > 0),
            _ => tokens.div_ceil(self.block_size) as usize,
        }
    }

    /// Positions that a table of `entries` blocks holds.
    pub(crate) fn capacity(&self, group: GroupInfo, entries: usize) -> u64 {
        match group.kind {
            GroupKind::Recurrent if entries > 0 => u64::MAX,
            _ => entries as u64 * u64::from(self.block_size),
        }
    }

    /// Table entries whose blocks are complete when `tokens` positions are computed.
    pub(crate) fn complete(&self, group: GroupInfo, tokens: u32) -> usize {
        match group.kind {
            GroupKind::Recurrent => 0,
            _ => (tokens / self.block_size) as usize,
        }
    }

    /// First table entry that a query at `position`, or a later one, sees.
    pub(crate) fn first_visible(&self, group: GroupInfo, position: u32) -> usize {
        match group.kind {
            GroupKind::Window { window } => {
                (position.saturating_add(1).saturating_sub(window.max(1)) / self.block_size)
                    as usize
            }
            _ => 0,
        }
    }

    /// Entry that a write at `position` shares with earlier positions, if it is not the first of its block.
    pub(crate) fn partial(&self, group: GroupInfo, position: u32) -> Option<usize> {
        match group.kind {
            GroupKind::Recurrent => None,
            _ => (!position.is_multiple_of(self.block_size))
                .then(|| (position / self.block_size) as usize),
        }
    }

    /// Blocks without which `tokens` positions cannot be computed even alone, `chunk` of them (at least 1) in one step.
    pub(crate) fn least_blocks(&self, group: GroupInfo, tokens: u32, chunk: u32) -> u32 {
        let all = self.entries(group, tokens) as u32;
        match group.kind {
            GroupKind::Window { window } => {
                let visible = window
                    .max(1)
                    .saturating_sub(1)
                    .saturating_add(chunk.max(1))
                    .saturating_sub(1);
                all.min(visible.div_ceil(self.block_size).saturating_add(1))
            }
            _ => all,
        }
    }
}
