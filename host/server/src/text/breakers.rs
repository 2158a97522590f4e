//! Tokens over which no repetition reaches.

use guesthouse_engine::TokenId;
use guesthouse_tokenizer::Tokenizer;
use memchr::memmem;
use std::sync::{Arc, Mutex, PoisonError};

/// Finds the tokens whose text has one of some strings in it. That takes a look at the whole vocabulary, so the last answer is
/// kept: most requests name no strings of their own.
#[derive(Debug, Default)]
pub struct BreakingTokens(Mutex<Option<Found>>);

#[derive(Debug)]
struct Found {
    breakers: Vec<String>,
    tokens: Arc<[TokenId]>,
}

impl BreakingTokens {
    /// Ids below `vocab`, ascending; empty strings are in no token.
    pub fn of(&self, tokenizer: &Tokenizer, vocab: u32, breakers: &[String]) -> Arc<[TokenId]> {
        if breakers.is_empty() {
            return Arc::default();
        }
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = last.as_ref().filter(|found| found.breakers == breakers) {
            return Arc::clone(&found.tokens);
        }
        let holds = |id: &TokenId| {
            let bytes = tokenizer.token_bytes(*id);
            let mut breakers = breakers.iter().filter(|breaker| !breaker.is_empty());
            breakers.any(|breaker| memmem::find(&bytes, breaker.as_bytes()).is_some())
        };
        let tokens: Arc<[TokenId]> = (0..vocab).filter(holds).collect();
        *last = Some(Found {
            breakers: breakers.to_vec(),
            tokens: Arc::clone(&tokens),
        });
        tokens
    }
}

#[cfg(test)]
mod tests;
