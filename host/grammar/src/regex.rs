//! Regular expressions.

use crate::{GrammarError, Place};

/// Checks an expression that the whole output must match, and takes off anchors, which say nothing there.
///
/// # Errors
/// Where it is not an expression.
pub(crate) fn whole(source: &str) -> Result<&str, GrammarError> {
    let mut expression = source;
    for anchor in ["^", "\\A"] {
        if let Some(rest) = expression.strip_prefix(anchor) {
            expression = rest;
            break;
        }
    }
    let begin = source.len() - expression.len();
    for anchor in ["$", "\\z", "\\Z"] {
        if let Some(rest) = expression.strip_suffix(anchor) {
            let slashes = rest.bytes().rev().take_while(|b| *b == b'\\').count();
            if slashes % 2 == 0 {
                expression = rest;
                break;
            }
        }
    }
    match regex_syntax::ast::parse::Parser::new().parse(expression) {
        Ok(_) => Ok(expression),
        Err(error) => Err(GrammarError::Invalid {
            place: Place::of_byte(source, begin + error.span().start.offset),
            cause: error.kind().to_string(),
        }),
    }
}
