//! NVIDIA GPUs: not in this build. Everything here returns an error that says so.

use guesthouse_graph::Plan;
use guesthouse_weights::WeightSource;

use crate::error::{DeviceError, Result};
use crate::executor::DeviceExecutor;

/// A model on an NVIDIA GPU.
#[derive(Debug)]
pub enum CudaDevice {}

impl CudaDevice {
    /// Loads a model and starts its executor.
    ///
    /// # Errors
    /// Always, in this build.
    pub fn load(_plan: &Plan, _source: &dyn WeightSource) -> Result<DeviceExecutor> {
        let why = "this build has no CUDA device; use the CPU device".to_owned();
        Err(DeviceError::Absent {
            device: "cuda",
            why,
        })
    }
}
