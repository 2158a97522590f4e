//! Steps on the device's thread: checks a plan, resolves its tokens, runs it.

use std::collections::{HashSet, VecDeque};
use std::time::Duration;

use guesthouse_engine::{
    Input, Masks, PromptLogprobs, Row, SampleOutcome, SampleTask, Slot, StepOutput, StepPlan,
    Ticket, TokenId,
};

use super::slots::Slots;
use crate::device::{Batch, BatchRow, Device, Draw, Score};
use crate::error::{DeviceError, Result};

/// Sampled steps whose tokens later steps may still name.
const REMEMBERED: usize = 64;

/// A step between its forward pass and its sampling.
struct Launched {
    ticket: Ticket,
    samples: Vec<SampleTask>,
    /// Row of the kept logits of each sample.
    logits: Vec<usize>,
    prompt_logprobs: Vec<PromptLogprobs>,
}

pub(super) struct Runner<D> {
    device: D,
    slots: Slots,
    launched: VecDeque<Launched>,
    /// Tokens of sampled steps; none where sampling failed.
    sampled: VecDeque<(Ticket, Vec<Option<TokenId>>)>,
}

impl<D: Device> Runner<D> {
    pub(super) fn new(device: D) -> Self {
        let slots = Slots::new(device.info().clone());
        Self {
            device,
            slots,
            launched: VecDeque::new(),
            sampled: VecDeque::new(),
        }
    }

    /// Runs the forward pass.
    pub(super) fn launch(&mut self, plan: &StepPlan) -> Result<()> {
        let ticket = plan.ticket;
        let wrong = |what: String| DeviceError::Step {
            ticket: ticket.0,
            what,
        };
        self.update(plan).map_err(wrong)?;
        self.device.copy_blocks(&plan.copies)?;
        let resolved = self.resolve(plan).map_err(wrong)?;
        let rows: Vec<BatchRow<'_>> = plan
            .rows
            .iter()
            .zip(&resolved.first)
            .map(|(row, &first)| {
                let slot = self.slots.get(row.slot)?;
                Ok(BatchRow {
                    first,
                    start: row.start,
                    len: row.len,
                    prompt_len: slot.prompt_len,
                    admitted_len: slot.admitted_len,
                    tables: &slot.tables,
                })
            })
            .collect::<std::result::Result<_, String>>()
            .map_err(wrong)?;
        let batch = Batch {
            tokens: &resolved.tokens,
            rows: &rows,
            sampled: &resolved.sampled,
            scored: &resolved.scored,
        };
        let mut scores = self.device.forward(ticket, &batch)?.into_iter();
        let prompt_logprobs = resolved
            .scored_rows
            .into_iter()
            .map(|(row, n)| PromptLogprobs {
                row,
                entries: scores.by_ref().take(n).collect(),
            })
            .collect();
        let samples = plan.samples.clone();
        self.launched.push_back(Launched {
            ticket,
            samples,
            logits: resolved.logits,
            prompt_logprobs,
        });
        Ok(())
    }

    /// Draws a launched step's tokens.
    pub(super) fn sample(&mut self, ticket: Ticket, masks: &Masks) -> Result<StepOutput> {
        let wrong = |what: String| DeviceError::Step {
            ticket: ticket.0,
            what,
        };
        let at = self.launched.iter().position(|l| l.ticket == ticket);
        let step = at
            .and_then(|at| self.launched.remove(at))
            .ok_or_else(|| wrong("sampled but not launched".to_owned()))?;
        let mut draws = Vec::with_capacity(step.samples.len());
        for (index, (task, &logits)) in step.samples.iter().zip(&step.logits).enumerate() {
            let slot = self.slots.get(task.slot).map_err(wrong)?;
            let mask = masks
                .words
                .iter()
                .find(|(i, _)| *i as usize == index)
                .map(|(_, words)| words.as_slice());
            draws.push(Draw {
                logits,
                plan: &slot.sampling,
                history: &slot.history,
                random: slot.random,
                mask,
                top: task.top_logprobs,
            });
        }
        let samples = self.device.sample(ticket, &draws)?;
        let tokens = samples.iter().map(|s| match s {
            SampleOutcome::Token(t) => Some(t.token),
            SampleOutcome::Failed(_) => None,
        });
        self.sampled.push_back((ticket, tokens.collect()));
        if self.sampled.len() > REMEMBERED {
            self.sampled.pop_front();
        }
        Ok(StepOutput {
            ticket,
            samples,
            prompt_logprobs: step.prompt_logprobs,
            exposed: Duration::ZERO,
        })
    }

