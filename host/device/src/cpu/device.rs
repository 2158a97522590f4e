//! [`Device`] on the CPU.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use guesthouse_engine::{BlockCopy, ExecutorInfo, SampleOutcome, Sampled, Task, Ticket};
use guesthouse_graph::{Plan, Rows};
use guesthouse_weights::WeightSource;

use super::compile::{Program, compile};
use super::kv::Kv;
use super::memory::{Buffer, Tensor};
use super::ops::experts::ExpertSpace;
use super::ops::{Ctx, QueryTile};
use super::options::CpuOptions;
use super::program::Crew;
use super::sample;
use super::simd::Isa;
use super::weights::{LoadProgress, Loader};
use crate::device::{Batch, Device, Draw, Finished, MemoryUse, Score};
use crate::error::{DeviceError, Result};
use crate::executor::DeviceExecutor;
use crate::lower::{group_infos, length_rules, task, whole_prompt};
use crate::prompt::PromptRules;

/// Output rows computed at once; bounds the memory that prompt log-probabilities take.
const OUTPUT_ROWS: usize = 256;

/// Tokens: SmolLM2 decodes one sequence in 11 ms, two in 16, four in 21 (`docs/performance.md`): the second takes half as long as
/// the first.
const STEP_OVERHEAD: u32 = 1;

/// Consecutive tokens of one row that attention treats as a unit.
const QUERY_TILE: usize = 8;

/// A model on the CPU.
pub struct CpuDevice {
    info: ExecutorInfo,
    rules: PromptRules,
    memory: MemoryUse,
    isa: Isa,
    program: Program,
    /// Elements of an output row.
    vocab: usize,
    tokens: Buffer,
    outputs: Buffer,
    broadcast: Buffer,
    rope_tables: Vec<Buffer>,
    kv: Kv,
    experts: ExpertSpace,
    crew: Crew,
    /// What is kept for sampling, per ticket.
    pending: BTreeMap<u64, Kept>,
    /// Results by ticket, until they are fetched.
    finished: BTreeMap<u64, Finished>,
    /// Used buffers of that kind.
    spare: Vec<Kept>,
}

/// Rows that a step's draws are made from.
#[derive(Default)]
struct Kept {
    /// `[sampled, vocab]`
    logits: Vec<f32>,
    /// `[sampled, hidden size]`: what the head read.
    hidden: Vec<f32>,
}

impl Kept {
    fn resize(&mut self, rows: usize, vocab: usize, hidden: usize) {
        for (list, width) in [(&mut self.logits, vocab), (&mut self.hidden, hidden)] {
            list.clear();
            list.resize(rows * width, 0.0);
        }
    }
}

