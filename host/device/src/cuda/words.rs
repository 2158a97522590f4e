//! The integers that describe a step, from the host to where kernels look for them.

use std::sync::Arc;

use super::compiler::Source;
use super::driver::{Buffer, Gpu, Pinned};
use super::launch::{Grid, Kernel, Params};
use super::ops::{BatchArgs, Limits, PlanArgs, PlanRow, Planners};
use crate::device::{Batch, BatchRow};
use crate::error::{DeviceError, Result};

/// Steps that may be under way at once, and one more whose words are being written.
const RING: usize = 4;

/// Sections of one launch of `input/prepare.cu`.
const SECTIONS: usize = 24;

/// Sections begin at multiples of so many words.
const ALIGN: usize = 64;

/// Where each array begins in the device's words, and how long it may be.
#[derive(Clone, Debug, Default)]
struct Layout {
    tokens: usize,
    positions: usize,
    row_of: usize,
    first: usize,
    kv_len: usize,
    slot: usize,
    prompt_len: usize,
    admitted_len: usize,
    prefix_len: usize,
    mask_at: usize,
    block_start: usize,
    outputs: usize,
    /// Offset and capacity by planner.
    plans: Vec<(usize, usize)>,
    /// Offset of each group's block tables `[slots, table_stride]`.
    tables: Vec<usize>,
    table_stride: usize,
    total: usize,
}

impl Layout {
    fn new(limits: &Limits, slots: u32, groups: usize, planners: &mut Planners) -> Self {
        let mut total = 0;
        let mut take = |words: usize| {
            let at = total;
            total += words.next_multiple_of(ALIGN);
            at
        };
        let (tokens, rows) = (limits.tokens as usize, limits.rows as usize);
        let table_stride = (limits.len as usize)
            .div_ceil(limits.block_size as usize)
            .next_multiple_of(4)
            + 4;
        let mut layout = Self {
            tokens: take(tokens),
            positions: take(tokens),
            row_of: take(tokens),
            first: take(rows + 1),
            kv_len: take(rows),
            slot: take(rows),
            prompt_len: take(rows),
            admitted_len: take(rows),
            prefix_len: take(rows),
            mask_at: take(rows),
            block_start: take(rows),
            outputs: take(limits.outputs as usize),
            plans: planners
                .iter_mut()
                .map(|p| {
                    let capacity = p.capacity(limits).max(1);
                    (take(capacity), capacity)
                })
                .collect(),
            tables: (0..groups)
                .map(|_| take(slots as usize * table_stride))
                .collect(),
            table_stride,
            total: 0,
        };
        layout.total = total;
        layout
    }
}

/// `Section` of the kernel.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct Section {
    to: i32,
    from: i32,
    words: i32,
}

/// `PrepareParams` of `input/prepare.cu`.
#[repr(C)]
#[derive(Clone, Copy)]
struct PrepareParams {
    staging: u64,
    target: u64,
    sampled: u64,
    sections: [Section; SECTIONS],
    section_count: i32,
    words: i32,
    pairs_at: i32,
    pair_count: i32,
}

// SAFETY: the kernel's structure; the addresses are those of buffers that live as long as the device.
#[allow(unsafe_code)]
unsafe impl Params for PrepareParams {}

/// What of a slot's block tables is on the device.
#[derive(Clone, Debug, Default)]
struct Known {
    generation: u64,
    /// Entries by group.
    entries: Vec<usize>,
}

/// Counts of a step with padding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Padded {
    pub tokens: u32,
    pub rows: u32,
    pub outputs: u32,
}

/// The step's words on host and device.
pub(crate) struct Words {
    gpu: Arc<Gpu>,
    kernel: Kernel,
    layout: Layout,
    device: Buffer,
    ring: Vec<Pinned>,
    next: usize,
    known: Vec<Known>,
    /// Plans of the step at hand.
    pub plans: Vec<PlanArgs>,
    /// What is being written: words of the staging buffer, and where they go.
    staged: Vec<i32>,
    sections: Vec<Section>,
    pairs: Vec<i32>,
    rows: Vec<PlanRow>,
}

