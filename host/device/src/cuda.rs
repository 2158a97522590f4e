//! NVIDIA GPUs: not in this build. Everything here returns an error that says so.

mod blas;
pub mod check;
mod compiler;
mod driver;
mod launch;
mod libs;
mod ops;
mod options;

pub use options::{CudaDtype, CudaGraphs, CudaOptions, KvMemory, Numerics};

use std::sync::Arc;

use guesthouse_graph::Plan;
use guesthouse_weights::WeightSource;

use crate::cpu::LoadProgress;
use crate::error::{DeviceError, Result};
use crate::executor::DeviceExecutor;

/// Why nothing works here.
const ABSENT: &str = "this build has no CUDA device; use the CPU device";

fn absent() -> DeviceError {
    DeviceError::Absent {
        device: "cuda",
        why: ABSENT.to_owned(),
    }
}

/// A model on an NVIDIA GPU.
#[derive(Debug)]
pub enum CudaDevice {}

impl CudaDevice {
    /// The GPU, if a model could run on it: driver and required libraries are there and it is recent enough.
    ///
    /// # Errors
    /// What is missing and the command that installs it.
    pub fn probe(_ordinal: usize) -> Result<check::Gpu> {
        Err(absent())
    }

    /// Loads a model and starts its executor.
    ///
    /// # Errors
    /// When the GPU, a library or memory is missing, or an operation has no kernel.
    pub fn load(
        _plan: &Arc<Plan>,
        _source: &dyn WeightSource,
        _options: &CudaOptions,
        _progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<DeviceExecutor> {
        Err(absent())
    }
}
