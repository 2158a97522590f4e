//! An executor without a device: a virtual clock, and a "model" whose every token depends on what it reads through
//! the block tables.
//!
//! Each block position stores the token written there and a hash of all entries that were visible when it was written;
//! the next token is a function of the hashes visible at the end of a row. So a block that is shared, copied, reused
//! or found wrongly changes the output. Beyond that, each plan is checked against the contract of [`StepPlan`], and a
//! violation is an [`ExecutorError`] that names it.
//!
//! Of the sampling stages it knows [`Stage::AllowedTokens`](crate::Stage::AllowedTokens) and
//! [`Stage::BannedTokens`](crate::Stage::BannedTokens), and ignores the rest.

mod choose;
mod contract;
mod guests;
mod memory;

use crate::{
    Admission, Executor, ExecutorError, ExecutorInfo, GroupInfo, GroupKind, Input, LengthRules,
    Masks, PromptLogprobs, Row, SampleOutcome, SampleTask, Slot, StepOutput, StepPlan, Task,
    Ticket, TokenId,
};
use contract::Contract;
pub use guests::{MockAnswers, MockGuests, MockQuestion};
use memory::Memory;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Virtual nanoseconds; clones show the same time.
#[derive(Clone, Debug, Default)]
pub struct MockClock(Arc<AtomicU64>);

impl MockClock {
    /// Nanoseconds since the executor was made.
    #[must_use]
    pub fn now(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }

    /// Lets time pass on the host.
    pub fn advance(&self, nanoseconds: u64) {
        self.0.fetch_add(nanoseconds, Ordering::SeqCst);
    }

    fn wait_until(&self, time: u64) {
        self.0.fetch_max(time, Ordering::SeqCst);
    }
}

/// How long a step takes, in virtual nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MockLatency {
    /// Of any step.
    pub step: u64,
    /// Of each of its rows.
    pub row: u64,
    /// Of each of its tokens.
    pub token: u64,
}

/// Where an injected failure strikes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MockFailure {
    /// `launch` of this step fails.
    Launch(Ticket),
    /// `sample` of this step fails.
    Sample(Ticket),
    /// `collect` of this step fails.
    Collect(Ticket),
}

/// What outputs are like.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MockText {
    /// Every token depends on all before it.
    #[default]
    Random,
    /// All but one of sixteen tokens depend on the one before them alone, and on little of it, random keys or not.
    Repetitive,
}

/// See the module.
#[derive(Debug)]
pub struct MockExecutor {
    info: ExecutorInfo,
    latency: MockLatency,
    failure: Option<MockFailure>,
    text: MockText,
    clock: MockClock,
    /// When the device has done all it was given.
    busy_until: u64,
    memory: Memory,
    slots: BTreeMap<Slot, SlotState>,
    steps: VecDeque<Pending>,
    next: Ticket,
    most_in_flight: usize,
}

/// What the executor keeps per slot.
#[derive(Debug)]
struct SlotState {
    admission: Admission,
    history: Vec<TokenId>,
    /// Where its next row starts.
    computed: u32,
}

/// What a token is a function of.
#[derive(Clone, Copy, Debug)]
struct Logits {
    /// Of all that is visible.
    hash: u64,
    /// Length of the history that it follows.
    position: u32,
    /// Decides in place of the hash and the random key.
    repeated: Option<u64>,
}

/// A launched step.
#[derive(Debug)]
struct Pending {
    ticket: Ticket,
    done: u64,
    took: u64,
    tasks: Vec<SampleTask>,
    /// Per sample task.
    logits: Vec<Logits>,
    prompt_logprobs: Vec<PromptLogprobs>,
    samples: Option<Vec<SampleOutcome>>,
    touched: contract::Touched,
}

fn failed(during: &'static str, message: impl Into<String>) -> ExecutorError {
    ExecutorError {
        during,
        message: message.into(),
    }
}

impl MockExecutor {
    /// Small and quick: one full group of 64 blocks of 4 positions, 8 slots, 64 tokens a step, 128 tokens a sequence,
    /// a vocabulary of 97.
    #[must_use]
    pub fn small_info() -> ExecutorInfo {
        ExecutorInfo {
            block_size: 4,
            groups: vec![GroupInfo {
                kind: GroupKind::Full,
                blocks: 64,
            }],
            slots: 8,
            max_step_tokens: 64,
            step_overhead: 0,
            max_len: 128,
            vocab: 97,
            whole_prompt: false,
            lengths: LengthRules::default(),
            task: Task::Generate,
        }
    }

    /// An executor whose steps take no time.
    #[must_use]
    pub fn new(info: ExecutorInfo) -> Self {
        let memory = Memory::new(&info);
        Self {
            info,
            latency: MockLatency::default(),
            failure: None,
            text: MockText::default(),
            clock: MockClock::default(),
            busy_until: 0,
            memory,
            slots: BTreeMap::new(),
            steps: VecDeque::new(),
            next: Ticket(0),
            most_in_flight: 0,
        }
    }

