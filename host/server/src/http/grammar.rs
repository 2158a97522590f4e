//! What an answer must follow, compiled.

use crate::openai::{ApiError, Structured};
use crate::serving::{GrammarSource, ServedModel};
use guesthouse_engine::{Constraint, TokenId};
use guesthouse_grammar::GrammarError;

/// The grammar of a sampler's plan at its beginning. `asked` is what the client wants, which the sampler must not leave out;
/// `stops` are the request's stop tokens and the model's. Takes as long as compiling does.
pub(super) fn constraint(
    model: &ServedModel,
    asked: Option<&Structured>,
    planned: Option<&GrammarSource>,
    stops: &[TokenId],
) -> Result<Option<Box<dyn Constraint>>, ApiError> {
    let Some(grammar) = planned else {
        return match asked {
            None => Ok(None),
            Some(asked) => Err(ApiError::invalid(
                asked.param,
                format!(
                    "the sampler does not follow `{}`; use another, or leave the field out",
                    asked.param
                ),
            )),
        };
    };
    let compiled = model
        .grammars
        .compile(&grammar.syntax, &grammar.source, stops);
    let clients = asked.filter(|asked| asked.source == grammar.source);
    compiled.map(Some).map_err(|error| match clients {
        Some(asked) => refused(asked.param, &error),
        None => ApiError::Guest {
            message: format!("the sampler's grammar: {error}"),
        },
    })
}

fn refused(param: &'static str, error: &GrammarError) -> ApiError {
    ApiError::invalid(param, format!("`{param}`: {error}"))
}
