//! Gate and up projections with the activation between them, as one product by a kernel of our own.

use std::sync::Arc;

use super::own::Gating;
use super::pointwise::Gated;
use super::{Instr, Place, Step};
use crate::cuda::blas::{Operands, Product};
use crate::cuda::driver::Buffer;
use crate::cuda::matmul::Matmul;
use crate::cuda::options::{CudaDtype, Numerics};
use crate::cuda::weights::Dense;
use crate::error::Result;

/// `y [f] = act(gate) * up`, where gate and up are `x wᵀ + b`, rounded to the model's type.
pub(crate) struct GatedLinear {
    pub matmul: Arc<Matmul>,
    pub dtype: CudaDtype,
    pub gating: Gating,
    /// `[2 f, k]`: eight rows of gate, their eight rows of up, and so on.
    pub weight: Dense,
    /// `[2 f]` in the same order.
    pub bias: Option<Arc<Buffer>>,
    pub x: Place,
    pub y: Place,
    /// `[2 f]`: where gate and up go when the library multiplies.
    pub merged: Place,
    /// What makes y of them.
    pub apart: Gated,
    pub numerics: Numerics,
}

/// Most tokens for which our kernel is no slower than the library's product and an activation after it.
const MOST: u32 = 256;

impl Instr for GatedLinear {
    fn launch(&self, step: &Step<'_>) -> Result<()> {
        let m = step.rows(self.y.arena);
        let as_one = m <= MOST || self.numerics == Numerics::BatchInvariant;
        let x = step.tensor(&self.x);
        let y = step.tensor(if as_one { &self.y } else { &self.merged });
        let product = Product {
            m,
            n: self.weight.n,
            k: self.weight.k,
            x_stride: x.stride as u32,
            y_stride: y.stride as u32,
            input: self.dtype,
            output: self.dtype,
            bias: self.bias.is_some(),
            gating: as_one.then_some(self.gating),
        };
        let operands = Operands {
            x: x.data,
            w: self.weight.address(),
            bias: self.bias.as_ref().map_or(0, |b| b.address()),
            y: y.data,
        };
        self.matmul.run(&product, &operands)?;
        if as_one {
            return Ok(());
        }
        self.apart.launch(step)
    }

    fn name(&self) -> &'static str {
        "linear, gated"
    }
}
