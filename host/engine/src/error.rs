//! What can go wrong: refusals before a request is queued, and ends of requests that ran.

use crate::{ChooserError, ExecutorError, GroupId, RequestId, Task, TokenId};

/// Why a request was not accepted. Nothing of it was kept.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// No tokens.
    #[error("the prompt has no tokens; it needs at least one (a BOS token will do)")]
    EmptyPrompt,
    /// A token the model does not have.
    #[error(
        "token {token} at position {position} of the prompt is outside the vocabulary of {vocab} tokens"
    )]
    TokenOutOfVocabulary {
        /// Found.
        token: TokenId,
        /// Where.
        position: u32,
        /// Valid ids are below.
        vocab: u32,
    },
    /// Longer than the context.
    #[error(
        "this model's maximum context length is {max_len} tokens, but {prompt_len} in the prompt and {max_tokens} to \
         generate make {}; shorten the prompt or lower max_tokens",
        u64::from(*prompt_len) + u64::from(*max_tokens)
    )]
    TooLong {
        /// Tokens of the prompt.
        prompt_len: u32,
        /// Asked for.
        max_tokens: u32,
        /// Limit of their sum.
        max_len: u32,
    },
    /// More KV blocks than exist.
    #[error(
        "{tokens} tokens need up to {needed} KV blocks of cache group {}, but the device has {blocks}; lower \
         max_tokens, shorten the prompt, or give the server more KV cache memory", group.0
    )]
    NeverFits {
        /// Prompt and output.
        tokens: u32,
        /// The group that is too small.
        group: GroupId,
        /// Blocks needed.
        needed: u32,
        /// Blocks that exist.
        blocks: u32,
    },
    /// More KV blocks than its tenant may hold.
    #[error(
        "a prompt of {prompt_len} tokens needs {needed} KV blocks, but this tenant may hold {max_blocks}; shorten the prompt, \
         or ask the operator to raise max_blocks"
    )]
    OverQuota {
        /// Tokens of the prompt.
        prompt_len: u32,
        /// Blocks needed, of all groups together.
        needed: u64,
        /// The tenant's limit.
        max_blocks: u32,
    },
    /// Longer than one step, for a model whose prompts cannot be split.
    #[error(
        "this model computes a prompt in one step, of at most {max_step_tokens} tokens, but the prompt has \
         {prompt_len}; shorten it or raise the step's token limit"
    )]
    PromptExceedsStep {
        /// Tokens of the prompt.
        prompt_len: u32,
        /// Limit.
        max_step_tokens: u32,
    },
    /// The model was made for the other task.
    #[error(
        "this model {}; send this request to another model",
        match .0 {
            Task::Generate => "generates text and embeds no prompts",
            Task::Embed => "embeds prompts and generates no text; it answers at /v1/embeddings",
        }
    )]
    WrongTask(Task),
    /// Fields that mean nothing when a prompt is embedded.
    #[error("embedding a prompt takes max_tokens 0, n 1 and no log-probabilities")]
    EmbeddingParams,
    /// `max_tokens` 0 without prompt log-probabilities.
    #[error(
        "max_tokens is 0 and no prompt log-probabilities are asked for, so there is nothing to compute"
    )]
    NothingToDo,
    /// `n` out of range.
    #[error("n must be between 1 and {limit}, but is {n}")]
    ChoicesOutOfRange {
        /// Found.
        n: u32,
        /// Most that this server queues at once.
        limit: u32,
    },
    /// A plan that leaves the choice to a guest, without one.
    #[error(
        "the sampling plan leaves the choice of tokens to a guest, but none is attached; attach a chooser, or let the \
         plan draw"
    )]
    ChooserMissing,
    /// A guest for a plan that draws by itself, or embeds.
    #[error(
        "a guest that chooses tokens is attached, but the sampling plan leaves it no choice; let the plan ask for \
         candidates or rows"
    )]
    ChooserUnused,
    /// Candidates asked for, but none.
    #[error("the sampling plan asks for 0 candidates; at least 1 is needed to choose from")]
    NoCandidates,
    /// Too many requests wait.
    #[error(
        "{waiting} requests are waiting, the most this server queues is {max_waiting}; try again later"
    )]
    QueueFull {
        /// Waiting now.
        waiting: usize,
        /// Limit.
        max_waiting: usize,
    },
    /// An id that is in use.
    #[error("request {} is already running; ids must be unique", .0.0)]
    DuplicateId(RequestId),
    /// Shutdown has begun.
    #[error("the engine is shutting down and takes no more requests; try another replica")]
    ShuttingDown,
    /// The device failed earlier.
    #[error(
        "the engine stopped after a device failure; restart the server, and see its log for the cause"
    )]
    Dead,
}

