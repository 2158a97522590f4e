//! Loading: files → graph guest → plan → device → engine, and the guests that serve requests.
//!
//! - [`files`]: what a model's folder or GGUF file says
//! - [`modules`]: which guest does what
//! - [`load`]: the order of the steps, and their errors
//! - [`guests`]: chat and sampler guests behind the traits that HTTP uses

pub mod files;
pub mod guests;
pub mod load;
pub mod modules;
#[cfg(test)]
mod tests;

pub use files::ModelFiles;
pub use load::{LoadError, LoadOptions, LoadedModel, load};
pub use modules::{GuestChoice, Modules};
