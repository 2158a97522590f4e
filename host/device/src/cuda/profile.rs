//! Where the time of a decode step goes: each kind of instruction captured and replayed on its own.

use std::collections::BTreeMap;
use std::time::Duration;

use guesthouse_engine::BlockId;

use super::device::CudaDevice;
use super::graphs::{Graphs, bucket};
use super::ops::{Instr, Step, StepKind};
use super::words::Padded;
use crate::device::{Batch, BatchRow};
use crate::error::{DeviceError, Result};
use crate::prompt::PromptMarks;

/// Replays that count, after one that does not.
const RUNS: usize = 9;

/// What a share of a step's instructions takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Share {
    /// Kind of instruction; `all` is the whole step without sampling.
    pub name: String,
    /// Launches.
    pub count: usize,
    /// Median time.
    pub time: Duration,
}

impl CudaDevice {
    /// Times a decode step of `rows` sequences that have `len` positions each, whole and by kind of instruction. Keys and
    /// values of the cache are overwritten.
    ///
    /// # Errors
    /// When the cache is too small, or the GPU is lost.
    pub fn profile(&mut self, rows: u32, len: u32) -> Result<Vec<Share>> {
        self.gpu.bind()?;
        let blocks = len.div_ceil(self.info.block_size);
        let fits = self.info.groups.iter().all(|g| g.blocks >= rows * blocks);
        if rows == 0 || rows > self.info.slots || len == 0 || len > self.info.max_len || !fits {
            return Err(DeviceError::plan(format!(
                "a profile of {rows} sequences of {len} tokens does not fit the cache"
            )));
        }
        let tables: Vec<Vec<Vec<BlockId>>> = (0..rows)
            .map(|r| {
                let table: Vec<BlockId> = (r * blocks..(r + 1) * blocks).map(BlockId).collect();
                vec![table; self.info.groups.len()]
            })
            .collect();
        let tokens: Vec<u32> = (0..rows).map(|r| r * 31 % self.info.vocab).collect();
        let batch_rows: Vec<BatchRow<'_>> = tables
            .iter()
            .zip(0..)
            .map(|(tables, slot)| BatchRow {
                slot,
                generation: u64::MAX,
                first: slot as usize,
                start: len - 1,
                len: 1,
                prompt_len: len - 1,
                admitted_len: len - 1,
                marks: PromptMarks::default(),
                tables,
            })
            .collect();
        let sampled: Vec<usize> = (0..rows as usize).collect();
        let batch = Batch {
            tokens: &tokens,
            feeds: &[],
            rows: &batch_rows,
            sampled: &sampled,
            scored: &[],
        };
        let padded = bucket(rows);
        let counts = Padded {
            tokens: padded,
            rows: padded,
            outputs: padded,
        };
        self.words
            .bring(&batch, &sampled, counts, &mut self.program.planners, 0)?;
        let step = self.step(StepKind::Decode, counts, (padded, 0));
        let all: Vec<&dyn Instr> = self
            .program
            .tokens
            .iter()
            .chain(&self.program.outputs)
            .map(AsRef::as_ref)
            .collect();
        let mut kinds: BTreeMap<String, Vec<&dyn Instr>> = BTreeMap::new();
        for &instr in &all {
            kinds.entry(instr.label()).or_default().push(instr);
            if instr.label() != instr.name() {
                kinds
                    .entry(instr.name().to_owned())
                    .or_default()
                    .push(instr);
            }
        }
        let mut shares = vec![self.share("all", &all, &step)?];
        for (name, instrs) in kinds {
            shares.push(self.share(&name, &instrs, &step)?);
        }
        Ok(shares)
    }

    fn share(&self, name: &str, instrs: &[&dyn Instr], step: &Step<'_>) -> Result<Share> {
        let mut graphs = Graphs::new(&self.gpu);
        let (start, end) = (self.gpu.event()?, self.gpu.event()?);
        let mut times = Vec::new();
        // The first two runs try products and capture.
        for _ in 0..RUNS + 3 {
            start.record()?;
            graphs.run(1, || instrs.iter().try_for_each(|i| i.launch(step)))?;
            end.record()?;
            end.wait()?;
            times.push(end.since(&start)?);
        }
        let mut times = times.split_off(3);
        times.sort_by(f32::total_cmp);
        Ok(Share {
            name: name.to_owned(),
            count: instrs.len(),
            time: Duration::from_secs_f32(times[RUNS / 2] / 1e3),
        })
    }
}
