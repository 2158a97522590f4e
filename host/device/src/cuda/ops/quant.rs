//! Quantized weights.

use std::sync::Arc;

use super::{Step, Tensor};
use crate::cuda::driver::Gpu;
use crate::cuda::matmul::Matmul;
use crate::cuda::options::CudaDtype;
use crate::error::{DeviceError, Result};
use crate::weights_eval::HostTensor;

/// A matrix `[n, k]` in blocks.
pub(crate) struct QuantMatrix {
    n: u32,
    k: u32,
}

impl QuantMatrix {
    /// Puts a tensor on the GPU.
    ///
    /// # Errors
    /// When its scheme has no kernel.
    pub(crate) fn upload(
        _gpu: &Arc<Gpu>,
        tensor: &HostTensor<'_>,
        _dtype: CudaDtype,
    ) -> Result<Self> {
        Err(DeviceError::Weight {
            name: "a matrix".to_owned(),
            what: format!(
                "the CUDA device has no kernel for {} yet",
                tensor.info.scheme
            ),
        })
    }

    /// Rows and columns.
    pub(crate) fn shape(&self) -> (u32, u32) {
        (self.n, self.k)
    }

    /// Bytes on the GPU.
    pub(crate) fn bytes(&self) -> usize {
        0
    }

    /// Bytes of scratch that [`Self::linear`] needs for so many rows.
    pub(crate) fn scratch(&self, _rows: u32) -> usize {
        0
    }

    /// Enqueues `y [m, n] = x [m, k] · wᵀ + bias`; `bias` is an address, or 0. Scratch is at [`Step::scratch`].
    ///
    /// # Errors
    /// When the driver refuses a launch.
    pub(crate) fn linear(
        &self,
        _step: &Step<'_>,
        _matmul: &Matmul,
        _m: u32,
        _x: Tensor,
        _y: Tensor,
        _bias: u64,
    ) -> Result<()> {
        Err(DeviceError::plan("quantized weights are not wired in yet"))
    }
}
