//! Chooses which sequences advance in the next step, and by how many tokens.

use crate::admit::Admission;
use crate::block_pool::{BlockHandle, BlockPool};
use crate::layout::Layout;
use crate::lineup::{Allowance, Lineup, Turn, everyone, lineup};
use crate::sequence::{Order, Place, PromptScores, Sequence};
use crate::speculate;
use crate::state::State;
use crate::stepping::group;
use crate::{BlockCopy, SequenceId, preempt, quota};
use std::collections::BTreeMap;

/// Most tokens of a row that scores prompt tokens: each needs logits of its own.
const SCORED_TOKENS: u32 = 256;

/// In order; first come, first served within a priority and a tenant. Where several tenants are present, `lineup.rs` says who
/// takes part. Decodes go first, one token each (or all that are known, where the budget
/// allows); then prefills share what is left of the step's token budget, in order, each as long a chunk as budget and
/// blocks allow.
///
/// Who lacks blocks preempts sequences behind it, last first. While blocks are about to be freed by steps in flight it
/// waits instead, and nobody behind it takes further blocks, so the first sequence always gets what it needs.
#[derive(Debug, Default)]
pub(crate) struct Scheduler {
    /// The first sequence that waits for blocks.
    starving: Option<Order>,
    allowance: Allowance,
}

/// One sequence's part in the next step; its blocks are in its tables already.
#[derive(Debug)]
pub(crate) struct Advance {
    pub(crate) sequence: SequenceId,
    pub(crate) len: u32,
    pub(crate) copies: Vec<BlockCopy>,
    /// Keeps the copies' sources.
    pub(crate) sources: Vec<BlockHandle>,
    /// Blocks taken for it.
    fresh: u64,
}

/// The step as chosen so far.
#[derive(Debug)]
struct Selection {
    advances: Vec<Advance>,
    tokens_left: u32,
    /// Decodes still to be chosen: as many of the tokens left are theirs.
    decodes_left: u32,
    /// Of the tokens left: those that may be drafts.
    drafts_left: u32,
    /// Blocks that tenants may still take; as far as looked up.
    quotas: BTreeMap<u64, Option<u64>>,
}

impl Selection {
    /// Takes back what a preempted sequence got.
    fn remove(&mut self, sequence: SequenceId) {
        self.quotas.clear();
        if let Some(index) = self
            .advances
            .iter()
            .position(|advance| advance.sequence == sequence)
        {
            self.tokens_left += self.advances.remove(index).len;
        }
    }
}

impl Scheduler {
    /// A running sequence that waits for blocks is a reason to admit nobody, but for the rest of a group before it.
    pub(crate) fn admission(&self, state: &State) -> Admission {
        match self.starving {
            Some(order) if self.is_starving(state) => Admission::PartsBefore(order),
            _ => Admission::Everyone,
        }
    }

    fn is_starving(&self, state: &State) -> bool {
        self.starving
            .is_some_and(|order| state.running.contains_key(&order))
    }

    /// Fills a step. Chosen sequences hold the blocks they will write.
    pub(crate) fn schedule(&mut self, state: &mut State) -> Vec<Advance> {
        if !self.is_starving(state) {
            self.starving = None;
        }
        preempt::outgrown(state);
        let lineup = lineup(state, &mut self.allowance, self.starving);
        let absent = lineup.absent;
        let advances = self.select(state, lineup);
        if advances.is_empty() && absent > 0 && state.in_flight.is_empty() {
            // Who sits out may hold the blocks that the others lack.
            return self.select(state, everyone(state));
        }
        advances
    }

