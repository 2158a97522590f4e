//! Attention of rows of many tokens, by tensor cores over the paged cache (`kernels/attention/prefill_sm90.cu` on Hopper,
//! `kernels/attention/prefill.cu` elsewhere).
//!
//! A row's result is bitwise the same in every batch and chunk, so that the same kernel serves single tokens where results
//! must not depend on the batch. Floor: `2 (k_dim + v_dim)` operations per query head and visible (query, key) pair.

#![allow(unsafe_code)]

use std::sync::Arc;

use super::attention::{self, AttentionSpec};
use super::attention_generic::Which;
use super::{CacheArgs, Place, PlanSlot, Planners, Step, StepKind, Tensor};
use crate::cuda::compiler::Source;
use crate::cuda::driver::Gpu;
use crate::cuda::launch::{Grid, Kernel, Params};
use crate::cuda::options::CudaDtype;
use crate::cuda::tensor_map::{Dim, TensorMap};
use crate::cuda::weights::model_flag;
use crate::error::Result;

mod plan;

use plan::{ENTRY_WORDS, Geometry, PrefillPlanner};

/// `PrefillArgs` of the kernels.
#[repr(C)]
#[derive(Clone, Copy)]
struct PrefillArgs {
    out: Tensor,
    plan: u64,
    tables: u64,
    slopes: u64,
    sinks: u64,
    table_stride: i32,
    kv_heads: i32,
    window: i32,
    scale: f32,
    softcap: f32,
    unused: i32,
}

/// `PrefillSm90Params` of the kernel.
#[repr(C)]
#[derive(Clone, Copy)]
struct HopperParams {
    q: TensorMap,
    k: TensorMap,
    v: TensorMap,
    args: PrefillArgs,
}

// SAFETY: the kernel's structure; its addresses are those of the step's arenas, caches and plan.
unsafe impl Params for HopperParams {}

/// `PrefillParams` of the kernel.
#[repr(C)]
#[derive(Clone, Copy)]
struct AmpereParams {
    q: Tensor,
    keys: u64,
    values: u64,
    args: PrefillArgs,
}

// SAFETY: likewise.
unsafe impl Params for AmpereParams {}

/// Largest head that the kernels have registers for.
const MAX_DIM: u32 = 256;

/// Which of the two kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Isa {
    /// wgmma and tensor copies.
    Hopper,
    /// mma.sync and cp.async.
    Ampere,
}

/// A kernel's blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shape {
    isa: Isa,
    /// Warpgroups or warps that have query rows: `QUERY_GROUPS` or `QUERY_WARPS`.
    teams: u32,
    /// Tiles of keys, and of values, in flight.
    stages: u32,
    /// Query rows of a block.
    rows: u32,
    /// Positions of a tile of keys.
    kv_tile: u32,
    threads: u32,
    /// Dynamic shared memory, bytes.
    shared: u32,
}

impl Shape {
    /// 64 query rows a warpgroup; two or three tiles of keys and of values in flight, and two of queries where they fit.
    fn hopper(spec: &AttentionSpec) -> Self {
        let largest = spec.k_dim.max(spec.v_dim);
        let (teams, stages, kv_tile) = match largest {
            0..=64 => (3, 3, 128),
            65..=128 => (2, 2, 128),
            129..=192 => (2, 2, 96),
            _ => (2, 2, 64),
        };
        let rows = 64 * teams;
        // Panels of 64 columns, lines of 128 bytes; the tiles are aligned to 1 KiB.
        let (k_line, v_line) = (spec.k_dim.div_ceil(64) * 128, spec.v_dim.div_ceil(64) * 128);
        let shared =
            |q_stages: u32| 1024 + q_stages * rows * k_line + stages * kv_tile * (k_line + v_line);
        Self {
            isa: Isa::Hopper,
            teams,
            stages,
            rows,
            kv_tile,
            threads: 128 * (teams + 1),
            shared: if shared(2) <= 226 << 10 {
                shared(2)
            } else {
                shared(1)
            },
        }
    }

    /// 16 or 32 query rows a warp, one tile of keys and one of values.
    fn ampere(spec: &AttentionSpec) -> Self {
        let largest = spec.k_dim.max(spec.v_dim);
        let tall = if largest <= 128 { 2 } else { 1 };
        let kv_tile = match largest {
            0..=64 => 64,
            65..=128 => 32,
            _ if spec.k_dim + spec.v_dim <= 448 => 64,
            _ => 48,
        };
        let group = spec.heads / spec.kv_heads;
        let teams = if group <= 64 * tall { 4 } else { 8 };
        let rows = 16 * tall * teams;
        let line = |dim: u32| dim.div_ceil(16) * 32 + 16;
        Self {
            isa: Isa::Ampere,
            teams,
            stages: 1,
            rows,
            kv_tile,
            threads: 32 * teams,
            shared: (rows + kv_tile) * line(spec.k_dim) + kv_tile * line(spec.v_dim),
        }
    }

