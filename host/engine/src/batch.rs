//! Writes down a step: from chosen advances to a [`StepPlan`] and what to do when it is collected.

use crate::constrain::Grammar;
use crate::layout::Layout;
use crate::scheduler::Advance;
use crate::sequence::{Order, Phase, Place, PromptScores, Sequence};
use crate::speculate;
use crate::state::{InFlight, RowRecord, State};
use crate::stepping::Branch;
use crate::{Admission, Input, RandomKey, Row, SampleTask, SequenceId, Slot, StepPlan, TokenId};
use std::sync::Arc;

/// The step being written.
struct Draft {
    plan: StepPlan,
    record: InFlight,
}

/// Turns advances into the next step and appends it to the steps in flight.
pub(crate) fn build(state: &mut State, advances: Vec<Advance>) -> StepPlan {
    let ticket = state.next_ticket;
    state.next_ticket.0 += 1;
    let mut draft = Draft {
        plan: StepPlan {
            ticket,
            released: std::mem::take(&mut state.released),
            admitted: Vec::new(),
            copies: Vec::new(),
            rows: Vec::with_capacity(advances.len()),
            samples: Vec::new(),
        },
        record: InFlight {
            ticket,
            rows: Vec::with_capacity(advances.len()),
            samples: Vec::new(),
            held: Vec::new(),
        },
    };
    let mut decodes = 0;
    for advance in advances {
        state.stats.step_tokens += u64::from(advance.len);
        if let Some(sequence) = state.sequences.get(&advance.sequence) {
            decodes += u64::from(sequence.decodes());
            state
                .shares
                .charge(sequence.order.tenant, advance.len, ticket.0);
        }
        draft.row(state, advance);
    }
    state.stats.steps += 1;
    state.stats.decode_steps += u64::from(decodes > 0);
    state.stats.decode_rows += decodes;
    state.in_flight.push_back(draft.record);
    draft.plan
}

impl Draft {
    fn row(&mut self, state: &mut State, advance: Advance) {
        let layout = state.limits.layout();
        let Some(sequence) = state.sequences.get_mut(&advance.sequence) else {
            return;
        };
        let (start, end) = (sequence.computed, sequence.computed + advance.len);
        self.admit(sequence, layout);
        let drafts = speculate::launch(sequence, advance.len);
        let input = input(sequence, end, &drafts);
        let prompt_logprobs = prompt_logprobs(sequence, start);
        let drafts = drafts.len() as u32;
        state.stats.drafts += u64::from(drafts > 0);
        state.stats.drafted_tokens += u64::from(drafts);
        let Some(place) = &mut sequence.place else {
            return;
        };
        place.history = place.history.max(Some(end));
        let slot = place.slot;
        let mut new_blocks = Vec::new();
        for ((group, _), table) in layout.groups().zip(&mut place.tables) {
            new_blocks.extend(
                table
                    .ids(table.announced, table.len())
                    .map(|block| (group, block)),
            );
            table.announced = table.len();
        }
        let row = self.plan.rows.len() as u32;
        self.plan.copies.extend(advance.copies);
        self.record.held.extend(advance.sources);
        self.plan.rows.push(Row {
            slot,
            start,
            len: advance.len,
            input,
            new_blocks,
            prompt_logprobs,
        });
        self.record.rows.push(RowRecord {
            sequence: advance.sequence,
            start,
            len: advance.len - drafts,
            scores_prompt: prompt_logprobs.is_some(),
        });
        sequence.in_flight += 1;
        sequence.advanced = self.plan.ticket.0 + 1;
        sequence.computed = end;
        if end == sequence.len() + drafts && sequence.wants_sample() {
            for back in (0..=drafts).rev() {
                let task = SampleTask {
                    row,
                    back,
                    slot,
                    top_logprobs: sequence.top_logprobs,
                    logprobs: sequence.logprobs,
                };
                self.sample(sequence, task);
            }
            self.forks(state, advance.sequence, start);
        }
    }

    /// Tells the executor of a sequence it does not know, with the blocks that are complete.
    fn admit(&mut self, sequence: &mut Sequence, layout: &Layout) {
        let computed = sequence.computed;
        let Some(place) = &mut sequence.place else {
            return;
        };
        if place.history.is_some() {
            return;
        }
        for ((_, info), table) in layout.groups().zip(&mut place.tables) {
            table.announced = layout.complete(info, computed).min(table.len());
        }
        place.history = Some(sequence.tokens.len() as u32);
        self.plan.admitted.extend(admission(sequence));
    }

    fn sample(&mut self, sequence: &mut Sequence, task: SampleTask) {
        match &mut sequence.branch {
            // Its token comes with the guest's answer.
            Some(branch) => branch.launched(),
            None => {
                sequence.last_sample = Some((self.plan.ticket, self.plan.samples.len() as u32));
                sequence.unknown += 1;
            }
        }
        sequence.in_flight += 1;
        self.plan.samples.push(task);
        self.record.samples.push(sequence.id);
    }

