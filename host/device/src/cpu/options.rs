//! What the CPU device is told at load.

use guesthouse_graph::{CacheKind, Plan};

use super::kv::{KvShape, RUN};
use crate::error::{DeviceError, Result};

/// Memory for keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvBudget {
    /// So many bytes, divided among the groups.
    Bytes(usize),
    /// So many blocks in each group.
    Blocks(u32),
}

/// Sizes of a CPU device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuOptions {
    /// Threads that compute, the device's own among them; 0 takes as many as the machine runs at once.
    pub threads: usize,
    /// Memory for keys and values.
    pub kv: KvBudget,
    /// Positions per block, a multiple of 16.
    pub block_size: u32,
    /// Most tokens in one step.
    pub max_step_tokens: u32,
    /// Sequences that can run at once.
    pub max_slots: u32,
    /// Longest sequence, tokens.
    pub max_len: u32,
}

impl Default for CpuOptions {
    fn default() -> Self {
        Self {
            threads: 0,
            kv: KvBudget::Bytes(1 << 30),
            block_size: RUN as u32,
            max_step_tokens: 2048,
            max_slots: 64,
            max_len: 8192,
        }
    }
}

impl CpuOptions {
    pub(crate) fn check(&self) -> Result<()> {
        let option = |option, ok: bool, expected: &str, found: u32| {
            let (expected, found) = (expected.to_owned(), found.to_string());
            if ok {
                Ok(())
            } else {
                Err(DeviceError::Option {
                    option,
                    expected,
                    found,
                })
            }
        };
        let sizes = self.block_size > 0
            && self.block_size.is_multiple_of(RUN as u32)
            && self.block_size <= 4096;
        option(
            "block_size",
            sizes,
            "a multiple of 16 up to 4096",
            self.block_size,
        )?;
        option(
            "max_step_tokens",
            (1..=1 << 20).contains(&self.max_step_tokens),
            "1 to 1048576",
            self.max_step_tokens,
        )?;
        option(
            "max_slots",
            (1..=1 << 16).contains(&self.max_slots),
            "1 to 65536",
            self.max_slots,
        )?;
        option(
            "max_len",
            (1..=1 << 30).contains(&self.max_len),
            "1 to 1073741824",
            self.max_len,
        )
    }

    pub(crate) fn worker_count(&self) -> usize {
        match self.threads {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            n => n.min(1024),
        }
    }

    /// Blocks of each group.
    pub(crate) fn blocks(&self, plan: &Plan, shapes: &[KvShape]) -> Result<Vec<usize>> {
        let group_bytes: Vec<usize> = plan
            .groups
            .iter()
            .map(|g| {
                g.caches
                    .iter()
                    .map(|c| 4 * shapes[c.index()].block_floats())
                    .sum()
            })
            .collect();
        // More than this a group cannot use: every slot at its longest.
        let block = self.block_size as usize;
        let per_slot = |kind: CacheKind| {
            let positions = match kind {
                CacheKind::Window { window } => {
                    (window as usize + self.max_step_tokens as usize + 2 * block)
                        .min(self.max_len as usize)
                }
                CacheKind::Full | CacheKind::Recurrent { .. } => self.max_len as usize,
            };
            positions.div_ceil(block) + 1
        };
        let most: Vec<usize> = plan
            .groups
            .iter()
            .map(|g| per_slot(g.spec.kind).saturating_mul(self.max_slots as usize))
            .collect();
        let blocks = match self.kv {
            KvBudget::Blocks(n) => vec![n as usize; plan.groups.len()],
            KvBudget::Bytes(bytes) => divide(bytes, &group_bytes, &most),
        };
        if blocks.contains(&0) {
            let expected = format!(
                "at least {} for a block in each cache group",
                group_bytes.iter().sum::<usize>()
            );
            return Err(DeviceError::Option {
                option: "kv",
                expected,
                found: format!("{:?}", self.kv),
            });
        }
        Ok(blocks)
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
