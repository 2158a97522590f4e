//! The graph IR.

mod builder;
mod catalog;
mod dump;
mod error;
mod ids;
mod ir;
mod name;
mod op;
mod passes;
mod plan;
mod rules;
#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod testing;
mod text;
mod verify;
mod visit;

pub use builder::*;
pub use catalog::*;
pub use dump::{dot, dump, dump_plan};
pub use error::*;
pub use ids::*;
pub use ir::*;
pub use op::*;
pub use passes::*;
pub use plan::*;
pub use verify::verify;
