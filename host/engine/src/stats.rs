//! Counters and gauges.

/// State of an engine. Counters run from its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Sequences in a slot.
    pub running: usize,
    /// Sequences that wait, preempted ones included.
    pub waiting: usize,
    /// KV blocks held by sequences, of all groups. Blocks that only the prefix cache keeps do not count.
    pub blocks_used: u64,
    /// KV blocks that exist, of all groups.
    pub blocks_total: u64,
    /// Counter: tokens of prompts that were started.
    pub prompt_tokens: u64,
    /// Counter: tokens emitted.
    pub generation_tokens: u64,
    /// Counter: tokens that a grammar forced, emitted without being sampled.
    pub forced_tokens: u64,
    /// Counter: rows with drafts.
    pub drafts: u64,
    /// Counter: tokens drafted.
    pub drafted_tokens: u64,
    /// Counter: those that were what was sampled.
    pub accepted_tokens: u64,
    /// Counter: prompt tokens looked up in the prefix cache.
    pub prefix_cache_queries: u64,
    /// Counter: those found.
    pub prefix_cache_hits: u64,
    /// Counter: sequences preempted.
    pub preemptions: u64,
    /// Counter: steps launched.
    pub steps: u64,
    /// Counter: tokens computed, over all steps.
    pub step_tokens: u64,
    /// Counter: nanoseconds that the device waited for the host between steps; zero where it is not measured.
    pub exposed_nanos: u64,
    /// Counter: steps in which at least one sequence decoded.
    pub decode_steps: u64,
    /// Counter: rows that decoded, over all steps.
    pub decode_rows: u64,
    /// Counter: questions to guests that choose tokens.
    pub guest_calls: u64,
    /// Counter: answers that missed their grace.
    pub guest_misses: u64,
    /// Counter: nanoseconds that steps waited for answers.
    pub guest_wait_nanos: u64,
    /// Counter: choices that finished.
    pub finished: u64,
    /// Counter: requests that failed.
    pub failed: u64,
    /// Counter: requests cancelled, or whose listener was gone.
    pub cancelled: u64,
}

impl Stats {
    /// Share of KV blocks held by sequences, 0 to 1.
    #[must_use]
    pub fn kv_usage(&self) -> f64 {
        if self.blocks_total == 0 {
            0.0
        } else {
            self.blocks_used as f64 / self.blocks_total as f64
        }
    }

    /// Decoding sequences per step that decoded any.
    #[must_use]
    pub fn mean_decode_batch(&self) -> f64 {
        if self.decode_steps == 0 {
            0.0
        } else {
            self.decode_rows as f64 / self.decode_steps as f64
        }
    }
}
