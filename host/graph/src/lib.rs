//! placeholder
mod ids;
mod ir;
mod op;

pub use ids::*;
pub use ir::*;
pub use op::*;
