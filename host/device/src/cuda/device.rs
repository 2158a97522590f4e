//! [`Device`] on an NVIDIA GPU.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use guesthouse_engine::{BlockCopy, ExecutorInfo, SampleOutcome, Task, Ticket};
use guesthouse_graph::{Plan, Rows};
use guesthouse_weights::WeightSource;

use super::check::Timer;
use super::compile::{Program, Target, compile};
use super::driver::{Buffer, Event, Gpu};
use super::graphs::{Graphs, bucket};
use super::matmul::Matmul;
use super::memory::{self, Held, Kv};
use super::ops::{CacheArgs, Instr, Limits, Place, Step, StepKind};
use super::options::{CudaDtype, CudaGraphs, CudaOptions};
use super::sample::{HiddenRows, Sampler, SamplerLimits};
use super::weights::Loader;
use super::words::{Padded, Words};
use crate::cpu::LoadProgress;
use crate::device::{Batch, BatchRow, Device, Draw, Feeding, Finished, MemoryUse};
use crate::error::{DeviceError, Result};
use crate::executor::DeviceExecutor;
use crate::lower::{group_infos, length_rules, task, whole_prompt};
use crate::prompt::PromptRules;

/// Least room for output rows, and most rows of a prompt that are scored at a time.
const OUTPUT_ROWS: u32 = 256;

/// Tokens whose arithmetic takes as long as reading the weights and launching the kernels, about.
const STEP_OVERHEAD: u32 = 64;

/// Steps under way at once.
const DEPTH: u32 = 4;

/// A model on a GPU. Everything is enqueued on one stream; the host waits only in [`Device::finish`].
pub struct CudaDevice {
    pub(super) info: ExecutorInfo,
    rules: PromptRules,
    memory: MemoryUse,
    limits: Limits,
    mode: CudaGraphs,
    /// Of values of the model's type.
    dtype: CudaDtype,
    pub(super) program: Program,
    caches: Vec<CacheArgs>,
    kv: Kv,
    pub(super) words: Words,
    sampler: Sampler,
    /// Taken out while one runs.
    graphs: Option<Graphs>,
    arenas: [Buffer; 3],
    scratch: Buffer,
    steps: VecDeque<UnderWay>,
    /// Of the last forward pass, padding included.
    last: Padded,
    /// Tokens whose logits it kept.
    last_rows: Vec<usize>,
    /// The step whose tokens the sampler holds.
    last_sampled: Option<Ticket>,
    /// Vectors of steps under way, of a model that embeds.
    embedded: VecDeque<Vec<SampleOutcome>>,
    /// Events not in use.
    events: Vec<StepEvents>,
    /// Those of the last finished step, while the next one may still be measured against its end.
    last_events: Option<StepEvents>,
    matmul: Arc<Matmul>,
    bandwidth: Option<f64>,
    pub(super) gpu: Arc<Gpu>,
}

/// When a step's parts pass on the GPU.
struct StepEvents {
    begin: Event,
    /// Recorded where the log shows it.
    forwarded: Event,
    sampled: Event,
}

/// A step between its forward pass and its end.
struct UnderWay {
    ticket: Ticket,
    events: StepEvents,
    /// Whether the step before it was under way when it was enqueued.
    follows: bool,
}

impl CudaDevice {
    /// The GPU, if a model could run on it: driver and required libraries are there and it is recent enough.
    ///
    /// # Errors
    /// What is missing and the command that installs it.
    pub fn probe(ordinal: usize) -> Result<super::check::Gpu> {
        super::check::probe(ordinal)
    }

