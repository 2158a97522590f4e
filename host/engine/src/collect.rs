//! Applies a step's output: tokens to sequences, blocks to the prefix cache, events to listeners.

use crate::constrain;
use crate::prefix_cache::extend_keys;
use crate::sequence::PromptScores;
use crate::speculate;
use crate::state::{InFlight, RowRecord, State};
use crate::stepping;
use crate::{
    EngineError, Event, FinishReason, PromptLogprobs, SampleOutcome, Sampled, SequenceId,
    StepOutput, Task,
};

/// Applies the output of the oldest step in flight.
///
/// # Errors
/// When the output does not fit the step.
pub(crate) fn apply(state: &mut State, output: StepOutput) -> Result<(), EngineError> {
    let Some(step) = state.in_flight.pop_front() else {
        return Ok(());
    };
    check(state, &step, &output)?;
    state.guests.step_took(output.took);
    state.stats.exposed_nanos += u64::try_from(output.exposed.as_nanos()).unwrap_or(u64::MAX);
    let mut scores = output.prompt_logprobs.into_iter();
    for row in &step.rows {
        let entries = if row.scores_prompt {
            scores.next()
        } else {
            None
        };
        collect_row(state, row, entries);
    }
    for (&id, outcome) in step.samples.iter().zip(output.samples) {
        if is_void(state, id) {
            continue;
        }
        match outcome {
            SampleOutcome::Token(sampled) => collect_token(state, id, sampled),
            SampleOutcome::Embedding(vector) => collect_embedding(state, id, vector),
            SampleOutcome::Refused(message) => collect_failure(state, id, |choice| {
                EngineError::NothingToChoose { choice, message }
            }),
            SampleOutcome::Failed(message) => {
                collect_failure(state, id, |choice| EngineError::Sampling {
                    choice,
                    message,
                });
            }
            SampleOutcome::Candidates(_) | SampleOutcome::Row(_) => {
                stepping::gather(state, id, outcome);
            }
        }
    }
    stepping::ask(state, &step.samples);
    for id in step.rows.iter().map(|row| row.sequence).chain(step.samples) {
        if let Some(sequence) = state.sequences.get_mut(&id) {
            sequence.in_flight -= 1;
            state.vacate_if_settled(id);
        }
    }
    Ok(())
}

/// The output has what the step asked for.
fn check(state: &State, step: &InFlight, output: &StepOutput) -> Result<(), EngineError> {
    let malformed = |message: String| {
        Err(EngineError::Malformed {
            ticket: step.ticket.0,
            message,
        })
    };
    if output.ticket != step.ticket {
        return malformed(format!("it names step {}", output.ticket.0));
    }
    if output.samples.len() != step.samples.len() {
        return malformed(format!(
            "{} samples instead of {}",
            output.samples.len(),
            step.samples.len()
        ));
    }
    let vocab = state.limits.vocab();
    let task = state.limits.task();
    for outcome in &output.samples {
        match outcome {
            SampleOutcome::Token(sampled) if sampled.token >= vocab => {
                return malformed(format!(
                    "token {} of a vocabulary of {vocab}",
                    sampled.token
                ));
            }
            SampleOutcome::Token(_) if task == Task::Embed => {
                return malformed("a token of a model that embeds".to_owned());
            }
            SampleOutcome::Embedding(_) if task == Task::Generate => {
                return malformed("a vector of a model that generates".to_owned());
            }
            _ => {}
        }
    }
    for (id, outcome) in step.samples.iter().zip(&output.samples) {
        if let Some(sequence) = state.sequences.get(id)
            && let Err(message) = stepping::check_outcome(sequence, outcome, vocab)
        {
            return malformed(message);
        }
    }
    let scored: Vec<_> = step
        .rows
        .iter()
        .enumerate()
        .filter(|(_, row)| row.scores_prompt)
        .collect();
    if output.prompt_logprobs.len() != scored.len() {
        return malformed(format!(
            "{} rows with prompt scores instead of {}",
            output.prompt_logprobs.len(),
            scored.len()
        ));
    }
    for ((index, row), found) in scored.into_iter().zip(&output.prompt_logprobs) {
        let Some(sequence) = state.sequences.get(&row.sequence) else {
            continue;
        };
        let expected = (row.start + row.len).min(sequence.prompt_len - 1) - row.start;
        if found.row as usize != index || found.entries.len() != expected as usize {
            let found = (found.row, found.entries.len());
            return malformed(format!(
                "{} prompt scores of row {} instead of {expected} of {index}",
                found.1, found.0
            ));
        }
    }
    Ok(())
}

