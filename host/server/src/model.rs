//! Loading: files → graph guest → plan → device → engine, and the guests that serve requests.
//!
//! - [`files`]: what a model's folder or GGUF file says
//! - `embedding`: what makes an embedding model of a folder
//! - [`device`]: which device a model goes to
//! - [`modules`]: which guest does what
//! - [`store`], [`check`], [`watch`]: modules by name, replaced while they serve; `shelf`: where they are kept
//! - [`load`]: the order of the steps, and their errors
//! - [`guests`]: chat and sampler guests behind the traits that HTTP uses

pub mod check;
pub mod device;
mod embedding;
pub mod files;
pub mod guests;
pub mod load;
pub mod modules;
mod shelf;
pub mod store;
#[cfg(test)]
#[allow(clippy::unwrap_used)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
pub mod trace;
pub mod watch;

pub use device::{DeviceChoice, DtypeChoice, Target};
pub use files::{LoadFormat, ModelFiles, Weights};
pub use load::{LoadError, LoadOptions, LoadedModel, load};
pub use modules::{ChatTemplate, GuestChoice, ModuleRef, Modules};
pub use store::ModuleStore;
