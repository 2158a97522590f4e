//! How memory for keys, values and recurrent states is divided among cache groups.

use guesthouse_graph::CacheKind;

/// What sequences can use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Uses {
    /// Positions per block.
    pub block_size: u32,
    /// Most tokens in one step.
    pub max_step_tokens: u32,
    /// Sequences that can run at once.
    pub max_slots: u32,
    /// Longest sequence, tokens.
    pub max_len: u32,
}

impl Uses {
    /// Blocks of a group that one sequence can use.
    pub(crate) fn per_slot(&self, kind: CacheKind) -> usize {
        let block = self.block_size as usize;
        let positions = match kind {
            CacheKind::Recurrent { .. } => return 1,
            CacheKind::Window { window } => {
                let seen = window as usize + self.max_step_tokens as usize + 2 * block;
                seen.min(self.max_len as usize)
            }
            CacheKind::Full => self.max_len as usize,
        };
        positions.div_ceil(block) + 1
    }

    /// Blocks of each group, of these kinds, out of so many bytes; `sizes` are the bytes of one block of each.
    ///
    /// A sequence has one state per recurrent group however long it is. States take at most half, unless keys and
    /// values cannot use the rest, or are needed for the longest sequence.
    pub(crate) fn blocks(&self, kinds: &[CacheKind], bytes: usize, sizes: &[usize]) -> Vec<usize> {
        let slots = self.max_slots as usize;
        let kinds = || kinds.iter().copied();
        let is_state = |kind| matches!(kind, CacheKind::Recurrent { .. });
        let one: usize = kinds()
            .zip(sizes)
            .filter(|(kind, _)| is_state(*kind))
            .map(|(_, size)| size)
            .sum();
        let longest = kinds()
            .zip(sizes)
            .filter(|(kind, _)| !is_state(*kind))
            .fold(0usize, |sum, (kind, &size)| {
                sum.saturating_add(size.saturating_mul(self.per_slot(kind)))
            });
        let spare = bytes.saturating_sub(longest.saturating_mul(slots));
        let room = (bytes / 2).min(bytes.saturating_sub(longest)).max(spare);
        let states = match one {
            0 => 0,
            one => (room / one).clamp(1, slots.max(1)).min(bytes / one),
        };
        let most: Vec<usize> = kinds()
            .map(|kind| {
                if is_state(kind) {
                    0
                } else {
                    self.per_slot(kind).saturating_mul(slots)
                }
            })
            .collect();
        let mut blocks = divide(bytes - states * one, sizes, &most);
        for (blocks, kind) in blocks.iter_mut().zip(kinds()) {
            if is_state(kind) {
                *blocks = states;
            }
        }
        blocks
    }
}

/// Equal numbers of blocks for all groups; what a group cannot use goes to the others.
fn divide(mut bytes: usize, sizes: &[usize], most: &[usize]) -> Vec<usize> {
    let mut blocks = vec![0; sizes.len()];
    let mut open: Vec<usize> = (0..sizes.len()).collect();
    while !open.is_empty() {
        let each = bytes / open.iter().map(|&g| sizes[g]).sum::<usize>().max(1);
        let full: Vec<usize> = open.iter().copied().filter(|&g| most[g] <= each).collect();
        if full.is_empty() {
            for &g in &open {
                blocks[g] = each;
            }
            break;
        }
        for &g in &full {
            blocks[g] = most[g];
            bytes -= most[g] * sizes[g];
        }
        open.retain(|g| !full.contains(g));
    }
    blocks
}

#[cfg(test)]
mod tests;
