//! Layers with a state of fixed size per sequence (`kernels/recurrent`).
//!
//! Grids depend on a step's counts alone, padding included, so captured graphs may hold them.

#![allow(unsafe_code)]

use std::sync::Arc;

use guesthouse_graph::Activation;

use super::pointwise::activation;
use super::{BatchArgs, Instr, Place, Step, Tensor, access};
use crate::cuda::driver::{Buffer, Gpu};
use crate::cuda::launch::{Grid, Kernel, Params};
use crate::cuda::options::CudaDtype;
use crate::error::{DeviceError, Result};

/// Threads of a block of either kernel.
const THREADS: u32 = 128;

/// Columns of a state that a block has, `WARPS * COLUMNS` of `recurrent/delta.cu`.
const COLUMNS: u32 = 32;

/// Longest key: a quarter of it is in a thread's registers.
const MAX_KEY: usize = 512;

/// Where the states of one layer are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StateSpec {
    /// Index into [`Step::caches`].
    pub cache: usize,
    /// Floats from state to state.
    pub stride: usize,
}

/// `States` of the kernels.
#[repr(C)]
#[derive(Clone, Copy)]
struct States {
    data: u64,
    tables: u64,
    block: i64,
    table_stride: i32,
    padding: i32,
}

impl StateSpec {
    fn args(&self, step: &Step<'_>) -> Result<States> {
        let cache = step.caches.get(self.cache);
        let cache = cache.ok_or_else(|| DeviceError::plan("a state without a cache"))?;
        Ok(States {
            data: cache.keys,
            tables: cache.tables,
            block: self.stride as i64,
            table_stride: cache.table_stride,
            padding: 0,
        })
    }
}

/// `ConvParams` of the kernel.
#[repr(C)]
#[derive(Clone, Copy)]
struct ConvParams {
    x: Tensor,
    y: Tensor,
    weight: u64,
    bias: u64,
    states: States,
    batch: BatchArgs,
    channels: i32,
    padding: i32,
}

// SAFETY: the kernel's structure; its addresses are those of the step's arenas, caches and description, and of weights
// that the instruction holds.
unsafe impl Params for ConvParams {}

/// A depthwise causal convolution.
#[derive(Clone)]
pub(crate) struct ConvSpec {
    /// `[channels, taps]`, f32.
    pub weight: Arc<Buffer>,
    /// `[channels]`, f32.
    pub bias: Option<Arc<Buffer>>,
    pub activation: Option<Activation>,
    /// `[taps - 1, channels]`
    pub state: StateSpec,
    /// Positions seen, at least 2.
    pub taps: usize,
    pub x: Place,
    pub y: Place,
}

/// See [`ConvSpec`].
pub(crate) struct CausalConv {
    kernel: Kernel,
    spec: ConvSpec,
}

impl CausalConv {
    /// The kernel for a convolution.
    ///
    /// # Errors
    /// When it sees one position or more than 256.
    pub(crate) fn new(gpu: &Arc<Gpu>, dtype: CudaDtype, spec: ConvSpec) -> Result<Self> {
        if !(2..=256).contains(&spec.taps) {
            return Err(DeviceError::plan(format!(
                "a convolution over {} positions; the CUDA device takes 2 to 256",
                spec.taps
            )));
        }
        let function = spec.activation.map_or("COPY", activation);
        let mut source = access::source("recurrent/conv.cu", "causal_conv", dtype, &spec.x)
            .define("TAPS", spec.taps)
            .define("FUNCTION", function);
        if spec.bias.is_some() {
            source = source.flag("BIAS");
        }
        Ok(Self {
            kernel: gpu.kernel(&source)?,
            spec,
        })
    }
}

impl Instr for CausalConv {
    fn launch(&self, step: &Step<'_>) -> Result<()> {
        let spec = &self.spec;
        let params = ConvParams {
            x: step.tensor(&spec.x),
            y: step.tensor(&spec.y),
            weight: spec.weight.address(),
            bias: spec.bias.as_ref().map_or(0, |b| b.address()),
            states: spec.state.args(step)?,
            batch: step.batch,
            channels: spec.x.width as i32,
            padding: 0,
        };
        let chunks = (spec.x.width as u32).div_ceil(THREADS);
        let grid = Grid::new(step.rows(spec.y.arena), THREADS).yz(chunks, 1);
        self.kernel.launch(step.gpu, grid, &params)
    }

    fn name(&self) -> &'static str {
        "causal convolution"
    }
}

/// `DeltaParams` of the kernel.
#[repr(C)]
#[derive(Clone, Copy)]
struct DeltaParams {
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    y: Tensor,
    states: States,
    batch: BatchArgs,
    scale: f32,
    padding: i32,
}

// SAFETY: the kernel's structure; its addresses are those of the step's arenas, caches and description.
unsafe impl Params for DeltaParams {}

/// A gated delta rule.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeltaSpec {
    pub scale: f32,
    /// `[heads, k, v]`
    pub state: StateSpec,
    pub heads: usize,
    /// k and v.
    pub dims: (usize, usize),
    /// q, k, v, g, beta.
    pub inputs: [Place; 5],
    pub y: Place,
}

/// See [`DeltaSpec`].
pub(crate) struct DeltaRule {
    kernel: Kernel,
    spec: DeltaSpec,
}

impl DeltaRule {
    /// The kernel for a rule; none when keys are too long.
    ///
    /// # Errors
    /// When the kernel is missing.
    pub(crate) fn new(gpu: &Arc<Gpu>, dtype: CudaDtype, spec: DeltaSpec) -> Result<Option<Self>> {
        let (k, v) = spec.dims;
        if k == 0 || k > MAX_KEY {
            return Ok(None);
        }
        let source = access::source("recurrent/delta.cu", "delta_rule", dtype, &spec.y)
            .define("K_DIM", k)
            .define("V_DIM", v);
        Ok(Some(Self {
            kernel: gpu.kernel(&source)?,
            spec,
        }))
    }
}

impl Instr for DeltaRule {
    fn launch(&self, step: &Step<'_>) -> Result<()> {
        let spec = &self.spec;
        let [q, k, v, g, beta] = spec.inputs.map(|x| step.tensor(&x));
        let params = DeltaParams {
            q,
            k,
            v,
            g,
            beta,
            y: step.tensor(&spec.y),
            states: spec.state.args(step)?,
            batch: step.batch,
            scale: spec.scale,
            padding: 0,
        };
        let chunks = (spec.dims.1 as u32).div_ceil(COLUMNS);
        let grid =
            Grid::new(spec.heads as u32 * chunks, THREADS).yz(step.batch.row_count as u32, 1);
        self.kernel.launch(step.gpu, grid, &params)
    }

    fn name(&self) -> &'static str {
        "delta rule"
    }
}
