//! Sampling on the GPU.

#![allow(unsafe_code)]

mod decode;
mod encode;

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::sync::Arc;

use bytemuck::Pod;
use guesthouse_engine::{SampleOutcome, Sampled, Ticket};
use rayon::prelude::*;

use self::decode::{CandidateWords, Lists, ResultWords, TopWords};
use self::encode::{DrawWords, Encoder, Note, Notes, Widths};
use super::compiler::Source;
use super::driver::{Buffer, Gpu, Pinned};
use super::launch::{Grid, Kernel, Params};
use super::ops::Tensor;
use super::options::CudaDtype;
use super::weights::model_flag;
use crate::device::{Draw, Score};
use crate::error::{DeviceError, Result};

/// Blocks of a cluster, which share a draw.
const CLUSTER: u32 = 8;

/// Threads of a block.
const THREADS: u32 = 512;

/// `SHARED_BYTES` of the kernel.
const SHARED: u32 = 11_776;

/// Draws whose results are read by one thread. A list of 256 candidates takes 1 µs.
const MANY: usize = 64;

/// Most tokens: sums of the kernel stay within 32 bits.
const MOST_TOKENS: u32 = 1 << 19;

/// Sizes of a sampler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SamplerLimits {
    /// Elements of a row of logits.
    pub vocab: u32,
    /// Type of logits.
    pub logits: CudaDtype,
    /// Rows of logits at a time.
    pub rows: u32,
    /// Draws of one step.
    pub draws: u32,
    /// Steps whose results may be waited for at once.
    pub steps: u32,
}

/// Who makes a draw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sharing {
    /// A cluster where the machine has them and the row fits, else a block.
    Best,
    /// One block, as on machines without clusters.
    Block,
}

/// `SampleParams` of `kernels/sample/draw.cu`.
#[repr(C)]
#[derive(Clone, Copy)]
struct SampleParams {
    logits: u64,
    stride: i64,
    draws: u64,
    pool: u64,
    results: u64,
    tops: u64,
    sampled: u64,
    scratch: u64,
    lists: u64,
    floats: u64,
    hidden: u64,
    hidden_stride: i64,
    hidden_width: i32,
    hidden_f32: i32,
    count: i32,
    vocab: i32,
}

// SAFETY: the kernel's structure; its addresses are those of the sampler's buffers, of which none is freed before the
// stream has been waited for, and of logits that live as long as the device.
unsafe impl Params for SampleParams {}

/// `BringParams` of `kernels/sample/draw.cu`.
#[repr(C)]
#[derive(Clone, Copy)]
struct BringParams {
    from: u64,
    to: u64,
    count: i32,
    padding: i32,
}

// SAFETY: as above.
unsafe impl Params for BringParams {}

/// One step's draws and results.
struct Slot {
    /// Draws, then the pool.
    staging: Pinned,
    device: Buffer,
    /// Results, pairs of best tokens and candidates; the kernel writes here.
    results: Pinned,
    /// Whole rows and hidden states, once a guest has asked for some.
    floats: Option<Pinned>,
}

/// The hidden states that a step's logits were made of.
#[derive(Clone, Copy)]
pub(crate) struct HiddenRows<'a> {
    pub rows: Tensor,
    /// Elements of a row.
    pub width: u32,
    pub dtype: CudaDtype,
    /// Row of each row of logits; the same where there is none.
    pub of: Option<&'a [usize]>,
}

/// A step whose results are awaited.
struct UnderWay {
    ticket: Ticket,
    /// Index into the ring; none while only scored.
    slot: Option<usize>,
    notes: Notes,
    widths: Widths,
    scores: Vec<Sampled>,
}

/// Draws tokens from logits that are on the GPU. Everything is enqueued; results are fetched once the step's event has
/// passed.
pub(crate) struct Sampler {
    gpu: Arc<Gpu>,
    limits: SamplerLimits,
    sample: Kernel,
    bring: Kernel,
    /// Blocks that share a draw.
    cluster: u32,
    /// Most blocks of a launch without clusters.
    blocks: u32,
    /// Dynamic shared memory of a block.
    shared: u32,
    scratch: Option<Buffer>,
    sampled: Buffer,
    ring: Vec<Slot>,
    next: usize,
    steps: VecDeque<UnderWay>,
    encoder: Encoder,
    /// Notes of finished steps, to be filled again.
    spare: Vec<Notes>,
}