    /// A kernel's blocks; none where it does not compute such attention here.
    fn of(isa: Isa, gpu: &Gpu, spec: &AttentionSpec) -> Option<Self> {
        let fits = |dim: u32| dim.is_multiple_of(8) && (8..=MAX_DIM).contains(&dim);
        let runs = match isa {
            Isa::Hopper => gpu.properties.is_hopper(),
            Isa::Ampere => gpu.properties.capability >= (8, 0),
        };
        let possible = runs
            && spec.dtype != CudaDtype::F32
            && fits(spec.k_dim)
            && fits(spec.v_dim)
            && spec.q.is_aligned()
            && spec.y.is_aligned()
            && spec.block_size.is_multiple_of(16);
        let shape = match isa {
            Isa::Hopper => Self::hopper(spec),
            Isa::Ampere => Self::ampere(spec),
        };
        // Barriers take some more.
        let shared = shape.shared + 512;
        let fits =
            spec.heads / spec.kv_heads <= shape.rows && shared <= gpu.properties.shared_per_block;
        (possible && fits).then_some(shape)
    }

    /// The best kernel that computes such attention here.
    fn best(gpu: &Gpu, spec: &AttentionSpec) -> Option<Self> {
        Self::of(Isa::Hopper, gpu, spec).or_else(|| Self::of(Isa::Ampere, gpu, spec))
    }

    fn source(&self, spec: &AttentionSpec) -> Source {
        let (file, entry, teams) = match self.isa {
            Isa::Hopper => ("attention/prefill_sm90.cu", "prefill_sm90", "QUERY_GROUPS"),
            Isa::Ampere => ("attention/prefill.cu", "prefill", "QUERY_WARPS"),
        };
        let mut source = Source::new(file, entry)
            .flag(model_flag(spec.dtype))
            .define("K_DIM", spec.k_dim)
            .define("V_DIM", spec.v_dim)
            .define("GROUP", spec.heads / spec.kv_heads)
            .define("BLOCK_SIZE", spec.block_size)
            .define("KV_TILE", self.kv_tile)
            .define(teams, self.teams);
        source = match self.isa {
            Isa::Hopper => source.define("STAGES", self.stages),
            Isa::Ampere => source.define("TALL", self.rows / (16 * self.teams)),
        };
        spec.features(source)
    }
}

/// Prefill attention of one layer.
pub(crate) struct Prefill {
    kernel: Kernel,
    shape: Shape,
    plan: PlanSlot,
    cache: usize,
    heads: u32,
    kv_heads: u32,
    k_dim: u32,
    v_dim: u32,
    block_size: u32,
    dtype: CudaDtype,
    q: Place,
    y: Place,
    scale: f32,
    softcap: f32,
    window: i32,
    alibi: u64,
    sinks: u64,
}

impl Prefill {
    /// The kernel for some of a layer's rows; none where neither computes such attention.
    ///
    /// # Errors
    /// When the kernel is missing.
    pub(crate) fn new(
        gpu: &Arc<Gpu>,
        spec: &AttentionSpec,
        which: Which,
        planners: &mut Planners,
    ) -> Result<Option<Self>> {
        match Shape::best(gpu, spec) {
            Some(shape) => Self::shaped(shape, gpu, spec, which, planners).map(Some),
            None => Ok(None),
        }
    }

    /// One of the two kernels; none where it does not compute such attention here.
    ///
    /// # Errors
    /// When the kernel is missing.
    pub(crate) fn of(
        isa: Isa,
        gpu: &Arc<Gpu>,
        spec: &AttentionSpec,
        which: Which,
        planners: &mut Planners,
    ) -> Result<Option<Self>> {
        match Shape::of(isa, gpu, spec) {
            Some(shape) => Self::shaped(shape, gpu, spec, which, planners).map(Some),
            None => Ok(None),
        }
    }

