//! What HTTP needs of a loaded model. Loading makes it; nothing here knows how guests or devices work.

use crate::blocking::two_per_core;
use crate::text::{BreakingTokens, EncodingLimits};
use futures::future::BoxFuture;
use guesthouse_component::{Recorder, Turns};
use guesthouse_engine::{CacheSalt, Chooser, EngineHandle, LogprobsMode, SamplingPlan, TokenId};
use guesthouse_grammar::GrammarCompiler;
use guesthouse_tenants::{Pins, Tenant};
use guesthouse_tokenizer::{Segment, Tokenizer};
use std::sync::Arc;

/// A loaded model, ready to answer.
pub struct ServedModel {
    /// What requests call it.
    pub id: String,
    /// Other names of it.
    pub aliases: Vec<String>,
    /// When it was loaded, Unix seconds.
    pub created: u64,
    /// Longest sequence, prompt and answer, tokens.
    pub max_model_len: u32,
    /// Width of the logits: ids of prompts and biases are below it.
    pub vocab: u32,
    /// Its tokenizer.
    pub tokenizer: Arc<Tokenizer>,
    /// Bounds on the texts it encodes.
    pub encoding: EncodingLimits,
    /// Where repetitions end.
    pub breaking: BreakingTokens,
    /// For planning the sampling of a tenant's requests.
    pub planning: Turns,
    /// The engine that runs it.
    pub engine: EngineHandle,
    /// Grammars over its vocabulary.
    pub grammars: GrammarCompiler,
    /// Its chat and sampler guests.
    pub guests: Arc<dyn Guests>,
    /// Name of the graph module that built it.
    pub graph: String,
    /// Tokens that end an answer: the tokenizer's EOS and those of `generation_config.json`.
    pub stop_tokens: Vec<TokenId>,
    /// Root of prefix-cache keys: weights, configuration, graph module, KV format and tenant.
    pub cache_salt: CacheSalt,
    /// Used where a request says nothing.
    pub defaults: SamplingDefaults,
    /// How all its answers are made.
    pub generation: GenerationOptions,
    /// What its vectors are like; none for a model that generates.
    pub embedding: Option<EmbeddingFacts>,
}

/// For [`ServedModel::planning`]: two for each core. Planning holds a thread, also while it waits for guests of the tenant, and
/// threads are what all tenants share.
#[must_use]
pub fn planning_turns() -> Turns {
    Turns::new(two_per_core())
}

/// What the administrator decided about all answers of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GenerationOptions {
    /// Of which logits log-probabilities are.
    pub logprobs: LogprobsMode,
    /// Most tokens guessed per step from a sequence's own n-grams; 0 is none.
    pub drafts: u32,
    /// Shortest and longest n-gram by which they are looked up.
    pub lookup: (u32, u32),
}

impl Default for GenerationOptions {
    fn default() -> Self {
        Self {
            logprobs: LogprobsMode::Raw,
            drafts: 0,
            lookup: (2, 4),
        }
    }
}

/// Vectors of an embedding model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EmbeddingFacts {
    /// Numbers of a vector.
    pub width: u32,
    /// Whether their length is 1.
    pub normalized: bool,
}

impl ServedModel {
    /// Whether a request for `name` means this model.
    #[must_use]
    pub fn answers_to(&self, name: &str) -> bool {
        self.id == name || self.aliases.iter().any(|alias| alias == name)
    }
}

/// Sampling settings of `generation_config.json`. `None` leaves OpenAI's default.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SamplingDefaults {
    /// As the request field.
    pub temperature: Option<f64>,
    /// As the request field.
    pub top_p: Option<f64>,
    /// As the request field.
    pub top_k: Option<i64>,
    /// As the request field.
    pub min_p: Option<f64>,
    /// As the request field.
    pub typical_p: Option<f64>,
    /// As the request field.
    pub repetition_penalty: Option<f64>,
    /// Most tokens of an answer (`max_new_tokens`).
    pub max_tokens: Option<u32>,
}

/// Why a guest gave no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GuestError {
    /// The client's request makes no sense to the guest.
    #[error("{0}")]
    InvalidRequest(String),
    /// No module has this name.
    #[error("there is no sampler module {name:?}; there are {}", known.join(", "))]
    UnknownModule {
        /// As the request names it.
        name: String,
        /// Those that there are.
        known: Vec<String>,
    },
    /// The tenant's policy names a module that is not there.
    #[error(
        "the {role} module '{name}', which is pinned for this tenant and model, does not exist; bring it back, or have the \
         pin changed"
    )]
    NoPinned {
        /// As the policy names it.
        name: String,
        /// What it is for.
        role: String,
    },
    /// The guest cannot do what the request asks.
    #[error("{0}")]
    Unsupported(String),
    /// All places for guests are taken.
    #[error("{0}")]
    Busy(String),
    /// It trapped, ran out of time or memory, or answered nonsense. The text names module and cause.
    #[error("{0}")]
    Failed(String),
}

/// What the guest calls of one request share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestScope {
    /// Unix seconds: guests have no clock.
    pub now: u64,
    /// Its name in logs; empty for none.
    pub request: Arc<str>,
    /// Whose request it is: decides which modules serve it, and who pays for them.
    pub tenant: Arc<Tenant>,
    /// What the tenant pinned for the model.
    pub pins: Pins,
    /// Takes the calls down.
    pub record: Option<Recorder>,
}

