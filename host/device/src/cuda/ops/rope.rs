//! Rotary embeddings and writing keys and values (`kernels/rope`, `kernels/input/places.cu`).
//!
//! Cosines and sines of a step's tokens are made once per distinct rope, and the places of their keys and values once per
//! cache group; all layers use them.

#![allow(unsafe_code)]

use std::sync::Arc;

use guesthouse_graph::{NormRounding, Rope, RopeStyle, ValueLayout};

use super::input::Ints;
use super::{Instr, Place, Step, Tensor, access};
use crate::cpu::rope::{Frequencies, frequencies};
use crate::cuda::compiler::Source;
use crate::cuda::driver::{Buffer, Gpu};
use crate::cuda::launch::{Grid, Kernel, Params};
use crate::cuda::options::CudaDtype;
use crate::cuda::weights::{VectorType, model_flag};
use crate::error::{DeviceError, Result};

/// `RopeTableParams` of the kernel.
#[repr(C)]
#[derive(Clone, Copy)]
struct TableParams {
    table: u64,
    frequencies: u64,
    longer: u64,
    positions: Tensor,
    place: u64,
    row_of: u64,
    prompt_len: u64,
    admitted_len: u64,
    tokens: i32,
    half: i32,
    kind: i32,
    theta: f32,
    factor: f32,
    original: f32,
    attention_factor: f32,
    padding: i32,
}

// SAFETY: the kernel's structure; its addresses are those of the step's description and of buffers that the instruction
// holds.
unsafe impl Params for TableParams {}

/// Threads of the kernel that makes a table.
const TABLE_THREADS: u32 = 256;

/// Fills a table of cosines and sines, `[tokens, 2, rotary / 2]` f32.
pub(crate) struct RopeTable {
    kernel: Kernel,
    table: Arc<Buffer>,
    /// Frequencies, and the second set of those that have two.
    sets: [Option<Buffer>; 2],
    positions: Ints,
    axis: usize,
    half: u32,
    kind: i32,
    theta: f32,
    factor: f32,
    original: f32,
    attention_factor: f32,
}

impl RopeTable {
    /// A table for steps of up to `tokens` tokens. `factors` are those of [`guesthouse_graph::RopeScaling::Factors`].
    ///
    /// # Errors
    /// When memory is short.
    pub(crate) fn new(
        gpu: &Arc<Gpu>,
        rope: &Rope,
        factors: Option<&[f32]>,
        positions: Ints,
        tokens: u32,
    ) -> Result<Self> {
        let half = rope.rotary / 2;
        let (found, attention_factor) = frequencies(rope, factors);
        let upload = |f: &[f32]| gpu.upload(bytemuck::cast_slice(f), "rope frequencies");
        let mut sets = [None, None];
        let (mut theta, mut factor, mut original) = (0.0, 0.0, 0.0);
        let kind = match &found {
            Frequencies::Fixed(f) => {
                sets[0] = Some(upload(f)?);
                0
            }
            Frequencies::Dynamic {
                theta: t,
                factor: f,
                original: o,
            } => {
                (theta, factor, original) = (*t, *f, *o);
                1
            }
            Frequencies::DynamicQwen {
                theta: t,
                original: o,
            } => {
                (theta, original) = (*t, *o);
                2
            }
            Frequencies::Long {
                short,
                long,
                original: o,
            } => {
                sets = [Some(upload(short)?), Some(upload(long)?)];
                original = *o as f32;
                3
            }
        };
        let source = Source::new("rope/table.cu", "rope_table").flag("MODEL_F32");
        let bytes = tokens as usize * 2 * half as usize * 4;
        Ok(Self {
            kernel: gpu.kernel(&source)?,
            table: Arc::new(gpu.allocate(bytes, "rope tables")?),
            sets,
            positions,
            axis: rope.axis as usize,
            half,
            kind,
            theta,
            factor,
            original,
            attention_factor,
        })
    }

    /// What it fills.
    pub(crate) fn table(&self) -> Arc<Buffer> {
        Arc::clone(&self.table)
    }
}

