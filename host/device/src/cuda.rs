//! NVIDIA GPUs.
//!
//! # Modules
//! - `driver`, `libs`: one GPU, its memory and stream; where NVIDIA's libraries are found
//! - `compiler`, `launch`: kernels from source to launch
//! - `blas`, `matmul`: matrix products, each by the fastest way that was found for its shape
//! - `weights`, `memory`: what is kept on the GPU
//! - `compile`, `ops`: from a plan to instructions; one file per kind of kernel
//! - `words`, `graphs`, `device`: a step: its description, captured graphs, the order of launches
//! - `sample`: choosing tokens
//! - `profile`: where a decode step's time goes
//! - [`check`]: the machine, and each kernel against its CPU reference

#[doc(hidden)]
pub mod bench;
mod blas;
pub mod check;
mod compile;
mod compiler;
mod device;
mod driver;
mod graphs;
mod launch;
mod libs;
mod matmul;
mod memory;
mod ops;
mod options;
mod profile;
mod sample;
mod tensor_map;
mod weights;
mod words;

pub use device::CudaDevice;
pub use options::{CudaDtype, CudaGraphs, CudaOptions, KvMemory, Numerics};
pub use profile::Share;