impl RequestScope {
    /// Calls that nobody takes down, of no tenant.
    #[must_use]
    pub fn unrecorded(now: u64) -> Self {
        Self {
            now,
            request: Arc::from(""),
            tenant: Tenant::anonymous(),
            pins: Pins::default(),
            record: None,
        }
    }
}

/// What a sampler guest is asked for one prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SamplerRequest {
    /// The request's.
    pub scope: RequestScope,
    /// The module that the client names; `None` for the model's own.
    pub module: Option<String>,
    /// A JSON object with those of these fields that are set: `temperature`, `top_p`, `top_k`, `min_p`, `typical_p`,
    /// `repetition_penalty`, `presence_penalty`, `frequency_penalty`, `logit_bias` (object from decimal ids),
    /// `allowed_token_ids`, `bad_words_token_ids` (lists of ids), `min_tokens`, `stop_token_ids`, `ignore_eos`, `seed`
    /// (unsigned 64 bits), all in range; and unchecked `no_repeat_ngram_size`, `dry_multiplier`, `dry_base`,
    /// `dry_allowed_length`, `dry_range`, `dry_breaker_token_ids`, `dynatemp_min`, `dynatemp_max`, `dynatemp_exponent`,
    /// `top_n_sigma`, `epsilon_cutoff`, `eta_cutoff`, `tfs`, `xtc_probability`, `xtc_threshold`, `mirostat_mode`,
    /// `mirostat_tau`, `mirostat_eta`, `watermark`. A module that the client names or needs also gets `n`, `best_of`,
    /// `length_penalty`, `early_stopping` and `sampler_args`, the client's own object.
    pub fields: String,
    /// Tokens of the prompt.
    pub prompt_len: u32,
    /// Most tokens of an answer.
    pub max_tokens: u32,
    /// Choices that the client wants.
    pub n: u32,
}

/// What a sampler guest answered.
pub struct Planned {
    /// Stages and draw.
    pub plan: SamplingPlan,
    /// `None`: drawn at admission.
    pub seed: Option<u64>,
    /// What the output must follow.
    pub grammar: Option<GrammarSource>,
    /// The guest itself, where the plan's draw asks it; for one prompt.
    pub chooser: Option<Box<dyn Chooser>>,
}

/// A grammar as text.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct GrammarSource {
    /// How it is written.
    pub syntax: String,
    /// The text.
    pub source: String,
}

/// A model's guests. Every call works in a store of its own or in one that its result owns.
pub trait Guests: Send + Sync {
    /// Begins a request that generates, whose calls are recorded if the administrator wants that. May write a file.
    ///
    /// # Errors
    /// When its guests are not to be had. A record that cannot be written is told in the log.
    fn scope(&self, now: u64, tenant: &Arc<Tenant>) -> Result<RequestScope, GuestError>;

    /// A chat store for one request.
    fn open_chat(
        &self,
        scope: &RequestScope,
    ) -> BoxFuture<'static, Result<Box<dyn Chat>, GuestError>>;

    /// Asks the sampler guest. Takes as long as the guest does.
    ///
    /// # Errors
    /// When there is no such module, or the guest refuses or fails.
    fn plan(&self, request: &SamplerRequest) -> Result<Planned, GuestError>;
}

/// A conversation, as the chat guest takes it. The strings are JSON.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Conversation {
    /// Array of OpenAI messages.
    pub messages: String,
    /// Array of tools.
    pub tools: Option<String>,
    /// `"none"`, `"auto"`, `"required"` or a named function.
    pub tool_choice: Option<String>,
    /// Array of documents.
    pub documents: Option<String>,
    /// Ask the model to answer.
    pub add_generation_prompt: bool,
    /// Leave the last message open.
    pub continue_final_message: bool,
    /// Unix seconds.
    pub now: u64,
    /// Object of `chat_template_kwargs`.
    pub kwargs: Option<String>,
}

/// A parser within a chat store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ParserId(pub u32);

/// Next piece of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Delta {
    /// Text for the client.
    Content(String),
    /// What the model thinks before it answers.
    Reasoning(String),
    /// A part of a tool call.
    ToolCall {
        /// Which call.
        index: u32,
        /// With the first part, if the guest names it.
        id: Option<String>,
        /// With the first part.
        name: Option<String>,
        /// Next characters of the JSON arguments.
        arguments: String,
    },
}

/// A chat guest's store. A failed call leaves it dead: later calls fail too.
pub trait Chat: Send {
    /// The prompt.
    fn render<'a>(
        &'a mut self,
        conversation: &'a Conversation,
    ) -> BoxFuture<'a, Result<Vec<Segment>, GuestError>>;

    /// Strings that end a generation beside the model's stop tokens.
    fn stop_strings(&mut self) -> BoxFuture<'_, Result<Vec<String>, GuestError>>;

    /// Control tokens that parsers need to see in their text.
    fn visible_controls(&mut self) -> BoxFuture<'_, Result<Vec<TokenId>, GuestError>>;

    /// A parser for one choice of the answer to `conversation`.
    fn parser<'a>(
        &'a mut self,
        conversation: &'a Conversation,
    ) -> BoxFuture<'a, Result<ParserId, GuestError>>;

    /// Text as it comes, whole characters.
    fn push<'a>(
        &'a mut self,
        parser: ParserId,
        text: &'a str,
    ) -> BoxFuture<'a, Result<Vec<Delta>, GuestError>>;

    /// The text is over.
    fn finish(&mut self, parser: ParserId) -> BoxFuture<'_, Result<Vec<Delta>, GuestError>>;
}