impl Instr for RopeTable {
    fn launch(&self, step: &Step<'_>) -> Result<()> {
        let address = |b: &Option<Buffer>| b.as_ref().map_or(0, Buffer::address);
        let mut positions = self.positions.tensor(step);
        positions.data += 4 * self.axis as u64;
        let tokens = step.batch.token_count;
        let params = TableParams {
            table: self.table.address(),
            frequencies: address(&self.sets[0]),
            longer: address(&self.sets[1]),
            positions,
            place: step.batch.positions,
            row_of: step.batch.row_of,
            prompt_len: step.batch.prompt_len,
            admitted_len: step.batch.admitted_len,
            tokens,
            half: self.half as i32,
            kind: self.kind,
            theta: self.theta,
            factor: self.factor,
            original: self.original,
            attention_factor: self.attention_factor,
            padding: 0,
        };
        let blocks = (tokens as u64 * u64::from(self.half)).div_ceil(u64::from(TABLE_THREADS));
        self.kernel
            .launch(step.gpu, Grid::new(blocks as u32, TABLE_THREADS), &params)
    }

    fn name(&self) -> &'static str {
        "rope table"
    }
}

/// Groups of one launch of [`Places`].
const MAX_GROUPS: usize = 8;

/// `PlacesParams` of the kernel.
#[repr(C)]
#[derive(Clone, Copy)]
struct PlacesParams {
    tables: [u64; MAX_GROUPS],
    places: [u64; MAX_GROUPS],
    positions: u64,
    row_of: u64,
    slot: u64,
    table_stride: i32,
    block_size: i32,
    tokens: i32,
    padding: i32,
}

// SAFETY: the kernel's structure; its addresses are those of the step's description and of a buffer that the instruction
// holds.
unsafe impl Params for PlacesParams {}

/// Says where each token's keys and values go, by cache group.
pub(crate) struct Places {
    kernel: Kernel,
    /// By group that is written: a cache of it, and `[tokens]` i32.
    groups: Vec<(usize, Arc<Buffer>)>,
}

impl Places {
    /// Places for steps of up to `tokens` tokens; `caches` has one cache of each group.
    ///
    /// # Errors
    /// When memory is short.
    pub(crate) fn new(gpu: &Arc<Gpu>, caches: &[usize], tokens: u32) -> Result<Self> {
        let source = Source::new("input/places.cu", "kv_places").flag("MODEL_F32");
        let groups = caches.iter().map(|&cache| {
            let buffer = gpu.allocate(4 * tokens as usize, "cache places")?;
            Ok((cache, Arc::new(buffer)))
        });
        Ok(Self {
            kernel: gpu.kernel(&source)?,
            groups: groups.collect::<Result<_>>()?,
        })
    }

    /// What it fills, in the order of the caches it was made with.
    pub(crate) fn places(&self) -> Vec<Arc<Buffer>> {
        self.groups.iter().map(|(_, b)| Arc::clone(b)).collect()
    }
}

impl Instr for Places {
    fn launch(&self, step: &Step<'_>) -> Result<()> {
        for groups in self.groups.chunks(MAX_GROUPS) {
            let mut params = PlacesParams {
                tables: [0; MAX_GROUPS],
                places: [0; MAX_GROUPS],
                positions: step.batch.positions,
                row_of: step.batch.row_of,
                slot: step.batch.slot,
                table_stride: 0,
                block_size: 0,
                tokens: step.batch.token_count,
                padding: 0,
            };
            for (i, (cache, places)) in groups.iter().enumerate() {
                let Some(cache) = step.caches.get(*cache) else {
                    return Err(DeviceError::plan("a step without caches writes keys"));
                };
                params.tables[i] = cache.tables;
                params.places[i] = places.address();
                params.table_stride = cache.table_stride;
                params.block_size = cache.block_size;
            }
            let blocks = (params.tokens as u32).div_ceil(128);
            let grid = Grid::new(blocks, 128).yz(groups.len() as u32, 1);
            self.kernel.launch(step.gpu, grid, &params)?;
        }
        Ok(())
    }

    fn name(&self) -> &'static str {
        "cache places"
    }
}

/// `RopeParams` of the kernel.
#[repr(C)]
#[derive(Clone, Copy)]
struct RopeParams {
    q: Tensor,
    q_out: Tensor,
    k: Tensor,
    v: Tensor,
    table: u64,
    places: u64,
    keys: u64,
    values: u64,
    tokens: i32,
    heads: i32,
    kv_heads: i32,
    eps: f32,
    q_weight: u64,
    k_weight: u64,
    offset: f32,
    padding: i32,
}

