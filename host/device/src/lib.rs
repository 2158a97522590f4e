//! Devices: what runs a compiled plan over a batch.
//!
//! A device loads the weights of a [`Plan`](guesthouse_graph::Plan), keeps the keys and values of running sequences in
//! blocks, computes a forward pass over a ragged batch and samples from its logits. [`DeviceExecutor`] makes any
//! [`Device`] the engine's [`Executor`](guesthouse_engine::Executor): a thread that owns the device and is fed through a
//! channel, so that launching and sampling only enqueue.
//!
//! This crate must not know of requests, scheduling policy, prefix caching, HTTP or guests: blocks and slots are numbers
//! that the engine hands out.
//!
//! # Modules
//! - `device`: the trait and the batch it is given. `history`: a sequence's tokens and their counts.
//! - `executor`: the engine's contract: slots, tokens that earlier steps sampled, the device's thread.
//! - `lower`, `kv_budget`: what devices share at load.
//! - `weights_eval`: weight expressions to tensors in host memory, shared by all devices.
//! - `cpu`: the CPU device. Inside: `compile` (plan to instructions), `ops`, `attention`, `gemm` and `pack` (weights as 16
//!   interleaved rows), `simd` (one source for every instruction set), `math`, `kv`, `pool` (threads), `sample`.
//! - `cuda`: the CUDA device; see there.
//!
//! # Example
//! ```
//! use std::sync::Arc;
//!
//! use guesthouse_device::{CpuDevice, CpuOptions, KvBudget};
//! use guesthouse_engine::Executor;
//! use guesthouse_graph::{BuilderLimits, GraphBuilder, ModelInfo, Plan, PlanOptions, Sharding, SourceCatalog};
//! use guesthouse_weights::MemorySource;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut source = MemorySource::new();
//! source.insert_f32("table", [3, 2], &[0.0, 1.0, 2.0, 3.0, 4.0, 5.0])?;
//! let source = Arc::new(source);
//!
//! // A model that scores each token by the dot product of its embedding with the last token's.
//! let mut b = GraphBuilder::new(Arc::new(SourceCatalog::new(source.clone())), BuilderLimits::default());
//! let ids = b.token_ids()?;
//! let table = b.param("table", &[3, 2])?;
//! let x = b.embedding(table, ids)?;
//! let logits = b.linear(x, table, None, Sharding::Replicated)?;
//! b.output_logits(logits)?;
//! let info = ModelInfo { architecture: "Bigram".to_owned(), vocab_size: 3, max_position: 64 };
//! let plan = Arc::new(Plan::compile(b.finish(info)?, &PlanOptions::new(4))?);
//!
//! let options = CpuOptions { threads: 1, kv: KvBudget::Blocks(8), ..CpuOptions::default() };
//! let executor = CpuDevice::load(&plan, source.as_ref(), &options, &mut |p| println!("{}/{}", p.done, p.total))?;
//! assert_eq!(executor.info().vocab, 3);
//! # Ok(())
//! # }
//! ```

mod cpu;
pub mod cuda;
mod device;
mod error;
mod executor;
mod history;
mod kv_budget;
mod lower;
mod prompt;
pub mod weights_eval;

#[doc(hidden)]
pub use cpu::bench;
pub use cpu::check::{KernelCheck, check_kernels, instruction_set};
pub use cpu::{CpuDevice, CpuOptions, KvBudget, LoadProgress, sample};
pub use cuda::{CudaDevice, CudaDtype, CudaGraphs, CudaOptions, KvMemory, Numerics};
pub use device::{Batch, BatchRow, Device, Draw, Feed, Feeding, Finished, MemoryUse, Score};
pub use error::{DeviceError, Result};
pub use executor::DeviceExecutor;
pub use history::{Count, Counting, History};
pub use prompt::{PromptMarks, PromptRules};
