//! What a tenant may hold: sequences and KV blocks. Whoever waits for its own limit keeps nobody else waiting.

use crate::sequence::{Sequence, Table};
use crate::state::State;
use crate::stepping::group;
use crate::{EngineError, Owner, RequestId, SequenceId, admit, preempt};

/// A tenant's limits, if it has any.
fn limits(state: &State, tenant: u64) -> Option<Owner> {
    let owner = state.shares.get(tenant)?.owner;
    (owner.max_running.is_some() || owner.max_blocks.is_some()).then_some(owner)
}

/// Its running sequences.
fn running(state: &State, tenant: u64) -> impl Iterator<Item = &Sequence> {
    state
        .running
        .of(tenant)
        .filter_map(|(_, id)| state.sequences.get(id))
}

/// Whether a tenant's limits leave room for one of its waiting sequences and what comes with it.
pub(crate) fn admits(state: &State, tenant: u64, id: SequenceId) -> bool {
    let Some(owner) = limits(state, tenant) else {
        return true;
    };
    let places = owner.max_running.is_none_or(|most| {
        let reserved = |own: &Sequence| own.place.as_ref().map_or(0, |place| place.reserved.len());
        let taken: usize = running(state, tenant).map(|own| 1 + reserved(own)).sum();
        // Alone it may exceed a limit that was lowered since it was queued.
        taken == 0 || taken + admit::slots_of_group(state, id) <= most as usize
    });
    places
        && owner.max_blocks.is_none_or(|most| {
            let promised: u64 = running(state, tenant)
                .map(|own| wanted(state, own).max(held_by(own)))
                .sum();
            let arriving: u64 = group::arriving(state, id)
                .into_iter()
                .map(|(own, _)| wanted(state, own))
                .sum();
            promised + arriving <= u64::from(most)
        })
}

/// Blocks of all groups when the known tokens of a sequence and the next are computed.
fn wanted(state: &State, sequence: &Sequence) -> u64 {
    state
        .limits
        .layout()
        .groups()
        .map(|(_, info)| admit::blocks_wanted(state, sequence, info) as u64)
        .sum()
}

fn held_by(sequence: &Sequence) -> u64 {
    let tables = sequence.place.iter().flat_map(|place| &place.tables);
    tables.map(|table: &Table| table.held() as u64).sum()
}

/// Blocks that a tenant may still take, if they are limited. One that several of its sequences share counts for each.
pub(crate) fn blocks_left(state: &State, tenant: u64) -> Option<u64> {
    let most = limits(state, tenant)?.max_blocks?;
    let held: u64 = running(state, tenant).map(held_by).sum();
    Some(u64::from(most).saturating_sub(held))
}

/// Sees to tenants whose first in the queue their own limits keep there: a group of which some run already takes the places
/// of those behind it; and who waits although nothing of its tenant runs, or only its own group, waits for nothing.
pub(crate) fn settle(state: &mut State) {
    let kept: Vec<_> = state
        .waiting
        .firsts()
        .filter(|(order, id)| !admits(state, order.tenant, **id))
        .map(|(order, id)| (order.tenant, *id))
        .collect();
    for (tenant, id) in kept {
        match makes_room(state, tenant, id) {
            Room::Later => {}
            Room::From(victim) => {
                preempt::preempt(state, victim);
            }
            Room::Never(request) => fail(state, tenant, request),
        }
    }
}

/// Where room within a tenant's limits comes from.
pub(crate) enum Room {
    /// From what ends by itself.
    Later,
    /// From this one.
    From(SequenceId),
    /// Nowhere: nothing else of the tenant runs.
    Never(RequestId),
}

/// For a sequence that waits, or lacks blocks.
pub(crate) fn makes_room(state: &State, tenant: u64, id: SequenceId) -> Room {
    let Some(own) = state.sequences.get(&id) else {
        return Room::Later;
    };
    let others = |other: &&Sequence| !group::are_together(own, other);
    if !running(state, tenant).any(|other| others(&other)) {
        return if own.in_flight > 0 || group::is_settling(state, id) {
            Room::Later
        } else {
            Room::Never(own.request)
        };
    }
    let goes_on = state.running.contains_key(&own.order) || group::is_in_part(state, id);
    let last = state.running.of(tenant).next_back();
    let last = last.and_then(|(_, last)| state.sequences.get(last));
    match last.filter(others) {
        Some(last) if goes_on && last.order > own.order => Room::From(last.id),
        _ => Room::Later,
    }
}

/// Ends a request that needs more than its tenant may hold.
pub(crate) fn fail(state: &mut State, tenant: u64, request: RequestId) {
    let Some(owner) = limits(state, tenant) else {
        return;
    };
    let tokens = state.requests.get(&request).and_then(|active| {
        let sequences = active.sequences.iter();
        let lengths = sequences
            .filter_map(|id| state.sequences.get(id))
            .map(Sequence::len);
        lengths.max()
    });
    let error = EngineError::OverQuota {
        tokens: tokens.unwrap_or(0),
        max_blocks: owner.max_blocks,
        max_running: owner.max_running,
    };
    state.fail(request, None, error);
}