    fn select(&mut self, state: &mut State, lineup: Lineup) -> Vec<Advance> {
        let mut selection = Selection {
            advances: Vec::new(),
            tokens_left: state.limits.max_step_tokens(),
            decodes_left: 0,
            drafts_left: state.limits.max_step_tokens(),
            quotas: BTreeMap::new(),
        };
        if !lineup.prefills.is_empty() {
            // Of what decodes leave: prefills would wait for sequences that keep guessing.
            let decodes = lineup.decodes.len() as u32;
            selection.drafts_left = selection.tokens_left.saturating_sub(decodes) / 2;
        }
        selection.decodes_left = lineup.decodes.len() as u32;
        for turn in lineup.decodes {
            selection.decodes_left -= 1;
            self.advance(state, turn, &mut selection);
        }
        for turn in lineup.prefills {
            self.advance(state, turn, &mut selection);
        }
        selection.advances
    }

    /// Adds a sequence to the step, if it can be.
    fn advance(&mut self, state: &mut State, turn: Turn, selection: &mut Selection) {
        let id = turn.id;
        let budget = selection.tokens_left.saturating_sub(selection.decodes_left);
        let budget = budget.min(turn.most);
        let room = selection.drafts_left.min(budget.saturating_sub(1));
        let drafts = speculate::guess(state, id, room);
        // Earlier ones may have preempted it meanwhile.
        while let Some(sequence) = state.sequences.get(&id)
            && state.running.contains_key(&sequence.order)
        {
            let order = sequence.order;
            let budget = selection.tokens_left.saturating_sub(selection.decodes_left);
            let known = sequence.remaining();
            let mut want = (known + drafts).min(budget).min(turn.most);
            if scores(sequence) && !state.limits.whole_prompt() {
                want = want.min(SCORED_TOKENS);
            }
            let whole = state.limits.whole_prompt() && sequence.computed == 0;
            let least = if whole { sequence.prompt_len } else { 1 };
            if want < least {
                // A prompt that must run whole gets the next step's budget before those behind it.
                selection.tokens_left = 0;
                return;
            }
            let frugal = self.starving.is_some_and(|first| first < order);
            let quota = *selection
                .quotas
                .entry(order.tenant)
                .or_insert_with(|| quota::blocks_left(state, order.tenant));
            if let Some(advance) = reserve(
                state,
                id,
                Need {
                    least,
                    want,
                    frugal,
                    quota,
                },
            ) {
                let left = quota.map(|left| left.saturating_sub(advance.fresh));
                selection.quotas.insert(order.tenant, left);
                selection.tokens_left -= advance.len;
                selection.drafts_left -= advance.len.saturating_sub(known);
                selection.advances.push(advance);
                if self.starving == Some(order) {
                    self.starving = None;
                }
                return;
            }
            if quota.is_some_and(|left| lacks_quota(state, id, least, left)) {
                match quota::makes_room(state, order.tenant, id) {
                    quota::Room::Later => return,
                    quota::Room::Never(request) => {
                        quota::fail(state, order.tenant, request);
                        selection.quotas.clear();
                        return;
                    }
                    quota::Room::From(victim) => {
                        for left in preempt::preempt(state, victim) {
                            selection.remove(left);
                        }
                    }
                }
                continue;
            }
            let victim = if frugal || state.is_settling() {
                None
            } else {
                group::victim(state, id)
            };
            match victim {
                Some(victim) => {
                    for left in preempt::preempt(state, victim) {
                        selection.remove(left);
                    }
                }
                None if selection.advances.is_empty() && group::fail_if_too_large(state, id) => {
                    return;
                }
                None => {
                    if preempt::must_restart(state, order) {
                        preempt::preempt(state, id);
                    }
                    self.starving = Some(self.starving.map_or(order, |first| first.min(order)));
                    return;
                }
            }
        }
    }
}

/// Whether its next row scores prompt tokens.
fn scores(sequence: &Sequence) -> bool {
    let gathers = matches!(sequence.scores, PromptScores::Gathering { .. });
    gathers && sequence.computed + 1 < sequence.prompt_len
}

/// What a sequence asks for.
#[derive(Clone, Copy, Debug)]
struct Need {
    /// Fewer tokens are of no use.
    least: u32,
    want: u32,
    /// Only blocks it holds already.
    frugal: bool,
    /// Most blocks, of all groups together.
    quota: Option<u64>,
}