    fn shaped(
        shape: Shape,
        gpu: &Arc<Gpu>,
        spec: &AttentionSpec,
        which: Which,
        planners: &mut Planners,
    ) -> Result<Self> {
        let geometry = Geometry {
            tokens: shape.rows / (spec.heads / spec.kv_heads),
            kv_tile: shape.kv_tile,
            window: spec.window,
            which,
            kv_heads: spec.kv_heads,
            position_bytes: (spec.k_dim + spec.v_dim) * spec.dtype.bytes() as u32,
            // Queries and results pass through L2 beside keys and values, and each half of it keeps its own copy.
            section_bytes: gpu.properties.l2 as u64 / 3,
        };
        Ok(Self {
            kernel: gpu.kernel(&shape.source(spec))?,
            shape,
            plan: planners.share(format!("prefill {geometry:?}"), || {
                Box::new(PrefillPlanner::new(geometry))
            }),
            cache: spec.cache,
            heads: spec.heads,
            kv_heads: spec.kv_heads,
            k_dim: spec.k_dim,
            v_dim: spec.v_dim,
            block_size: spec.block_size,
            dtype: spec.dtype,
            q: spec.q,
            y: spec.y,
            scale: spec.scale,
            softcap: spec.softcap.unwrap_or(0.0),
            window: spec
                .window
                .map_or(0, |w| i32::try_from(w).unwrap_or(i32::MAX)),
            alibi: spec.alibi.unwrap_or(0),
            sinks: spec.sinks.unwrap_or(0),
        })
    }

    /// Keys or values of a cache, in boxes of 16 positions of one head and 64 columns.
    fn cache_map(&self, address: u64, dim: u32, blocks: i32) -> Result<TensorMap> {
        let (dim, block) = (u64::from(dim), u64::from(self.block_size));
        let line = |stride, len, tile| Dim { len, stride, tile };
        TensorMap::swizzled(
            self.dtype,
            address,
            [
                line(0, dim, 64),
                line(2 * dim, block, 16),
                line(2 * dim * block, blocks as u64 * u64::from(self.kv_heads), 1),
            ],
        )
    }

    fn launch_hopper(
        &self,
        step: &Step<'_>,
        grid: Grid,
        cache: &CacheArgs,
        args: PrefillArgs,
    ) -> Result<()> {
        let q = step.tensor(&self.q);
        let group = self.heads / self.kv_heads;
        let q = TensorMap::swizzled(
            self.dtype,
            q.data,
            [
                Dim {
                    len: u64::from(self.k_dim),
                    stride: 0,
                    tile: 64,
                },
                Dim {
                    len: u64::from(self.heads),
                    stride: 2 * u64::from(self.k_dim),
                    tile: group,
                },
                Dim {
                    len: u64::from(step.rows(self.q.arena)),
                    stride: 2 * q.stride as u64,
                    tile: self.shape.rows / group,
                },
            ],
        )?;
        let params = HopperParams {
            q,
            k: self.cache_map(cache.keys, self.k_dim, cache.blocks)?,
            v: self.cache_map(cache.values, self.v_dim, cache.blocks)?,
            args,
        };
        self.kernel.launch(step.gpu, grid, &params)
    }
}

impl attention::Kernel for Prefill {
    fn launch(&self, step: &Step<'_>) -> Result<()> {
        let plan = step.plan(self.plan);
        let Some(cache) = step.caches.get(self.cache) else {
            return Ok(());
        };
        // A captured graph is replayed with other plans of as many rows.
        let entries = match step.kind {
            StepKind::Decode => step.batch.row_count as u32,
            StepKind::Mixed => (plan.words / ENTRY_WORDS).saturating_sub(1),
        };
        let shape = self.shape;
        let resident = match shape.isa {
            Isa::Hopper => 1,
            Isa::Ampere => self
                .kernel
                .blocks_per_multiprocessor(shape.threads, shape.shared)?
                .max(1),
        };
        let blocks = (entries * self.kv_heads).min(resident * step.gpu.properties.multiprocessors);
        let grid = Grid::new(blocks, shape.threads).shared(shape.shared);
        let args = PrefillArgs {
            out: step.tensor(&self.y),
            plan: plan.address,
            tables: cache.tables,
            slopes: self.alibi,
            sinks: self.sinks,
            table_stride: cache.table_stride,
            kv_heads: self.kv_heads as i32,
            window: self.window,
            scale: self.scale,
            softcap: self.softcap,
            unused: 0,
        };
        match shape.isa {
            Isa::Hopper => self.launch_hopper(step, grid, cache, args),
            Isa::Ampere => {
                let params = AmpereParams {
                    q: step.tensor(&self.q),
                    keys: cache.keys,
                    values: cache.values,
                    args,
                };
                self.kernel.launch(step.gpu, grid, &params)
            }
        }
    }
}
