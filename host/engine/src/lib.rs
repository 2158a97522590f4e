//! placeholder
mod executor;
mod ids;
mod sampling;
mod step;

pub use executor::*;
pub use ids::*;
pub use sampling::*;
pub use step::*;
