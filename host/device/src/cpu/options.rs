//! What the CPU device is told at load.

use guesthouse_graph::Plan;

use super::kv::{CacheShape, RUN};
use crate::error::{DeviceError, Result};
use crate::kv_budget::Uses;

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
    pub(crate) fn blocks(&self, plan: &Plan, shapes: &[CacheShape]) -> Result<Vec<usize>> {
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
        let uses = Uses {
            block_size: self.block_size,
            max_step_tokens: self.max_step_tokens,
            max_slots: self.max_slots,
            max_len: self.max_len,
        };
        let blocks = match self.kv {
            KvBudget::Blocks(n) => vec![n as usize; plan.groups.len()],
            KvBudget::Bytes(bytes) => {
                let kinds: Vec<_> = plan.groups.iter().map(|g| g.spec.kind).collect();
                uses.blocks(&kinds, bytes, &group_bytes)
            }
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