    /// Branches off the choices that share the prompt just computed by the last row, which began at `start`; each
    /// samples its first token from it.
    fn forks(&mut self, state: &mut State, leader: SequenceId, start: u32) {
        let Some(sequence) = state.sequences.get_mut(&leader) else {
            return;
        };
        let choices = std::mem::take(&mut sequence.forks);
        let slots = sequence
            .place
            .as_mut()
            .map(|place| std::mem::take(&mut place.reserved))
            .unwrap_or_default();
        let row = self.plan.rows.len() as u32 - 1;
        for (choice, slot) in choices.zip(slots) {
            let id = state.next_sequence_id();
            let Some(leader) = state.sequences.get(&leader) else {
                return;
            };
            let Some(place) = fork_place(leader, slot, state.limits.layout(), start) else {
                return;
            };
            let mut fork = fork(leader, id, choice, Some(place));
            self.plan.admitted.extend(admission(&fork));
            let task = SampleTask {
                row,
                back: 0,
                slot,
                top_logprobs: fork.top_logprobs,
                logprobs: fork.logprobs,
            };
            self.sample(&mut fork, task);
            if let Some(active) = state.requests.get_mut(&fork.request) {
                active.sequences.push(id);
            }
            state.running.insert(fork.order, id);
            state.sequences.insert(id, fork);
        }
    }
}

/// Where the tokens of a row up to `end` come from, whose last ones are drafts.
fn input(sequence: &Sequence, end: u32, drafts: &[TokenId]) -> Input {
    let history = sequence
        .place
        .as_ref()
        .and_then(|place| place.history)
        .unwrap_or(0);
    if end <= history {
        return Input::History;
    }
    if !drafts.is_empty() {
        let known = sequence.tokens.iter().skip(history as usize);
        return Input::Known(known.chain(drafts).copied().collect());
    }
    match (
        sequence.tokens.get(history as usize..end as usize),
        sequence.last_sample,
    ) {
        (None, Some((ticket, sample))) => Input::From { ticket, sample },
        (tokens, _) => Input::Known(tokens.unwrap_or_default().to_vec()),
    }
}

fn prompt_logprobs(sequence: &Sequence, start: u32) -> Option<u32> {
    match sequence.scores {
        PromptScores::Gathering { top, .. } if start + 1 < sequence.prompt_len => Some(top),
        _ => None,
    }
}

fn admission(sequence: &Sequence) -> Option<Admission> {
    let place = sequence.place.as_ref()?;
    Some(Admission {
        slot: place.slot,
        tokens: sequence.tokens.clone(),
        prompt_len: sequence.prompt_len,
        sampling: Arc::clone(&sequence.sampling),
        random: sequence.random,
        mu: sequence.mu,
        blocks: place
            .tables
            .iter()
            .map(|table| table.ids(0, table.announced).collect())
            .collect(),
    })
}

/// All blocks of `leader`'s prompt. The executor is told at once only of those that were complete before the row at
/// `start`, since that row still writes the others.
fn fork_place(leader: &Sequence, slot: Slot, layout: &Layout, start: u32) -> Option<Place> {
    let place = leader.place.as_ref()?;
    let tables = layout.groups().zip(&place.tables);
    let tables = tables
        .map(|((_, info), table)| table.fork(layout.complete(info, start)))
        .collect();
    Some(Place {
        slot,
        reserved: Vec::new(),
        tables,
        history: Some(leader.prompt_len),
    })
}

/// A sequence with the tokens of `leader`, at its place or in no queue yet.
pub(crate) fn fork(
    leader: &Sequence,
    id: SequenceId,
    choice: u32,
    place: Option<Place>,
) -> Sequence {
    Sequence {
        id,
        request: leader.request,
        order: Order {
            choice,
            ..leader.order
        },
        forks: 0..0,
        tokens: leader.tokens.clone(),
        prompt_len: leader.prompt_len,
        limit: leader.limit,
        salt: leader.salt,
        passed: leader.passed,
        keys: leader.keys.clone(),
        published: leader.published,
        sampling: Arc::clone(&leader.sampling),
        random: RandomKey {
            lineage: choice,
            ..leader.random
        },
        top_logprobs: leader.top_logprobs,
        logprobs: leader.logprobs,
        mu: leader.mu,
        scores: PromptScores::Done,
        grammar: leader.grammar.as_ref().map(Grammar::fork),
        speculation: leader.speculation.as_ref().map(|own| Box::new(own.fork())),
        computed: leader.computed,
        unknown: 0,
        void: 0,
        last_sample: None,
        advanced: leader.advanced,
        in_flight: 0,
        phase: Phase::Running,
        preempted: false,
        place,
        branch: leader.branch.as_ref().map(|_| Branch::new(choice)),
    }
}
