//! One sequence in its grammar.

use crate::guard::{caught, told};
use guesthouse_engine::{Constraint, ConstraintError, TokenId};
use llguidance::TokenParser;
use llguidance::api::StopReason;
use std::sync::Arc;

/// Follows a grammar token by token. Its lexer's states are its own: what one sequence does costs no other.
pub(crate) struct Follower {
    parser: TokenParser,
    /// Where the grammar may end, these may follow.
    stops: Arc<[TokenId]>,
    phase: Phase,
}

#[derive(Clone)]
enum Phase {
    /// More may come.
    Open,
    /// Only stop tokens may come.
    Complete,
    /// What went wrong; nothing may come.
    Failed(ConstraintError),
}

impl Follower {
    pub(crate) fn new(parser: &TokenParser, stops: Arc<[TokenId]>) -> Self {
        Self {
            parser: parser.deep_clone(),
            stops,
            phase: Phase::Open,
        }
    }

    fn fail<T>(&mut self, message: &str) -> Result<T, ConstraintError> {
        let error = ConstraintError(told(message));
        self.phase = Phase::Failed(error.clone());
        Err(error)
    }

    fn check(&self) -> Result<(), ConstraintError> {
        match &self.phase {
            Phase::Failed(error) => Err(error.clone()),
            Phase::Open | Phase::Complete => Ok(()),
        }
    }

    /// The parser's mask; whether the output may end here.
    fn compute(&mut self, words: &mut [u32]) -> Result<bool, ConstraintError> {
        let parser = &mut self.parser;
        let computed = caught(|| {
            let accepting = parser.is_accepting();
            match parser.compute_mask() {
                Ok(mask) => {
                    let mask = mask.as_slice();
                    let shared = mask.len().min(words.len());
                    words[..shared].copy_from_slice(&mask[..shared]);
                    Ok((accepting, accepting && mask.iter().all(|word| *word == 0)))
                }
                // No token goes on, which is no error at the end.
                Err(_) if accepting && parser.stop_reason() == StopReason::NoExtensionBias => {
                    Ok((true, true))
                }
                Err(error) => Err(error),
            }
        });
        match computed {
            Ok((accepting, complete)) => {
                if complete {
                    self.phase = Phase::Complete;
                }
                Ok(accepting)
            }
            Err(cause) if cause == StopReason::NoExtensionBias.to_string() => {
                self.fail("the grammar cannot go on here with any token of the vocabulary")
            }
            Err(cause) => self.fail(&format!("the grammar is too hard to follow: {cause}")),
        }
    }
}

impl Constraint for Follower {
    fn mask(&mut self, words: &mut [u32]) -> Result<(), ConstraintError> {
        self.check()?;
        words.fill(0);
        let may_end = match self.phase {
            Phase::Complete => true,
            _ => self.compute(words)?,
        };
        if may_end {
            for &stop in self.stops.iter() {
                if let Some(word) = words.get_mut(stop as usize / 32) {
                    *word |= 1 << (stop % 32);
                }
            }
        }
        if words.iter().all(|word| *word == 0) {
            return self.fail("the grammar ends here, and the request has no stop token");
        }
        Ok(())
    }

    fn accept(&mut self, token: TokenId) -> Result<(), ConstraintError> {
        self.check()?;
        let stops = self.stops.contains(&token);
        let complete = matches!(self.phase, Phase::Complete);
        let parser = &mut self.parser;
        if stops && (complete || caught(|| Ok(parser.is_accepting())) == Ok(true)) {
            self.phase = Phase::Complete;
            return Ok(());
        }
        let trie = parser.token_env.tok_trie();
        let known = (token as usize) < trie.vocab_size() && !trie.token(token).is_empty();
        if complete || !known {
            return self.fail(&format!("the grammar does not allow token {token} here"));
        }
        match caught(|| parser.consume_token(token)) {
            Ok(0) => Ok(()),
            Ok(_) => self.fail("the grammar would take tokens back, which is not supported"),
            Err(cause) => self.fail(&format!(
                "the grammar does not allow token {token} here: {cause}"
            )),
        }
    }

    fn forced(&mut self) -> Vec<TokenId> {
        let parser = &mut self.parser;
        match self.phase {
            Phase::Open => caught(|| Ok(parser.compute_ff_tokens())).unwrap_or_default(),
            Phase::Complete | Phase::Failed(_) => Vec::new(),
        }
    }

    fn fork(&self) -> Box<dyn Constraint> {
        Box::new(Self {
            parser: self.parser.deep_clone(),
            stops: Arc::clone(&self.stops),
            phase: self.phase.clone(),
        })
    }
}
