//! Grammars that outputs must follow, as the engine sees them.

use crate::TokenId;

/// Where one sequence stands in its grammar.
pub trait Constraint: Send {
    /// Sets the bits of the tokens that may come next and clears all others: bit `t % 32` of `words[t / 32]` is token t. The
    /// sequence's stop tokens are among them where the output may end.
    ///
    /// # Errors
    /// When the grammar is too hard; ends the request.
    fn mask(&mut self, words: &mut [u32]) -> Result<(), ConstraintError>;

    /// The output goes on with this token, or, where it is a stop token, ends with it.
    ///
    /// # Errors
    /// When the grammar does not allow it; ends the request.
    fn accept(&mut self, token: TokenId) -> Result<(), ConstraintError>;

    /// Tokens that must come next, one after the other; usually none. They are not accepted yet.
    fn forced(&mut self) -> Vec<TokenId>;

    /// Another sequence at the same place.
    fn fork(&self) -> Box<dyn Constraint>;
}

/// Why a grammar cannot be followed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ConstraintError(pub String);
