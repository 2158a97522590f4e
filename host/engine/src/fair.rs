//! Places between tenants: whose turn it is, who makes room, and what is kept free.
//!
//! Each tenant queues in order of arrival. The head of the queue is the first of the tenant that was served least, where each
//! sequence that a tenant runs already counts like a request's service. What runs keeps the order in which it began, so a
//! flooder's sequences are behind those of others, but for its first few: whoever lacks blocks preempts those.

use crate::SequenceId;
use crate::quota;
use crate::sequence::{Order, PromptScores};
use crate::state::State;
use crate::stepping::group;

/// Who is to be admitted next, and the order it would have.
pub(crate) fn head(state: &State) -> Option<(Order, SequenceId)> {
    state
        .waiting
        .firsts()
        .filter(|(_, id)| !is_ahead_of_scores(state, **id))
        .filter(|(order, id)| quota::admits(state, order.tenant, **id))
        .map(|(order, id)| (expected(state, *order), *id))
        .min()
}

/// Whether the first choice of a sequence's request, another one, has yet to score the prompt: its scores come before all tokens.
fn is_ahead_of_scores(state: &State, id: SequenceId) -> bool {
    let request = state.sequences.get(&id).map(|own| own.request);
    request
        .and_then(|request| state.requests.get(&request)?.sequences.first())
        .filter(|first| **first != id)
        .and_then(|first| state.sequences.get(first))
        .is_some_and(|first| matches!(first.scores, PromptScores::Gathering { .. }))
}

/// The order that a waiting sequence would have if it began now.
fn expected(state: &State, order: Order) -> Order {
    if order.start == Order::FRESH {
        let running = state.running.count(order.tenant);
        Order {
            start: state.shares.start(order.tenant, running),
            ..order
        }
    } else {
        order
    }
}

/// Fixes the order of a waiting sequence, and of all of its group, before it runs for the first time.
pub(crate) fn begin(state: &mut State, id: SequenceId) {
    let Some(order) = state.sequences.get(&id).map(|sequence| sequence.order) else {
        return;
    };
    let start = expected(state, order).start;
    if start == order.start {
        return;
    }
    state.shares.begin(order.tenant, start);
    let together: Vec<_> = group::waiting(state, id)
        .into_iter()
        .map(|sequence| sequence.id)
        .collect();
    for id in together {
        let Some(sequence) = state.sequences.get_mut(&id) else {
            continue;
        };
        state.waiting.remove(&sequence.order);
        sequence.order.start = start;
        state.waiting.insert(sequence.order, id);
    }
}

/// Who gives up its place for the head of the queue, of the order `head`, if anyone: the last in order, if its tenant still
/// has no smaller part of the places afterwards than the head's. So no two tenants take places from each other in turn.
pub(crate) fn yields(state: &State, head: Order) -> Option<SequenceId> {
    if state.is_settling() {
        return None;
    }
    let (last, &victim) = state.running.last_key_value()?;
    let places = |tenant| state.running.count(tenant) as u64;
    let (giver, taker) = (last.tenant, head.tenant);
    let left = places(giver).saturating_sub(1) * state.shares.weight(taker);
    let taken = (places(taker) + 1) * state.shares.weight(giver);
    (giver != taker && head < *last && left >= taken).then_some(victim)
}

/// Places that a tenant leaves free for those who come back: one, while another is present that neither runs nor waits.
pub(crate) fn kept_free(state: &State, id: SequenceId) -> usize {
    let Some(sequence) = state.sequences.get(&id) else {
        return 0;
    };
    let own = sequence.order.tenant;
    // Nothing goes on in a group that runs in part.
    let is_first = state.running.count(own) == 0;
    let step = state.next_ticket.0;
    if is_first || group::is_in_part(state, id) || !state.shares.are_contended(step) {
        return 0;
    }
    let away = |tenant| state.running.count(tenant) == 0 && state.waiting.count(tenant) == 0;
    let is_awaited = state
        .shares
        .present(step)
        .any(|(tenant, _)| tenant != own && away(tenant));
    usize::from(is_awaited)
}