    /// Loads weights and allocates memory; the result is ready for [`DeviceExecutor`]. `progress` is called as weights
    /// arrive.
    ///
    /// # Errors
    /// When the GPU, a library or memory is missing, an operation has no kernel, a weight is missing or of the wrong shape,
    /// or an option is out of range.
    pub fn new(
        plan: &Plan,
        source: &dyn WeightSource,
        options: &CudaOptions,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<Self> {
        options.check()?;
        let gpu = Gpu::open(options.ordinal, options.cache_dir.as_deref())?;
        let free_before = gpu.free_memory()?;
        let bandwidth = bandwidth(&gpu, free_before)?;
        let matmul = Matmul::open(&gpu, options.numerics, options.cache_dir.as_deref())?;
        let limits = Limits {
            tokens: options.max_step_tokens.max(bucket(options.max_slots)),
            rows: bucket(options.max_slots),
            outputs: bucket(options.max_slots)
                .max(options.sampled_positions())
                .max(OUTPUT_ROWS),
            len: options.max_len,
            block_size: options.block_size,
        };
        let mut loader = Loader::new(&gpu, &plan.graph, source, options.dtype, progress);
        let target = Target {
            limits,
            numerics: options.numerics,
        };
        let rules = PromptRules::of(&plan.graph)?;
        let mut program = compile(plan, &mut loader, &matmul, target)?;
        let weights = loader.bytes();
        let arenas = [
            gpu.allocate(plan.token_bytes * limits.tokens as usize, "activations")?,
            gpu.allocate(plan.output_bytes * limits.outputs as usize, "logits")?,
            gpu.allocate_zeroed(plan.broadcast_bytes, "constants")?,
        ];
        let scratch = gpu.allocate(program.scratch, "scratch")?;
        let words = Words::new(
            &gpu,
            limits,
            options.max_slots,
            plan.groups.len(),
            &mut program.planners,
        )?;
        // Of the rows that are sampled from; a model that embeds has none.
        let width = u32::try_from(program.logits.width).unwrap_or(u32::MAX);
        let sampler = Sampler::new(
            &gpu,
            SamplerLimits {
                vocab: width,
                logits: if program.logits.element == 4 {
                    CudaDtype::F32
                } else {
                    options.dtype
                },
                rows: limits.outputs,
                draws: limits.outputs,
                steps: DEPTH,
            },
        )?;
        let arena =
            arenas.iter().map(Buffer::bytes).sum::<usize>() + scratch.bytes() + words.bytes();
        let held = Held {
            weights,
            activations: arena,
            free_before,
        };
        let kv = memory::allocate(&gpu, plan, &program.caches, options, held)?;
        let caches = kv.args(&program.caches, &words, options.block_size);
        let info = ExecutorInfo {
            block_size: options.block_size,
            groups: group_infos(plan, &kv.blocks),
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
                weights,
                kv: kv.bytes(),
                arena,
            },
            limits,
            mode: options.graphs,
            dtype: options.dtype,
            program,
            caches,
            kv,
            words,
            sampler,
            graphs: Some(Graphs::new(&gpu)),
            arenas,
            scratch,
            steps: VecDeque::new(),
            last: Padded::default(),
            last_rows: Vec::new(),
            last_sampled: None,
            embedded: VecDeque::new(),
            events: Vec::new(),
            last_events: None,
            matmul,
            bandwidth,
            gpu,
        };
        device.run_once()?;
        device.warm_up()?;
        Ok(device)
    }

