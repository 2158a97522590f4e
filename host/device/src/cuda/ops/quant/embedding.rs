//! Rows of a quantized table.

use std::sync::Arc;

use super::{QuantMatrix, STAGE, mask, number};
use crate::cuda::compiler::Source;
use crate::cuda::driver::Gpu;
use crate::cuda::launch::{Grid, Kernel, Params};
use crate::cuda::ops::input::Ints;
use crate::cuda::ops::{Instr, Place, Step, Tensor};
use crate::cuda::options::CudaDtype;
use crate::cuda::weights::model_flag;
use crate::error::{DeviceError, Result};

/// `QuantEmbeddingParams` of the kernel.
#[repr(C)]
#[derive(Clone, Copy)]
struct EmbeddingParams {
    panels: u64,
    ids: Tensor,
    out: Tensor,
    block: u32,
    rows: i32,
    k: i32,
    stages: i32,
    count: i32,
    padding: i32,
}

// SAFETY: the kernel's structure; its addresses are those of the step's arenas and of a weight that the instruction holds.
unsafe impl Params for EmbeddingParams {}

/// A row of a table per id, dequantized exactly and rounded once to the model's type.
pub(crate) struct QuantEmbedding {
    kernel: Kernel,
    table: Arc<QuantMatrix>,
    ids: Ints,
    y: Place,
}

impl QuantEmbedding {
    /// The kernel; the table is as wide as y.
    ///
    /// # Errors
    /// When the kernel is missing, the table is empty, or y is not of the model's type.
    pub(crate) fn new(
        gpu: &Arc<Gpu>,
        dtype: CudaDtype,
        table: Arc<QuantMatrix>,
        ids: Ints,
        y: Place,
    ) -> Result<Self> {
        if table.n == 0 || table.k == 0 {
            return Err(DeviceError::plan("an embedding table has no rows"));
        }
        if y.element != dtype.bytes() || y.width != table.k as usize {
            return Err(DeviceError::plan(
                "an embedding gives rows of another type or width than its table's",
            ));
        }
        let mut source = Source::new("quant/dequantize.cu", "quant_embedding")
            .flag(model_flag(dtype))
            .define("QUANT_TYPES", mask([table.block]));
        if !y.is_aligned() {
            source = source.flag("OUT_SCALAR");
        }
        Ok(Self {
            kernel: gpu.kernel(&source)?,
            table,
            ids,
            y,
        })
    }
}

impl Instr for QuantEmbedding {
    fn launch(&self, step: &Step<'_>) -> Result<()> {
        let count = step.rows(self.y.arena);
        let stages = self.table.k.div_ceil(STAGE);
        let params = EmbeddingParams {
            panels: self.table.panel(0),
            ids: self.ids.tensor(step),
            out: step.tensor(&self.y),
            block: number(self.table.block),
            rows: self.table.n as i32,
            k: self.table.k as i32,
            stages: stages as i32,
            count: count as i32,
            padding: 0,
        };
        let warps = count.div_ceil(8) * stages;
        self.kernel
            .launch(step.gpu, Grid::new(warps.div_ceil(4), 128), &params)
    }

    fn name(&self) -> &'static str {
        "embedding"
    }
}
