//! Linear layers.

use std::sync::Arc;

use super::{Instr, Place, Step};
use crate::cuda::blas::{Operands, Product};
use crate::cuda::driver::Gpu;
use crate::cuda::matmul::Matmul;
use crate::cuda::options::CudaDtype;
use crate::cuda::weights::{Matrix, Part};
use crate::error::{DeviceError, Result};

/// `y = x Wᵀ + b`, row blocks of W side by side.
pub(crate) struct Linear {
    matmul: Arc<Matmul>,
    dtype: CudaDtype,
    output: CudaDtype,
    parts: Vec<Part>,
    x: Place,
    y: Place,
}

impl Linear {
    /// A linear over weights on the GPU.
    ///
    /// # Errors
    /// When a bias would have to be added to f32 results.
    pub(crate) fn new(
        _gpu: &Arc<Gpu>,
        matmul: &Arc<Matmul>,
        dtype: CudaDtype,
        parts: Vec<Part>,
        x: Place,
        y: Place,
    ) -> Result<Self> {
        let output = if y.element == 4 {
            CudaDtype::F32
        } else {
            dtype
        };
        if output != dtype && parts.iter().any(|p| p.bias.is_some()) {
            return Err(DeviceError::plan("a linear of f32 results has a bias"));
        }
        if x.element != dtype.bytes() {
            return Err(DeviceError::plan(
                "a linear reads values that are not of the model's type",
            ));
        }
        Ok(Self {
            matmul: Arc::clone(matmul),
            dtype,
            output,
            parts,
            x,
            y,
        })
    }

    /// Bytes of scratch for so many rows.
    pub(crate) fn scratch(&self, rows: u32) -> usize {
        let of = |p: &Part| match &p.matrix {
            Matrix::Dense(_) => 0,
            Matrix::Quant(m) => m.scratch(rows),
        };
        self.parts.iter().map(of).max().unwrap_or(0)
    }
}

impl Instr for Linear {
    fn launch(&self, step: &Step<'_>) -> Result<()> {
        let m = step.rows(self.y.arena);
        let x = step.tensor(&self.x);
        for part in &self.parts {
            let (n, k) = part.matrix.shape();
            let y = step.tensor(&self.y.columns(part.column as usize, n as usize));
            let bias = part.bias.as_ref().map_or(0, |b| b.address());
            match &part.matrix {
                Matrix::Dense(w) => {
                    let product = Product {
                        m,
                        n,
                        k,
                        x_stride: x.stride as u32,
                        y_stride: y.stride as u32,
                        input: self.dtype,
                        output: self.output,
                        bias: bias != 0,
                    };
                    let operands = Operands {
                        x: x.data,
                        w: w.address(),
                        bias,
                        y: y.data,
                    };
                    self.matmul.run(&product, &operands)?;
                }
                Matrix::Quant(w) => w.linear(step, &self.matmul, m, x, y, bias)?,
            }
        }
        Ok(())
    }

    fn name(&self) -> &'static str {
        "linear"
    }
}
