//! Makes room by recomputing later what is dropped now.

use crate::SequenceId;
use crate::sequence::{Order, Phase};
use crate::state::State;
use std::collections::BTreeMap;

/// The last running sequence, if it is behind `order`.
pub(crate) fn victim(running: &BTreeMap<Order, SequenceId>, order: Order) -> Option<SequenceId> {
    running
        .last_key_value()
        .filter(|(last, _)| **last > order)
        .map(|(_, id)| *id)
}

/// Whether the sequence at `order` is alone, nothing is about to be freed, and it still lacks blocks: it then holds
/// more than it needs (the shared block it was forked with), and starts anew in an empty pool.
pub(crate) fn must_restart(state: &State, order: Order) -> bool {
    state.running.len() == 1 && state.running.contains_key(&order) && state.in_flight.is_empty()
}

/// Sends a running sequence back to the queue, at its old place in the order. Tokens under way still count; its blocks
/// stay findable in the prefix cache until others need them.
pub(crate) fn preempt(state: &mut State, id: SequenceId) {
    state.stats.preemptions += 1;
    state.leave(id, Phase::Yielding);
}
