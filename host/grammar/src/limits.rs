//! How large a grammar may be, and how much work it may ask for.

use crate::{GrammarError, Place};
use std::time::Duration;

/// Limits of one compiler.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Bytes of a source.
    pub source_bytes: usize,
    /// Parentheses, braces or brackets within each other.
    pub nesting: usize,
    /// Rules and terminals of a grammar.
    pub rules: usize,
    /// Symbols of all productions of the compiled grammar.
    pub grammar_size: usize,
    /// States of a sequence's lexer, which grow as text is generated; each takes one to two kilobytes.
    pub lexer_states: usize,
    /// Work of a lexer when it is built, and when one mask is computed (about 50,000 and 14,000 in a millisecond).
    pub lexer_fuel: (u64, u64),
    /// Earley items of one row, and of one mask (about 20,000 in a millisecond).
    pub items: (usize, usize),
    /// How long whoever waits for a grammar waits.
    pub compile_time: Duration,
    /// Grammars that compile at the same time.
    pub compiling: usize,
    /// Bytes of the grammars that are kept, by estimate.
    pub cache_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            source_bytes: 1 << 20,
            nesting: 200,
            rules: 20_000,
            grammar_size: 500_000,
            lexer_states: 50_000,
            lexer_fuel: (1_000_000, 200_000),
            items: (2_000, 250_000),
            compile_time: Duration::from_secs(10),
            compiling: 2,
            cache_bytes: 256 << 20,
        }
    }
}

impl Limits {
    pub(crate) fn check_source(&self, source: &str) -> Result<(), GrammarError> {
        if source.len() > self.source_bytes {
            return Err(GrammarError::TooLarge {
                place: Place::Whole,
                what: "the grammar's size in bytes",
                found: source.len(),
                limit: self.source_bytes,
            });
        }
        Ok(())
    }
}
