//! llama.cpp's grammars (GBNF), written as Lark for the matcher.
//!
//! - `parse` reads a source;
//! - `lark` writes it: what is regular becomes terminals, which the matcher's lexer takes greedily;
//! - `greedy` tells whether that is the same language. Where it may not be, each character is a terminal of its own: exact, but
//!   more work per mask.

mod chars;
mod greedy;
mod lark;
mod parse;

use crate::{GrammarError, Limits};
use chars::Chars;

/// A grammar; rules refer to each other by index.
pub(crate) struct Gbnf {
    pub(crate) rules: Vec<Expr>,
    /// The rule `root`.
    pub(crate) root: usize,
}

/// Right-hand side of a rule.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Expr {
    /// One character of a set.
    Class(Chars),
    /// A rule, by index.
    Rule(usize),
    /// A token by its literal or number, as it is written: `<|im_end|>`, `<[7]>`.
    Token(String),
    /// One after the other; none is the empty text.
    Sequence(Vec<Expr>),
    /// One of these; at least one.
    Choice(Vec<Expr>),
    /// So often, without an upper bound where there is none.
    Repeat(Box<Expr>, u32, Option<u32>),
}

/// # Errors
/// What does not parse, and where.
pub(crate) fn to_lark(source: &str, limits: &Limits) -> Result<String, GrammarError> {
    let grammar = parse::parse(source, limits)?;
    for terminals in [lark::Terminals::Regular, lark::Terminals::Apart] {
        let written = lark::write(&grammar, terminals);
        if greedy::is_exact(&written) {
            return Ok(written.text);
        }
    }
    Ok(lark::write(&grammar, lark::Terminals::Characters).text)
}

#[cfg(test)]
mod tests;