fn collect_row(state: &mut State, row: &RowRecord, scores: Option<PromptLogprobs>) {
    publish(state, row.sequence, row.start + row.len);
    let Some(sequence) = state.sequences.get_mut(&row.sequence) else {
        return;
    };
    if !sequence.is_live() {
        return;
    }
    let PromptScores::Gathering { found, .. } = &mut sequence.scores else {
        return;
    };
    found.extend(scores.into_iter().flat_map(|scores| scores.entries));
    if found.len() as u32 + 1 < sequence.prompt_len {
        return;
    }
    // With nothing to generate, the request is complete when its last position is computed.
    let (request, prompt_len) = (sequence.request, sequence.prompt_len);
    let scoring_only = sequence.limit == prompt_len;
    if scoring_only && row.start + row.len < prompt_len {
        return;
    }
    let found = std::mem::take(found);
    sequence.scores = PromptScores::Done;
    let forks = sequence.forks.clone();
    state.emit(request, Event::PromptLogprobs(found));
    if scoring_only {
        for choice in forks {
            state.finish_choice(request, choice, FinishReason::Length);
        }
        state.finish(row.sequence, FinishReason::Length);
    }
}

/// Offers the blocks of the first `end` positions, all computed by now and their tokens known, to the prefix cache.
pub(crate) fn publish(state: &mut State, id: SequenceId, end: u32) {
    let layout = state.limits.layout();
    let Some(sequence) = state.sequences.get_mut(&id) else {
        return;
    };
    let Some(place) = &sequence.place else { return };
    let complete = (end / layout.block_size()) as usize;
    if !state.cache.is_enabled() || !sequence.is_live() || complete <= sequence.published {
        return;
    }
    extend_keys(
        &mut sequence.keys,
        &sequence.salt,
        &sequence.tokens,
        layout.block_size(),
        complete,
    );
    for table in &place.tables {
        for (index, block) in table.range(sequence.published, complete) {
            block.publish(sequence.keys[index]);
        }
    }
    sequence.published = complete;
}

/// Whether the oldest uncollected sample of the sequence does not count.
fn is_void(state: &mut State, id: SequenceId) -> bool {
    let sequence = state.sequences.get_mut(&id);
    sequence.is_some_and(|sequence| {
        let is_void = sequence.void > 0;
        sequence.void -= u32::from(is_void);
        is_void
    })
}

fn collect_token(state: &mut State, id: SequenceId, sampled: Sampled) {
    let Some(sequence) = state.sequences.get_mut(&id) else {
        return;
    };
    sequence.unknown -= 1;
    if sequence.is_live() {
        let token = sampled.token;
        let standing = append(state, id, sampled);
        speculate::verify(state, id, token, standing);
    }
}

/// Whether a sequence goes on after a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    Runs,
    Ended,
}

/// A live sequence goes on with this token, or ends with it.
pub(crate) fn append(state: &mut State, id: SequenceId, sampled: Sampled) -> Standing {
    let token = sampled.token;
    if !constrain::accept(state, id, token) {
        return Standing::Ended;
    }
    let Some(sequence) = state.sequences.get_mut(&id) else {
        return Standing::Ended;
    };
    sequence.mu = sampled.mu;
    sequence.tokens.push(token);
    let is_full = sequence.tokens.len() as u32 >= sequence.limit;
    let (request, choice) = (sequence.request, sequence.order.choice);
    state.stats.generation_tokens += 1;
    state.emit(request, Event::Token { choice, sampled });
    if state
        .requests
        .get(&request)
        .is_some_and(|active| active.stop_tokens.contains(&token))
    {
        state.finish(id, FinishReason::Stop { token: Some(token) });
        Standing::Ended
    } else if is_full {
        state.finish(id, FinishReason::Length);
        Standing::Ended
    } else {
        Standing::Runs
    }
}

fn collect_embedding(state: &mut State, id: SequenceId, vector: Vec<f32>) {
    let Some(sequence) = state.sequences.get_mut(&id) else {
        return;
    };
    sequence.unknown -= 1;
    if sequence.is_live() {
        let request = sequence.request;
        state.emit(request, Event::Embedding(vector));
        state.finish(id, FinishReason::Length);
    }
}

/// `error` is made from the number of the choice.
fn collect_failure(state: &mut State, id: SequenceId, error: impl FnOnce(u32) -> EngineError) {
    let Some(sequence) = state.sequences.get_mut(&id) else {
        return;
    };
    if !sequence.asks() {
        sequence.unknown -= 1;
    }
    if sequence.is_live() {
        let (request, choice) = (sequence.request, sequence.choice());
        state.fail(request, Some(choice), error(choice));
    }
}
