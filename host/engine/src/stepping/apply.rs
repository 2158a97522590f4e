//! Applies the choices of an answer: branches go on, fork, finish and end.

use super::rows::{outcome, sampled};
use super::search::{self, Complete, History};
use super::validate::Rules;
use super::{Branch, BranchRow, stepping, stepping_mut};
use crate::sequence::{Phase, Place};
use crate::state::State;
use crate::{
    Branching, Choice, Choices, ChooserError, Event, FinishReason, Next, RequestId, Sampled,
    SequenceId, admit, batch, constrain,
};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

/// One choice of an answer, worked out.
struct Step {
    /// Index in the answer.
    index: u32,
    row: u32,
    parent: SequenceId,
    sampled: Sampled,
    score: f32,
    /// Why the branch is complete with this token, if it is.
    end: Option<FinishReason>,
}

/// Applies choices for `rows`, the branches that the guest was asked about.
///
/// # Errors
/// When they are invalid; nothing was applied then.
pub(super) fn choices(
    state: &mut State,
    request: RequestId,
    rows: &[SequenceId],
    choices: &Choices,
) -> Result<(), ChooserError> {
    let Some(stepping) = stepping(state, request) else {
        return Ok(());
    };
    let module = stepping.chooser.module().to_owned();
    let branching = stepping.branching;
    let rules = Rules {
        module: &module,
        branching,
        vocab: state.limits.vocab(),
        max_branches: search::most_branches(state, request),
    };
    let finished = stepping.finished.len();
    let steps = work_out(state, &rules, rows, &choices.branches)?;
    let live = steps.iter().filter(|step| step.end.is_none()).count();
    match branching {
        Branching::Choices => advance_choices(state, request, rows, steps),
        Branching::Search => {
            rules.check_counts(live, finished + steps.len() - live)?;
            advance_search(state, request, rows, steps);
        }
    }
    if let Some(stepping) = stepping_mut(state, request) {
        stepping.live = live as u32;
    }
    if live == 0 && branching == Branching::Search {
        search::end(state, request, &rules)?;
    }
    Ok(())
}

fn work_out(
    state: &State,
    rules: &Rules<'_>,
    rows: &[SequenceId],
    choices: &[Choice],
) -> Result<Vec<Step>, ChooserError> {
    let branches: Vec<_> = rows
        .iter()
        .filter_map(|id| state.sequences.get(id))
        .filter_map(|sequence| Some((sequence, outcome(sequence)?)))
        .collect();
    let sources: Vec<_> = branches.iter().map(|(_, source)| *source).collect();
    rules.check_choices(&sources, choices)?;
    let steps = choices.iter().zip(0..).map(|(choice, index)| {
        let (sequence, source) = branches[choice.row as usize];
        let stops = state
            .requests
            .get(&sequence.request)
            .is_some_and(|active| active.stop_tokens.contains(&choice.token));
        let is_full = sequence.tokens.len() as u32 + 1 >= sequence.limit;
        let end = match choice.next {
            _ if stops => Some(FinishReason::Stop {
                token: Some(choice.token),
            }),
            Next::Finish => Some(FinishReason::Stop { token: None }),
            Next::Continue if is_full => Some(FinishReason::Length),
            Next::Continue => None,
        };
        Step {
            index,
            row: choice.row,
            parent: sequence.id,
            sampled: sampled(source, choice.token, sequence.logprobs),
            score: choice.score,
            end,
        }
    });
    Ok(steps.collect())
}

/// Each row has at most one choice; a row without one ends as if stopped.
fn advance_choices(state: &mut State, request: RequestId, rows: &[SequenceId], steps: Vec<Step>) {
    let mut steps: BTreeMap<u32, Step> = steps.into_iter().map(|step| (step.row, step)).collect();
    for (&id, row) in rows.iter().zip(0..) {
        let Some(choice) = state.sequences.get(&id).map(|found| found.order.choice) else {
            continue;
        };
        let Some(step) = steps.remove(&row) else {
            state.finish(id, FinishReason::Stop { token: None });
            continue;
        };
        let end = step.end;
        let sampled = step.sampled.clone();
        push(state, id, step);
        if !state.sequences.contains_key(&id) {
            return;
        }
        state.stats.generation_tokens += 1;
        state.emit(request, Event::Token { choice, sampled });
        if let Some(reason) = end {
            state.finish(id, reason);
        }
    }
}