impl Words {
    /// Allocates them. Block tables are zero: every entry names block 0.
    ///
    /// # Errors
    /// When memory is short.
    pub(crate) fn new(
        gpu: &Arc<Gpu>,
        limits: Limits,
        slots: u32,
        groups: usize,
        planners: &mut Planners,
    ) -> Result<Self> {
        let layout = Layout::new(&limits, slots, groups, planners);
        if i32::try_from(layout.total).is_err() {
            return Err(DeviceError::Option {
                option: "max_len",
                expected: "block tables of less than 2³¹ entries".to_owned(),
                found: format!(
                    "{} entries; lower --max-model-len or --max-num-seqs",
                    layout.total
                ),
            });
        }
        let device = gpu.allocate_zeroed(4 * layout.total, "step descriptions")?;
        // Few table entries go with their index, two words each.
        let pinned = 8 * layout.total;
        let ring = (0..RING)
            .map(|_| gpu.pinned(pinned))
            .collect::<Result<_>>()?;
        let plans = layout
            .plans
            .iter()
            .map(|&(at, _)| PlanArgs {
                address: device.address() + 4 * at as u64,
                words: 0,
            })
            .collect();
        Ok(Self {
            gpu: Arc::clone(gpu),
            kernel: gpu.kernel(&Source::new("input/prepare.cu", "prepare").flag("MODEL_BF16"))?,
            device,
            ring,
            next: 0,
            known: vec![
                Known {
                    generation: 0,
                    entries: vec![0; groups],
                };
                slots as usize
            ],
            plans,
            staged: Vec::new(),
            sections: Vec::new(),
            pairs: Vec::new(),
            rows: Vec::new(),
            layout,
        })
    }

    /// Bytes on the device.
    pub(crate) fn bytes(&self) -> usize {
        self.device.bytes()
    }

    /// Address and stride of a group's block tables.
    pub(crate) fn table(&self, group: usize) -> (u64, i32) {
        let address = self.device.address() + 4 * self.layout.tables[group] as u64;
        (address, self.layout.table_stride as i32)
    }

    /// The kernels' view of a step of these counts.
    pub(crate) fn args(&self, counts: Padded) -> BatchArgs {
        let at = |offset: usize| self.device.address() + 4 * offset as u64;
        let l = &self.layout;
        BatchArgs {
            tokens: at(l.tokens),
            positions: at(l.positions),
            row_of: at(l.row_of),
            first: at(l.first),
            kv_len: at(l.kv_len),
            slot: at(l.slot),
            prompt_len: at(l.prompt_len),
            admitted_len: at(l.admitted_len),
            prefix_len: at(l.prefix_len),
            mask_at: at(l.mask_at),
            block_start: at(l.block_start),
            outputs: at(l.outputs),
            token_count: counts.tokens as i32,
            row_count: counts.rows as i32,
            output_count: counts.outputs as i32,
            padding: 0,
        }
    }

    /// Enqueues bringing a batch to the device. `sampled` are the tokens that the step before chose.
    ///
    /// # Errors
    /// When the driver refuses the launch, or a planner writes more than it said.
    pub(crate) fn bring(
        &mut self,
        batch: &Batch<'_>,
        outputs: &[usize],
        counts: Padded,
        planners: &mut Planners,
        sampled: u64,
    ) -> Result<()> {
        self.staged.clear();
        self.sections.clear();
        self.pairs.clear();
        self.tokens(batch, counts);
        self.rows(batch, counts);
        self.outputs(outputs, counts);
        self.plan(batch, planners)?;
        for row in batch.rows {
            self.tables(row);
        }
        self.send(sampled)
    }

    /// Enqueues replacing the output rows.
    ///
    /// # Errors
    /// When the driver refuses the launch.
    pub(crate) fn bring_outputs(&mut self, outputs: &[usize]) -> Result<()> {
        self.staged.clear();
        self.sections.clear();
        self.pairs.clear();
        let count = outputs.len() as u32;
        // Section 0 is that of tokens.
        self.section(self.layout.tokens, |_| {});
        self.outputs(
            outputs,
            Padded {
                tokens: 0,
                rows: 0,
                outputs: count,
            },
        );
        self.send(0)
    }

    fn section(&mut self, to: usize, write: impl FnOnce(&mut Vec<i32>)) {
        let from = self.staged.len();
        write(&mut self.staged);
        self.sections.push(Section {
            to: to as i32,
            from: from as i32,
            words: (self.staged.len() - from) as i32,
        });
    }

    fn tokens(&mut self, batch: &Batch<'_>, counts: Padded) {
        let padding = counts.tokens as usize - batch.tokens.len();
        self.section(self.layout.tokens, |out| {
            out.extend(batch.tokens.iter().map(|&t| t as i32));
            for feed in batch.feeds {
                out[feed.token] = -1 - feed.draw as i32;
            }
            out.extend(std::iter::repeat_n(0, padding));
        });
        self.section(self.layout.positions, |out| {
            for row in batch.rows {
                out.extend((row.start..row.start + row.len).map(|p| p as i32));
            }
            out.extend(std::iter::repeat_n(0, padding));
        });
        self.section(self.layout.row_of, |out| {
            for (index, row) in batch.rows.iter().enumerate() {
                out.extend(std::iter::repeat_n(index as i32, row.len as usize));
            }
            out.extend(std::iter::repeat_n(-1, padding));
        });
    }

