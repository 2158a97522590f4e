//! What enters the graph from the batch and from weights (`kernels/input`).

#![allow(unsafe_code)]

use std::sync::Arc;

use guesthouse_graph::ValueType;

use super::{BatchArgs, Instr, Place, Step, Tensor, access};
use crate::cuda::compiler::Source;
use crate::cuda::driver::{Buffer, Gpu};
use crate::cuda::launch::{Grid, Kernel, Params};
use crate::cuda::options::CudaDtype;
use crate::cuda::weights::{Dense, model_flag};
use crate::error::Result;

/// Integers of a step, a row per token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ints {
    /// A value.
    Value(Place),
    /// The step's token ids, where they are.
    Tokens,
    /// The step's positions, where they are.
    Positions,
}

impl Ints {
    /// Address and stride in this step.
    pub(crate) fn tensor(&self, step: &Step<'_>) -> Tensor {
        let data = match self {
            Self::Value(place) => return step.tensor(place),
            Self::Tokens => step.batch.tokens,
            Self::Positions => step.batch.positions,
        };
        Tensor { data, stride: 1 }
    }

    /// Integers per row.
    pub(crate) fn width(&self) -> usize {
        match self {
            Self::Value(place) => place.width,
            Self::Tokens | Self::Positions => 1,
        }
    }
}

/// `IdsParams` of the kernel.
#[repr(C)]
#[derive(Clone, Copy)]
struct IdsParams {
    x: u64,
    y: Tensor,
    offset: i32,
    tokens: i32,
}

// SAFETY: the kernel's structure; its addresses are those of the step's arenas and description.
unsafe impl Params for IdsParams {}

/// Token ids or positions as a value, plus a constant.
pub(crate) struct CopyIds {
    kernel: Kernel,
    from: Ints,
    offset: i32,
    y: Place,
}

impl CopyIds {
    /// The kernel.
    ///
    /// # Errors
    /// When it is missing.
    pub(crate) fn new(gpu: &Arc<Gpu>, from: Ints, offset: i32, y: Place) -> Result<Self> {
        let source = Source::new("input/ids.cu", "copy_ids").flag("MODEL_F32");
        Ok(Self {
            kernel: gpu.kernel(&source)?,
            from,
            offset,
            y,
        })
    }
}

impl Instr for CopyIds {
    fn launch(&self, step: &Step<'_>) -> Result<()> {
        let tokens = step.batch.token_count;
        let params = IdsParams {
            x: self.from.tensor(step).data,
            y: step.tensor(&self.y),
            offset: self.offset,
            tokens,
        };
        let grid = Grid::new((tokens as u32).div_ceil(128), 128);
        self.kernel.launch(step.gpu, grid, &params)
    }

    fn name(&self) -> &'static str {
        "copy ids"
    }
}

/// `GlmPositionsParams` of the kernel.
#[repr(C)]
#[derive(Clone, Copy)]
struct GlmParams {
    batch: BatchArgs,
    y: Tensor,
}

// SAFETY: the kernel's structure; its addresses are those of the step's arenas and description.
unsafe impl Params for GlmParams {}

/// GLM's position and block position.
pub(crate) struct GlmPositions {
    kernel: Kernel,
    y: Place,
}

impl GlmPositions {
    /// The kernel; y has two columns.
    ///
    /// # Errors
    /// When it is missing.
    pub(crate) fn new(gpu: &Arc<Gpu>, y: Place) -> Result<Self> {
        let source = Source::new("input/glm.cu", "glm_positions").flag("MODEL_F32");
        Ok(Self {
            kernel: gpu.kernel(&source)?,
            y,
        })
    }
}

impl Instr for GlmPositions {
    fn launch(&self, step: &Step<'_>) -> Result<()> {
        let params = GlmParams {
            batch: step.batch,
            y: step.tensor(&self.y),
        };
        let grid = Grid::new((step.batch.token_count as u32).div_ceil(128), 128);
        self.kernel.launch(step.gpu, grid, &params)
    }