impl Sampler {
    /// Allocates what sampling needs.
    ///
    /// # Errors
    /// When memory is short.
    pub(crate) fn new(gpu: &Arc<Gpu>, limits: SamplerLimits) -> Result<Self> {
        Self::sharing(gpu, limits, Sharing::Best)
    }

    /// As [`Self::new`], with a choice of who makes a draw.
    ///
    /// # Errors
    /// When memory is short.
    pub(crate) fn sharing(gpu: &Arc<Gpu>, limits: SamplerLimits, sharing: Sharing) -> Result<Self> {
        if limits.vocab == 0 || limits.vocab > MOST_TOKENS {
            return Err(DeviceError::plan(format!(
                "a vocabulary of {}: sampling on the GPU takes 1 to {MOST_TOKENS} tokens",
                limits.vocab
            )));
        }
        let slice = limits.vocab.div_ceil(CLUSTER).next_multiple_of(8);
        let clustered = sharing == Sharing::Best
            && gpu.properties.capability >= (9, 0)
            && SHARED + slice * 4 <= gpu.properties.shared_per_block;
        let cluster = if clustered { CLUSTER } else { 1 };
        let blocks = 2 * gpu.properties.multiprocessors.max(1);
        let source = Source::new("sample/draw.cu", "sample")
            .flag(model_flag(limits.logits))
            .define("CLUSTER", cluster);
        let bring = Source {
            entry: "bring",
            ..source.clone()
        };
        let scratch = if clustered {
            None
        } else {
            let bytes = blocks as usize * limits.vocab.next_multiple_of(8) as usize * 4;
            Some(gpu.allocate(bytes, "sampling")?)
        };
        let ring = (0..=limits.steps)
            .map(|_| {
                Ok(Slot {
                    staging: gpu.pinned(64 << 10)?,
                    device: gpu.allocate(64 << 10, "sampling")?,
                    results: gpu.pinned(limits.draws as usize * size_of::<ResultWords>())?,
                    floats: None,
                })
            })
            .collect::<Result<_>>()?;
        Ok(Self {
            sample: gpu.kernel(&source)?,
            bring: gpu.kernel(&bring)?,
            cluster,
            blocks,
            shared: if clustered {
                SHARED + slice * 4
            } else {
                SHARED
            },
            scratch,
            sampled: gpu.allocate_zeroed(limits.draws as usize * 4, "sampled tokens")?,
            ring,
            next: 0,
            steps: VecDeque::new(),
            encoder: Encoder::default(),
            spare: Vec::new(),
            gpu: Arc::clone(gpu),
            limits,
        })
    }

    /// Waits until the kernels are compiled.
    ///
    /// # Errors
    /// What the compiler said.
    pub(crate) fn ready(&self) -> Result<()> {
        self.sample.ready()?;
        self.bring.ready()
    }

    /// Device address of `[draws]` i32: the tokens of the last [`Self::sample`], in draw order, until the next one.
    pub(crate) fn sampled(&self) -> u64 {
        self.sampled.address()
    }

