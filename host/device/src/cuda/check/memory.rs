//! A step made up for checking one instruction: values in an arena, random or poisoned, and what the kernel left there.

use std::sync::Arc;

use guesthouse_graph::{Rows, ValueType};
use half::{bf16, f16};

use super::timing::Timer;
use super::{KernelReport, Verdict};
use crate::cuda::driver::{Buffer, Gpu};
use crate::cuda::ops::{BatchArgs, CacheArgs, Instr, Place, Step, StepKind};
use crate::cuda::options::CudaDtype;
use crate::error::Result;

/// Every element type that models have.
pub(super) const DTYPES: [CudaDtype; 3] = [CudaDtype::F32, CudaDtype::Bf16, CudaDtype::F16];

/// One rounding to a type, as a share of the largest result; f32 leaves room for a sum's rounding.
pub(super) fn rounding(dtype: CudaDtype) -> f64 {
    match dtype {
        CudaDtype::F32 => 4e-6,
        CudaDtype::Bf16 => 1.02 / 256.0,
        CudaDtype::F16 => 1.02 / 2048.0,
    }
}

/// The nearest value of a type.
pub(super) fn round(dtype: CudaDtype, x: f64) -> f64 {
    match dtype {
        CudaDtype::F32 => f64::from(x as f32),
        CudaDtype::Bf16 => f64::from(bf16::from_f32(x as f32)),
        CudaDtype::F16 => f64::from(f16::from_f32(x as f32)),
    }
}

/// Pseudo-random numbers, about normal with deviation 1.
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn uniform(&mut self) -> f64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 40) as f64 / f64::from(1 << 24)
    }

    pub(super) fn next(&mut self) -> f64 {
        // Four uniform numbers have a variance of a third.
        let sum: f64 = (0..4).map(|_| self.uniform()).sum();
        (sum - 2.0) * 3f64.sqrt()
    }
}

/// Integers of the step. All arrays have one element per token, or per row.
#[derive(Clone, Debug, Default)]
pub(super) struct Words {
    pub tokens: Vec<i32>,
    pub positions: Vec<i32>,
    pub row_of: Vec<i32>,
    /// One more than rows.
    pub first: Vec<i32>,
    pub kv_len: Vec<i32>,
    pub slot: Vec<i32>,
    pub prompt_len: Vec<i32>,
    pub admitted_len: Vec<i32>,
    pub mask_at: Vec<i32>,
    pub block_start: Vec<i32>,
    pub outputs: Vec<i32>,
}

/// Values of a step of some tokens.
pub(super) struct Memory {
    pub gpu: Arc<Gpu>,
    pub dtype: CudaDtype,
    rows: usize,
    outputs: usize,
    /// Token and output arena: bytes per row, and contents so far.
    bases: [usize; 2],
    contents: [Vec<u8>; 2],
    random: Random,
}

impl Memory {
    pub(super) fn new(gpu: &Arc<Gpu>, dtype: CudaDtype, rows: usize, outputs: usize) -> Self {
        Self {
            gpu: Arc::clone(gpu),
            dtype,
            rows,
            outputs,
            bases: [0; 2],
            contents: [Vec::new(), Vec::new()],
            random: Random::new(rows as u64 + 17),
        }
    }

    /// A value of a buffer of its own, every byte 0xff: NaN in each type.
    pub(super) fn poisoned(&mut self, arena: Rows, width: usize, ty: ValueType) -> Place {
        let element = match ty {
            ValueType::Model => self.dtype.bytes(),
            ValueType::F32 | ValueType::I32 => 4,
        };
        let (at, rows) = match arena {
            Rows::Outputs => (1, self.outputs),
            Rows::Tokens | Rows::Broadcast => (0, self.rows),
        };
        let stride = width * element;
        let place = Place {
            arena,
            base: self.bases[at],
            stride,
            offset: 0,
            width,
            ty,
            element,
        };
        self.bases[at] += stride.next_multiple_of(64);
        self.contents[at].resize(self.bases[at] * rows, 0xff);
        place
    }

    /// A value of token rows without contents.
    pub(super) fn output(&mut self, width: usize, ty: ValueType) -> Place {
        self.poisoned(Rows::Tokens, width, ty)
    }

    /// A value of token rows with these elements, row by row.
    pub(super) fn given(&mut self, width: usize, ty: ValueType, values: &[f64]) -> Place {
        let place = self.output(width, ty);
        self.write(&place, values);
        place
    }

