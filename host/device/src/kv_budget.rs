//! How memory for keys and values is divided among cache groups.

use guesthouse_graph::{CacheKind, Plan};

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
            CacheKind::Window { window } => {
                let seen = window as usize + self.max_step_tokens as usize + 2 * block;
                seen.min(self.max_len as usize)
            }
            CacheKind::Full | CacheKind::Recurrent { .. } => self.max_len as usize,
        };
        positions.div_ceil(block) + 1
    }

    /// Blocks that each group can use: every slot at its longest.
    pub(crate) fn most(&self, plan: &Plan) -> Vec<usize> {
        let of = |kind| self.per_slot(kind).saturating_mul(self.max_slots as usize);
        plan.groups.iter().map(|g| of(g.spec.kind)).collect()
    }
}

/// Equal numbers of blocks for all groups; what a group cannot use goes to the others.
pub(crate) fn divide(mut bytes: usize, sizes: &[usize], most: &[usize]) -> Vec<usize> {
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
