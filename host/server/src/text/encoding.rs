//! Bounds on encoding clients' texts: their number at once, and their size before any work is done.

use crate::blocking::two_per_core;
use guesthouse_tokenizer::Tokenizer;
use std::sync::Arc;
use tokio::sync::Semaphore;

/// What one model's tokenizer may be asked to do.
#[derive(Debug)]
pub struct EncodingLimits {
    longest_token: usize,
    places: Arc<Semaphore>,
}

impl EncodingLimits {
    /// Two places per core: encoding costs CPU, and some sixty bytes of memory per byte of text.
    #[must_use]
    pub fn of(tokenizer: &Tokenizer) -> Self {
        let ids = 0..u32::try_from(tokenizer.vocab_size()).unwrap_or(u32::MAX);
        let longest = ids.map(|id| tokenizer.token_bytes(id).len()).max();
        Self {
            longest_token: longest.unwrap_or(0).max(1),
            places: Arc::new(Semaphore::new(two_per_core())),
        }
    }

    /// Bytes of the longest token, at least 1: a text of more than `n` times as many has more than `n` tokens.
    #[must_use]
    pub fn longest_token(&self) -> usize {
        self.longest_token
    }

    /// A permit for each large text that is being encoded; never closed.
    #[must_use]
    pub fn places(&self) -> Arc<Semaphore> {
        Arc::clone(&self.places)
    }
}
