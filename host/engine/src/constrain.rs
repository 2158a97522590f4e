//! Grammars in the loop: each constrained choice has its own, is told its tokens, and masks its samples.

use crate::collect::{self, Standing};
use crate::state::State;
use crate::{
    Constraint, ConstraintError, EngineError, Masks, Request, Sampled, SequenceId, Stage, TokenId,
};
use rayon::prelude::*;
use std::sync::Arc;

/// Where one sequence stands in its grammar: after all of its `tokens`.
pub(crate) struct Grammar {
    constraint: Box<dyn Constraint>,
    forced: Forced,
}

/// What becomes of tokens without an alternative.
#[derive(Clone, Copy, Debug)]
enum Forced {
    /// They are appended without being sampled.
    Skipped,
    /// They are sampled like others.
    Sampled,
}

impl std::fmt::Debug for Grammar {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Grammar")
            .field("forced", &self.forced)
            .finish_non_exhaustive()
    }
}

impl Grammar {
    /// Forced tokens are sampled where someone wants to see what they were sampled from, or a stage learns from it.
    pub(crate) fn new(constraint: Box<dyn Constraint>, request: &Request) -> Self {
        let shown = request.params.top_logprobs.is_some()
            || request.sampling.draw.asked().is_some()
            || request.sampling.stages.iter().any(is_mirostat);
        let forced = if shown {
            Forced::Sampled
        } else {
            Forced::Skipped
        };
        Self { constraint, forced }
    }

    /// Another sequence at the same place.
    pub(crate) fn fork(&self) -> Self {
        Self {
            constraint: self.constraint.fork(),
            forced: self.forced,
        }
    }

    /// Forced tokens to skip; if there are none, the mask of the next token is written to `words`.
    fn advance(&mut self, words: &mut [u32]) -> Result<Vec<TokenId>, ConstraintError> {
        let forced = match self.forced {
            Forced::Skipped => self.constraint.forced(),
            Forced::Sampled => Vec::new(),
        };
        if forced.is_empty() {
            self.constraint.mask(words)?;
        } else {
            words.fill(u32::MAX);
        }
        Ok(forced)
    }
}

/// Whether a stage learns from every token.
pub(crate) fn is_mirostat(stage: &Stage) -> bool {
    matches!(stage, Stage::Mirostat1 { .. } | Stage::Mirostat2 { .. })
}

/// Tells a sequence's grammar, if it has one, of a token before it is appended. One that does not fit ends the request:
/// then the answer is `false`, and the sequence is none any more.
pub(crate) fn accept(state: &mut State, id: SequenceId, token: TokenId) -> bool {
    let Some(sequence) = state.sequences.get_mut(&id) else {
        return false;
    };
    let Some(grammar) = &mut sequence.grammar else {
        return true;
    };
    let accepted = grammar.constraint.accept(token);
    if let Err(error) = &accepted {
        fail(state, id, error);
    }
    accepted.is_ok()
}

/// Likewise of a token after which the sequence does not go on, though others may from the same place.
pub(crate) fn allows(state: &mut State, id: SequenceId, token: TokenId) -> bool {
    let grammar = state
        .sequences
        .get(&id)
        .and_then(|sequence| sequence.grammar.as_ref());
    let Some(mut grammar) = grammar.map(Grammar::fork) else {
        return state.sequences.contains_key(&id);
    };
    let accepted = grammar.constraint.accept(token);
    if let Err(error) = &accepted {
        fail(state, id, error);
    }
    accepted.is_ok()
}

fn fail(state: &mut State, id: SequenceId, error: &ConstraintError) {
    if let Some(sequence) = state.sequences.get(&id) {
        let (request, choice) = (sequence.request, sequence.choice());
        let message = error.to_string();
        let error = EngineError::Constraint { choice, message };
        state.fail(request, Some(choice), error);
    }
}

/// Whether the newest step samples for sequences whose masks depend on tokens of the steps before it.
pub(crate) fn must_collect(state: &State) -> bool {
    state.in_flight.len() > 1 && masked(state).next().is_some()
}

