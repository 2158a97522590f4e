//! Keys, values and recurrent states on the GPU, and how much memory they get.

use std::sync::Arc;

use guesthouse_engine::BlockCopy;
use guesthouse_graph::{Plan, ValueLayout};

use super::compile::CacheShape;
use super::driver::{Buffer, Gpu};
use super::ops::CacheArgs;
use super::ops::kv::{BlockBuffer, BlockCopier};
use super::options::{CudaOptions, KvMemory};
use super::words::Words;
use crate::error::{DeviceError, Result};
use crate::kv_budget::Uses;

/// Left free for graphs, kernels that load later, and the driver.
const MARGIN: usize = 512 << 20;

/// What a model holds before its keys and values are allocated, bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Held {
    pub weights: usize,
    pub activations: usize,
    /// Free on the GPU before the model was loaded.
    pub free_before: usize,
}

/// Keys and values of all caches, and states, which stand where keys do.
pub(crate) struct Kv {
    buffer: Buffer,
    /// By cache: offset of keys and of values that are no part of them, and bytes of one block of each.
    parts: Vec<CacheParts>,
    copier: BlockCopier,
    /// Blocks of each group.
    pub blocks: Vec<usize>,
}

struct CacheParts {
    group: usize,
    keys: Part,
    values: Part,
}

struct Part {
    offset: usize,
    block: usize,
}

/// Sizes and allocates keys and values.
///
/// # Errors
/// When what is left does not hold one sequence of the greatest length.
pub(crate) fn allocate(
    gpu: &Arc<Gpu>,
    plan: &Plan,
    shapes: &[CacheShape],
    options: &CudaOptions,
    held: Held,
) -> Result<Kv> {
    let element = options.dtype.bytes();
    let block_bytes: Vec<usize> = plan
        .groups
        .iter()
        .map(|g| {
            let of = |c: &guesthouse_graph::CacheId| {
                let [keys, values] = shapes[c.index()].block_bytes(options.block_size, element);
                keys + values
            };
            g.caches.iter().map(of).sum()
        })
        .collect();
    let uses = Uses {
        block_size: options.block_size,
        max_step_tokens: options.max_step_tokens,
        max_slots: options.max_slots,
        max_len: options.max_len,
    };
    let kinds: Vec<_> = plan.groups.iter().map(|g| g.spec.kind).collect();
    let blocks = match options.kv {
        KvMemory::Blocks(n) => vec![n as usize; plan.groups.len()],
        KvMemory::Bytes(bytes) => uses.blocks(&kinds, bytes, &block_bytes),
        KvMemory::Utilization(share) => {
            let bytes = budget(gpu, share, held)?;
            uses.blocks(&kinds, bytes, &block_bytes)
        }
    };
    let need: Vec<usize> = plan
        .groups
        .iter()
        .map(|g| match options.kv {
            KvMemory::Blocks(_) => 1,
            _ => uses.per_slot(g.spec.kind),
        })
        .collect();
    if blocks.iter().zip(&need).any(|(have, need)| have < need) {
        let total = |counts: &[usize]| counts.iter().zip(&block_bytes).map(|(n, b)| n * b).sum();
        return Err(DeviceError::GpuMemory(too_little(
            gpu,
            options,
            held,
            (total(&blocks), total(&need)),
        )));
    }
    let mut offset = 0;
    let mut take = |block: usize, blocks: usize| {
        let part = Part { offset, block };
        offset += (block * blocks).next_multiple_of(1024);
        part
    };
    let parts: Vec<CacheParts> = shapes
        .iter()
        .map(|s| {
            let [keys, values] = s.block_bytes(options.block_size, element);
            CacheParts {
                group: s.group,
                keys: take(keys, blocks[s.group]),
                values: take(values, blocks[s.group]),
            }
        })
        .collect();
    // Zero, so that what a window's stale entries name is never NaN.
    let buffer = gpu.allocate_zeroed(offset, "keys and values")?;
    let buffers: Vec<Vec<BlockBuffer>> = (0..blocks.len())
        .map(|group| {
            let members = parts.iter().filter(|p| p.group == group);
            let both = members.flat_map(|p| [&p.keys, &p.values]);
            let stored = both.filter(|part| part.block > 0);
            stored
                .map(|part| BlockBuffer {
                    data: buffer.address() + part.offset as u64,
                    block: part.block as u64 / 16,
                })
                .collect()
        })
        .collect();
    Ok(Kv {
        copier: BlockCopier::new(gpu, &buffers)?,
        buffer,
        parts,
        blocks,
    })
}

/// The share of the whole memory that this model may use, less what it holds.
fn budget(gpu: &Gpu, share: f64, held: Held) -> Result<usize> {
    let total = gpu.properties.memory;
    let free = gpu.free_memory()?;
    let own = held.free_before.saturating_sub(free);
    let asked = (total as f64 * share) as usize;
    Ok(asked
        .saturating_sub(own)
        .saturating_sub(MARGIN)
        .min(free.saturating_sub(MARGIN)))
}

fn too_little(
    gpu: &Gpu,
    options: &CudaOptions,
    held: Held,
    (have, need): (usize, usize),
) -> String {
    let gib = |bytes: usize| format!("{:.2} GiB", bytes as f64 / f64::from(1 << 30));
    let share = match options.kv {
        KvMemory::Utilization(share) => format!(
            "--gpu-memory-utilization {share} allows {} of {}",
            gib((gpu.properties.memory as f64 * share) as usize),
            gib(gpu.properties.memory)
        ),
        KvMemory::Bytes(bytes) => format!("--kv-cache-memory-bytes is {bytes}"),
        KvMemory::Blocks(n) => format!("{n} blocks were asked for"),
    };
    format!(
        "too little GPU memory for keys and values: {share}; {} were free before loading, weights take {}, activations {}; \
         {} are left, and one sequence of {} tokens needs {}. Raise --gpu-memory-utilization, lower --max-model-len or \
         --max-num-batched-tokens, use a smaller or quantized model, or free what other programs hold",
        gib(held.free_before),
        gib(held.weights),
        gib(held.activations),
        gib(have),
        options.max_len,
        gib(need)
    )
}

impl Kv {
    /// Bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.buffer.bytes()
    }

    /// The kernels' view of each cache.
    pub(crate) fn args(
        &self,
        shapes: &[CacheShape],
        words: &Words,
        block_size: u32,
    ) -> Vec<CacheArgs> {
        let of = |(shape, parts): (&CacheShape, &CacheParts)| {
            let (tables, table_stride) = words.table(shape.group);
            let values = match shape.values {
                ValueLayout::Separate => &parts.values,
                ValueLayout::PrefixOfKey => &parts.keys,
            };
            CacheArgs {
                keys: self.buffer.address() + parts.keys.offset as u64,
                values: self.buffer.address() + values.offset as u64,
                tables,
                table_stride,
                heads: shape.heads as i32,
                k_dim: shape.k_dim as i32,
                v_dim: shape.v_dim as i32,
                block_size: block_size as i32,
                blocks: self.blocks[shape.group] as i32,
            }
        };
        shapes.iter().zip(&self.parts).map(of).collect()
    }

    /// Enqueues copies of blocks.
    ///
    /// # Errors
    /// When the GPU is lost.
    pub(crate) fn copy(&self, gpu: &Gpu, copies: &[BlockCopy]) -> Result<()> {
        self.copier.copy(gpu, copies)
    }
}
