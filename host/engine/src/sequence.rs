//! One choice of a request while it is generated.

use crate::block_pool::{BlockHandle, PrefixKey};
use crate::constrain::Grammar;
use crate::speculate::Speculation;
use crate::stepping::Branch;
use crate::{
    BlockId, Branching, CacheSalt, LogprobsMode, Priority, RandomKey, RequestId, Sampled,
    SamplingPlan, SequenceId, Slot, Ticket, TokenId,
};
use std::ops::Range;
use std::sync::Arc;

/// Who goes first: smaller. Unique per sequence. Of one tenant: in order of arrival within a priority.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Order {
    pub(crate) priority: Priority,
    /// Service of its tenant when it first got a place ([`Shares::start`](crate::shares::Shares::start)), or [`Order::FRESH`].
    pub(crate) start: u64,
    /// Number of the request's submission.
    pub(crate) arrival: u64,
    pub(crate) choice: u32,
    pub(crate) tenant: u64,
}

impl Order {
    /// Start of a sequence that never had a place: behind all of its tenant that had.
    pub(crate) const FRESH: u64 = u64::MAX;
}

/// Where a sequence stands. It leaves its place only when no step that touches it is in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// In the queue, without a place.
    Waiting,
    /// Has a place and is scheduled.
    Running,
    /// Preempted: steps in flight still count, then it waits again.
    Yielding,
    /// Finished, failed or cancelled: steps in flight do not count, then it is gone.
    Ending,
}

/// Log-probabilities of the prompt on their way to the client.
#[derive(Debug)]
pub(crate) enum PromptScores {
    /// Not asked for, or sent.
    Done,
    /// So far those of positions `1..=found.len()`.
    Gathering {
        /// Best tokens per position.
        top: u32,
        found: Vec<Sampled>,
    },
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Sequence {
    pub(crate) id: SequenceId,
    pub(crate) request: RequestId,
    pub(crate) order: Order,
    /// Choices that branch off when the prompt is computed.
    pub(crate) forks: Range<u32>,
    /// Prompt and collected output.
    pub(crate) tokens: Vec<TokenId>,
    pub(crate) prompt_len: u32,
    /// Length at which it is complete.
    pub(crate) limit: u32,
    pub(crate) salt: CacheSalt,
    /// How many of [`LengthRules::anew_above`](crate::LengthRules) it was beyond when it was admitted; in `salt` too.
    pub(crate) passed: usize,
    /// Keys of the first complete blocks of `tokens`.
    pub(crate) keys: Vec<PrefixKey>,
    /// Blocks offered to the prefix cache.
    pub(crate) published: usize,
    pub(crate) sampling: Arc<SamplingPlan>,
    pub(crate) random: RandomKey,
    pub(crate) top_logprobs: u32,
    pub(crate) logprobs: LogprobsMode,
    /// Of a mirostat stage, after `tokens`.
    pub(crate) mu: Option<f32>,
    pub(crate) scores: PromptScores,
    /// What its output must follow; after `tokens`.
    pub(crate) grammar: Option<Grammar>,
    /// If it may draft.
    pub(crate) speculation: Option<Box<Speculation>>,
    /// Positions whose computation was launched.
    pub(crate) computed: u32,
    /// Samples that may follow `tokens` and are not collected yet: at most 1 when a step is scheduled.
    pub(crate) unknown: u32,
    /// Oldest samples in flight whose results do not count.
    pub(crate) void: u32,
    /// Where the last unknown token is sampled.
    pub(crate) last_sample: Option<(Ticket, u32)>,
    /// Number after that of the step in which it last advanced or got its place.
    pub(crate) advanced: u64,
    /// Rows and samples of uncollected steps.
    pub(crate) in_flight: u32,
    pub(crate) phase: Phase,
    /// Whether it ran before.
    pub(crate) preempted: bool,
    pub(crate) place: Option<Place>,
    /// Where a guest chooses.
    pub(crate) branch: Option<Branch>,
}

/// What a running sequence holds on the device.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) slot: Slot,
    /// Slots for its forks.
    pub(crate) reserved: Vec<Slot>,
    /// Per group.
    pub(crate) tables: Vec<Table>,
    /// Tokens in the executor's history of the slot; `None` before it was told of the admission.
    pub(crate) history: Option<u32>,
}

/// A block table.
///
/// Entries below `announced` are in the executor's table too. A partly filled block among those is written by this
/// sequence alone; one at or above may be shared with the sequence it was forked from, and is copied before the first
/// write.
#[derive(Debug, Default)]
pub(crate) struct Table {
    /// `None` where the window has passed: a beginning of the table.
    entries: Vec<Option<BlockHandle>>,
    /// Length of that beginning.
    passed: usize,
    pub(crate) announced: usize,
}

impl Sequence {
    /// Tokens it has, those not known yet included.
    pub(crate) fn len(&self) -> u32 {
        self.tokens.len() as u32 + self.unknown
    }