    /// A random value of token rows, and its elements row by row.
    pub(super) fn input(&mut self, width: usize, ty: ValueType) -> (Place, Vec<f64>) {
        let place = self.output(width, ty);
        let dtype = if ty == ValueType::F32 {
            CudaDtype::F32
        } else {
            self.dtype
        };
        let values: Vec<f64> = (0..self.rows * width)
            .map(|_| round(dtype, 1.5 * self.random.next()))
            .collect();
        self.write(&place, &values);
        (place, values)
    }

    /// A value of token rows of the model's type whose elements are a random pattern again and again: quick to make.
    pub(super) fn noise(&mut self, width: usize) -> Place {
        let place = self.output(width, ValueType::Model);
        let mut pattern = vec![0; 1 << 16];
        for bytes in pattern.chunks_exact_mut(place.element) {
            encode(Kind::Float(self.dtype), 1.5 * self.random.next(), bytes);
        }
        let from = place.base * self.rows;
        for chunk in self.contents[0][from..].chunks_mut(pattern.len()) {
            chunk.copy_from_slice(&pattern[..chunk.len()]);
        }
        place
    }

    fn write(&mut self, place: &Place, values: &[f64]) {
        let (at, kind) = (place.base * self.rows, self.kind(place));
        for (row, values) in values.chunks(place.width).enumerate() {
            for (i, &x) in values.iter().enumerate() {
                let from = at + row * place.stride + i * place.element;
                let to = &mut self.contents[0][from..from + place.element];
                encode(kind, x, to);
            }
        }
    }

    fn kind(&self, place: &Place) -> Kind {
        match place.ty {
            ValueType::Model => Kind::Float(self.dtype),
            ValueType::F32 => Kind::Float(CudaDtype::F32),
            ValueType::I32 => Kind::Int,
        }
    }

    /// Uploads everything.
    pub(super) fn ready(self, words: &Words, caches: Vec<CacheArgs>) -> Result<Ready> {
        let mut all: Vec<i32> = Vec::new();
        let mut take = |v: &[i32]| {
            let at = all.len();
            all.extend(v);
            4 * at as u64
        };
        let offsets = [
            take(&words.tokens),
            take(&words.positions),
            take(&words.row_of),
            take(&words.slot),
            take(&words.prompt_len),
            take(&words.admitted_len),
            take(&words.outputs),
            take(&words.first),
            take(&words.kv_len),
            take(&words.mask_at),
            take(&words.block_start),
        ];
        all.push(0);
        let integers = self.gpu.upload(bytemuck::cast_slice(&all), "checking")?;
        let at = |i: usize| integers.address() + offsets[i];
        let batch = BatchArgs {
            tokens: at(0),
            positions: at(1),
            row_of: at(2),
            slot: at(3),
            prompt_len: at(4),
            admitted_len: at(5),
            outputs: at(6),
            first: at(7),
            kv_len: at(8),
            mask_at: at(9),
            block_start: at(10),
            token_count: self.rows as i32,
            row_count: words.slot.len() as i32,
            output_count: self.outputs as i32,
            ..BatchArgs::default()
        };
        let upload = |bytes: &[u8]| {
            let padded = [bytes, &[0xff; 64]].concat();
            self.gpu.upload(&padded, "checking")
        };
        let arenas = [upload(&self.contents[0])?, upload(&self.contents[1])?];
        Ok(Ready {
            batch,
            caches,
            arenas,
            scratch: None,
            _integers: integers,
            memory: self,
        })
    }
}

#[derive(Clone, Copy)]
enum Kind {
    Float(CudaDtype),
    Int,
}

fn encode(kind: Kind, x: f64, to: &mut [u8]) {
    match kind {
        Kind::Float(CudaDtype::F32) => to.copy_from_slice(&(x as f32).to_le_bytes()),
        Kind::Float(CudaDtype::Bf16) => to.copy_from_slice(&bf16::from_f32(x as f32).to_le_bytes()),
        Kind::Float(CudaDtype::F16) => to.copy_from_slice(&f16::from_f32(x as f32).to_le_bytes()),
        Kind::Int => to.copy_from_slice(&(x as i32).to_le_bytes()),
    }
}

/// Elements as numbers.
pub(super) fn decode(dtype: CudaDtype, bytes: &[u8]) -> Vec<f64> {
    match dtype {
        CudaDtype::F32 => bytes
            .as_chunks()
            .0
            .iter()
            .map(|b| f64::from(f32::from_le_bytes(*b)))
            .collect(),
        CudaDtype::Bf16 => bytes
            .as_chunks()
            .0
            .iter()
            .map(|b| f64::from(bf16::from_le_bytes(*b)))
            .collect(),
        CudaDtype::F16 => bytes
            .as_chunks()
            .0
            .iter()
            .map(|b| f64::from(f16::from_le_bytes(*b)))
            .collect(),
    }
}