// SAFETY: the kernel's structure; its addresses are those of the step's arenas and caches, and of buffers that the
// instruction holds.
unsafe impl Params for RopeParams {}

/// How heads rotate.
#[derive(Clone)]
pub(crate) struct Rotation {
    /// Made by [`RopeTable`].
    pub table: Arc<Buffer>,
    pub rotary: usize,
    /// First rotated element of a head.
    pub start: usize,
    pub style: RopeStyle,
}

/// Where keys and values are written.
#[derive(Clone)]
pub(crate) struct Writing {
    /// Index into [`Step::caches`].
    pub cache: usize,
    /// Made by [`Places`].
    pub places: Arc<Buffer>,
    pub kv_heads: usize,
    /// Elements of k, and of v. Where values are the prefix of keys, k is what follows them.
    pub k_dim: usize,
    pub v_dim: usize,
    pub values: ValueLayout,
    pub block_size: u32,
    pub k: Place,
    pub v: Place,
}

/// Root-mean-square norm of each head before it rotates, with one weight for all heads of q and one for those of k.
#[derive(Clone)]
pub(crate) struct HeadNorm {
    /// `[d]`
    pub q_weight: Arc<Buffer>,
    /// `[d]`
    pub k_weight: Arc<Buffer>,
    pub weight_type: VectorType,
    pub eps: f32,
    pub offset: f32,
    pub rounding: NormRounding,
}

/// What is rotated, and what is written.
#[derive(Clone, Default)]
pub(crate) struct RotateSpec {
    /// Without it, keys are written as they are.
    pub rotation: Option<Rotation>,
    /// Value, result and length of a head.
    pub q: Option<(Place, Place, usize)>,
    pub write: Option<Writing>,
    /// Only where [`can_normalise`] allows it.
    pub norm: Option<HeadNorm>,
}

/// Elements of an access, and work items of a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RotateShape {
    vec: usize,
    head: usize,
}

impl RotateShape {
    fn new(
        places: &[&Place],
        (d, v_dim): (usize, usize),
        (rotary, start): (usize, usize),
        style: RopeStyle,
    ) -> Self {
        let interleaved = style == RopeStyle::Interleaved;
        let half = if interleaved { rotary } else { rotary / 2 };
        let widest = access::elements(places, &[d, v_dim, rotary, start, half]);
        // One access has one width here: the smallest that all types allow.
        let vec = places
            .iter()
            .map(|p| widest.min(16 / p.element))
            .min()
            .unwrap_or(1);
        let pairs = if interleaved { (vec / 2).max(1) } else { vec };
        Self {
            vec,
            head: rotary / 2 / pairs + (d - rotary) / vec,
        }
    }
}

/// Whether heads can be normalised on the way: they rotate whole, and the threads of one are part of a warp.
pub(crate) fn can_normalise(rope: &Rope, d: usize, v_dim: usize, places: &[&Place]) -> bool {
    let whole = rope.rotary as usize == d && rope.start == 0;
    let shape = RotateShape::new(places, (d, v_dim), (d, 0), rope.style);
    whole && shape.head.is_power_of_two() && shape.head <= 32
}

/// Rotates a value, and keys on their way to the cache.
pub(crate) struct Rotate {
    kernel: Kernel,
    spec: RotateSpec,
    /// Work items of a token.
    items: usize,
}