    /// Slots and block tables, in the plan's order.
    fn update(&mut self, plan: &StepPlan) -> std::result::Result<(), String> {
        for &slot in &plan.released {
            self.slots.release(slot)?;
        }
        for admission in &plan.admitted {
            self.slots.admit(admission)?;
        }
        for copy in &plan.copies {
            self.slots.check_block(copy.group, copy.from)?;
            self.slots.check_block(copy.group, copy.to)?;
        }
        let mut seen: HashSet<Slot> = HashSet::new();
        for row in &plan.rows {
            if !seen.insert(row.slot) {
                return Err(format!("slot {} has two rows", row.slot.0));
            }
            for &(group, block) in &row.new_blocks {
                self.slots.push_block(row.slot, group, block)?;
            }
            self.append(row)?;
        }
        Ok(())
    }

    /// Appends a row's new tokens to its slot's history and checks the row against it.
    fn append(&mut self, row: &Row) -> std::result::Result<(), String> {
        match &row.input {
            Input::History => {}
            Input::Known(tokens) => {
                self.slots.check_tokens(tokens)?;
                self.slots.get_mut(row.slot)?.history.extend(tokens);
            }
            Input::From { ticket, sample } => {
                let step = self.sampled.iter().find(|(t, _)| t == ticket);
                let (_, tokens) = step.ok_or_else(|| {
                    format!(
                        "tokens of step {} are wanted but it was not sampled",
                        ticket.0
                    )
                })?;
                let token = tokens
                    .get(*sample as usize)
                    .ok_or_else(|| format!("step {} has no sample {sample}", ticket.0))?;
                // A failed sample has ended its sequence: the result of this row is dropped, any token will do.
                let token = token.unwrap_or(0);
                self.slots.get_mut(row.slot)?.history.extend(&[token]);
            }
        }
        let known = self.slots.get(row.slot)?.history.tokens().len();
        let end = u64::from(row.start) + u64::from(row.len);
        let whole = matches!(row.input, Input::History) || end == known as u64;
        if row.len == 0 || end > known as u64 || !whole {
            return Err(format!(
                "slot {}: positions {}..{end} of a history of {known}",
                row.slot.0, row.start
            ));
        }
        self.slots.check_tables(row.slot, row.start + row.len)
    }

    fn resolve(&self, plan: &StepPlan) -> std::result::Result<Resolved, String> {
        let info = self.device.info();
        let total: u64 = plan.rows.iter().map(|r| u64::from(r.len)).sum();
        if total > u64::from(info.max_step_tokens) {
            return Err(format!(
                "{total} tokens in one step, at most {}",
                info.max_step_tokens
            ));
        }
        let mut r = Resolved::default();
        for (index, row) in plan.rows.iter().enumerate() {
            let slot = self.slots.get(row.slot)?;
            let first = r.tokens.len();
            r.first.push(first);
            let (start, len) = (row.start as usize, row.len as usize);
            if start + len > info.max_len as usize {
                return Err(format!(
                    "slot {}: {} tokens, at most {}",
                    row.slot.0,
                    start + len,
                    info.max_len
                ));
            }
            let history = slot.history.tokens();
            r.tokens.extend_from_slice(&history[start..start + len]);
            if let Some(top) = row.prompt_logprobs {
                let end = (start + len).min((slot.prompt_len as usize).saturating_sub(1));
                let scored = (start..end).map(|p| Score {
                    token: first + p - start,
                    target: history[p + 1],
                    top,
                });
                let before = r.scored.len();
                r.scored.extend(scored);
                r.scored_rows.push((index as u32, r.scored.len() - before));
            }
        }
        for task in &plan.samples {
            let row = plan
                .rows
                .get(task.row as usize)
                .ok_or_else(|| format!("a sample of row {}", task.row))?;
            self.slots.get(task.slot)?;
            let token = r.first[task.row as usize] + row.len as usize - 1;
            // Tasks of one row share its logits.
            let logits = r
                .sampled
                .iter()
                .rposition(|&t| t == token)
                .unwrap_or_else(|| {
                    r.sampled.push(token);
                    r.sampled.len() - 1
                });
            r.logits.push(logits);
        }
        Ok(r)
    }
}

/// A plan with its tokens looked up.
#[derive(Default)]
struct Resolved {
    tokens: Vec<TokenId>,
    /// First token of each row.
    first: Vec<usize>,
    /// Tokens whose logits are kept.
    sampled: Vec<usize>,
    /// Index into `sampled` of each sample task.
    logits: Vec<usize>,
    scored: Vec<Score>,
    /// Plan row and number of scores.
    scored_rows: Vec<(u32, usize)>,
}
