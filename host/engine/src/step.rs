//! The contract between engine and executor: plain data that could cross a process boundary.

use crate::{BlockId, GroupId, RandomKey, SamplingPlan, Slot, Ticket, TokenId};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::Duration;

/// Everything the executor needs for one step. Parts apply in field order.
///
/// The executor keeps, per slot: the token history, the block table of each group and the sampling plan. A plan
/// carries only what changes, so that a step over 256 running sequences costs little.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StepPlan {
    /// This step's number.
    pub ticket: Ticket,
    /// Slots whose sequence ended, was cancelled or preempted. Never one that a row of an uncollected step uses.
    pub released: Vec<Slot>,
    /// Slots that begin (or resume) a sequence.
    pub admitted: Vec<Admission>,
    /// KV blocks copied before the forward pass (copy-on-write).
    pub copies: Vec<BlockCopy>,
    /// Sequences that advance, in batch order. At most one row per slot.
    pub rows: Vec<Row>,
    /// Tokens to choose after the forward pass.
    pub samples: Vec<SampleTask>,
}

/// A sequence entering a slot.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Admission {
    /// Place it takes.
    pub slot: Slot,
    /// Known history: the prompt, and after a preemption what was generated.
    pub tokens: Vec<TokenId>,
    /// Length of the original prompt, tokens.
    pub prompt_len: u32,
    /// Stages and draw.
    pub sampling: Arc<SamplingPlan>,
    /// Random numbers.
    pub random: RandomKey,
    /// State of a mirostat stage ([`Sampled::mu`]) after `tokens`; `None` at the beginning.
    pub mu: Option<f32>,
    /// Block table of each group, in group order; blocks of a prefix hit, or shared by a fork.
    ///
    /// Here and while a sequence runs, a window group's entries wholly before the window of its next position mean
    /// nothing: they are valid numbers, but the blocks are others' by now.
    pub blocks: Vec<Vec<BlockId>>,
}

/// One sequence advancing by `len` tokens.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// Whose state is used.
    pub slot: Slot,
    /// Position of the first token computed here.
    pub start: u32,
    /// Tokens computed.
    pub len: u32,
    /// Where tokens beyond the slot's history come from; they are appended to it.
    pub input: Input,
    /// Appended to the slot's block tables before the forward pass.
    pub new_blocks: Vec<(GroupId, BlockId)>,
    /// For each position `p` in `start..start + len` with `p + 1 < prompt_len`: log-probability of token `p + 1`
    /// and of so many best ones.
    pub prompt_logprobs: Option<u32>,
}

/// Source of a row's tokens.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Input {
    /// All of `start..start + len` is in the slot's history.
    History,
    /// These tokens are appended; `start + len` is the history's new length. What the history had beyond the place of the
    /// first one (drafts that were refused) is forgotten.
    Known(Vec<TokenId>),
    /// The token that an earlier step sampled, not known to the engine yet: entry `sample` of that plan's `samples`.
    From {
        /// The earlier step.
        ticket: Ticket,
        /// Index into its samples.
        sample: u32,
    },
}

/// Choose one token from the logits of one position of a row. Several tasks may share a row (`n` choices of a prompt, or
/// the positions of a draft).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SampleTask {
    /// Index into [`StepPlan::rows`].
    pub row: u32,
    /// Positions before the row's last one: 0 is the last. With more, the history ends that much earlier, as far as stages
    /// and random numbers go.
    pub back: u32,
    /// Whose sampling plan, history and random key apply.
    pub slot: Slot,
    /// Best tokens to report with their log-probabilities.
    pub top_logprobs: u32,
    /// Of which logits they are reported.
    pub logprobs: LogprobsMode,
}

/// Which numbers are reported with a token (vLLM's `--logprobs-mode`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum LogprobsMode {
    /// Before every stage but a grammar's mask.
    #[default]
    Raw,
    /// After all stages. [`Sampled::logprob`] then equals [`Sampled::processed_logprob`], and rank and best tokens are those
    /// of the processed row.
    Processed,
}