impl Rotate {
    /// The kernel for a rotation of q into its result, of keys that are written, or both.
    ///
    /// # Errors
    /// When nothing is rotated or written, or the kernel is missing.
    pub(crate) fn new(gpu: &Arc<Gpu>, dtype: CudaDtype, spec: RotateSpec) -> Result<Self> {
        let RotateSpec {
            rotation,
            q,
            write,
            norm,
        } = &spec;
        let d = q.as_ref().map(|q| q.2).or(write.as_ref().map(|w| w.k_dim));
        let d = d.ok_or_else(|| DeviceError::plan("a rotation of nothing"))?;
        if write.as_ref().is_some_and(|w| w.k_dim != d) {
            return Err(DeviceError::plan("query and key heads differ in length"));
        }
        let v_dim = write.as_ref().map_or(0, |w| w.v_dim);
        let (rotary, start, style) = rotation
            .as_ref()
            .map_or((0, 0, RopeStyle::Neox), |r| (r.rotary, r.start, r.style));
        let mut places = Vec::new();
        places.extend(q.iter().flat_map(|(x, y, _)| [x, y]));
        places.extend(write.iter().flat_map(|w| [&w.k, &w.v]));
        let shape = RotateShape::new(&places, (d, v_dim), (rotary, start), style);
        let mut source = match places.first() {
            Some(value) => access::source("rope/rope.cu", "rope", dtype, value),
            None => Source::new("rope/rope.cu", "rope").flag(model_flag(dtype)),
        };
        source = source
            .define("K_DIM", d)
            .define("V_DIM", v_dim)
            .define("ROTARY", rotary)
            .define("ROPE_START", start)
            .define("BLOCK_SIZE", write.as_ref().map_or(16, |w| w.block_size))
            .define("VEC", shape.vec);
        let first = norm.as_ref().map(|n| n.rounding) == Some(NormRounding::CastThenWeight);
        let wide = norm.as_ref().map(|n| n.weight_type) == Some(VectorType::F32);
        let prefix = write.as_ref().map(|w| w.values) == Some(ValueLayout::PrefixOfKey);
        let flags = [
            ("PREFIX", prefix),
            ("INTERLEAVED", style == RopeStyle::Interleaved),
            ("HEAD_NORM", norm.is_some()),
            ("ROUND_FIRST", first),
            ("WEIGHT_F32", wide && dtype != CudaDtype::F32),
        ];
        for (flag, _) in flags.into_iter().filter(|(_, set)| *set) {
            source = source.flag(flag);
        }
        let heads = q.as_ref().map_or(0, |(x, _, d)| x.width / d);
        let kv_heads = write.as_ref().map_or(0, |w| w.kv_heads);
        Ok(Self {
            kernel: gpu.kernel(&source)?,
            items: (heads + kv_heads) * shape.head + kv_heads * v_dim / shape.vec,
            spec,
        })
    }
}

impl Instr for Rotate {
    fn launch(&self, step: &Step<'_>) -> Result<()> {
        let none = Tensor { data: 0, stride: 0 };
        let spec = &self.spec;
        let mut params = RopeParams {
            q: none,
            q_out: none,
            k: none,
            v: none,
            table: spec.rotation.as_ref().map_or(0, |r| r.table.address()),
            places: 0,
            keys: 0,
            values: 0,
            tokens: step.batch.token_count,
            heads: 0,
            kv_heads: 0,
            eps: 0.0,
            q_weight: 0,
            k_weight: 0,
            offset: 0.0,
            padding: 0,
        };
        if let Some(norm) = &spec.norm {
            params.eps = norm.eps;
            params.q_weight = norm.q_weight.address();
            params.k_weight = norm.k_weight.address();
            params.offset = norm.offset;
        }
        if let Some((x, y, d)) = &spec.q {
            params.q = step.tensor(x);
            params.q_out = step.tensor(y);
            params.heads = (x.width / d) as i32;
        }
        if let Some(write) = &spec.write {
            let Some(cache) = step.caches.get(write.cache) else {
                return Err(DeviceError::plan("a step without caches writes keys"));
            };
            params.k = step.tensor(&write.k);
            params.v = step.tensor(&write.v);
            params.places = write.places.address();
            params.keys = cache.keys;
            params.values = cache.values;
            params.kv_heads = write.kv_heads as i32;
        }
        let tokens = params.tokens as u32;
        self.kernel
            .launch(step.gpu, rotate_grid(tokens, self.items as u32), &params)
    }

    fn name(&self) -> &'static str {
        match (&self.spec.q, &self.spec.write) {
            (Some(_), Some(_)) => "rope, write kv",
            (Some(_), None) => "rope",
            (None, _) => "write kv",
        }
    }
}

/// Blocks for so many tokens of so many work items: few tokens are spread over several multiprocessors, and with many each
/// thread has two items.
fn rotate_grid(tokens: u32, items: u32) -> Grid {
    const FEW: u32 = 16;
    const MANY: u32 = 1024;
    const SMALL: u32 = 128;
    let threads = |items: u32| items.next_multiple_of(32).clamp(32, 512);
    match tokens {
        0..=FEW => Grid::new(tokens, SMALL).yz(items.div_ceil(SMALL), 1),
        MANY.. => Grid::new(tokens, threads(items.div_ceil(2))),
        _ => Grid::new(tokens, threads(items)),
    }
}
