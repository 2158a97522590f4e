//! Loading: files → graph guest → plan → device → engine, and the guests that serve requests.
//!
//! - [`files`]: what a model's folder or GGUF file says
//! - [`device`]: which device a model goes to
//! - [`modules`]: which guest does what
//! - [`load`]: the order of the steps, and their errors
//! - [`guests`]: chat and sampler guests behind the traits that HTTP uses

pub mod device;
pub mod files;
pub mod guests;
pub mod load;
pub mod modules;
#[cfg(test)]
mod tests;

pub use device::{DeviceChoice, DtypeChoice, Target};
pub use files::{LoadFormat, ModelFiles, Weights};
pub use load::{LoadError, LoadOptions, LoadedModel, load};
pub use modules::{ChatTemplate, GuestChoice, Modules};
