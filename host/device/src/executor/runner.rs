//! Steps on the device's thread: checks a plan, resolves its tokens, runs it.

use std::collections::{BTreeMap, HashSet, VecDeque};

use guesthouse_engine::{
    Input, Masks, PromptLogprobs, Row, SampleOutcome, SampleTask, Sampled, Slot, StepOutput,
    StepPlan, Ticket, TokenId,
};

use super::slots::Slots;
use crate::device::{Batch, BatchRow, Device, Draw, Feed, Feeding, Score};
use crate::error::{DeviceError, Result};

/// Finished steps whose tokens later steps may still name.
const REMEMBERED: usize = 64;

/// A step whose results are not known yet.
struct Launched {
    ticket: Ticket,
    samples: Vec<SampleTask>,
    /// Row of the kept logits of each sample.
    logits: Vec<usize>,
    /// Plan row and number of scores.
    scored_rows: Vec<(u32, usize)>,
    /// Slots whose history lacks the token of a sample of this step.
    owed: Vec<(Slot, u32)>,
    sampled: bool,
}

pub(super) struct Runner<D> {
    device: D,
    slots: Slots,
    /// In order of their launch.
    launched: VecDeque<Launched>,
    /// Tokens of finished steps; none where sampling failed.
    finished: VecDeque<(Ticket, Vec<Option<TokenId>>)>,
    /// Slots that wait for their last token, which a launched step chooses.
    owing: BTreeMap<Slot, (Ticket, u32)>,
}

impl<D: Device> Runner<D> {
    pub(super) fn new(device: D) -> Self {
        let slots = Slots::new(device.info().clone(), device.prompt_rules());
        Self {
            device,
            slots,
            launched: VecDeque::new(),
            finished: VecDeque::new(),
            owing: BTreeMap::new(),
        }
    }

    /// Begins the forward pass.
    pub(super) fn launch(&mut self, plan: &StepPlan) -> Result<()> {
        let ticket = plan.ticket;
        let wrong = |what: String| DeviceError::Step {
            ticket: ticket.0,
            what,
        };
        self.update(plan).map_err(wrong)?;
        if !plan.copies.is_empty() {
            self.device.copy_blocks(&plan.copies)?;
        }
        let resolved = self.resolve(plan).map_err(wrong)?;
        let rows: Vec<BatchRow<'_>> = plan
            .rows
            .iter()
            .zip(&resolved.first)
            .map(|(row, &first)| {
                let slot = self.slots.get(row.slot)?;
                Ok(BatchRow {
                    slot: row.slot.0,
                    generation: slot.generation,
                    first,
                    start: row.start,
                    len: row.len,
                    prompt_len: slot.prompt_len,
                    admitted_len: slot.admitted_len,
                    marks: slot.marks,
                    tables: &slot.tables,
                })
            })
            .collect::<std::result::Result<_, String>>()
            .map_err(wrong)?;
        let batch = Batch {
            tokens: &resolved.tokens,
            feeds: &resolved.feeds,
            rows: &rows,
            sampled: &resolved.sampled,
            scored: &resolved.scored,
        };
        self.device.forward(ticket, &batch)?;
        self.launched.push_back(Launched {
            ticket,
            samples: plan.samples.clone(),
            logits: resolved.logits,
            scored_rows: resolved.scored_rows,
            owed: Vec::new(),
            sampled: false,
        });
        Ok(())
    }

    /// Begins to draw a launched step's tokens. Earlier steps must be finished.
    pub(super) fn sample(&mut self, ticket: Ticket, masks: &Masks) -> Result<()> {
        let wrong = |what: String| DeviceError::Step {
            ticket: ticket.0,
            what,
        };
        let step = match self.launched.front_mut() {
            Some(step) if step.ticket == ticket && !step.sampled => step,
            _ => return Err(wrong("sampled but not launched, or out of turn".to_owned())),
        };
        step.sampled = true;
        // Histories as they stood at earlier positions of rows with drafts.
        let mut earlier = Vec::new();
        for task in step.samples.iter().filter(|task| task.back > 0) {
            let history = &self.slots.get(task.slot).map_err(wrong)?.history;
            let len = history.tokens().len().saturating_sub(task.back as usize);
            earlier.push(history.before(len));
        }
        let mut earlier = earlier.iter();
        let mut draws = Vec::with_capacity(step.samples.len());
        let samples = step.samples.iter().zip(&step.logits);
        for ((task, &logits), mask) in samples.zip(masks.by_sample()) {
            let slot = self.slots.get(task.slot).map_err(wrong)?;
            let history = match task.back {
                0 => &slot.history,
                _ => earlier.next().unwrap_or(&slot.history),
            };
            draws.push(Draw {
                logits,
                plan: &slot.sampling,
                history,
                random: slot.random,
                mu: slot.mu,
                mask,
                top: task.top_logprobs,
                logprobs: task.logprobs,
            });
        }
        self.device.sample(ticket, &draws)
    }

    /// Steps that were sampled and not finished, oldest first.
    pub(super) fn unfinished(&self) -> Option<Ticket> {
        self.launched
            .front()
            .filter(|l| l.sampled)
            .map(|l| l.ticket)
    }

    /// Whether a step's results must be there before the next one is launched.
    pub(super) fn feeds_from_host(&self) -> bool {
        self.device.feeding() == Feeding::Host
    }