    /// Enqueues a step's draws from `logits [rows, vocab]`; hidden states go to draws that show them.
    ///
    /// # Errors
    /// When there are more draws than were said, or the driver refuses a launch.
    pub(crate) fn sample(
        &mut self,
        ticket: Ticket,
        logits: Tensor,
        hidden: Option<HiddenRows<'_>>,
        draws: &[Draw<'_>],
    ) -> Result<()> {
        if draws.len() > self.limits.draws as usize {
            return Err(DeviceError::Step {
                ticket: ticket.0,
                what: format!("{} draws, at most {}", draws.len(), self.limits.draws),
            });
        }
        let widths = Widths {
            vocab: self.limits.vocab,
            hidden: hidden.map_or(0, |h| h.width),
        };
        self.encoder.begin(widths);
        for draw in draws {
            let row = hidden.and_then(|h| h.of?.get(draw.logits).copied());
            self.encoder.draw(draw, row.unwrap_or(draw.logits));
        }
        let slot = self.next;
        self.launch(slot, logits, hidden, self.sampled.address())?;
        self.next = (self.next + 1) % self.ring.len();
        let empty = self.spare.pop().unwrap_or_default();
        let notes = std::mem::replace(&mut self.encoder.notes, empty);
        let step = self.step(ticket);
        step.slot = Some(slot);
        step.notes = notes;
        step.widths = widths;
        Ok(())
    }

    /// Scores prompt tokens: row i of `logits` is what `scores[i]` is scored by. May be called several times per step,
    /// before its [`Self::sample`]. Waits for the GPU.
    ///
    /// # Errors
    /// When the driver refuses a launch.
    pub(crate) fn score(&mut self, ticket: Ticket, logits: Tensor, scores: &[Score]) -> Result<()> {
        self.encoder.begin(Widths {
            vocab: self.limits.vocab,
            hidden: 0,
        });
        for (row, score) in scores.iter().enumerate() {
            self.encoder.score(row, score);
        }
        // The slot is free again before anything else is enqueued.
        let slot = self.next;
        self.launch(slot, logits, None, 0)?;
        self.gpu.synchronize()?;
        let notes = &self.encoder.notes;
        let (results, lists) = read(&self.ring[slot], notes);
        let scored = results.iter().zip(&notes.draws).map(|(result, note)| {
            let tops = lists.tops.get(note.top_at as usize..).unwrap_or_default();
            decode::sampled(result, tops, note)
        });
        let scored: Vec<Sampled> = scored.collect();
        self.step(ticket).scores.extend(scored);
        Ok(())
    }

    /// Results of a step whose work has ended on the GPU: one outcome per draw, one entry per score, in order.
    ///
    /// # Errors
    /// When the step is not known.
    pub(crate) fn finish(&mut self, ticket: Ticket) -> Result<(Vec<SampleOutcome>, Vec<Sampled>)> {
        let at = self.steps.iter().position(|s| s.ticket == ticket);
        let step = at.and_then(|at| self.steps.remove(at));
        let step = step.ok_or_else(|| DeviceError::Step {
            ticket: ticket.0,
            what: "finished but not sampled".to_owned(),
        })?;
        let mut outcomes = Vec::with_capacity(step.notes.draws.len());
        if let Some(slot) = step.slot {
            let (results, lists) = read(&self.ring[slot], &step.notes);
            let draws = &step.notes.draws;
            let of =
                |(result, note)| decode::outcome(result, lists, note, &step.notes, step.widths);
            if draws.len() >= MANY && draws.iter().any(Note::is_list) {
                let pairs = results.par_iter().zip(draws).with_min_len(MANY);
                pairs.map(of).collect_into_vec(&mut outcomes);
            } else {
                outcomes.extend(results.iter().zip(draws).map(of));
            }
        }
        self.spare.push(step.notes);
        Ok((outcomes, step.scores))
    }

    fn step(&mut self, ticket: Ticket) -> &mut UnderWay {
        let at = match self.steps.iter().position(|s| s.ticket == ticket) {
            Some(at) => at,
            None => {
                self.steps.push_back(UnderWay {
                    ticket,
                    slot: None,
                    notes: Notes::default(),
                    widths: Widths::default(),
                    scores: Vec::new(),
                });
                self.steps.len() - 1
            }
        };
        &mut self.steps[at]
    }

    /// Enqueues what was encoded.
    fn launch(
        &mut self,
        slot: usize,
        logits: Tensor,
        hidden: Option<HiddenRows<'_>>,
        sampled: u64,
    ) -> Result<()> {
        let count = self.encoder.draws.len();
        if count == 0 {
            return Ok(());
        }
        let draws = count * size_of::<DrawWords>();
        let bytes = (draws + self.encoder.pool.len() * 4).next_multiple_of(16);
        self.encoder.notes.tops = self.encoder.tops;
        let places = Places::of(count, self.encoder.tops as usize);
        let results = places.lists + self.encoder.listed as usize * size_of::<CandidateWords>();
        self.make_room(slot, bytes, results)?;
        self.make_floats(slot, self.encoder.floats as usize * 4)?;
        let slot = &mut self.ring[slot];
        let staging = slot.staging.slice_mut();
        staging[..draws].copy_from_slice(bytemuck::cast_slice(&self.encoder.draws));
        let pool: &[u8] = bytemuck::cast_slice(&self.encoder.pool);
        staging[draws..draws + pool.len()].copy_from_slice(pool);
        let items = (bytes / 16) as u32;
        let bring = BringParams {
            from: slot.staging.address(),
            to: slot.device.address(),
            count: items as i32,
            padding: 0,
        };
        let grid = Grid::new(items.div_ceil(256).min(64), 256);
        self.bring.launch(&self.gpu, grid, &bring)?;
        let params = SampleParams {
            logits: logits.data,
            stride: logits.stride,
            draws: slot.device.address(),
            pool: slot.device.address() + draws as u64,
            results: slot.results.address(),
            tops: slot.results.address() + places.tops as u64,
            sampled,
            scratch: self.scratch.as_ref().map_or(0, Buffer::address),
            lists: slot.results.address() + places.lists as u64,
            floats: slot.floats.as_ref().map_or(0, Pinned::address),
            hidden: hidden.map_or(0, |h| h.rows.data),
            hidden_stride: hidden.map_or(0, |h| h.rows.stride),
            hidden_width: hidden.map_or(0, |h| h.width) as i32,
            hidden_f32: i32::from(hidden.is_some_and(|h| h.dtype == CudaDtype::F32)),
            count: count as i32,
            vocab: self.limits.vocab as i32,
        };
        let blocks = match self.cluster {
            1 => self.blocks.min(count as u32),
            cluster => count as u32 * cluster,
        };
        // The kernel itself says how large its clusters are.
        let grid = Grid::new(blocks, THREADS).shared(self.shared);
        self.sample.launch(&self.gpu, grid, &params)
    }

    /// Room for whole rows and hidden states, which few steps need.
    fn make_floats(&mut self, slot: usize, bytes: usize) -> Result<()> {
        let have = |slot: &Slot| slot.floats.as_ref().map_or(0, |f| f.slice().len());
        if bytes > have(&self.ring[slot]) {
            // Nothing that is replaced may be in use.
            self.gpu.synchronize()?;
            self.ring[slot].floats = Some(self.gpu.pinned(bytes.next_power_of_two())?);
        }
        Ok(())
    }

    /// Lets a slot's buffers grow. Long lists, masks and reports are rare, so this soon stops.
    fn make_room(&mut self, slot: usize, staging: usize, results: usize) -> Result<()> {
        let gpu = &self.gpu;
        let slot = &mut self.ring[slot];
        if staging > slot.device.bytes() || results > slot.results.slice().len() {
            // Nothing that is replaced may be in use.
            gpu.synchronize()?;
        }
        if staging > slot.device.bytes() {
            let bytes = staging.next_power_of_two();
            slot.staging = gpu.pinned(bytes)?;
            slot.device = gpu.allocate(bytes, "sampling")?;
        }
        if results > slot.results.slice().len() {
            slot.results = gpu.pinned(results.next_power_of_two())?;
        }
        Ok(())
    }
}

/// Offsets of what stands behind the results, bytes.
struct Places {
    tops: usize,
    lists: usize,
}

impl Places {
    fn of(draws: usize, tops: usize) -> Self {
        let tops_at = draws * size_of::<ResultWords>();
        let end = tops_at + tops * size_of::<TopWords>();
        Self {
            tops: tops_at,
            lists: end.next_multiple_of(size_of::<CandidateWords>()),
        }
    }
}

/// Results of a step's draws, and what stands behind them.
fn read<'a>(slot: &'a Slot, notes: &Notes) -> (&'a [ResultWords], Lists<'a>) {
    let bytes = slot.results.slice();
    let places = Places::of(notes.draws.len(), notes.tops as usize);
    let floats = slot.floats.as_ref().map(Pinned::slice).unwrap_or_default();
    let lists = Lists {
        tops: words(bytes, places.tops, places.lists),
        candidates: words(bytes, places.lists, bytes.len()),
        floats: words(floats, 0, floats.len()),
    };
    (words(bytes, 0, places.tops), lists)
}

/// The whole words of a range of bytes.
fn words<T: Pod>(bytes: &[u8], from: usize, to: usize) -> &[T] {
    match bytes.get(from..to.min(bytes.len())) {
        // An empty slice need not lie where a T could.
        None | Some([]) => &[],
        Some(part) => bytemuck::cast_slice(&part[..part.len() / size_of::<T>() * size_of::<T>()]),
    }
}

/// The encoder by itself, to be timed.
#[derive(Default)]
pub(super) struct EncoderBench(Encoder);

impl EncoderBench {
    pub(super) fn encode<'a>(&mut self, vocab: u32, draws: impl Iterator<Item = Draw<'a>>) {
        self.0.begin(Widths { vocab, hidden: 0 });
        for draw in draws {
            self.0.draw(&draw, 0);
        }
        std::hint::black_box(&self.0.draws);
    }
}
