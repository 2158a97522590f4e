//! Model weights: finding, checking and reading them, whatever the file format.
//!
//! A consumer reads *logical tensors* (shape, storage [`Scheme`], bytes) under their Hugging Face names through the trait
//! [`WeightSource`], copies the bytes into memory of its own and drops the source. Files come from anyone: every header
//! is checked in full before a tensor is handed out, a damaged or hostile file is a [`WeightsError`], and pickled
//! checkpoints are never opened.
//!
//! This crate must not know devices, graphs, tokenization rules, or where files come from. Architectures are known by
//! name in [`gguf::hf`] alone, because GGUF renames and reorders tensors by architecture.
//!
//! | module | what it holds |
//! |---|---|
//! | `dtype`, `scheme` | element types, block types, sizes of rows |
//! | `source`, `memory` | the trait, and a source of tensors in memory (tests) |
//! | `dummy` | made-up values for a model without a checkpoint |
//! | `safetensors` | one file or a folder of shards |
//! | `prefix` | names with and without `transformer.` or `model.` |
//! | `legacy` | old checkpoints: names of norms, buffers |
//! | [`gguf`] | GGUF files as they are |
//! | [`gguf::hf`] | GGUF files as the Hugging Face checkpoint that they were made from |
//! | [`dequant`] | the exact scalar reference for every block type |
//! | `file` | files, and what happens when one shrinks |
//!
//! ```
//! use guesthouse_weights::{DType, MemorySource, TensorInfo, WeightSource, dequantize};
//!
//! # fn main() -> Result<(), guesthouse_weights::WeightsError> {
//! let mut source = MemorySource::new();
//! source.insert_f32("model.norm.weight", [2], &[0.5, -1.0])?;
//!
//! let info = source.info("model.norm.weight").expect("just inserted");
//! assert_eq!(info, TensorInfo::new([2], DType::F32));
//! let mut values = [0.0; 2];
//! dequantize(info.scheme, &source.read("model.norm.weight")?, &mut values)?;
//! assert_eq!(values, [0.5, -1.0]);
//! # Ok(())
//! # }
//! ```

mod dtype;
mod dummy;
mod error;
mod file;
pub mod gguf;
mod json;
mod legacy;
mod memory;
mod prefix;
mod safetensors;
mod scheme;
mod source;

pub mod dequant;

pub use dequant::dequantize;
pub use dtype::DType;
pub use dummy::{DummyFill, DummySource};
pub use error::WeightsError;
pub use gguf::Gguf;
pub use gguf::hf::{GgufSource, GgufTokenizer};
pub use legacy::is_buffer;
pub use memory::MemorySource;
pub use safetensors::Safetensors;
pub use scheme::{BlockType, Scheme};
pub use source::{TensorInfo, WeightSource};
