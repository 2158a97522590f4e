//! Settings of an engine.

/// Whether computed blocks are kept for later requests with the same beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PrefixCaching {
    /// Keep them until their memory is needed.
    On,
    /// Forget them.
    Off,
}

/// Settings of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineConfig {
    /// Requests that may wait; more are refused.
    pub max_waiting: usize,
    /// Sequences that run at once; the executor's slots and the step's tokens bound it too.
    pub max_running: usize,
    /// Tokens per step, over all sequences; the executor's own limit bounds it too.
    pub max_step_tokens: u32,
    /// Branches of a search that may live at once; `max_running` bounds it too.
    pub max_branches: u32,
    /// Prefix cache.
    pub prefix_cache: PrefixCaching,
    /// Longest n-gram that drafts are looked up by, tokens; tried first.
    pub lookup_max: u32,
    /// Shortest such n-gram.
    pub lookup_min: u32,
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            max_waiting: 1024,
            max_running: 256,
            max_step_tokens: 2048,
            max_branches: 64,
            prefix_cache: PrefixCaching::On,
            lookup_max: 4,
            lookup_min: 2,
        }
    }
}
