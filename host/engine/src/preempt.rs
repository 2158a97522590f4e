//! Makes room by recomputing later what is dropped now.

use crate::SequenceId;
use crate::sequence::{Order, Phase};
use crate::state::State;
use crate::stepping::group;

/// Whether the sequence at `order` is alone, nothing is about to be freed, and it still lacks blocks: it then holds
/// more than it needs (the shared block it was forked with), and starts anew in an empty pool.
pub(crate) fn must_restart(state: &State, order: Order) -> bool {
    state.running.len() == 1 && state.running.contains_key(&order) && state.in_flight.is_empty()
}

/// Sends back the sequences whose next row is beyond a length at which all their values change. Admitted again they are
/// computed anew.
pub(crate) fn outgrown(state: &mut State) {
    let rules = state.limits.lengths();
    if rules.anew_above.is_empty() {
        return;
    }
    let outgrown: Vec<_> = state
        .running
        .values()
        .filter(|id| {
            state.sequences.get(id).is_some_and(|sequence| {
                sequence.remaining() > 0 && rules.passed(sequence.len()) > sequence.passed
            })
        })
        .copied()
        .collect();
    for id in outgrown {
        preempt(state, id);
    }
}

/// Sends a running sequence back to the queue, at its old place in the order. Tokens under way still count; its blocks
/// stay findable in the prefix cache until others need them. All branches of a group go together. Returns who went.
pub(crate) fn preempt(state: &mut State, id: SequenceId) -> Vec<SequenceId> {
    let leaving = group::running(state, id);
    for &id in &leaving {
        state.stats.preemptions += 1;
        state.leave(id, Phase::Yielding);
    }
    leaving
}
