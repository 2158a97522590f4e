//! The CPU device: all cores, SIMD, weights in the format they are stored in, activations in f32.
//!
//! Results are bitwise the same whatever else is in the batch, however a prompt is cut into chunks, whether its blocks
//! came from the prefix cache, and for any number of threads: the order of every reduction depends on the inner dimension
//! and the instruction set alone ([`gemm`], [`attention`] and `ops::norm` say how).

mod attention;
pub mod bench;
pub(crate) mod check;
mod compile;
mod device;
mod gemm;
mod kv;
mod math;
mod memory;
mod ops;
mod options;
mod pack;
mod pool;
mod program;
pub mod sample;
mod simd;
mod weights;

pub use device::CpuDevice;
pub(crate) use ops::rope;
pub use options::{CpuOptions, KvBudget};
pub use weights::LoadProgress;