    /// Tokens that could be computed now.
    pub(crate) fn remaining(&self) -> u32 {
        if self.len() < self.limit || self.limit == self.prompt_len {
            self.len() - self.computed
        } else {
            0
        }
    }

    /// Whether its next row is of generated tokens: one, or all that are known.
    pub(crate) fn decodes(&self) -> bool {
        self.computed >= self.prompt_len && self.remaining() > 0
    }

    /// Whether a guest chooses its tokens.
    pub(crate) fn asks(&self) -> bool {
        self.branch.is_some()
    }

    /// Whether it is a branch of a search.
    pub(crate) fn searches(&self) -> bool {
        let asked = self.sampling.draw.asked().filter(|_| self.asks());
        asked.is_some_and(|asked| asked.branching == Branching::Search)
    }

    /// The choice that its events are about; 0 for all of a search.
    pub(crate) fn choice(&self) -> u32 {
        if self.searches() {
            0
        } else {
            self.order.choice
        }
    }

    /// Waits for a place, from which it is computed anew.
    pub(crate) fn await_place(&mut self) {
        self.phase = Phase::Waiting;
        self.preempted = true;
        self.computed = 0;
        self.published = 0;
        self.last_sample = None;
        if let PromptScores::Gathering { found, .. } = &mut self.scores {
            found.clear();
        }
    }

    /// Whether its last token's row is to be sampled.
    pub(crate) fn wants_sample(&self) -> bool {
        self.len() < self.limit && self.branch.as_ref().is_none_or(Branch::wants_row)
    }

    /// Whether results of steps in flight still count.
    pub(crate) fn is_live(&self) -> bool {
        self.phase != Phase::Ending
    }
}

impl Table {
    /// `passed` entries without blocks, then these.
    pub(crate) fn new(passed: usize, blocks: impl Iterator<Item = BlockHandle>) -> Self {
        let entries = std::iter::repeat_with(|| None)
            .take(passed)
            .chain(blocks.map(Some))
            .collect();
        Self {
            entries,
            passed,
            announced: 0,
        }
    }

    /// The same blocks, of which the executor is told the first `announced`.
    pub(crate) fn fork(&self, announced: usize) -> Self {
        Self {
            entries: self.entries.clone(),
            passed: self.passed,
            announced: announced.min(self.entries.len()),
        }
    }

    /// Its entries from `start` to `end`, after that many that have passed; `None` if one of them has passed here.
    pub(crate) fn share(&self, start: usize, end: usize) -> Option<Self> {
        (start >= self.passed && end <= self.entries.len()).then(|| {
            let blocks = self.entries[start.min(end)..end].iter().flatten();
            Self::new(start.min(end), blocks.cloned())
        })
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn push(&mut self, block: BlockHandle) {
        self.entries.push(Some(block));
    }

    /// Puts another block in the place of one.
    pub(crate) fn replace(&mut self, index: usize, block: BlockHandle) -> Option<BlockHandle> {
        self.entries.get_mut(index)?.replace(block)
    }

    /// Blocks it holds.
    pub(crate) fn blocks(&self) -> impl Iterator<Item = &BlockHandle> + '_ {
        self.entries[self.passed..].iter().flatten()
    }

    /// How many it holds.
    pub(crate) fn held(&self) -> usize {
        self.entries.len() - self.passed
    }

    /// Blocks it holds from one index to before another, with their index.
    pub(crate) fn range(
        &self,
        start: usize,
        end: usize,
    ) -> impl Iterator<Item = (usize, &BlockHandle)> + '_ {
        let indices = start.max(self.passed)..end.min(self.entries.len());
        indices.filter_map(|index| self.entries[index].as_ref().map(|block| (index, block)))
    }

    /// Takes out the blocks before entry `end`.
    pub(crate) fn pass(&mut self, end: usize) -> impl Iterator<Item = BlockHandle> + '_ {
        let start = self.passed;
        self.passed = end.clamp(start, self.entries.len().max(start));
        self.entries[start..self.passed]
            .iter_mut()
            .filter_map(Option::take)
    }

    /// Whether entry `index` must be copied before it is written.
    pub(crate) fn must_copy(&self, index: usize) -> bool {
        index >= self.announced
            && self
                .entries
                .get(index)
                .is_some_and(|entry| entry.as_ref().is_some_and(|block| !block.is_exclusive()))
    }

    /// Block numbers of entries from `start` to `end`; any valid number where the window has passed.
    pub(crate) fn ids(&self, start: usize, end: usize) -> impl Iterator<Item = BlockId> + '_ {
        let end = end.min(self.entries.len());
        self.entries[start.min(end)..end]
            .iter()
            .map(|entry| entry.as_ref().map_or(BlockId(0), BlockHandle::id))
    }
}

impl Drop for Table {
    /// Last block first: the cache then forgets a sequence's end before its beginning.
    fn drop(&mut self) {
        while self.entries.pop().is_some() {}
    }
}