impl CpuDevice {
    /// Loads weights and allocates memory; the result is ready for [`DeviceExecutor`]. `progress` is called as weights
    /// arrive.
    ///
    /// # Errors
    /// When the plan has an operation the CPU does not run, a weight is missing or of the wrong shape, or an option is out
    /// of range.
    pub fn new(
        plan: &Plan,
        source: &dyn WeightSource,
        options: &CpuOptions,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<Self> {
        options.check()?;
        let workers = options.worker_count();
        let mut loader = Loader::new(&plan.graph, source, workers, progress);
        let rules = PromptRules::of(&plan.graph)?;
        let program = compile(plan, &mut loader, options.block_size as usize)?;
        let blocks = options.blocks(plan, &program.caches)?;
        let kv = Kv::new(program.caches.clone(), &blocks)?;
        let step = options.max_step_tokens as usize;
        let sized = |per_row: usize, rows: usize| {
            let what = "activations";
            let bytes = per_row.checked_mul(rows).ok_or(DeviceError::Memory {
                what,
                bytes: usize::MAX,
            })?;
            Buffer::zeroed(bytes, what)
        };
        let tokens = sized(plan.token_bytes, step)?;
        let outputs = sized(plan.output_bytes, OUTPUT_ROWS)?;
        let broadcast = sized(plan.broadcast_bytes, 1)?;
        let rope_tables = program
            .rope_halves
            .iter()
            .map(|half| sized(8 * half, step))
            .collect::<Result<Vec<_>>>()?;
        let experts = ExpertSpace::new(program.experts, step.max(OUTPUT_ROWS))?;
        let arena = [&tokens, &outputs, &broadcast]
            .into_iter()
            .chain(&rope_tables)
            .map(Buffer::len)
            .sum::<usize>()
            + experts.bytes();
        let vocab = program.logits.width;
        let info = ExecutorInfo {
            block_size: options.block_size,
            groups: group_infos(plan, &blocks),
            slots: options.max_slots,
            max_step_tokens: options.max_step_tokens,
            step_overhead: STEP_OVERHEAD,
            max_len: options.max_len,
            vocab: plan.graph.info.vocab_size,
            whole_prompt: rules.whole_prompt() || whole_prompt(plan),
            lengths: length_rules(plan),
            task: task(plan),
        };
        let mut device = Self {
            info,
            rules,
            memory: MemoryUse {
                weights: loader.bytes(),
                kv: kv.bytes(),
                arena,
            },
            isa: Isa::detect(),
            program,
            vocab,
            tokens,
            outputs,
            broadcast,
            rope_tables,
            kv,
            experts,
            crew: Crew::new(workers)?,
            pending: BTreeMap::new(),
            finished: BTreeMap::new(),
            spare: Vec::new(),
        };
        device.run_once();
        tracing::info!(
            isa = device.isa.name(),
            threads = workers,
            weights = device.memory.weights,
            kv = device.memory.kv,
            arena = device.memory.arena,
            "model loaded on the CPU"
        );
        Ok(device)
    }

    /// Loads a model and starts its executor.
    ///
    /// # Errors
    /// As [`CpuDevice::new`], or when the device's thread cannot be started.
    pub fn load(
        plan: &Arc<Plan>,
        source: &dyn WeightSource,
        options: &CpuOptions,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<DeviceExecutor> {
        DeviceExecutor::start(Self::new(plan, source, options, progress)?)
    }

    fn run_once(&mut self) {
        let batch = Batch {
            feeds: &[],
            tokens: &[],
            rows: &[],
            sampled: &[],
            scored: &[],
        };
        let prepared = Prepared::default();
        let once = std::mem::take(&mut self.program.once);
        self.with(&batch, &prepared, &[], |crew, ctx, _| crew.run(&once, ctx));
    }

    /// Calls `f` with the workers, the step as they see it, and the program.
    fn with(
        &mut self,
        batch: &Batch<'_>,
        prepared: &Prepared,
        outputs: &[usize],
        f: impl FnOnce(&mut Crew, &Ctx<'_>, &Program),
    ) {
        let ctx = Ctx {
            isa: self.isa,
            workers: self.crew.workers(),
            arenas: [
                self.tokens.floats(),
                self.outputs.floats(),
                self.broadcast.floats(),
            ],
            batch,
            positions: &prepared.positions,
            row_of: &prepared.row_of,
            outputs,
            kv: &self.kv,
            tiles: &prepared.tiles,
            rope_tables: &self.rope_tables,
            experts: &self.experts,
        };
        f(&mut self.crew, &ctx, &self.program);
    }

    fn lost(&self, ticket: Ticket, what: impl Into<String>) -> DeviceError {
        DeviceError::Step {
            ticket: ticket.0,
            what: what.into(),
        }
    }
}

/// What the kernels want to know about each token.
#[derive(Default)]
struct Prepared {
    positions: Vec<u32>,
    row_of: Vec<u32>,
    tiles: Vec<QueryTile>,
}

impl Prepared {
    fn of(batch: &Batch<'_>) -> Self {
        let mut prepared = Self::default();
        for (index, row) in batch.rows.iter().enumerate() {
            prepared.positions.extend(row.start..row.start + row.len);
            prepared
                .row_of
                .extend(std::iter::repeat_n(index as u32, row.len as usize));
            for at in (0..row.len as usize).step_by(QUERY_TILE) {
                let len = QUERY_TILE.min(row.len as usize - at);
                prepared.tiles.push(QueryTile {
                    row: index,
                    token: row.first + at,
                    len,
                });
            }
        }
        prepared
    }
}

/// What becomes of an output row.
#[derive(Clone, Copy)]
enum Use {
    /// Kept: index into the pending logits.
    Keep(usize),
    /// Scored: index into the batch's list.
    Score(usize),
}

impl Device for CpuDevice {
    fn info(&self) -> &ExecutorInfo {
        &self.info
    }

    fn prompt_rules(&self) -> PromptRules {
        self.rules
    }

    fn memory(&self) -> MemoryUse {
        self.memory
    }

    fn copy_blocks(&mut self, copies: &[BlockCopy]) -> Result<()> {
        self.kv.copy(copies);
        Ok(())
    }

    fn forward(&mut self, ticket: Ticket, batch: &Batch<'_>) -> Result<()> {
        if batch.tokens.len() > self.info.max_step_tokens as usize {
            return Err(self.lost(ticket, format!("{} tokens in one step", batch.tokens.len())));
        }
        let begin = Instant::now();
        let prepared = Prepared::of(batch);
        let scores: Vec<Mutex<Option<Sampled>>> =
            batch.scored.iter().map(|_| Mutex::new(None)).collect();
        let mut kept = self.spare.pop().unwrap_or_default();
        let hidden = self.program.hidden.map_or(0, |place| place.width);
        kept.resize(batch.sampled.len(), self.vocab, hidden);
        if !batch.tokens.is_empty() {
            self.with(batch, &prepared, &[], |crew, ctx, program| {
                crew.run(&program.tokens, ctx);
            });
            let keep = batch
                .sampled
                .iter()
                .enumerate()
                .map(|(i, &t)| (t, Use::Keep(i)));
            let score = batch
                .scored
                .iter()
                .enumerate()
                .map(|(i, s)| (s.token, Use::Score(i)));
            let wanted: Vec<(usize, Use)> = keep.chain(score).collect();
            for chunk in wanted.chunks(OUTPUT_ROWS) {
                let outputs: Vec<usize> = chunk.iter().map(|(t, _)| *t).collect();
                let vocab = self.vocab;
                // Kept rows come first, in order.
                let first = chunk.iter().find_map(|(_, u)| match u {
                    Use::Keep(i) => Some(*i),
                    Use::Score(_) => None,
                });
                let first = first.unwrap_or(usize::MAX);
                let rows: Vec<Mutex<&mut [f32]>> = kept
                    .logits
                    .chunks_mut(vocab.max(1))
                    .skip(first)
                    .take(chunk.len())
                    .map(Mutex::new)
                    .collect();
                let hidden_rows = kept.hidden.chunks_mut(hidden.max(1)).skip(first);
                self.with(batch, &prepared, &outputs, |crew, ctx, program| {
                    crew.run(&program.outputs, ctx);
                    let logits = ctx.tensor(&program.logits);
                    crew.each(chunk.len(), &|i, _| {
                        let row = row_of(&logits, i, outputs.len());
                        match chunk[i].1 {
                            Use::Keep(_) => lock(&rows[i]).copy_from_slice(row),
                            Use::Score(s) => {
                                let Score { target, top, .. } = batch.scored[s];
                                *lock(&scores[s]) = Some(sample::score(ctx.isa, row, target, top));
                            }
                        }
                    });
                    if let Some(place) = &program.hidden {
                        let states = ctx.tensor(place);
                        for (i, to) in hidden_rows.take(chunk.len()).enumerate() {
                            let at = match place.arena {
                                Rows::Tokens => outputs[i],
                                Rows::Outputs | Rows::Broadcast => i,
                            };
                            to.copy_from_slice(row_of(&states, at, ctx.rows(place.arena)));
                        }
                    }
                });
            }
        }
        self.pending.insert(ticket.0, kept);
        let scores = scores
            .into_iter()
            .map(|s| s.into_inner().unwrap_or_else(PoisonError::into_inner));
        let scores = scores
            .collect::<Option<Vec<_>>>()
            .ok_or_else(|| self.lost(ticket, "a prompt token was not scored"))?;
        let finished = Finished {
            scores,
            took: begin.elapsed(),
            ..Finished::default()
        };
        self.finished.insert(ticket.0, finished);
        Ok(())
    }

    fn sample(&mut self, ticket: Ticket, draws: &[Draw<'_>]) -> Result<()> {
        let Some(kept) = self.pending.remove(&ticket.0) else {
            return Err(self.lost(ticket, "sampled before its forward pass, or twice"));
        };
        let begin = Instant::now();
        let vocab = self.vocab;
        let rows = kept.logits.len() / vocab.max(1);
        if draws.iter().any(|d| d.logits >= rows) {
            return Err(self.lost(ticket, format!("a draw from a row beyond {rows}")));
        }
        let outcomes: Vec<Mutex<Option<SampleOutcome>>> =
            draws.iter().map(|_| Mutex::new(None)).collect();
        let Kept { logits, hidden } = &kept;
        let states = hidden.len() / rows.max(1);
        let isa = self.isa;
        let task = self.info.task;
        self.crew.each(draws.len(), &|i, scratch| {
            let draw = &draws[i];
            let row = &logits[draw.logits * vocab..(draw.logits + 1) * vocab];
            let state = &hidden[draw.logits * states..(draw.logits + 1) * states];
            *lock(&outcomes[i]) = Some(match task {
                Task::Generate => {
                    let outcome = sample::draw(isa, row, draw, &mut scratch.sample);
                    sample::with_hidden(outcome, draw, || state.to_vec())
                }
                Task::Embed => SampleOutcome::Embedding(row.to_vec()),
            });
        });
        if self.spare.len() < 4 {
            self.spare.push(kept);
        }
        let outcomes = outcomes
            .into_iter()
            .map(|o| o.into_inner().unwrap_or_else(PoisonError::into_inner));
        let samples = outcomes
            .collect::<Option<Vec<SampleOutcome>>>()
            .ok_or_else(|| self.lost(ticket, "a row was not sampled"))?;
        let sampling = begin.elapsed();
        let finished = self.finished.entry(ticket.0).or_default();
        let ms = |time: Duration| time.as_secs_f32() * 1e3;
        tracing::debug!(
            target: "guesthouse_device::steps",
            ticket = ticket.0,
            rows,
            forward_ms = ms(finished.took),
            sampling_ms = ms(sampling),
            "step",
        );
        finished.samples = samples;
        finished.took += sampling;
        Ok(())
    }

    fn finish(&mut self, ticket: Ticket) -> Result<Finished> {
        self.finished
            .remove(&ticket.0)
            .ok_or_else(|| self.lost(ticket, "finished before it was sampled, or twice"))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Row `i` of a value, after the program that makes it has ended.
#[allow(unsafe_code)]
fn row_of<'a>(value: &Tensor, i: usize, rows: usize) -> &'a [f32] {
    assert!(i < rows);
    // SAFETY: the value's arena holds `rows` rows, and nobody writes it until the next chunk.
    unsafe { value.row(i) }
}