    /// Steps take time.
    #[must_use]
    pub fn with_latency(mut self, latency: MockLatency) -> Self {
        self.latency = latency;
        self
    }

    /// The device is lost at some point.
    #[must_use]
    pub fn with_failure(mut self, failure: MockFailure) -> Self {
        self.failure = Some(failure);
        self
    }

    /// What its outputs are like.
    #[must_use]
    pub fn with_text(mut self, text: MockText) -> Self {
        self.text = text;
        self
    }

    /// The device's clock.
    #[must_use]
    pub fn clock(&self) -> MockClock {
        self.clock.clone()
    }

    /// Most steps that were under way at once.
    #[must_use]
    pub fn most_in_flight(&self) -> usize {
        self.most_in_flight
    }

    /// A slot begins where its first row does, or, forked, where the row ends from which it samples.
    fn admit(&mut self, plan: &StepPlan, admission: &Admission) {
        let slot = admission.slot;
        let own = plan
            .rows
            .iter()
            .find(|row| row.slot == slot)
            .map(|row| row.start);
        let task = plan.samples.iter().find(|task| task.slot == slot);
        let leader = task.and_then(|task| plan.rows.get(task.row as usize));
        let computed = own.or(leader.map(|row| row.start + row.len)).unwrap_or(0);
        let (admission, history) = (admission.clone(), admission.tokens.clone());
        self.slots.insert(
            slot,
            SlotState {
                admission,
                history,
                computed,
            },
        );
    }

    /// Tokens beyond the slot's history that a row brings.
    fn input(&self, row: &Row) -> Result<Vec<TokenId>, ExecutorError> {
        match &row.input {
            Input::History => Ok(Vec::new()),
            Input::Known(tokens) => Ok(tokens.clone()),
            Input::From { ticket, sample } => {
                let step = self.steps.iter().find(|step| step.ticket == *ticket);
                let step = step.ok_or_else(|| {
                    failed("launch", format!("step {} is not in flight", ticket.0))
                })?;
                let task = step.tasks.get(*sample as usize);
                if task.is_none_or(|task| task.slot != row.slot) {
                    return Err(failed(
                        "launch",
                        format!("sample {sample} of step {} is not the row's", ticket.0),
                    ));
                }
                match step
                    .samples
                    .as_ref()
                    .and_then(|samples| samples.get(*sample as usize))
                {
                    Some(SampleOutcome::Token(sampled)) => Ok(vec![sampled.token]),
                    Some(_) => Ok(vec![0]),
                    None => Err(failed(
                        "launch",
                        format!("step {} was not sampled", ticket.0),
                    )),
                }
            }
        }
    }

    /// Computes a row; the last element belongs to its last position.
    fn forward(&mut self, row: &Row) -> Result<Vec<u64>, ExecutorError> {
        let Some(slot) = self.slots.get_mut(&row.slot) else {
            return Err(failed("launch", "slot is empty"));
        };
        let end = row.start + row.len;
        let history = &slot.history;
        let logits = (row.start..end)
            .map(|position| {
                self.memory
                    .compute(&slot.admission.blocks, history, position)
            })
            .collect::<Result<_, _>>()
            .map_err(|message| failed("launch", format!("slot {}: {message}", row.slot.0)))?;
        slot.computed = end;
        Ok(logits)
    }

    /// Of the position a task samples at; the contract is checked.
    fn logits(&self, plan: &[Row], computed: &[Vec<u64>], task: &SampleTask) -> Logits {
        let row = &plan[task.row as usize];
        let hash = computed[task.row as usize][(row.len - 1 - task.back) as usize];
        let position = row.start + row.len - task.back;
        let last = self.slots[&task.slot].history[position as usize - 1];
        let repeats = self.text == MockText::Repetitive && !hash.is_multiple_of(16);
        Logits {
            hash,
            position,
            repeated: repeats.then_some(u64::from(last % 5)),
        }
    }

    fn prompt_logprobs(&self, index: usize, row: &Row, logits: &[u64]) -> Option<PromptLogprobs> {
        let top = row.prompt_logprobs?;
        let slot = self.slots.get(&row.slot)?;
        let entries = (row.start..slot.admission.prompt_len - 1)
            .zip(logits)
            .map(|(position, &hash)| {
                choose::score(
                    hash,
                    slot.history[position as usize + 1],
                    self.info.vocab,
                    top,
                )
            })
            .collect();
        Some(PromptLogprobs {
            row: index as u32,
            entries,
        })
    }
}

impl Executor for MockExecutor {
    fn info(&self) -> &ExecutorInfo {
        &self.info
    }

