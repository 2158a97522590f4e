//! Proves that guests' requests and their branches agree.

use super::{BranchRow, Guests, Stepping, Turn, Wait};
use crate::sequence::Sequence;
use crate::state::{Active, State};
use crate::{Branching, RequestId, SequenceId};
use std::collections::BTreeSet;
use std::sync::Arc;

/// # Errors
/// What disagrees.
pub(crate) fn check(state: &State) -> Result<(), String> {
    let requests = || {
        state
            .requests
            .iter()
            .filter_map(|(id, active)| Some((*id, active, active.stepping.as_deref()?)))
    };
    let references = Arc::strong_count(&state.guests.alive) - 1;
    if references != requests().count() {
        return Err(format!("{references} requests with guests are counted"));
    }
    let waited_for: BTreeSet<_> = state
        .guests
        .asked
        .iter()
        .filter(|(_, question)| question.wait == Wait::Granted)
        .map(|(request, question)| (question.due, *request))
        .collect();
    if waited_for != state.guests.granted {
        return Err("the answers that are waited for are miscounted".to_owned());
    }
    for (id, active, stepping) in requests() {
        check_request(state, id, active, stepping)
            .map_err(|what| format!("request {}: {what}", id.0))?;
    }
    state.sequences.values().try_for_each(|sequence| {
        check_row(state, sequence).map_err(|what| format!("sequence {}: {what}", sequence.id.0))
    })
}

fn check_request(
    state: &State,
    id: RequestId,
    active: &Active,
    stepping: &Stepping,
) -> Result<(), String> {
    let branches: Vec<&Sequence> = active
        .sequences
        .iter()
        .filter_map(|id| state.sequences.get(id))
        .filter(|sequence| sequence.is_live())
        .collect();
    let live: usize = branches.iter().map(|branch| 1 + branch.forks.len()).sum();
    if live != stepping.live as usize {
        return Err(format!("{live} branches, but {} live", stepping.live));
    }
    if branches.iter().any(|branch| !branch.asks()) {
        return Err("a branch without a guest".to_owned());
    }
    if stepping.branching == Branching::Search && live > state.limits.max_branches() as usize {
        return Err(format!("{live} branches live"));
    }
    let orders: BTreeSet<_> = branches.iter().map(|branch| branch.order).collect();
    if orders.len() != branches.len() {
        return Err("two branches have one number".to_owned());
    }
    check_turn(&state.guests, id, stepping, &branches)
}

fn check_turn(
    guests: &Guests,
    id: RequestId,
    stepping: &Stepping,
    branches: &[&Sequence],
) -> Result<(), String> {
    let is_here = |branch: &Sequence| matches!(&branch.branch, Some(own) if matches!(own.row, BranchRow::Here(_)));
    let asked = guests.asked.contains_key(&id);
    match &stepping.turn {
        Turn::Compute if asked => Err("its guest was asked without a question".to_owned()),
        Turn::Compute if branches.iter().all(|branch| is_here(branch)) => {
            Err("all rows are there, but its guest was not asked".to_owned())
        }
        Turn::Compute => Ok(()),
        _ if !asked => Err("nobody waits for its guest".to_owned()),
        Turn::Choose(rows) => {
            let named: BTreeSet<SequenceId> = rows.iter().copied().collect();
            let all: BTreeSet<_> = branches.iter().map(|branch| branch.id).collect();
            if named != all || !branches.iter().all(|branch| is_here(branch)) {
                return Err("its guest was asked for others than its branches".to_owned());
            }
            Ok(())
        }
        Turn::Select if !branches.is_empty() || stepping.finished.is_empty() => {
            Err("its guest selects too early, or from nothing".to_owned())
        }
        Turn::Select => Ok(()),
    }
}

/// A branch's row is in flight if and only if it says so.
fn check_row(state: &State, sequence: &Sequence) -> Result<(), String> {
    let Some(branch) = sequence.branch.as_ref().filter(|_| sequence.is_live()) else {
        return Ok(());
    };
    let samples = state
        .in_flight
        .iter()
        .flat_map(|step| &step.samples)
        .filter(|id| **id == sequence.id)
        .count();
    let launched = usize::from(matches!(branch.row, BranchRow::Launched));
    if samples != launched || sequence.unknown > 0 {
        return Err(format!(
            "{samples} samples in flight, {launched} expected by its guest"
        ));
    }
    Ok(())
}
