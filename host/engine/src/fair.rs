//! Places between tenants: whose turn it is, who makes room, and what is kept free.
//!
//! Each tenant queues in order of arrival. The head of the queue is the first of the tenant that was served least, where each
//! sequence that a tenant runs already counts like a request's service. What runs keeps the order in which it began, so a
//! flooder's sequences are behind those of others, but for its first few: whoever lacks blocks preempts those.

use crate::sequence::{Order, PromptScores, Sequence};
use crate::state::State;
use crate::stepping::group;
use crate::{Owner, RequestId, SequenceId, quota};

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

/// The first of those that wait, before `end` in order, for the rest of their group, which runs. Other tenants' turns do not count.
pub(crate) fn part_before(state: &State, end: Order) -> Option<(Order, SequenceId)> {
    state
        .waiting
        .before(end)
        .filter(|(_, id)| group::is_in_part(state, **id))
        .find(|(order, id)| quota::admits(state, order.tenant, **id))
        .map(|(order, id)| (*order, *id))
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

/// The requests that make room in the queue for so many sequences of a tenant: none while it has room; else the last of the
/// tenant that queues most by weight, as long as that has no less than the newcomer afterwards. `None` where that does not
/// suffice. So a tenant may fill the queue only while others do not want it.
pub(crate) fn displaced(state: &State, owner: Owner, wanted: usize) -> Option<Vec<RequestId>> {
    let mut lacking = (state.queued() + wanted).saturating_sub(state.limits.max_waiting());
    if lacking == 0 {
        return Some(Vec::new());
    }
    let weight = |tenant| u128::from(state.shares.weight(tenant));
    let fullest = fullest(state).filter(|tenant| *tenant != owner.tenant)?;
    let mut theirs = fresh(state, fullest).count();
    let ours = fresh(state, owner.tenant).count() + wanted;
    let own_weight = u128::from(owner.weight.max(1));
    let mut requests = Vec::new();
    let mut last = fresh(state, fullest).rev().peekable();
    while lacking > 0 {
        let request = last.next()?.request;
        let mut sequences = 1;
        while last.next_if(|next| next.request == request).is_some() {
            sequences += 1;
        }
        if state
            .requests
            .get(&request)
            .is_none_or(|active| active.started)
        {
            continue;
        }
        theirs -= sequences;
        if theirs as u128 * own_weight < ours as u128 * weight(fullest) {
            return None;
        }
        lacking = lacking.saturating_sub(sequences);
        requests.push(request);
    }
    Some(requests)
}

/// The tenant that queues most by weight.
pub(crate) fn fullest(state: &State) -> Option<u64> {
    let by_weight = |tenant: u64, count: usize| {
        let account = state.shares.get(tenant);
        account.map_or(0, |account| account.cost(count as u64))
    };
    let tenants = state.waiting.tenants();
    let fullest = tenants.max_by_key(|(tenant, count)| by_weight(*tenant, *count));
    fullest.map(|(tenant, _)| tenant)
}

/// A tenant's waiting sequences that never had a place.
fn fresh(state: &State, tenant: u64) -> impl DoubleEndedIterator<Item = &Sequence> {
    state
        .waiting
        .of(tenant)
        .filter(|(order, _)| order.start == Order::FRESH)
        .filter_map(|(_, id)| state.sequences.get(id))
}