    /// Waits for the oldest step.
    pub(super) fn finish(&mut self, ticket: Ticket) -> Result<StepOutput> {
        let wrong = |what: String| DeviceError::Step {
            ticket: ticket.0,
            what,
        };
        let step = match self.launched.pop_front() {
            Some(step) if step.ticket == ticket && step.sampled => step,
            _ => return Err(wrong("finished out of turn".to_owned())),
        };
        let done = self.device.finish(ticket)?;
        if done.samples.len() != step.samples.len() {
            return Err(wrong(format!("{} samples", done.samples.len())));
        }
        let tokens: Vec<Option<TokenId>> = done
            .samples
            .iter()
            .map(|s| match s {
                SampleOutcome::Token(t) => Some(t.token),
                _ => None,
            })
            .collect();
        for (task, outcome) in step.samples.iter().zip(&done.samples) {
            if let SampleOutcome::Token(Sampled { mu: Some(mu), .. }) = outcome {
                self.slots.get_mut(task.slot).map_err(wrong)?.mu = Some(*mu);
            }
        }
        for (slot, sample) in step.owed {
            // A failed sample has ended its sequence: what follows is dropped, any token will do.
            let token = tokens.get(sample as usize).copied().flatten().unwrap_or(0);
            self.owing.remove(&slot);
            let state = self.slots.get_mut(slot).map_err(wrong)?;
            state.history.extend(&[token]);
        }
        self.finished.push_back((ticket, tokens));
        if self.finished.len() > REMEMBERED {
            self.finished.pop_front();
        }
        let mut scores = done.scores.into_iter();
        let prompt_logprobs = step
            .scored_rows
            .into_iter()
            .map(|(row, n)| PromptLogprobs {
                row,
                entries: scores.by_ref().take(n).collect(),
            })
            .collect();
        Ok(StepOutput {
            ticket,
            samples: done.samples,
            prompt_logprobs,
            exposed: done.exposed,
            took: done.took,
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

    /// Appends a row's new tokens to its slot's history, or notes that one is owed, and checks the row against it.
    fn append(&mut self, row: &Row) -> std::result::Result<(), String> {
        match &row.input {
            Input::History => {}
            Input::Known(tokens) => {
                self.slots.check_tokens(tokens)?;
                self.append_known(row, tokens)?;
            }
            Input::From { ticket, sample } => self.append_from(row.slot, *ticket, *sample)?,
        }
        let known = self.known(row.slot)?;
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

    /// Appends tokens that end at the row's end, in the place of what the history has from there on.
    fn append_known(&mut self, row: &Row, tokens: &[TokenId]) -> std::result::Result<(), String> {
        let end = u64::from(row.start) + u64::from(row.len);
        let place = end.checked_sub(tokens.len() as u64);
        if let Some((ticket, _)) = self.owing.get(&row.slot) {
            return Err(format!(
                "slot {}: known tokens where one of step {} is awaited",
                row.slot.0, ticket.0
            ));
        }
        let slot = self.slots.get_mut(row.slot)?;
        let known = slot.history.tokens().len();
        let place =
            place.filter(|&place| place <= known as u64 && place >= u64::from(slot.prompt_len));
        let Some(place) = place else {
            return Err(format!(
                "slot {}: {} known tokens up to position {end} of a history of {known}, {} of them the prompt",
                row.slot.0,
                tokens.len(),
                slot.prompt_len
            ));
        };
        slot.history.truncate(place as usize);
        slot.history.extend(tokens);
        Ok(())
    }

    fn append_from(
        &mut self,
        slot: Slot,
        ticket: Ticket,
        sample: u32,
    ) -> std::result::Result<(), String> {
        if let Some((_, tokens)) = self.finished.iter().find(|(t, _)| *t == ticket) {
            let token = tokens
                .get(sample as usize)
                .ok_or_else(|| format!("step {} has no sample {sample}", ticket.0))?;
            // A failed sample has ended its sequence: the result of this row is dropped, any token will do.
            let token = token.unwrap_or(0);
            self.slots.get_mut(slot)?.history.extend(&[token]);
            return Ok(());
        }
        let step = self.launched.iter_mut().find(|l| l.ticket == ticket);
        let step = step.ok_or_else(|| {
            format!(
                "tokens of step {} are wanted but it was not sampled",
                ticket.0
            )
        })?;
        if sample as usize >= step.samples.len() {
            return Err(format!("step {} has no sample {sample}", ticket.0));
        }
        step.owed.push((slot, sample));
        match self.owing.insert(slot, (ticket, sample)) {
            None => Ok(()),
            Some(_) => Err(format!("slot {} waits for two tokens", slot.0)),
        }
    }

    /// Tokens of a slot, an owed one included.
    fn known(&self, slot: Slot) -> std::result::Result<usize, String> {
        let owed = usize::from(self.owing.contains_key(&slot));
        Ok(self.slots.get(slot)?.history.tokens().len() + owed)
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
            let here = history.len().min(start + len);
            r.tokens.extend_from_slice(&history[start.min(here)..here]);
            if let Some(&(ticket, sample)) = self.owing.get(&row.slot)
                && here < start + len
            {
                r.feeds.push(Feed {
                    token: r.tokens.len(),
                    ticket,
                    draw: sample as usize,
                });
                r.tokens.push(0);
            }
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
            let history = self.slots.get(task.slot)?.history.tokens().len();
            if task.back >= row.len || task.back as usize > history {
                return Err(format!(
                    "a sample {} positions before the last of row {}, which has {}",
                    task.back, task.row, row.len
                ));
            }
            let last = r.first[task.row as usize] + row.len as usize - 1;
            let token = last - task.back as usize;
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
    feeds: Vec<Feed>,
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
