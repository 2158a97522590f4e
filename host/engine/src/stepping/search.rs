//! What a search keeps of its branches, and how it ends.

use super::validate::Rules;
use super::{ask_to_select, stepping, stepping_mut};
use crate::state::State;
use crate::{ChooserError, Event, FinishReason, Finished, RequestId, Sampled};
use std::sync::Arc;

/// The tokens that a branch has chosen, as reported. Forks share what they have in common; cloning costs nothing.
#[derive(Clone, Debug)]
pub(super) struct History(Arc<Record>);

#[derive(Debug)]
struct Record {
    sampled: Sampled,
    before: Option<Arc<Record>>,
    /// Records up to and with this one.
    len: u32,
}

impl History {
    /// One token more.
    pub(super) fn push(before: Option<&Self>, sampled: Sampled) -> Self {
        Self(Arc::new(Record {
            sampled,
            before: before.map(|history| Arc::clone(&history.0)),
            len: before.map_or(0, Self::len) + 1,
        }))
    }

    fn len(&self) -> u32 {
        self.0.len
    }

    /// In order.
    fn sampled(&self) -> Vec<Sampled> {
        let mut records: Vec<_> =
            std::iter::successors(Some(&self.0), |record| record.before.as_ref())
                .map(|record| record.sampled.clone())
                .collect();
        records.reverse();
        records
    }
}

impl Drop for Record {
    /// One after the other: a long history would overflow the stack.
    fn drop(&mut self) {
        let mut before = self.before.take();
        while let Some(mut record) = before.and_then(Arc::into_inner) {
            before = record.before.take();
        }
    }
}

/// Branches of a request that may live at once.
pub(super) fn most_branches(state: &State, request: RequestId) -> u32 {
    let tenant = state.requests.get(&request).map(|active| active.tenant);
    let account = tenant.and_then(|tenant| state.shares.get(tenant));
    let most = account.and_then(|account| account.owner.max_running);
    state
        .limits
        .max_branches()
        .min(most.unwrap_or(u32::MAX).max(1))
}

/// A branch that is complete.
#[derive(Debug)]
pub(super) struct Complete {
    pub(super) number: u32,
    pub(super) history: History,
    pub(super) score: f32,
    pub(super) reason: FinishReason,
}

/// Lets the guest pick, as no branch goes on.
pub(super) fn end(
    state: &mut State,
    request: RequestId,
    rules: &Rules<'_>,
) -> Result<(), ChooserError> {
    let Some(stepping) = stepping(state, request) else {
        return Ok(());
    };
    rules.check_end(stepping.finished.len())?;
    let finished = Finished {
        branches: stepping.finished.iter().map(|done| done.number).collect(),
        scores: stepping.finished.iter().map(|done| done.score).collect(),
        lengths: stepping
            .finished
            .iter()
            .map(|done| done.history.len())
            .collect(),
        wanted: stepping.wanted,
    };
    ask_to_select(state, request, finished);
    Ok(())
}

/// Sends the selected branches as choices 0, 1, …; choices for which there are none end without a token.
pub(super) fn select(
    state: &mut State,
    request: RequestId,
    selected: &[u32],
) -> Result<(), ChooserError> {
    let limits = (state.limits.vocab(), most_branches(state, request));
    let Some(stepping) = stepping_mut(state, request) else {
        return Ok(());
    };
    let wanted = stepping.wanted;
    let rules = Rules {
        module: stepping.chooser.module(),
        branching: stepping.branching,
        vocab: limits.0,
        max_branches: limits.1,
    };
    rules.check_selection(selected, stepping.finished.len(), wanted)?;
    let finished = std::mem::take(&mut stepping.finished);
    for choice in 0..wanted {
        let found = selected
            .get(choice as usize)
            .and_then(|&index| finished.get(index as usize));
        let reason = found.map_or(FinishReason::Stop { token: None }, |done| done.reason);
        for sampled in found.map(|done| done.history.sampled()).unwrap_or_default() {
            state.stats.generation_tokens += 1;
            state.emit(request, Event::Token { choice, sampled });
        }
        state.finish_choice(request, choice, reason);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_history_is_dropped_one_by_one() {
        let sampled = Sampled {
            token: 1,
            logprob: 0.0,
            rank: 1,
            processed_logprob: 0.0,
            top: Vec::new(),
            mu: None,
        };
        let mut history = None;
        for _ in 0..1_000_000 {
            history = Some(History::push(history.as_ref(), sampled.clone()));
        }
        assert_eq!(history.as_ref().map(History::len), Some(1_000_000));
        drop(history);
    }
}