    fn name(&self) -> &'static str {
        "glm positions"
    }
}

/// `EmbeddingParams` of the kernel.
#[repr(C)]
#[derive(Clone, Copy)]
struct EmbeddingParams {
    table: u64,
    ids: Tensor,
    y: Tensor,
    n: i32,
    width: i32,
}

// SAFETY: the kernel's structure; its addresses are those of the step's arenas and of a weight that the instruction holds.
unsafe impl Params for EmbeddingParams {}

/// A row of a table per id.
pub(crate) struct Embedding {
    kernel: Kernel,
    table: Dense,
    ids: Ints,
    y: Place,
    vec: usize,
}

impl Embedding {
    /// The kernel; the table is as wide as y.
    ///
    /// # Errors
    /// When the kernel is missing.
    pub(crate) fn new(
        gpu: &Arc<Gpu>,
        dtype: CudaDtype,
        table: Dense,
        ids: Ints,
        y: Place,
    ) -> Result<Self> {
        let vec = access::elements(&[&y], &[y.width]);
        let source = Source::new("input/embedding.cu", "embedding")
            .flag(model_flag(dtype))
            .define("TABLE_TYPE", "model_t")
            .define("VEC", vec);
        Ok(Self {
            kernel: gpu.kernel(&source)?,
            table,
            ids,
            y,
            vec,
        })
    }
}

impl Instr for Embedding {
    fn launch(&self, step: &Step<'_>) -> Result<()> {
        let params = EmbeddingParams {
            table: self.table.address(),
            ids: self.ids.tensor(step),
            y: step.tensor(&self.y),
            n: self.table.n as i32,
            width: self.y.width as i32,
        };
        let chunks = self.y.width.div_ceil(access::THREADS as usize * self.vec) as u32;
        let grid = Grid::new(step.rows(self.y.arena), access::THREADS).yz(chunks, 1);
        self.kernel.launch(step.gpu, grid, &params)
    }

    fn name(&self) -> &'static str {
        "embedding"
    }
}

/// `MapParams` of `pointwise/map.cu`.
#[repr(C)]
#[derive(Clone, Copy)]
struct ValueParams {
    x: Tensor,
    y: Tensor,
    width: i64,
    rows: i32,
    a: f32,
    b: f32,
    padding: i32,
}

// SAFETY: the kernel's structure; its addresses are those of an arena and of a weight that the instruction holds.
unsafe impl Params for ValueParams {}

/// A weight, f32 on the GPU, as a value of the broadcast arena; runs once.
pub(crate) struct WeightValue {
    kernel: Kernel,
    weight: Arc<Buffer>,
    y: Place,
}

impl WeightValue {
    /// The kernel; the weight has as many elements as y.
    ///
    /// # Errors
    /// When the kernel is missing.
    pub(crate) fn new(
        gpu: &Arc<Gpu>,
        dtype: CudaDtype,
        weight: Arc<Buffer>,
        y: Place,
    ) -> Result<Self> {
        let to = if y.ty == ValueType::F32 {
            "float"
        } else {
            "model_t"
        };
        let source = Source::new("pointwise/map.cu", "map")
            .flag(model_flag(dtype))
            .define("FUNCTION", "COPY")
            .define("X_TYPE", "float")
            .define("Y_TYPE", to)
            .define("VEC", 1)
            .define("ITEMS", 1);
        Ok(Self {
            kernel: gpu.kernel(&source)?,
            weight,
            y,
        })
    }
}

impl Instr for WeightValue {
    fn launch(&self, step: &Step<'_>) -> Result<()> {
        let params = ValueParams {
            x: Tensor {
                data: self.weight.address(),
                stride: 0,
            },
            y: step.tensor(&self.y),
            width: self.y.width as i64,
            rows: 1,
            a: 0.0,
            b: 0.0,
            padding: 0,
        };
        let grid = access::rows_grid(self.y.width, 1, 1);
        self.kernel.launch(step.gpu, grid, &params)
    }

    fn name(&self) -> &'static str {
        "weight value"
    }
}
