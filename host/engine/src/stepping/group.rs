//! Branches of one request in scheduling: they go on together or not at all.
//!
//! A group is *partial* while some of its branches run and others wait, and cannot go on then. So those that wait come before
//! all other admissions behind them, and make room like running sequences do; and a partial group behind the head of the
//! queue, whose turn cannot come before the head's, gives up its places. Branches that come back share the blocks of what
//! they have in common as before: the first computes it, the others wait for that.

use crate::prefix_cache::Hit;
use crate::sequence::{Order, Phase, PromptScores, Sequence};
use crate::state::State;
use crate::{EngineError, GroupId, RequestId, SequenceId};

/// How many branches of a group are in which phase.
#[derive(Clone, Copy, Debug, Default)]
struct Census {
    running: usize,
    waiting: usize,
    yielding: usize,
}

impl Census {
    fn is_partial(self) -> bool {
        self.running > 0 && self.waiting > 0
    }
}

/// The branches of a request with a chooser; none for others.
fn members(state: &State, request: RequestId) -> impl Iterator<Item = &Sequence> {
    let active = state.requests.get(&request);
    active
        .filter(|active| active.stepping.is_some())
        .into_iter()
        .flat_map(|active| &active.sequences)
        .filter_map(|id| state.sequences.get(id))
}

/// Of the group of a request with a chooser.
fn census(state: &State, request: RequestId) -> Census {
    let mut census = Census::default();
    for sequence in members(state, request) {
        match sequence.phase {
            Phase::Running => census.running += 1,
            Phase::Waiting => census.waiting += 1,
            Phase::Yielding => census.yielding += 1,
            Phase::Ending => {}
        }
    }
    census
}

/// Whether steps in flight keep others of a sequence's group from waiting.
pub(crate) fn is_settling(state: &State, id: SequenceId) -> bool {
    state
        .sequences
        .get(&id)
        .is_some_and(|own| own.asks() && census(state, own.request).yielding > 0)
}

/// The waiting ones among a sequence's group; the sequence alone without one.
pub(crate) fn waiting(state: &State, id: SequenceId) -> Vec<&Sequence> {
    together(state, id, Phase::Waiting)
}

/// The running ones among a sequence's group, if it runs itself; without a group, the sequence.
pub(crate) fn running(state: &State, id: SequenceId) -> Vec<SequenceId> {
    if state
        .sequences
        .get(&id)
        .is_none_or(|sequence| sequence.phase != Phase::Running)
    {
        return Vec::new();
    }
    together(state, id, Phase::Running)
        .into_iter()
        .map(|sequence| sequence.id)
        .collect()
}

fn together(state: &State, id: SequenceId, phase: Phase) -> Vec<&Sequence> {
    let Some(own) = state.sequences.get(&id) else {
        return Vec::new();
    };
    if !own.asks() {
        return vec![own];
    }
    members(state, own.request)
        .filter(|sequence| sequence.phase == phase)
        .collect()
}

/// Whether two sequences are of one group.
pub(crate) fn are_together(a: &Sequence, b: &Sequence) -> bool {
    a.id == b.id || (a.request == b.request && a.asks() && b.asks())
}

/// Whether nothing runs but a sequence's group.
pub(crate) fn is_alone(state: &State, id: SequenceId) -> bool {
    let Some(own) = state.sequences.get(&id) else {
        return false;
    };
    // Orders of a group have nothing between them.
    [
        state.running.first_key_value(),
        state.running.last_key_value(),
    ]
    .into_iter()
    .flatten()
    .filter_map(|(_, id)| state.sequences.get(id))
    .all(|other| are_together(own, other))
}

/// The last running sequence, if it is behind a sequence and not of its group.
pub(crate) fn victim(state: &State, id: SequenceId) -> Option<SequenceId> {
    let own = state.sequences.get(&id)?;
    let (order, last) = state.running.last_key_value()?;
    let last = state.sequences.get(last)?;
    (*order > own.order && !are_together(own, last)).then_some(last.id)
}

/// Who is to be preempted so that the head of the queue, which comes there in order, can be admitted, if anyone.
pub(crate) fn makes_room(state: &State, head: SequenceId, order: Order) -> Option<SequenceId> {
    let own = state.sequences.get(&head)?;
    if state.is_settling() {
        return None;
    }
    if own.asks() && census(state, own.request).is_partial() {
        return victim(state, head);
    }
    state
        .running
        .values()
        .rev()
        .filter_map(|id| state.sequences.get(id))
        .take_while(|other| other.order > order)
        .filter(|other| other.asks() && !are_together(own, other))
        .find(|other| census(state, other.request).is_partial())
        .map(|other| other.id)
}