    /// Loads a model and starts its executor.
    ///
    /// # Errors
    /// As [`CudaDevice::new`].
    pub fn load(
        plan: &Arc<Plan>,
        source: &dyn WeightSource,
        options: &CudaOptions,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<DeviceExecutor> {
        DeviceExecutor::start(Self::new(plan, source, options, progress)?)
    }

    fn run_once(&mut self) -> Result<()> {
        let counts = Padded {
            tokens: 0,
            rows: 0,
            outputs: 0,
        };
        let once = std::mem::take(&mut self.program.once);
        self.run(&once, &self.step(StepKind::Mixed, counts, (0, 0)))?;
        self.gpu.synchronize()
    }

    /// Runs steps of the largest size, of each power of two below it, and a decode of one row, with made-up tokens: kernels
    /// are compiled and loaded, and how to compute each product is chosen, before the first request comes. Whatever is chosen
    /// later holds up all sequences for up to a second.
    fn warm_up(&mut self) -> Result<()> {
        let largest = self.info.max_step_tokens.max(1);
        let smaller = (0..u32::BITS).rev().map(|bit| 1 << bit);
        for tokens in std::iter::once(largest).chain(smaller.filter(|&size| size < largest)) {
            self.made_up_step(tokens)?;
        }
        self.sampler.ready()?;
        self.gpu.synchronize()?;
        self.matmul.settle();
        Ok(())
    }

    /// A step of so many tokens, in as many rows as they need, with as many outputs as there may be.
    fn made_up_step(&mut self, size: u32) -> Result<()> {
        let most = self.info.max_len.max(1);
        let size = size.min(most.saturating_mul(self.info.slots.max(1)));
        let tokens: Vec<u32> = (0..size).map(|i| i * 31 % self.info.vocab.max(1)).collect();
        let tables: Vec<Vec<guesthouse_engine::BlockId>> = vec![Vec::new(); self.info.groups.len()];
        let rows = tokens.chunks(most as usize).enumerate().map(|(at, part)| {
            let len = part.len() as u32;
            BatchRow {
                slot: at as u32,
                generation: 0,
                first: at * most as usize,
                start: 0,
                len,
                prompt_len: len,
                admitted_len: len,
                marks: self.rules.marks(part),
                tables: &tables,
            }
        });
        let rows: Vec<_> = rows.collect();
        let sampled: Vec<usize> = match self.info.task {
            Task::Generate => (0..tokens.len().min(self.limits.outputs as usize)).collect(),
            Task::Embed => rows
                .iter()
                .map(|row| row.first + row.len as usize - 1)
                .collect(),
        };
        let batch = Batch {
            tokens: &tokens,
            feeds: &[],
            rows: &rows,
            sampled: &sampled,
            scored: &[],
        };
        self.forward(Ticket(0), &batch)?;
        self.steps.clear();
        Ok(())
    }

    pub(super) fn step(
        &self,
        kind: StepKind,
        counts: Padded,
        (single_rows, long_rows): (u32, u32),
    ) -> Step<'_> {
        Step {
            gpu: &self.gpu,
            kind,
            batch: self.words.args(counts),
            single_rows,
            long_rows,
            arenas: [
                self.arenas[0].address(),
                self.arenas[1].address(),
                self.arenas[2].address(),
            ],
            plans: &self.words.plans,
            caches: &self.caches,
            scratch: self.scratch.address(),
        }
    }

    fn run(&self, program: &[Box<dyn Instr>], step: &Step<'_>) -> Result<()> {
        for instr in program {
            // With CUDA_LAUNCH_BLOCKING=1 the last one named is the one that hangs.
            tracing::trace!(name = instr.name(), "launch");
            instr.launch(step)?;
        }
        Ok(())
    }

    /// Whether a batch is a plain decode step: a captured graph may run it.
    fn is_decode(&self, batch: &Batch<'_>) -> bool {
        self.mode == CudaGraphs::Captured
            && !batch.rows.is_empty()
            && batch.rows.iter().all(|r| r.len == 1)
            && batch.scored.is_empty()
            && batch.sampled.iter().copied().eq(0..batch.rows.len())
    }

    fn decode(&mut self, batch: &Batch<'_>) -> Result<()> {
        let rows = bucket(batch.rows.len() as u32);
        let counts = Padded {
            tokens: rows,
            rows,
            outputs: rows,
        };
        self.words.bring(
            batch,
            batch.sampled,
            counts,
            &mut self.program.planners,
            self.sampler.sampled(),
        )?;
        let mut graphs = self.graphs.take().unwrap_or_else(|| Graphs::new(&self.gpu));
        let step = self.step(StepKind::Decode, counts, (rows, 0));
        let ran = graphs.run(rows, || {
            self.run(&self.program.tokens, &step)?;
            self.run(&self.program.outputs, &step)
        });
        self.graphs = Some(graphs);
        self.last = counts;
        ran
    }