    fn launch(&mut self, plan: StepPlan) -> Result<Ticket, ExecutorError> {
        if self.failure == Some(MockFailure::Launch(plan.ticket)) {
            return Err(failed("launch", "injected"));
        }
        if plan.ticket != self.next {
            return Err(failed(
                "launch",
                format!("step {} instead of {}", plan.ticket.0, self.next.0),
            ));
        }
        let broken =
            |message: String| failed("launch", format!("step {}: {message}", plan.ticket.0));
        self.next.0 += 1;
        Contract {
            info: &self.info,
            slots: &self.slots,
            steps: &self.steps,
        }
        .check_entry(&plan)
        .map_err(broken)?;
        for slot in &plan.released {
            self.slots.remove(slot);
        }
        for admission in &plan.admitted {
            self.admit(&plan, admission);
        }
        for row in &plan.rows {
            let tokens = self.input(row)?;
            let Some(slot) = self.slots.get_mut(&row.slot) else {
                return Err(broken("a row's slot is empty".into()));
            };
            if matches!(row.input, Input::Known(_)) {
                // Refused drafts are forgotten.
                let first = ((row.start + row.len) as usize).checked_sub(tokens.len());
                let first = first.filter(|&first| first <= slot.history.len());
                let first = first.ok_or_else(|| {
                    let history = slot.history.len();
                    broken(format!(
                        "slot {}: history of {history} for a row up to {}",
                        row.slot.0,
                        row.start + row.len
                    ))
                })?;
                slot.history.truncate(first);
                slot.computed = slot.computed.min(first as u32);
            }
            slot.history.extend(tokens);
            for (group, block) in &row.new_blocks {
                let Some(table) = slot.admission.blocks.get_mut(group.0 as usize) else {
                    return Err(broken(format!("there is no group {}", group.0)));
                };
                table.push(*block);
            }
        }
        let contract = Contract {
            info: &self.info,
            slots: &self.slots,
            steps: &self.steps,
        };
        let touched = contract.check_rows(&plan).map_err(broken)?;
        for copy in &plan.copies {
            self.memory.copy(*copy).map_err(broken)?;
        }
        let mut rows = Vec::new();
        let mut prompt_logprobs = Vec::new();
        for (index, row) in plan.rows.iter().enumerate() {
            let logits = self.forward(row)?;
            prompt_logprobs.extend(self.prompt_logprobs(index, row, &logits));
            rows.push(logits);
        }
        let tokens: u32 = plan.rows.iter().map(|row| row.len).sum();
        let took = self.latency.step
            + self.latency.row * plan.rows.len() as u64
            + self.latency.token * u64::from(tokens);
        self.busy_until = self.busy_until.max(self.clock.now()) + took;
        self.steps.push_back(Pending {
            ticket: plan.ticket,
            done: self.busy_until,
            took,
            logits: plan
                .samples
                .iter()
                .map(|task| self.logits(&plan.rows, &rows, task))
                .collect(),
            tasks: plan.samples,
            prompt_logprobs,
            samples: None,
            touched,
        });
        self.most_in_flight = self.most_in_flight.max(self.steps.len());
        Ok(plan.ticket)
    }

    fn sample(&mut self, ticket: Ticket, masks: Masks) -> Result<(), ExecutorError> {
        if self.failure == Some(MockFailure::Sample(ticket)) {
            return Err(failed("sample", "injected"));
        }
        let step = self
            .steps
            .iter_mut()
            .find(|step| step.ticket == ticket && step.samples.is_none());
        let Some(step) = step else {
            return Err(failed(
                "sample",
                format!("step {} is not launched, or sampled already", ticket.0),
            ));
        };
        let mut outcomes = Vec::with_capacity(step.tasks.len());
        let samples = step.tasks.iter().zip(&step.logits);
        for ((task, &logits), mask) in samples.zip(masks.by_sample()) {
            let Some(slot) = self.slots.get(&task.slot) else {
                return Err(failed("sample", "slot is empty"));
            };
            if self.info.task == Task::Embed {
                let Logits { hash, position, .. } = logits;
                outcomes.push(SampleOutcome::Embedding(choose::vector(hash, position)));
                continue;
            }
            let draw = choose::Row {
                logits,
                vocab: self.info.vocab,
                top: task.top_logprobs,
            };
            outcomes.push(choose::choose(draw, &slot.admission, mask));
        }
        step.samples = Some(outcomes);
        Ok(())
    }

    fn collect(&mut self, ticket: Ticket) -> Result<StepOutput, ExecutorError> {
        if self.failure == Some(MockFailure::Collect(ticket)) {
            return Err(failed("collect", "injected"));
        }
        let step = self.steps.pop_front().filter(|step| step.ticket == ticket);
        let Some(Pending {
            samples: Some(samples),
            prompt_logprobs,
            done,
            took,
            ..
        }) = step
        else {
            return Err(failed(
                "collect",
                format!("step {} is not the oldest sampled one", ticket.0),
            ));
        };
        self.clock.wait_until(done);
        Ok(StepOutput {
            ticket,
            samples,
            prompt_logprobs,
            exposed: std::time::Duration::ZERO,
            took: std::time::Duration::from_nanos(took),
        })
    }
}

#[cfg(test)]
mod tests;