/// Whether a sequence that waits belongs to a group that has begun to run.
pub(crate) fn is_in_part(state: &State, id: SequenceId) -> bool {
    state
        .sequences
        .get(&id)
        .is_some_and(|own| own.asks() && census(state, own.request).is_partial())
}

/// What a branch that is admitted has in common with one of its group that runs.
pub(crate) enum Share {
    /// Nothing more than is found anyway.
    None,
    /// Something that is still to be computed.
    Later,
    /// These blocks.
    Now(Hit),
}

/// Looks for more than the first `found` positions.
pub(crate) fn share(state: &State, id: SequenceId, found: u32) -> Share {
    let Some(own) = state.sequences.get(&id).filter(|own| own.asks()) else {
        return Share::None;
    };
    if !shares(state) || !matches!(own.scores, PromptScores::Done) {
        return Share::None;
    }
    let layout = state.limits.layout();
    let siblings = members(state, own.request)
        .filter(|other| other.phase == Phase::Running)
        .filter(|other| other.salt == own.salt && other.passed == own.passed);
    let best = siblings
        .map(|other| (common(own, other) / layout.block_size(), other))
        .max_by_key(|(blocks, other)| (*blocks, other.computed));
    let Some((blocks, other)) = best else {
        return Share::None;
    };
    let tokens = blocks * layout.block_size();
    let splits_prompt = state.limits.whole_prompt() && tokens < own.prompt_len;
    if tokens <= found || splits_prompt {
        return Share::None;
    }
    if other.computed < tokens {
        return Share::Later;
    }
    let tables = other.place.iter().flat_map(|place| &place.tables);
    let shared: Option<Vec<_>> = layout
        .groups()
        .zip(tables)
        .map(|((_, info), table)| {
            let start = layout.first_visible(info, tokens).min(blocks as usize);
            table.share(start, blocks as usize)
        })
        .collect();
    match shared {
        Some(tables) => Share::Now(Hit { tokens, tables }),
        None => Share::None,
    }
}

fn shares(state: &State) -> bool {
    let layout = state.limits.layout();
    layout.shares_blocks() && layout.groups().next().is_some()
}

/// Tokens that two branches have in common, but for the last one of `own`, which is to be computed.
fn common(own: &Sequence, other: &Sequence) -> u32 {
    let most = own.tokens.len().saturating_sub(1);
    let equal = own.tokens[..most].iter().zip(&other.tokens);
    equal.take_while(|(a, b)| a == b).count() as u32
}

/// The sequences that an admission brings, each with the tokens that it has in common with one before: the waiting branches of
/// a group of which none runs, else the sequence alone.
pub(crate) fn arriving(state: &State, id: SequenceId) -> Vec<(&Sequence, u32)> {
    let Some(own) = state.sequences.get(&id) else {
        return Vec::new();
    };
    if !own.asks() || census(state, own.request).running > 0 {
        return vec![(own, 0)];
    }
    let mut branches = together(state, id, Phase::Waiting);
    // What a branch has in common with any before it in lexical order, it has with the one just before.
    branches.sort_by(|a, b| a.tokens.cmp(&b.tokens));
    let mut before: Option<&Sequence> = None;
    let mut arriving = Vec::with_capacity(branches.len());
    for branch in branches {
        let shared = before.filter(|_| shares(state));
        arriving.push((branch, shared.map_or(0, |before| common(branch, before))));
        before = Some(branch);
    }
    arriving
}

/// Fails the request of a group that lacks blocks although it has the device for itself, nothing is under way and nothing
/// else is to be launched.
pub(crate) fn fail_if_too_large(state: &mut State, id: SequenceId) -> bool {
    let running = running(state, id);
    if running.len() < 2 || !state.in_flight.is_empty() || !is_alone(state, id) {
        return false;
    }
    let Some(sequence) = state.sequences.get(&id) else {
        return false;
    };
    let request = sequence.request;
    let scarce = state
        .limits
        .layout()
        .groups()
        .min_by_key(|(group, _)| state.pool.available(*group));
    let (group, blocks) = scarce.map_or((GroupId(0), 0), |(group, info)| (group, info.blocks));
    let error = EngineError::BranchesDoNotFit {
        branches: census(state, request).running as u32,
        tokens: sequence.len(),
        group,
        blocks,
    };
    state.fail(request, None, error);
    true
}
