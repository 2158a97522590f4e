//! Matrix products by kernels of our own, as candidates beside the library's.

use std::sync::Arc;

use crate::cuda::blas::{Operands, Product};
use crate::cuda::driver::Gpu;
use crate::cuda::options::Numerics;
use crate::error::{DeviceError, Result};

/// Our kernels.
pub(crate) struct Own {}

impl Own {
    /// Changes when variants get other numbers.
    pub(crate) const VERSION: u32 = 1;

    /// Nothing is compiled yet.
    ///
    /// # Errors
    /// None at present.
    pub(crate) fn new(_gpu: &Arc<Gpu>) -> Result<Self> {
        Ok(Self {})
    }

    /// Variants that compute a product, the most promising first.
    pub(crate) fn candidates(&self, _p: &Product, _numerics: Numerics) -> Vec<u32> {
        Vec::new()
    }

    /// Enqueues a product.
    ///
    /// # Errors
    /// When there is no such variant or the driver refuses it.
    pub(crate) fn run(
        &self,
        _gpu: &Gpu,
        _p: &Product,
        _operands: &Operands,
        variant: u32,
    ) -> Result<()> {
        Err(DeviceError::plan(format!("no matrix kernel {variant}")))
    }
}
