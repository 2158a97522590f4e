//! Model weights: finding, checking and reading them, in whatever format they are stored.

mod dtype;
mod error;
pub mod gguf;
mod json;
mod map;
mod memory;
mod safetensors;
mod scheme;
mod source;

pub mod dequant;

pub use dequant::dequantize;
pub use dtype::DType;
pub use error::WeightsError;
pub use gguf::Gguf;
pub use gguf::hf::{GgufSource, GgufTokenizer};
pub use memory::MemorySource;
pub use safetensors::Safetensors;
pub use scheme::{BlockType, Scheme};
pub use source::{TensorInfo, WeightSource};