    fn mixed(&mut self, ticket: Ticket, batch: &Batch<'_>) -> Result<()> {
        let outputs = self.limits.outputs as usize;
        let counts = Padded {
            tokens: batch.tokens.len() as u32,
            rows: batch.rows.len() as u32,
            outputs: batch.sampled.len() as u32,
        };
        if batch.sampled.len() > outputs {
            return Err(self.broken(ticket, format!("{} sampled tokens", batch.sampled.len())));
        }
        self.words.bring(
            batch,
            batch.sampled,
            counts,
            &mut self.program.planners,
            self.sampler.sampled(),
        )?;
        let single = batch.rows.iter().filter(|r| r.len == 1).count() as u32;
        let kinds = (single, counts.rows - single);
        self.run(
            &self.program.tokens,
            &self.step(StepKind::Mixed, counts, kinds),
        )?;
        for scores in batch.scored.chunks(outputs.min(OUTPUT_ROWS as usize)) {
            let wanted: Vec<usize> = scores.iter().map(|s| s.token).collect();
            self.words.bring_outputs(&wanted)?;
            let counts = Padded {
                outputs: wanted.len() as u32,
                ..counts
            };
            let logits = {
                let step = self.step(StepKind::Mixed, counts, kinds);
                self.run(&self.program.outputs, &step)?;
                step.tensor(&self.program.logits)
            };
            self.sampler.score(ticket, logits, scores)?;
            // Staging buffers are few.
            self.gpu.synchronize()?;
        }
        if !batch.scored.is_empty() {
            self.words.bring_outputs(batch.sampled)?;
        }
        self.last = counts;
        if !batch.sampled.is_empty() {
            self.run(
                &self.program.outputs,
                &self.step(StepKind::Mixed, counts, kinds),
            )?;
        }
        Ok(())
    }

    /// The vectors that the last forward pass left. Waits for it: a prompt takes longer than the round trip, and the next
    /// step overwrites them.
    fn embeddings(&self, draws: &[Draw<'_>]) -> Result<Vec<SampleOutcome>> {
        self.gpu.synchronize()?;
        let place = &self.program.logits;
        let first = place.base * self.last.outputs as usize + place.offset;
        let dtype = self.dtype_of(place);
        draws
            .iter()
            .map(|draw| {
                let mut bytes = vec![0; place.width * place.element];
                self.arenas[1].read(first + draw.logits * place.stride, &mut bytes)?;
                self.gpu.synchronize()?;
                Ok(SampleOutcome::Embedding(dtype.floats(&bytes)))
            })
            .collect()
    }

    fn dtype_of(&self, place: &Place) -> CudaDtype {
        if place.element == 4 {
            CudaDtype::F32
        } else {
            self.dtype
        }
    }

    fn broken(&self, ticket: Ticket, what: impl Into<String>) -> DeviceError {
        DeviceError::Step {
            ticket: ticket.0,
            what: what.into(),
        }
    }
}

/// Whether the log shows where the time of a step goes.
fn timed() -> bool {
    tracing::enabled!(target: "guesthouse_device::steps", tracing::Level::DEBUG)
}

/// What a large copy reads and writes, bytes per second, where there is room to measure it.
pub(super) fn bandwidth(gpu: &Arc<Gpu>, free: usize) -> Result<Option<f64>> {
    if free < 8 << 30 {
        return Ok(None);
    }
    Timer::new(gpu)?.bandwidth().map(Some)
}

impl Device for CudaDevice {
    fn info(&self) -> &ExecutorInfo {
        &self.info
    }

    fn prompt_rules(&self) -> PromptRules {
        self.rules
    }

    fn memory(&self) -> MemoryUse {
        self.memory
    }

    fn bandwidth(&self) -> Option<f64> {
        self.bandwidth
    }

    fn feeding(&self) -> Feeding {
        Feeding::Device
    }

    fn copy_blocks(&mut self, copies: &[BlockCopy]) -> Result<()> {
        self.gpu.bind()?;
        self.kv.copy(&self.gpu, copies)
    }

