//! Copies of KV blocks (`kernels/kv/copy.cu`).

#![allow(unsafe_code)]

use std::sync::Arc;

use guesthouse_engine::BlockCopy;

use crate::cuda::compiler::Source;
use crate::cuda::driver::{Buffer, Gpu};
use crate::cuda::launch::{Grid, Kernel, Params};
use crate::error::Result;

/// Copies of one launch.
const MAX_COPIES: usize = 64;

/// 16-byte units that a block of threads copies.
const UNITS: u32 = 1024;

/// `BlockBuffer` of the kernel: keys or values of one layer.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, bytemuck::Pod, bytemuck::Zeroable)]
pub(crate) struct BlockBuffer {
    /// Address of block 0.
    pub data: u64,
    /// 16-byte units of a block.
    pub block: u64,
}

/// `KvCopyParams` of the kernel.
#[repr(C)]
#[derive(Clone, Copy)]
struct CopyParams {
    buffers: u64,
    copies: [[u32; 2]; MAX_COPIES],
}

// SAFETY: the kernel's structure; its address is that of a buffer which the copier holds.
unsafe impl Params for CopyParams {}

struct Group {
    /// `[layers * 2]` of [`BlockBuffer`].
    buffers: Buffer,
    count: u32,
    /// Units of the largest block.
    largest: u32,
}

/// Copies blocks in all layers of a group at once.
pub(crate) struct BlockCopier {
    kernel: Kernel,
    groups: Vec<Group>,
}

impl BlockCopier {
    /// For these buffers, by cache group.
    ///
    /// # Errors
    /// When memory is short.
    pub(crate) fn new(gpu: &Arc<Gpu>, groups: &[Vec<BlockBuffer>]) -> Result<Self> {
        let source = Source::new("kv/copy.cu", "copy_blocks").flag("MODEL_F32");
        let groups = groups.iter().map(|buffers| {
            Ok(Group {
                buffers: gpu.upload(bytemuck::cast_slice(buffers), "keys and values")?,
                count: buffers.len() as u32,
                largest: buffers.iter().map(|b| b.block).max().unwrap_or(0) as u32,
            })
        });
        Ok(Self {
            kernel: gpu.kernel(&source)?,
            groups: groups.collect::<Result<_>>()?,
        })
    }

    /// Enqueues copies in their order.
    ///
    /// # Errors
    /// When the driver refuses a launch.
    pub(crate) fn copy(&self, gpu: &Gpu, copies: &[BlockCopy]) -> Result<()> {
        for (index, group) in self.groups.iter().enumerate() {
            let pairs = copies
                .iter()
                .filter(|c| c.group.0 as usize == index)
                .map(|c| [c.from.0, c.to.0]);
            let mut together: Vec<[u32; 2]> = Vec::new();
            for pair in pairs {
                if together.len() == MAX_COPIES
                    || together.iter().any(|other| conflict(*other, pair))
                {
                    self.launch(gpu, group, &together)?;
                    together.clear();
                }
                together.push(pair);
            }
            self.launch(gpu, group, &together)?;
        }
        Ok(())
    }

    fn launch(&self, gpu: &Gpu, group: &Group, copies: &[[u32; 2]]) -> Result<()> {
        let mut params = CopyParams {
            buffers: group.buffers.address(),
            copies: [[0; 2]; MAX_COPIES],
        };
        params.copies[..copies.len()].copy_from_slice(copies);
        let chunks = group.largest.div_ceil(UNITS);
        let grid = Grid::new(chunks, 256).yz(group.count, copies.len() as u32);
        self.kernel.launch(gpu, grid, &params)
    }
}

/// Whether one copy writes what another reads or writes.
fn conflict([from, to]: [u32; 2], [later_from, later_to]: [u32; 2]) -> bool {
    to == later_from || to == later_to || from == later_to
}

#[cfg(test)]
mod tests;
