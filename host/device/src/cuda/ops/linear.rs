//! Linear layers.

use std::sync::Arc;

use super::quant::{QuantLinear, QuantPart};
use super::{Instr, Place, Step};
use crate::cuda::blas::{Operands, Product};
use crate::cuda::driver::{Buffer, Gpu};
use crate::cuda::matmul::Matmul;
use crate::cuda::options::CudaDtype;
use crate::cuda::weights::{Dense, Matrix, Part};
use crate::error::{DeviceError, Result};

/// Products that are computed together.
enum Piece {
    /// By the library or a kernel of ours: `[n, k]` of the model's dtype.
    Dense {
        w: Dense,
        bias: Option<Arc<Buffer>>,
        column: u32,
    },
    /// Neighbours in blocks, in the same launches.
    Quant(QuantLinear),
}

/// `y = x Wᵀ + b`, row blocks of W side by side.
pub(crate) struct Linear {
    matmul: Arc<Matmul>,
    dtype: CudaDtype,
    output: CudaDtype,
    pieces: Vec<Piece>,
    x: Place,
    y: Place,
}

impl Linear {
    /// A linear over weights on the GPU.
    ///
    /// # Errors
    /// When a bias would have to be added to f32 results, or a kernel is missing.
    pub(crate) fn new(
        gpu: &Arc<Gpu>,
        matmul: &Arc<Matmul>,
        dtype: CudaDtype,
        parts: &[Part],
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
        let quant = |p: &Part| matches!(p.matrix, Matrix::Quant(_));
        let types = (dtype, output);
        let pieces = parts
            .chunk_by(|a, b| quant(a) && quant(b))
            .map(|run| match &run[0].matrix {
                Matrix::Dense(w) => Ok(Piece::Dense {
                    w: w.clone(),
                    bias: run[0].bias.clone(),
                    column: run[0].column,
                }),
                Matrix::Quant(_) => {
                    let parts = run.iter().filter_map(QuantPart::of).collect();
                    QuantLinear::new(gpu, types, matmul.numerics(), x.is_aligned(), parts)
                        .map(Piece::Quant)
                }
            })
            .collect::<Result<_>>()?;
        Ok(Self {
            matmul: Arc::clone(matmul),
            dtype,
            output,
            pieces,
            x,
            y,
        })
    }

    /// Bytes of scratch for so many rows.
    pub(crate) fn scratch(&self, rows: u32) -> usize {
        let of = |p: &Piece| match p {
            Piece::Dense { .. } => 0,
            Piece::Quant(linear) => linear.scratch(rows),
        };
        self.pieces.iter().map(of).max().unwrap_or(0)
    }
}

impl Instr for Linear {
    fn launch(&self, step: &Step<'_>) -> Result<()> {
        let m = step.rows(self.y.arena);
        let (x, y) = (step.tensor(&self.x), step.tensor(&self.y));
        for piece in &self.pieces {
            match piece {
                Piece::Dense { w, bias, column } => {
                    let product = Product {
                        m,
                        n: w.n,
                        k: w.k,
                        x_stride: x.stride as u32,
                        y_stride: y.stride as u32,
                        input: self.dtype,
                        output: self.output,
                        bias: bias.is_some(),
                        gating: None,
                    };
                    let operands = Operands {
                        x: x.data,
                        w: w.address(),
                        bias: bias.as_ref().map_or(0, |b| b.address()),
                        y: y.data + u64::from(*column) * self.output.bytes() as u64,
                    };
                    self.matmul.run(&product, &operands)?;
                }
                Piece::Quant(linear) => {
                    linear.run(step.gpu, &self.matmul, m, (x, y), step.scratch)?;
                }
            }
        }
        Ok(())
    }

    fn name(&self) -> &'static str {
        "linear"
    }

    fn label(&self) -> String {
        format!("linear {} by {}", self.y.width, self.x.width)
    }
}