/// Gives a sequence the blocks for its next tokens: for as many as the pool allows, or for none.
fn reserve(state: &mut State, id: SequenceId, need: Need) -> Option<Advance> {
    let State {
        sequences,
        pool,
        limits,
        cache,
        ..
    } = state;
    let layout = limits.layout();
    let sequence = sequences.get_mut(&id)?;
    let start = sequence.computed;
    // A block is offered to the prefix cache when its step is collected; until then a window keeps it.
    let offered = if cache.is_enabled() {
        sequence.published
    } else {
        usize::MAX
    };
    let place = sequence.place.as_mut()?;
    let mut passed = Vec::new();
    for ((_, info), table) in layout.groups().zip(&mut place.tables) {
        passed.extend(table.pass(layout.first_visible(info, start).min(offered)));
    }
    let len = affordable(layout, pool, place, start, need);
    let advance = len.and_then(|len| {
        let mut advance = Advance {
            sequence: id,
            len,
            copies: Vec::new(),
            sources: Vec::new(),
            fresh: 0,
        };
        take_blocks(layout, pool, place, start, &mut advance).map(|()| advance)
    });
    state.hold(passed);
    advance
}

/// The most tokens from `start` whose blocks are held or available.
fn affordable(
    layout: &Layout,
    pool: &BlockPool,
    place: &Place,
    start: u32,
    need: Need,
) -> Option<u32> {
    let mut len = need.want;
    for ((group, info), table) in layout.groups().zip(&place.tables) {
        let available = if need.frugal {
            0
        } else {
            pool.available(group)
        };
        let copies = layout
            .partial(info, start)
            .is_some_and(|entry| table.must_copy(entry));
        let fresh = available.checked_sub(u32::from(copies))?;
        let end = layout.capacity(info, table.len() + fresh as usize);
        len = len.min(u32::try_from(end.saturating_sub(u64::from(start))).unwrap_or(u32::MAX));
    }
    if let Some(quota) = need.quota {
        len = (need.least..=len)
            .rev()
            .find(|&len| fresh_blocks(layout, place, start, len) <= quota)?;
    }
    (len >= need.least).then_some(len)
}

/// Blocks to be taken for `len` tokens from `start`, of all groups together.
fn fresh_blocks(layout: &Layout, place: &Place, start: u32, len: u32) -> u64 {
    let tables = layout.groups().zip(&place.tables);
    tables
        .map(|((_, info), table)| {
            let entries = layout.entries(info, start + len);
            entries.saturating_sub(table.len()) as u64
        })
        .sum()
}

/// Whether its tenant may not take the blocks of its next `least` tokens.
fn lacks_quota(state: &State, id: SequenceId, least: u32, left: u64) -> bool {
    let sequence = state.sequences.get(&id);
    sequence
        .and_then(|sequence| Some((sequence.computed, sequence.place.as_ref()?)))
        .is_some_and(|(start, place)| {
            fresh_blocks(state.limits.layout(), place, start, least) > left
        })
}

fn take_blocks(
    layout: &Layout,
    pool: &BlockPool,
    place: &mut Place,
    start: u32,
    advance: &mut Advance,
) -> Option<()> {
    for ((group, info), table) in layout.groups().zip(&mut place.tables) {
        if let Some(entry) = layout.partial(info, start)
            && table.must_copy(entry)
        {
            let copy = pool.allocate(group)?;
            let to = copy.id();
            if let Some(source) = table.replace(entry, copy) {
                advance.copies.push(BlockCopy {
                    group,
                    from: source.id(),
                    to,
                });
                advance.sources.push(source);
            }
        }
        while table.len() < layout.entries(info, start + advance.len) {
            table.push(pool.allocate(group)?);
            advance.fresh += 1;
        }
    }
    Some(())
}
