//! A request that only has to be run.

use crate::serving::{Chat, ParserId, ServedModel};
use crate::text::TextParams;
use guesthouse_engine::{
    CacheSalt, Chooser, Constraint, LogprobsMode, Owner, Priority, SamplingPlan, TokenId,
};
use std::sync::Arc;

/// One prompt and how long its answers may get.
pub(super) struct JobPrompt {
    pub(super) tokens: Vec<TokenId>,
    pub(super) max_tokens: u32,
    pub(super) plan: Arc<SamplingPlan>,
    /// The guest that chooses, where the plan's draw asks one.
    pub(super) chooser: Option<Box<dyn Chooser>>,
    /// What its answers must follow.
    pub(super) constraint: Option<Box<dyn Constraint>>,
}

/// A chat store and one parser per choice.
pub(super) struct JobChat {
    pub(super) chat: Box<dyn Chat>,
    pub(super) parsers: Vec<ParserId>,
}

/// Prompts, plans and text rules of one HTTP request.
pub(super) struct Job {
    pub(super) model: Arc<ServedModel>,
    /// The request's field that the prompts came from.
    pub(super) field: &'static str,
    pub(super) prompts: Vec<JobPrompt>,
    pub(super) n: u32,
    /// Answers per prompt that are made, told or not.
    pub(super) sequences: u32,
    pub(super) cache_salt: CacheSalt,
    pub(super) priority: Priority,
    pub(super) owner: Owner,
    pub(super) seed: u64,
    pub(super) text: Arc<TextParams>,
    /// Stop tokens whose number is told as `stop_reason`: the client's own.
    pub(super) told_stop_tokens: Vec<TokenId>,
    pub(super) top_logprobs: Option<u32>,
    pub(super) prompt_logprobs: Option<u32>,
    pub(super) logprobs: LogprobsMode,
    /// Most tokens guessed per step.
    pub(super) drafts: u32,
    /// A conversation has one prompt.
    pub(super) chat: Option<JobChat>,
}

impl Job {
    /// Tokens that it may use at most: of prompts and of all answers.
    pub(super) fn most_tokens(&self) -> u64 {
        let of = |prompt: &JobPrompt| {
            let answers = u64::from(prompt.max_tokens) * u64::from(self.sequences);
            prompt.tokens.len() as u64 + answers
        };
        self.prompts.iter().map(of).sum()
    }
}