/// Values on the GPU.
pub(super) struct Ready {
    memory: Memory,
    batch: BatchArgs,
    caches: Vec<CacheArgs>,
    arenas: [Buffer; 2],
    scratch: Option<Buffer>,
    _integers: Buffer,
}

impl Ready {
    /// With scratch of so many bytes, every one 0xff.
    pub(super) fn with_scratch(mut self, bytes: usize) -> Result<Self> {
        let poison = vec![0xff; bytes.max(1)];
        self.scratch = Some(self.memory.gpu.upload(&poison, "checking")?);
        Ok(self)
    }

    /// Enqueues an instruction.
    pub(super) fn launch(&self, instr: &dyn Instr) -> Result<()> {
        instr.launch(&Step {
            gpu: &self.memory.gpu,
            kind: StepKind::Mixed,
            batch: self.batch,
            single_rows: 0,
            long_rows: self.batch.row_count as u32,
            arenas: [self.arenas[0].address(), self.arenas[1].address(), 0],
            plans: &[],
            caches: &self.caches,
            scratch: self.scratch.as_ref().map_or(0, Buffer::address),
        })
    }

    /// A value's elements row by row, once the GPU is done.
    pub(super) fn read(&self, place: &Place) -> Result<Vec<f64>> {
        self.memory.gpu.synchronize()?;
        let (arena, rows) = match place.arena {
            Rows::Outputs => (1, self.memory.outputs),
            Rows::Tokens | Rows::Broadcast => (0, self.memory.rows),
        };
        let mut bytes = vec![0; place.stride * rows];
        self.arenas[arena].read(place.base * rows, &mut bytes)?;
        let rows = bytes.chunks(place.stride.max(1));
        let rows = rows.map(|row| &row[place.offset..place.offset + place.width * place.element]);
        let packed: Vec<u8> = rows.flatten().copied().collect();
        Ok(match self.memory.kind(place) {
            Kind::Float(dtype) => decode(dtype, &packed),
            Kind::Int => packed
                .as_chunks()
                .0
                .iter()
                .map(|b| f64::from(i32::from_le_bytes(*b)))
                .collect(),
        })
    }

    /// Median seconds of an instruction with a cold L2.
    pub(super) fn time(&self, instr: &dyn Instr) -> Result<f64> {
        Timer::new(&self.memory.gpu)?.time(|| self.launch(instr))
    }
}

/// Largest difference as a share of the largest expected value. What is expected to be NaN must be.
pub(super) fn error(found: &[f64], expected: &[f64]) -> f64 {
    if found.len() != expected.len() {
        return f64::INFINITY;
    }
    let largest = expected
        .iter()
        .filter(|x| !x.is_nan())
        .fold(f64::MIN_POSITIVE, |m, x| m.max(x.abs()));
    let worst = found.iter().zip(expected).fold(0f64, |worst, (f, e)| {
        let difference = match (f.is_nan(), e.is_nan()) {
            (true, true) => 0.0,
            (false, false) => (f - e).abs(),
            _ => f64::INFINITY,
        };
        worst.max(difference)
    });
    worst / largest
}

/// A case whose kernels are being compiled; calling it runs them.
pub(super) type Pending = Box<dyn FnOnce() -> Result<KernelReport>>;

/// Runs cases and reports them as one line, the worst of them, and each that failed.
pub(super) fn run_together(
    what: &str,
    cases: Vec<Pending>,
    report: &mut dyn FnMut(KernelReport),
) -> Result<()> {
    let share = |r: &KernelReport| r.error / r.tolerance.max(f64::MIN_POSITIVE);
    let count = cases.len();
    let mut worst: Option<KernelReport> = None;
    for case in cases {
        let found = case()?;
        if found.verdict == Verdict::Fail {
            report(found.clone());
        }
        if worst.as_ref().is_none_or(|w| share(&found) > share(w)) {
            worst = Some(found);
        }
    }
    if let Some(worst) = worst {
        let case = format!("{what}, {count} cases; worst: {}", worst.case);
        report(KernelReport { case, ..worst });
    }
    Ok(())
}

/// A report with a time.
pub(super) fn timed(mut report: KernelReport, seconds: f64, bytes: usize) -> KernelReport {
    report.seconds = Some(seconds);
    report.bytes = Some(bytes as f64);
    report
}

/// Rows and width of the cases that are timed, and whose results are not compared: every element type takes the same path.
pub(super) const LARGE: (usize, usize) = (8192, 4096);
