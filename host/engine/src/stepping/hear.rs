//! Waits for answers and applies them.

use super::answers::Arrived;
use super::{Turn, Wait, apply, search, stepping_mut, validate};
use crate::state::State;
use crate::{Answer, ChooserError, EngineError};
use std::time::Duration;

/// Longest wait for answers when nothing else can be done; bounds how late the engine's thread sees its commands.
const SLICE: Duration = Duration::from_millis(1);

/// Takes the answers that are there, after the grace of those that are not.
pub(crate) fn hear(state: &mut State) {
    if state.guests.none() {
        return;
    }
    let State {
        guests, requests, ..
    } = state;
    guests
        .asked
        .retain(|request, _| requests.contains_key(request));
    guests
        .granted
        .retain(|(_, request)| requests.contains_key(request));
    loop {
        let guests = &state.guests;
        let due = guests.granted.first().map(|(due, _)| *due);
        let now = guests.clock.now();
        guests.clock.wait(&guests.answers, due.unwrap_or(now));
        let waited = guests.clock.now().saturating_sub(now);
        state.stats.guest_wait_nanos += u64::try_from(waited.as_nanos()).unwrap_or(u64::MAX);
        for arrived in state.guests.answers.take() {
            take(state, arrived);
        }
        if !miss(state) {
            return;
        }
    }
}

/// Marks those whose grace has passed, and says whether anyone's has not.
fn miss(state: &mut State) -> bool {
    let State {
        guests,
        requests,
        stats,
        ..
    } = state;
    let now = guests.clock.now();
    while let Some(&(due, request)) = guests.granted.first()
        && due <= now
    {
        guests.granted.pop_first();
        if let Some(question) = guests.asked.get_mut(&request) {
            question.wait = Wait::Missed;
        }
        stats.guest_misses += 1;
        if let Some(stepping) = requests
            .get(&request)
            .and_then(|active| active.stepping.as_deref())
        {
            guests.modules.missed(stepping.chooser.module());
        }
    }
    !guests.granted.is_empty()
}

/// Waits a little for answers; whether any are expected.
pub(crate) fn pause(state: &State) -> bool {
    let guests = &state.guests;
    let expects = guests
        .asked
        .keys()
        .any(|request| state.requests.contains_key(request));
    if expects {
        guests
            .clock
            .wait(&guests.answers, guests.clock.now() + SLICE);
    }
    expects
}

/// Applies one answer; those of requests that are gone mean nothing.
fn take(state: &mut State, arrived: Arrived) {
    let request = arrived.request;
    let Some(question) = state.guests.answered(request) else {
        return;
    };
    let Some(stepping) = stepping_mut(state, request) else {
        return;
    };
    let module = stepping.chooser.module().to_owned();
    let turn = std::mem::replace(&mut stepping.turn, Turn::Compute);
    if arrived.at <= question.due {
        state.guests.modules.on_time(&module);
    } else if question.wait == Wait::Granted {
        state.guests.modules.missed(&module);
        state.stats.guest_misses += 1;
    }
    let wrong = |function, what| {
        Err(ChooserError(format!(
            "sampler module {module}: {function} {what}"
        )))
    };
    let applied = arrived.answer.and_then(|answer| match (turn, answer) {
        (Turn::Choose(rows), Answer::Choices(choices)) => {
            apply::choices(state, request, &rows, &choices)
        }
        (Turn::Select, Answer::Selected(selected)) => search::select(state, request, &selected),
        (Turn::Choose(_), Answer::Selected(_)) => wrong(
            validate::STEP,
            "answered with a selection instead of choices",
        ),
        (Turn::Select, Answer::Choices(_)) => wrong(
            validate::SELECT,
            "answered with choices instead of a selection",
        ),
        (Turn::Compute, _) => Ok(()),
    });
    if let Err(error) = applied {
        state.fail(request, None, EngineError::Chooser(named(error, &module)));
    }
}

/// With the module's name.
fn named(error: ChooserError, module: &str) -> ChooserError {
    if error.0.contains(module) {
        error
    } else {
        ChooserError(format!("sampler module {module}: {error}"))
    }
}