impl SubmitError {
    /// Stable name for metrics.
    #[must_use]
    pub fn label(&self) -> &'static str {
        match self {
            Self::EmptyPrompt => "empty_prompt",
            Self::TokenOutOfVocabulary { .. } => "token_out_of_vocabulary",
            Self::TooLong { .. } => "too_long",
            Self::NeverFits { .. } => "never_fits",
            Self::OverQuota { .. } => "over_quota",
            Self::PromptExceedsStep { .. } => "prompt_exceeds_step",
            Self::WrongTask(_) => "wrong_task",
            Self::EmbeddingParams => "embedding_params",
            Self::NothingToDo => "nothing_to_do",
            Self::ChoicesOutOfRange { .. } => "choices_out_of_range",
            Self::ChooserMissing => "chooser_missing",
            Self::ChooserUnused => "chooser_unused",
            Self::NoCandidates => "no_candidates",
            Self::QueueFull { .. } => "queue_full",
            Self::DuplicateId(_) => "duplicate_id",
            Self::ShuttingDown => "shutting_down",
            Self::Dead => "dead",
        }
    }
}

/// Why a request, or the engine, ended.
#[derive(Clone, Debug, thiserror::Error)]
pub enum EngineError {
    /// The device is lost; the engine is dead from here on.
    #[error(transparent)]
    Executor(#[from] ExecutorError),
    /// The executor's answer does not fit the step; the engine is dead from here on.
    #[error(
        "the device's answer to step {ticket} is malformed: {message}; this is a bug in the executor"
    )]
    Malformed {
        /// The step.
        ticket: u64,
        /// Expected and found.
        message: String,
    },
    /// What the request asks for leaves no token to choose.
    #[error("no token can be chosen for choice {choice}: {message}")]
    NothingToChoose {
        /// Of the request.
        choice: u32,
        /// What the device said.
        message: String,
    },
    /// The model gave nothing to choose from.
    #[error("no token could be chosen for choice {choice}: {message}")]
    Sampling {
        /// Of the request.
        choice: u32,
        /// What the device said.
        message: String,
    },
    /// The output does not follow the request's grammar, or the grammar is too hard to follow.
    #[error("the output of choice {choice} cannot follow its grammar: {message}")]
    Constraint {
        /// Of the request.
        choice: u32,
        /// What the grammar said.
        message: String,
    },
    /// The guest that chooses tokens failed, or what it answered cannot be done.
    #[error(transparent)]
    Chooser(#[from] ChooserError),
    /// A search with more branches than there is memory for.
    #[error(
        "{branches} branches of {tokens} tokens each do not fit into the {blocks} KV blocks of cache group {}, although \
         nothing else runs; search with fewer branches, shorten the prompt, or give the server more KV cache memory", group.0
    )]
    BranchesDoNotFit {
        /// That run.
        branches: u32,
        /// Of each.
        tokens: u32,
        /// The group that is too small.
        group: GroupId,
        /// Blocks that exist.
        blocks: u32,
    },
    /// Grew beyond what its tenant may hold.
    #[error(
        "at {tokens} tokens this request needs more than its tenant may hold{}{}, although nothing else of the tenant runs; \
         lower max_tokens, or ask the operator to raise the limit",
        most(" KV blocks (max_blocks)", *max_blocks), most(" sequences (max_running)", *max_running)
    )]
    OverQuota {
        /// Of its longest sequence.
        tokens: u32,
        /// The tenant's limit, if it has one.
        max_blocks: Option<u32>,
        /// Likewise.
        max_running: Option<u32>,
    },
    /// Refused after it was handed over.
    #[error(transparent)]
    Refused(#[from] SubmitError),
    /// Accepted, but nothing runs and it still cannot start.
    #[error("request {} cannot be scheduled although nothing else runs; this is a bug in the scheduler", .0.0)]
    Unschedulable(RequestId),
    /// Blocks, slots and sequences disagree.
    #[error("the engine's bookkeeping is inconsistent: {0}; this is a bug in the engine")]
    Integrity(String),
    /// Shutdown without draining.
    #[error("the server shut down before this request was finished")]
    Aborted,
    /// An earlier failure.
    #[error(
        "the engine stopped after an earlier failure; restart the server, and see its log for the cause"
    )]
    Dead,
}

/// A limit in words, if there is one.
fn most(of: &str, limit: Option<u32>) -> String {
    limit.map_or_else(String::new, |limit| format!(", {limit}{of}"))
}

impl EngineError {
    /// Stable name for metrics.
    #[must_use]
    pub fn label(&self) -> &'static str {
        match self {
            Self::Executor(_) => "executor",
            Self::Malformed { .. } => "malformed",
            Self::NothingToChoose { .. } => "nothing_to_choose",
            Self::Sampling { .. } => "sampling",
            Self::Constraint { .. } => "constraint",
            Self::Chooser(_) => "chooser",
            Self::BranchesDoNotFit { .. } => "branches_do_not_fit",
            Self::OverQuota { .. } => "over_quota",
            Self::Refused(inner) => inner.label(),
            Self::Unschedulable(_) => "unschedulable",
            Self::Integrity(_) => "integrity",
            Self::Aborted => "aborted",
            Self::Dead => "dead",
        }
    }
}

impl PartialEq for EngineError {
    fn eq(&self, other: &Self) -> bool {
        self.label() == other.label() && self.to_string() == other.to_string()
    }
}
