//! Log-probabilities as the two APIs write them.

use crate::openai::{ChatTokenLogprob, CompletionLogprobs, TokenLogprob, TokenNames};
use guesthouse_engine::{Sampled, TokenId};
use guesthouse_tokenizer::{SkipSpecial, Tokenizer};
use serde_json::{Map, Value, json};
use std::fmt::Write as _;
use std::sync::Arc;

/// JSON has no infinity; vLLM writes -9999 in its place.
#[must_use]
pub fn finite(logprob: f32) -> f32 {
    if logprob.is_finite() {
        logprob.min(0.0)
    } else {
        -9999.0
    }
}

/// Writes tokens of log-probabilities.
#[derive(Clone)]
pub struct TokenSpeller {
    tokenizer: Arc<Tokenizer>,
    names: TokenNames,
    skip: SkipSpecial,
}

impl TokenSpeller {
    /// For one request.
    #[must_use]
    pub fn new(tokenizer: &Arc<Tokenizer>, names: TokenNames, skip: SkipSpecial) -> Self {
        Self {
            tokenizer: Arc::clone(tokenizer),
            names,
            skip,
        }
    }

    /// With U+FFFD for what is not whole characters.
    fn lossy(&self, token: TokenId, bytes: &[u8]) -> String {
        match self.names {
            TokenNames::Ids => format!("token_id:{token}"),
            TokenNames::Text => String::from_utf8_lossy(bytes).into_owned(),
        }
    }

    /// With `bytes:\xNN…` for what is not whole characters, as OpenAI's legacy API.
    fn exact(&self, token: TokenId) -> String {
        if self.names == TokenNames::Ids {
            return format!("token_id:{token}");
        }
        match String::from_utf8(self.tokenizer.token_bytes(token)) {
            Ok(text) => text,
            Err(error) => error
                .as_bytes()
                .iter()
                .fold("bytes:".to_owned(), |mut text, byte| {
                    let _ = write!(text, "\\x{byte:02x}");
                    text
                }),
        }
    }

    /// Characters that the token begins in the text.
    fn characters(&self, token: TokenId) -> u32 {
        if self.skip == SkipSpecial::Yes && self.tokenizer.is_control(token) {
            return 0;
        }
        let begins = self
            .tokenizer
            .token_bytes(token)
            .iter()
            .filter(|&&byte| byte & 0xC0 != 0x80)
            .count();
        u32::try_from(begins).unwrap_or(u32::MAX)
    }

    fn top_map(&self, sampled: &Sampled, top: u32) -> Map<String, Value> {
        let mut map = Map::new();
        for &(token, logprob) in sampled.top.iter().take(top as usize) {
            map.entry(self.exact(token))
                .or_insert_with(|| json!(finite(logprob)));
        }
        map.entry(self.exact(sampled.token))
            .or_insert_with(|| json!(finite(sampled.logprob)));
        map
    }

    /// The legacy lists of some tokens. `offset` is where the first begins and is moved behind the last.
    #[must_use]
    pub fn completion(&self, tokens: &[Sampled], top: u32, offset: &mut u32) -> CompletionLogprobs {
        let mut lists = CompletionLogprobs::default();
        for sampled in tokens {
            lists.tokens.push(self.exact(sampled.token));
            lists.token_logprobs.push(Some(finite(sampled.logprob)));
            lists.top_logprobs.push(Some(self.top_map(sampled, top)));
            lists.text_offset.push(*offset);
            *offset = offset.saturating_add(self.characters(sampled.token));
        }
        lists
    }

    /// The legacy lists of a prompt. `scored` has one entry per token but the first.
    #[must_use]
    pub fn prompt(
        &self,
        first: TokenId,
        scored: &[Sampled],
        top: u32,
        offset: &mut u32,
    ) -> CompletionLogprobs {
        let mut lists = CompletionLogprobs {
            tokens: vec![self.exact(first)],
            token_logprobs: vec![None],
            top_logprobs: vec![None],
            text_offset: vec![*offset],
        };
        *offset = offset.saturating_add(self.characters(first));
        let rest = self.completion(scored, top, offset);
        lists.tokens.extend(rest.tokens);
        lists.token_logprobs.extend(rest.token_logprobs);
        lists.top_logprobs.extend(rest.top_logprobs);
        lists.text_offset.extend(rest.text_offset);
        lists
    }

    /// One token as the chat API writes it.
    #[must_use]
    pub fn chat(&self, sampled: &Sampled, top: u32) -> ChatTokenLogprob {
        let entry = |token: TokenId, logprob: f32| {
            let bytes = self.tokenizer.token_bytes(token);
            TokenLogprob {
                token: self.lossy(token, &bytes),
                logprob: finite(logprob),
                bytes,
            }
        };
        let TokenLogprob {
            token,
            logprob,
            bytes,
        } = entry(sampled.token, sampled.logprob);
        let best = sampled.top.iter().take(top as usize);
        ChatTokenLogprob {
            token,
            logprob,
            bytes,
            top_logprobs: best
                .map(|&(token, logprob)| entry(token, logprob))
                .collect(),
        }
    }

    /// vLLM's `prompt_logprobs`: per token a map from id to entry, `None` for the first.
    #[must_use]
    pub fn prompt_maps(&self, scored: &[Sampled], top: u32) -> Vec<Option<Map<String, Value>>> {
        let entry = |token: TokenId, logprob: f32, rank: u32| {
            let bytes = self.tokenizer.token_bytes(token);
            json!({"logprob": finite(logprob), "rank": rank, "decoded_token": String::from_utf8_lossy(&bytes)})
        };
        let map = |sampled: &Sampled| {
            let mut map = Map::new();
            map.insert(
                sampled.token.to_string(),
                entry(sampled.token, sampled.logprob, sampled.rank),
            );
            for (rank, &(token, logprob)) in (1u32..).zip(sampled.top.iter().take(top as usize)) {
                map.entry(token.to_string())
                    .or_insert_with(|| entry(token, logprob, rank));
            }
            map
        };
        std::iter::once(None)
            .chain(scored.iter().map(|sampled| Some(map(sampled))))
            .collect()
    }
}

#[cfg(test)]
mod tests;
