//! An engine small enough to see through: one block table per sequence, blocks never shared.

use std::sync::Arc;

use guesthouse_engine::{
    Admission, BlockId, Executor, GroupId, Input, Masks, RandomKey, Row, SampleOutcome, SampleTask,
    Sampled, SamplingPlan, Slot, StepOutput, StepPlan, Ticket, TokenId,
};

/// Drives an executor step by step.
pub struct Driver<E> {
    pub executor: E,
    ticket: u64,
    next_block: Vec<u32>,
    admitted: Vec<Admission>,
    released: Vec<Slot>,
    /// Per slot: length of its tables, in blocks.
    lens: std::collections::BTreeMap<u32, u32>,
}

impl<E: Executor> Driver<E> {
    pub fn new(executor: E) -> Self {
        let groups = executor.info().groups.len();
        Self {
            executor,
            ticket: 0,
            next_block: vec![0; groups],
            admitted: Vec::new(),
            released: Vec::new(),
            lens: std::collections::BTreeMap::new(),
        }
    }

    /// Enters a sequence with the next step.
    pub fn admit(&mut self, slot: u32, tokens: &[TokenId], sampling: &SamplingPlan, seed: u64) {
        self.lens.insert(slot, 0);
        self.admitted.push(Admission {
            slot: Slot(slot),
            tokens: tokens.to_vec(),
            prompt_len: tokens.len() as u32,
            sampling: Arc::new(sampling.clone()),
            random: RandomKey { seed, lineage: 0 },
            mu: None,
            blocks: vec![Vec::new(); self.next_block.len()],
        });
    }

    /// Enters a sequence that was preempted: some of its tokens were generated.
    #[allow(dead_code)] // Each test binary uses a part.
    pub fn admit_generated(&mut self, slot: u32, tokens: &[TokenId], prompt_len: u32) {
        self.admit(slot, tokens, &SamplingPlan::greedy(), 0);
        if let Some(admission) = self.admitted.last_mut() {
            admission.prompt_len = prompt_len;
        }
    }

    /// Sequences waiting for the next step.
    pub fn take_admitted(&mut self) -> Vec<Admission> {
        std::mem::take(&mut self.admitted)
    }

    pub fn release(&mut self, slot: u32) {
        self.released.push(Slot(slot));
    }

    /// A row that advances a slot, with the blocks it needs.
    pub fn row(&mut self, slot: u32, start: u32, len: u32, input: Input) -> Row {
        let size = self.executor.info().block_size;
        let have = self.lens.entry(slot).or_default();
        let mut new_blocks = Vec::new();
        while *have * size < start + len {
            for (group, next) in self.next_block.iter_mut().enumerate() {
                new_blocks.push((GroupId(group as u32), BlockId(*next)));
                *next += 1;
            }
            *have += 1;
        }
        Row {
            slot: Slot(slot),
            start,
            len,
            input,
            new_blocks,
            prompt_logprobs: None,
        }
    }

    /// Launches a step and enqueues its sampling.
    pub fn launch(&mut self, rows: Vec<Row>, samples: Vec<SampleTask>) -> Ticket {
        let ticket = Ticket(self.ticket);
        self.ticket += 1;
        let plan = StepPlan {
            ticket,
            released: std::mem::take(&mut self.released),
            admitted: std::mem::take(&mut self.admitted),
            copies: Vec::new(),
            rows,
            samples,
        };
        self.executor.launch(plan).unwrap();
        self.executor.sample(ticket, Masks::default()).unwrap();
        ticket
    }

    pub fn step(&mut self, rows: Vec<Row>, samples: Vec<SampleTask>) -> StepOutput {
        let ticket = self.launch(rows, samples);
        self.executor.collect(ticket).unwrap()
    }

    /// Runs a prompt in chunks of at most `chunk` tokens, then generates `n` tokens, two steps under way at once.
    pub fn generate(
        &mut self,
        slot: u32,
        prompt: &[TokenId],
        chunk: u32,
        n: u32,
        sampling: &SamplingPlan,
    ) -> Vec<Sampled> {
        self.admit(slot, prompt, sampling, 7);
        let len = prompt.len() as u32;
        let mut last = None;
        let mut start = 0;
        while start < len {
            let part = chunk.min(len - start);
            let row = self.row(slot, start, part, Input::History);
            start += part;
            let samples = if start == len {
                vec![task(0, slot)]
            } else {
                Vec::new()
            };
            let ticket = self.launch(vec![row], samples);
            if start < len {
                self.executor.collect(ticket).unwrap();
            } else {
                last = Some(ticket);
            }
        }
        let mut out = Vec::new();
        for i in 0..n {
            let ticket = last.unwrap();
            if i + 1 < n {
                let row = self.row(slot, len + i, 1, Input::From { ticket, sample: 0 });
                last = Some(self.launch(vec![row], vec![task(0, slot)]));
            }
            out.push(token(&self.executor.collect(ticket).unwrap(), 0));
        }
        self.release(slot);
        out
    }
}

pub fn task(row: u32, slot: u32) -> SampleTask {
    SampleTask {
        row,
        slot: Slot(slot),
        back: 0,
        top_logprobs: 5,
        logprobs: guesthouse_engine::LogprobsMode::Raw,
    }
}

pub fn token(output: &StepOutput, sample: usize) -> Sampled {
    match &output.samples[sample] {
        SampleOutcome::Token(t) => t.clone(),
        other => panic!("sample {sample}: {other:?}"),
    }
}