/// Copy of one KV block within its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockCopy {
    /// Group of both.
    pub group: GroupId,
    /// Source.
    pub from: BlockId,
    /// Target.
    pub to: BlockId,
}

/// What one step produced.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StepOutput {
    /// The step.
    pub ticket: Ticket,
    /// One entry per [`SampleTask`].
    pub samples: Vec<SampleOutcome>,
    /// One entry per row with [`Row::prompt_logprobs`], in row order.
    pub prompt_logprobs: Vec<PromptLogprobs>,
    /// How long the device waited for the host before this step: between the end of the step before and the start of this
    /// one, where this one was wanted. Zero where it is not measured.
    pub exposed: Duration,
    /// How long the step took on the device. Zero where it is not measured.
    pub took: Duration,
}

/// Result of one sample task.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum SampleOutcome {
    /// A token.
    Token(Sampled),
    /// The prompt's vector, of a model that embeds.
    Embedding(Vec<f32>),
    /// What a guest chooses from ([`Draw::Candidates`](crate::Draw::Candidates)).
    Candidates(Box<Candidates>),
    /// A whole row for a guest ([`Draw::Row`](crate::Draw::Row)).
    Row(Box<LogitsRow>),
    /// The request's stages and mask leave no token, or one of its stages cannot be applied: ends that sequence.
    Refused(String),
    /// The model gave nothing to choose from (logits that are not finite): ends that sequence.
    Failed(String),
}

/// A chosen token.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sampled {
    /// The choice.
    pub token: TokenId,
    /// Its raw log-probability: f32 log-softmax before every stage but a grammar mask.
    pub logprob: f32,
    /// Tokens with a higher raw logit, plus one.
    pub rank: u32,
    /// Its log-probability after all stages; `-inf` if they removed it.
    pub processed_logprob: f32,
    /// Best raw tokens, best first.
    pub top: Vec<(TokenId, f32)>,
    /// A mirostat stage's bound on surprise (bits) for the token after this one; `None` without such a stage.
    pub mu: Option<f32>,
}

/// The best of a row, best first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Candidates {
    /// Those above -inf, at most as many as were asked for.
    pub tokens: Vec<TokenId>,
    /// Their logits after all stages.
    pub logits: Vec<f32>,
    /// Their log-probabilities in the task's [`LogprobsMode`].
    pub logprobs: Vec<f32>,
    /// Their ranks in it.
    pub ranks: Vec<u32>,
    /// Of the whole row after all stages.
    pub log_sum_exp: f32,
    /// Of the whole row after all stages, nats.
    pub entropy: f32,
    /// In (0, 1), from the sequence's random key and position, apart from the token draw's numbers.
    pub uniform: f32,
    /// Best tokens that the task wants reported, best first.
    pub top: Vec<(TokenId, f32)>,
    /// `[hidden size]` if asked for, else empty.
    pub hidden: Vec<f32>,
}

/// A whole row.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LogitsRow {
    /// `[vocab]`, after all stages.
    pub logits: Vec<f32>,
    /// `[vocab]`, before every stage but a grammar's mask, if that differs.
    pub raw: Option<Vec<f32>>,
    /// In (0, 1), from the sequence's random key and position, apart from the token draw's numbers.
    pub uniform: f32,
    /// Best tokens that the task wants reported, best first.
    pub top: Vec<(TokenId, f32)>,
    /// `[hidden size]` if asked for, else empty.
    pub hidden: Vec<f32>,
}

/// Log-probabilities of prompt tokens of one row.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PromptLogprobs {
    /// Index into [`StepPlan::rows`].
    pub row: u32,
    /// For positions `start + 1 ..`: the prompt's own token there. `processed_logprob` equals `logprob`.
    pub entries: Vec<Sampled>,
}
