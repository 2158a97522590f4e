//! Attention of any element type and head size, without tensor cores (`kernels/attention/generic.cu`).
//!
//! A row's result is bitwise the same in every batch and chunk. Floor: the visible keys and values of each token, read
//! once per four query heads; it is meant for shapes that no other kernel takes.

#![allow(unsafe_code)]

use std::sync::Arc;

use guesthouse_graph::ValueLayout;

use super::attention::{self, AttentionSpec};
use super::{BatchArgs, CacheArgs, Place, Step, Tensor};
use crate::cuda::compiler::Source;
use crate::cuda::driver::Gpu;
use crate::cuda::launch::{Grid, Kernel, Params};
use crate::cuda::weights::model_flag;
use crate::error::Result;

/// `AttentionGenericParams` of the kernel.
#[repr(C)]
#[derive(Clone, Copy)]
struct GenericParams {
    q: Tensor,
    out: Tensor,
    cache: CacheArgs,
    batch: BatchArgs,
    slopes: u64,
    sinks: u64,
    scale: f32,
    softcap: f32,
    window: i32,
    which: i32,
}

// SAFETY: the kernel's structure; its addresses are those of the step's arenas, caches and description.
unsafe impl Params for GenericParams {}

/// Largest key and value.
const MAX_DIMS: (u32, u32) = (1024, 512);

/// Query heads of a block, `HEADS` of the kernel.
const HEADS: u32 = 4;

/// Threads of a block.
const THREADS: u32 = 256;

/// Rows that a launch computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Which {
    /// Those of one token.
    Single,
    /// Those of several.
    Long,
}

/// Generic attention of one layer.
pub(crate) struct Generic {
    kernel: Kernel,
    which: Which,
    /// Blocks per token.
    parts: u32,
    cache: usize,
    q: Place,
    y: Place,
    scale: f32,
    softcap: f32,
    window: i32,
    alibi: u64,
    sinks: u64,
}

impl Generic {
    /// The kernel for a layer; none when a head is larger than [`MAX_DIMS`].
    ///
    /// # Errors
    /// When the kernel is missing.
    pub(crate) fn new(gpu: &Arc<Gpu>, spec: &AttentionSpec, which: Which) -> Result<Option<Self>> {
        if spec.k_dim > MAX_DIMS.0 || spec.v_dim > MAX_DIMS.1 {
            return Ok(None);
        }
        let group = spec.heads / spec.kv_heads;
        let mut source = Source::new("attention/generic.cu", "attention_generic")
            .flag(model_flag(spec.dtype))
            .define("K_DIM", spec.k_dim)
            .define("V_DIM", spec.v_dim)
            .define("GROUP", group);
        if spec.values == ValueLayout::PrefixOfKey {
            source = source.define("V_PITCH", spec.k_dim);
        }
        source = spec.features(source);
        Ok(Some(Self {
            kernel: gpu.kernel(&source)?,
            which,
            parts: spec.kv_heads * group.div_ceil(HEADS.min(group)),
            cache: spec.cache,
            q: spec.q,
            y: spec.y,
            scale: spec.scale,
            softcap: spec.softcap.unwrap_or(0.0),
            window: spec
                .window
                .map_or(0, |w| i32::try_from(w).unwrap_or(i32::MAX)),
            alibi: spec.alibi.unwrap_or(0),
            sinks: spec.sinks.unwrap_or(0),
        }))
    }
}

impl attention::Kernel for Generic {
    fn launch(&self, step: &Step<'_>) -> Result<()> {
        let Some(cache) = step.caches.get(self.cache).copied() else {
            return Ok(());
        };
        let params = GenericParams {
            q: step.tensor(&self.q),
            out: step.tensor(&self.y),
            cache,
            batch: step.batch,
            slopes: self.alibi,
            sinks: self.sinks,
            scale: self.scale,
            softcap: self.softcap,
            window: self.window,
            which: match self.which {
                Which::Single => 1,
                Which::Long => 2,
            },
        };
        let grid = Grid::new(step.batch.token_count as u32, THREADS).yz(self.parts, 1);
        self.kernel.launch(step.gpu, grid, &params)
    }
}
