//! Requests, sequences, the scheduler, the block pool and the prefix cache.
mod config;
mod engine;
mod error;
mod event;
mod executor;
mod ids;
mod request;
mod sampling;
mod stats;
mod step;
mod thread;

pub use config::*;
pub use engine::*;
pub use error::*;
pub use event::*;
pub use executor::*;
pub use ids::*;
pub use request::*;
pub use sampling::*;
pub use stats::*;
pub use step::*;
pub use thread::*;