    fn rows(&mut self, batch: &Batch<'_>, counts: Padded) {
        let padding = counts.rows as usize - batch.rows.len();
        let end = batch.tokens.len() as i32;
        self.section(self.layout.first, |out| {
            out.extend(batch.rows.iter().map(|r| r.first as i32));
            out.extend(std::iter::repeat_n(end, padding + 1));
        });
        let (kv_len, slot) = (self.layout.kv_len, self.layout.slot);
        let (prompt_len, admitted_len) = (self.layout.prompt_len, self.layout.admitted_len);
        let prefix_len = self.layout.prefix_len;
        let (mask_at, block_start) = (self.layout.mask_at, self.layout.block_start);
        let mut column = |to: usize, of: fn(&BatchRow<'_>) -> u32| {
            self.section(to, |out| {
                out.extend(batch.rows.iter().map(|r| of(r) as i32));
                out.extend(std::iter::repeat_n(0, padding));
            });
        };
        column(kv_len, |r| r.start + r.len);
        column(slot, |r| r.slot);
        column(prompt_len, |r| r.prompt_len);
        column(admitted_len, |r| r.admitted_len);
        column(prefix_len, |r| r.marks.prefix_len);
        column(mask_at, |r| r.marks.mask_at);
        column(block_start, |r| r.marks.block_start);
    }

    fn outputs(&mut self, outputs: &[usize], counts: Padded) {
        let padding = counts.outputs as usize - outputs.len();
        self.section(self.layout.outputs, |out| {
            out.extend(outputs.iter().map(|&t| t as i32));
            out.extend(std::iter::repeat_n(0, padding));
        });
    }

    fn plan(&mut self, batch: &Batch<'_>, planners: &mut Planners) -> Result<()> {
        self.rows.clear();
        self.rows
            .extend(batch.rows.iter().enumerate().map(|(index, r)| PlanRow {
                row: index as u32,
                slot: r.slot,
                first: r.first as u32,
                len: r.len,
                kv_len: r.start + r.len,
                prefix_len: r.marks.prefix_len.min(r.start + r.len),
            }));
        for (slot, planner) in planners.iter_mut().enumerate() {
            let (to, capacity) = self.layout.plans[slot];
            let from = self.staged.len();
            planner.plan(&self.rows, &mut self.staged);
            let words = self.staged.len() - from;
            if words > capacity {
                return Err(DeviceError::plan(format!(
                    "a plan of attention takes {words} words where {capacity} were promised"
                )));
            }
            self.plans[slot].words = words as u32;
            self.sections.push(Section {
                to: to as i32,
                from: from as i32,
                words: words as i32,
            });
        }
        Ok(())
    }

    /// What is new in a row's block tables.
    fn tables(&mut self, row: &BatchRow<'_>) {
        /// More entries than this go as a section.
        const FEW: usize = 16;
        let slot = row.slot as usize;
        let known = &mut self.known[slot];
        if known.generation != row.generation {
            known.generation = row.generation;
            known.entries.fill(0);
        }
        for (group, table) in row.tables.iter().enumerate() {
            let from = known.entries[group];
            let end = table.len().min(self.layout.table_stride);
            known.entries[group] = end.max(from);
            let to = self.layout.tables[group] + slot * self.layout.table_stride + from;
            let new = table.get(from..end).unwrap_or_default();
            if new.len() > FEW {
                let begin = self.staged.len();
                self.staged.extend(new.iter().map(|b| b.0 as i32));
                self.sections.push(Section {
                    to: to as i32,
                    from: begin as i32,
                    words: new.len() as i32,
                });
            } else {
                for (i, block) in new.iter().enumerate() {
                    self.pairs.extend([(to + i) as i32, block.0 as i32]);
                }
            }
        }
    }

    fn send(&mut self, sampled: u64) -> Result<()> {
        let pinned = &mut self.ring[self.next];
        self.next = (self.next + 1) % RING;
        let pairs_at = self.staged.len();
        let total = pairs_at + self.pairs.len();
        let target = pinned.words_mut();
        if total > target.len() {
            return Err(DeviceError::plan(
                "a step's description is larger than its buffer",
            ));
        }
        target[..pairs_at].copy_from_slice(&self.staged);
        target[pairs_at..total].copy_from_slice(&self.pairs);
        let staging = pinned.address();
        for (chunk, sections) in self.sections.chunks(SECTIONS).enumerate() {
            let mut params = PrepareParams {
                staging,
                target: self.device.address(),
                sampled: if chunk == 0 { sampled } else { 0 },
                sections: [Section::default(); SECTIONS],
                section_count: sections.len() as i32,
                words: sections.iter().map(|s| s.words).sum(),
                pairs_at: pairs_at as i32,
                pair_count: if chunk == 0 {
                    self.pairs.len() as i32 / 2
                } else {
                    0
                },
            };
            params.sections[..sections.len()].copy_from_slice(sections);
            let work = (params.words + params.pair_count).max(1) as u32;
            let grid = Grid::new(work.div_ceil(256).min(64), 256);
            self.kernel.launch(&self.gpu, grid, &params)?;
        }
        Ok(())
    }
}