/// The first choice of a row that goes on does so in its place, further ones are forks of it.
fn advance_search(state: &mut State, request: RequestId, rows: &[SequenceId], steps: Vec<Step>) {
    let mut first: BTreeMap<SequenceId, Step> = BTreeMap::new();
    let mut forks = Vec::new();
    for step in steps {
        if let Some(reason) = step.end {
            complete(state, request, step, reason);
            continue;
        }
        match first.entry(step.parent) {
            Entry::Occupied(_) => forks.push(step),
            Entry::Vacant(entry) => {
                entry.insert(step);
            }
        }
    }
    // Their slots may serve forks.
    for &id in rows {
        if !first.contains_key(&id) {
            state.leave(id, Phase::Ending);
            if let Some(active) = state.requests.get_mut(&request) {
                active.sequences.retain(|&other| other != id);
            }
        }
    }
    let mut children: BTreeMap<SequenceId, u32> = BTreeMap::new();
    for step in forks {
        let child = children.entry(step.parent).or_default();
        *child += 1;
        fork(state, request, *child, step);
    }
    for (id, step) in first {
        push(state, id, step);
    }
}

fn complete(state: &mut State, request: RequestId, step: Step, reason: FinishReason) {
    if !constrain::allows(state, step.parent, step.sampled.token) {
        return;
    }
    let Some(branch) = state
        .sequences
        .get(&step.parent)
        .and_then(|parent| parent.branch.as_ref())
    else {
        return;
    };
    let done = Complete {
        number: branch.number,
        history: History::push(branch.history.as_ref(), step.sampled),
        score: step.score,
        reason,
    };
    if let Some(stepping) = stepping_mut(state, request) {
        stepping.finished.push(done);
    }
}

/// The sequence goes on with a token, if its grammar has nothing against it; else its request is gone.
fn push(state: &mut State, id: SequenceId, step: Step) {
    if !constrain::accept(state, id, step.sampled.token) {
        return;
    }
    let Some(sequence) = state.sequences.get_mut(&id) else {
        return;
    };
    let searches = sequence.searches();
    let Some(branch) = &mut sequence.branch else {
        return;
    };
    sequence.tokens.push(step.sampled.token);
    if searches {
        branch.history = Some(History::push(branch.history.as_ref(), step.sampled));
    }
    branch.from = step.index;
    branch.row = BranchRow::Wanted;
}

/// A sequence that has its parent's tokens so far and shares its blocks until it writes; where there is no slot for it, or
/// blocks cannot be shared, one that waits to be computed anew.
fn fork(state: &mut State, request: RequestId, child: u32, step: Step) {
    let Some(number) = stepping_mut(state, request).map(|stepping| {
        let number = stepping.next_branch;
        stepping.next_branch += 1;
        number
    }) else {
        return;
    };
    let id = state.next_sequence_id();
    let Some(parent) = state.sequences.get(&step.parent) else {
        return;
    };
    let layout = state.limits.layout();
    let shares = layout.shares_blocks()
        && parent.phase == Phase::Running
        && parent.computed == parent.len()
        && admit::has_free_place(state);
    let place = parent
        .place
        .as_ref()
        .filter(|_| shares)
        .and_then(|place| Some((place, *state.free_slots.last()?)))
        .map(|(place, slot)| Place {
            slot,
            reserved: Vec::new(),
            tables: layout
                .groups()
                .zip(&place.tables)
                .map(|((_, info), table)| table.fork(layout.complete(info, parent.computed)))
                .collect(),
            history: None,
        });
    let mut fork = batch::fork(parent, id, number, place);
    fork.random.lineage = lineage(parent.random.lineage, parent.len(), child);
    fork.branch = Some(Branch {
        number,
        from: 0,
        row: BranchRow::Wanted,
        history: parent
            .branch
            .as_ref()
            .and_then(|branch| branch.history.clone()),
    });
    let order = fork.order;
    if fork.place.is_some() {
        state.free_slots.pop();
        state.running.insert(order, id);
    } else {
        fork.await_place();
        state.waiting.insert(order, id);
        state.requeued += 1;
    }
    state.sequences.insert(id, fork);
    if let Some(active) = state.requests.get_mut(&request) {
        active.sequences.push(id);
    }
    push(state, id, step);
}

/// Lineage of the `child`-th fork (from 1) of a branch, whose token is at `position`: a hash of all three (the finaliser of
/// MurmurHash3), so random numbers depend neither on the batch nor on who was preempted.
fn lineage(parent: u32, position: u32, child: u32) -> u32 {
    let scramble = |mut hash: u32| {
        hash = (hash ^ (hash >> 16)).wrapping_mul(0x85eb_ca6b);
        hash = (hash ^ (hash >> 13)).wrapping_mul(0xc2b2_ae35);
        hash ^ (hash >> 16)
    };
    [position, child].into_iter().fold(parent, |hash, part| {
        scramble(hash ^ scramble(part.wrapping_add(0x9e37_79b9)))
    })
}

#[cfg(test)]
mod tests;