/// Samples of the newest step that need a mask, with their sequences. One that ended needs none: its result is dropped.
fn masked(state: &State) -> impl Iterator<Item = (u32, SequenceId)> + '_ {
    let samples = state.in_flight.back().map(|step| step.samples.iter());
    samples
        .into_iter()
        .flatten()
        .zip(0..)
        .filter_map(|(id, sample)| {
            state
                .sequences
                .get(id)
                .filter(|sequence| sequence.is_live() && sequence.grammar.is_some())
                .map(|_| (sample, *id))
        })
}

/// Appends tokens that must follow, in place of what the newest step samples for the sequence. The next row computes them.
fn skip(state: &mut State, id: SequenceId, forced: Vec<TokenId>) {
    if forced.is_empty() {
        return;
    }
    if let Some(sequence) = state.sequences.get_mut(&id) {
        sequence.unknown -= 1;
        sequence.void += 1;
        sequence.last_sample = None;
    }
    let vocab = state.limits.vocab();
    for token in forced {
        if token >= vocab {
            let message = format!("it forces token {token} of a vocabulary of {vocab}");
            return fail(state, id, &ConstraintError(message));
        }
        let certain = Sampled {
            token,
            logprob: 0.0,
            rank: 1,
            processed_logprob: 0.0,
            top: Vec::new(),
            mu: None,
        };
        match collect::append(state, id, certain) {
            Standing::Runs => state.stats.forced_tokens += 1,
            Standing::Ended => return,
        }
    }
}

/// Makes masks.
#[derive(Debug, Default)]
pub(crate) struct Masker {
    /// Words of earlier steps, written anew when the executor has let go of them.
    buffers: Vec<Arc<Vec<u32>>>,
}

/// One mask to be made.
struct Work<'a> {
    sequence: SequenceId,
    grammar: Grammar,
    words: &'a mut [u32],
}

impl Masker {
    /// Masks of the newest step's samples; the steps before it are collected. Where tokens are forced, they are appended
    /// and the sample is void. Several masks are made at once, on other threads too.
    pub(crate) fn masks(&mut self, state: &mut State) -> Masks {
        let (samples, sequences): (Vec<_>, Vec<_>) = masked(state).unzip();
        if samples.is_empty() {
            return Masks::default();
        }
        let stride = state.limits.vocab().div_ceil(32) as usize;
        let mut words = self.buffer();
        let buffer = Arc::make_mut(&mut words);
        buffer.resize(samples.len() * stride, 0);
        let mut work: Vec<Work<'_>> = Vec::with_capacity(samples.len());
        for (id, words) in sequences.into_iter().zip(buffer.chunks_exact_mut(stride)) {
            let sequence = state.sequences.get_mut(&id);
            // A sequence has one sample in a step, so its grammar is there.
            if let Some(grammar) = sequence.and_then(|sequence| sequence.grammar.take()) {
                work.push(Work {
                    sequence: id,
                    grammar,
                    words,
                });
            }
        }
        let make = |work: &mut Work<'_>| work.grammar.advance(work.words);
        let made: Vec<Result<Vec<TokenId>, ConstraintError>> = match work.as_mut_slice() {
            [alone] => vec![make(alone)],
            many => many.par_iter_mut().map(make).collect(),
        };
        let (ids, grammars): (Vec<_>, Vec<_>) = work
            .into_iter()
            .map(|work| (work.sequence, work.grammar))
            .unzip();
        for (&id, grammar) in ids.iter().zip(grammars) {
            if let Some(sequence) = state.sequences.get_mut(&id) {
                sequence.grammar = Some(grammar);
            }
        }
        for (id, made) in ids.into_iter().zip(made) {
            match made {
                Ok(forced) => skip(state, id, forced),
                Err(error) => fail(state, id, &error),
            }
        }
        self.buffers.push(Arc::clone(&words));
        Masks {
            samples,
            stride,
            words,
        }
    }

    /// Words that nobody reads.
    fn buffer(&mut self) -> Arc<Vec<u32>> {
        let free = self
            .buffers
            .iter_mut()
            .position(|buffer| Arc::get_mut(buffer).is_some());
        free.map(|index| self.buffers.swap_remove(index))
            .unwrap_or_default()
    }
}
