//! What a guest may learn about the call it serves.

use std::sync::Arc;

use crate::Recorder;

/// Identity and inputs of one request, as far as its guests are concerned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallContext {
    /// Tag of log lines.
    pub request: Arc<str>,
    /// Who pays.
    pub tenant: Arc<str>,
    /// Most memory of all of its guests, bytes; without it, as much as is free then.
    pub memory: Option<usize>,
    /// Unix seconds that a guest's clocks show.
    pub now: u64,
    /// Takes down the guest's calls; the runtime's clock should be [`Clock::Fuel`](crate::Clock::Fuel) then.
    pub recorder: Option<Recorder>,
    /// Seed of a guest's random numbers.
    pub seed: u64,
}

impl CallContext {
    /// A context of no tenant, with the clock at `now` and a fixed seed.
    #[must_use]
    pub fn new(request: &str, now: u64) -> Self {
        Self {
            request: request.into(),
            tenant: Arc::from(""),
            memory: None,
            now,
            recorder: None,
            seed: 0,
        }
    }
}
