//! One choice's text.

use super::{StopMatcher, StopSet};
use crate::openai::StopText;
use guesthouse_engine::TokenId;
use guesthouse_tokenizer::{Detokenizer, SkipSpecial, Tokenizer};
use std::sync::Arc;

/// What turns tokens into text, the same for all choices of a request.
#[derive(Clone, Debug)]
pub struct TextParams {
    /// Strings that end the text: the client's and the chat guest's.
    pub stops: Arc<StopSet>,
    /// Tokens that end it, ascending.
    pub stop_tokens: Vec<TokenId>,
    /// No stop string counts within so many tokens.
    pub min_tokens: u32,
    /// Whether control tokens are shown.
    pub skip_special: SkipSpecial,
    /// Control tokens that are shown in any case: the chat guest's parser looks for them.
    pub visible: Arc<[TokenId]>,
}

/// How a text ended, as far as tokens and strings tell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// By one of [`TextParams::stops`].
    StopString(String),
    /// Not yet.
    Open,
}

/// Tokens in, text out.
pub struct ChoiceText {
    detokenizer: Detokenizer,
    stops: StopMatcher,
    params: Arc<TextParams>,
    tokens: u32,
    stopped: bool,
}

impl ChoiceText {
    /// Before the first token. `prompt` decides about the first token's space.
    #[must_use]
    pub fn new(tokenizer: &Arc<Tokenizer>, params: &Arc<TextParams>, prompt: &[TokenId]) -> Self {
        Self {
            detokenizer: Detokenizer::new(tokenizer, params.skip_special)
                .with_visible(&params.visible)
                .with_prompt(prompt),
            stops: StopMatcher::new(&params.stops),
            params: Arc::clone(params),
            tokens: 0,
            stopped: false,
        }
    }

    /// Tokens taken, that of the stop string included.
    #[must_use]
    pub fn tokens(&self) -> u32 {
        self.tokens
    }

    /// Takes one token and gives what can be shown. After a stop string tokens are neither taken nor counted.
    pub fn push(&mut self, token: TokenId) -> (String, Ending) {
        if self.stopped {
            return (String::new(), Ending::Open);
        }
        self.tokens += 1;
        let ends = self.params.stop_tokens.binary_search(&token).is_ok();
        if ends && self.params.stops.text() == StopText::Cut {
            return (String::new(), Ending::Open);
        }
        let text = self.detokenizer.push(token);
        if self.tokens <= self.params.min_tokens {
            return (self.stops.pass(&text), Ending::Open);
        }
        let (shown, stop) = self.stops.push(&text);
        (shown, self.ending(stop))
    }

    /// No token follows: what was held back. The rest may complete a stop string too.
    pub fn finish(&mut self) -> (String, Ending) {
        if self.stopped {
            return (String::new(), Ending::Open);
        }
        let rest = self.detokenizer.finish();
        let (mut shown, stop) = self.stops.push(&rest);
        let ending = self.ending(stop);
        shown.push_str(&self.stops.finish());
        self.stopped = true;
        (shown, ending)
    }

    fn ending(&mut self, stop: Option<String>) -> Ending {
        self.stopped |= stop.is_some();
        stop.map_or(Ending::Open, Ending::StopString)
    }
}

#[cfg(test)]
mod tests;