    fn forward(&mut self, ticket: Ticket, batch: &Batch<'_>) -> Result<()> {
        self.gpu.bind()?;
        if batch.tokens.len() > self.limits.tokens as usize
            || batch.rows.len() > self.limits.rows as usize
        {
            let what = format!("{} tokens in {} rows", batch.tokens.len(), batch.rows.len());
            return Err(self.broken(ticket, what));
        }
        if let Some(feed) = batch
            .feeds
            .iter()
            .find(|f| Some(f.ticket) != self.last_sampled)
        {
            let what = format!(
                "a token of step {} is wanted, which is not the last",
                feed.ticket.0
            );
            return Err(self.broken(ticket, what));
        }
        let events = match self.events.pop() {
            Some(events) => events,
            None => StepEvents {
                begin: self.gpu.event()?,
                forwarded: self.gpu.event()?,
                sampled: self.gpu.event()?,
            },
        };
        events.begin.record()?;
        self.last_rows.clear();
        self.last_rows.extend_from_slice(batch.sampled);
        let follows = !self.steps.is_empty();
        if self.is_decode(batch) {
            self.decode(batch)?;
        } else if !batch.tokens.is_empty() {
            self.mixed(ticket, batch)?;
        }
        if timed() {
            events.forwarded.record()?;
        }
        self.steps.push_back(UnderWay {
            ticket,
            events,
            follows,
        });
        Ok(())
    }

    fn sample(&mut self, ticket: Ticket, draws: &[Draw<'_>]) -> Result<()> {
        self.gpu.bind()?;
        let Some(step) = self.steps.iter().find(|s| s.ticket == ticket) else {
            return Err(self.broken(ticket, "sampled before its forward pass"));
        };
        if self.info.task == Task::Embed {
            let vectors = self.embeddings(draws)?;
            step.events.sampled.record()?;
            self.embedded.push_back(vectors);
            return Ok(());
        }
        // Logits stand where the last forward pass left them: with as many output rows as it had, padding included.
        let last = self.step(StepKind::Mixed, self.last, (0, 0));
        let logits = last.tensor(&self.program.logits);
        let hidden = match self.program.hidden {
            None => None,
            Some(place) => Some(HiddenRows {
                rows: last.tensor(&place),
                width: place.width as u32,
                dtype: self.dtype_of(&place),
                of: (place.arena == Rows::Tokens).then_some(&self.last_rows[..]),
            }),
        };
        self.sampler.sample(ticket, logits, hidden, draws)?;
        step.events.sampled.record()?;
        self.last_sampled = Some(ticket);
        Ok(())
    }

    fn finish(&mut self, ticket: Ticket) -> Result<Finished> {
        self.gpu.bind()?;
        let step = match self.steps.pop_front() {
            Some(step) if step.ticket == ticket => step,
            _ => return Err(self.broken(ticket, "finished out of turn")),
        };
        let events = &step.events;
        events.sampled.wait()?;
        let exposed = match &self.last_events {
            Some(last) if step.follows => events.begin.since(&last.sampled)?,
            _ => 0.0,
        };
        if timed() {
            let forward_ms = events.forwarded.since(&events.begin)?;
            let sampling_ms = events.sampled.since(&events.forwarded)?;
            tracing::debug!(target: "guesthouse_device::steps", forward_ms, sampling_ms, exposed_ms = exposed);
        }
        let took = events.sampled.since(&events.begin)?;
        let (samples, scores) = match self.info.task {
            Task::Generate => self.sampler.finish(ticket)?,
            Task::Embed => (self.embedded.pop_front().unwrap_or_default(), Vec::new()),
        };
        self.events.extend(self.last_events.replace(step.events));
        Ok(Finished {
            samples,
            scores,
            exposed: Duration::from_secs_f32(exposed.max(0.0) / 1e3),
            took: Duration::from_secs_f32(took.max(0.0) / 1e3),
        })
    }
}
