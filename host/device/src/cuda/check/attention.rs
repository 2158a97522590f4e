//! What checks of attention kernels share: random cases with poisoned memory, a slow reference, a step around one kernel.

use std::sync::Arc;

use guesthouse_graph::{Mask, Rows, ValueLayout, ValueType};
use half::{bf16, f16};

use super::report::KernelReport;
use super::timing::Timer;
use crate::cuda::driver::{Buffer, Gpu};
use crate::cuda::ops::attention::{AttentionSpec, Kernel};
use crate::cuda::ops::{
    BatchArgs, CacheArgs, Limits, Place, PlanArgs, PlanRow, Planners, Step, StepKind,
};
use crate::cuda::options::{CudaDtype, Numerics};
use crate::error::Result;

/// One check: a layer's geometry and a step.
#[derive(Clone, Debug)]
pub(super) struct Case {
    pub dtype: CudaDtype,
    pub heads: u32,
    pub kv_heads: u32,
    pub k_dim: u32,
    pub v_dim: u32,
    pub values: ValueLayout,
    pub block_size: u32,
    pub window: Option<u32>,
    pub softcap: Option<f32>,
    pub alibi: bool,
    pub sinks: bool,
    /// Rows that begin a sequence have a prefix that ends within them, others one that ended before.
    pub prefix: bool,
    /// Tokens and cache positions of each row.
    pub rows: Vec<(u32, u32)>,
    /// Tokens compared: every so many, and each row's last.
    pub every: u32,
    pub timed: bool,
    pub numerics: Numerics,
}

impl Case {
    /// Causal attention in bf16 with blocks of 16; every token is compared.
    pub(super) fn new(heads: u32, kv_heads: u32, dim: u32, rows: &[(u32, u32)]) -> Self {
        Self {
            dtype: CudaDtype::Bf16,
            heads,
            kv_heads,
            k_dim: dim,
            v_dim: dim,
            values: ValueLayout::Separate,
            block_size: 16,
            window: None,
            softcap: None,
            alibi: false,
            sinks: false,
            prefix: false,
            rows: rows.to_vec(),
            every: 1,
            timed: false,
            numerics: Numerics::Fast,
        }
    }

    fn label(&self) -> String {
        use std::fmt::Write;
        let mut text = match self.rows.as_slice() {
            [(len, kv)] if len == kv => format!("1×{len}"),
            [(len, kv)] => format!("{len} of {kv}"),
            rows if rows.windows(2).all(|w| w[0] == w[1]) => {
                format!("{}×{} of {}", rows.len(), rows[0].0, rows[0].1)
            }
            rows => format!("{} ragged rows", rows.len()),
        };
        let mut say = |args: std::fmt::Arguments<'_>| {
            let _ = text.write_fmt(args);
        };
        say(format_args!(" {} ", self.dtype.name()));
        say(format_args!(
            "{}/{}×{}",
            self.heads, self.kv_heads, self.k_dim
        ));
        if self.v_dim != self.k_dim {
            say(format_args!("/{}", self.v_dim));
        }
        if self.block_size != 16 {
            say(format_args!(" blocks of {}", self.block_size));
        }
        if let Some(window) = self.window {
            say(format_args!(" window {window}"));
        }
        for (name, there) in [
            (" soft cap", self.softcap.is_some()),
            (" ALiBi", self.alibi),
            (" sinks", self.sinks),
            (" prefix", self.prefix),
            (" invariant", self.numerics == Numerics::BatchInvariant),
        ] {
            if there {
                say(format_args!("{name}"));
            }
        }
        text
    }

    /// Positions of a row that see each other.
    fn prefix_len(&self, (len, kv): (u32, u32)) -> u32 {
        match (self.prefix, kv - len) {
            (false, _) => 0,
            (true, 0) => len - len / 5,
            (true, before) => before,
        }
    }

    fn tokens(&self) -> usize {
        self.rows.iter().map(|(len, _)| *len as usize).sum()
    }

    /// Operations of the visible (query, key) pairs.
    fn flops(&self) -> f64 {
        let each = 2.0 * f64::from(self.k_dim + self.v_dim) * f64::from(self.heads);
        let pairs = |&(len, kv): &(u32, u32)| -> f64 {
            (kv - len + 1..=kv)
                .map(|seen| f64::from(self.window.map_or(seen, |w| seen.min(w))))
                .sum()
        };
        self.rows.iter().map(pairs).sum::<f64>() * each
    }

    /// Bytes of queries, results and of the keys and values that some query sees.
    fn bytes(&self) -> f64 {
        let seen =
            |&(len, kv): &(u32, u32)| f64::from(self.window.map_or(kv, |w| kv.min(w + len - 1)));
        let positions: f64 = self.rows.iter().map(seen).sum();
        let dims = f64::from(self.k_dim + self.v_dim);
        let cached = match self.values {
            ValueLayout::Separate => dims,
            ValueLayout::PrefixOfKey => f64::from(self.k_dim),
        };
        let elements = positions * f64::from(self.kv_heads) * cached
            + self.tokens() as f64 * f64::from(self.heads) * dims;
        elements * self.dtype.bytes() as f64
    }
}

/// Random numbers (SplitMix64), about normal.
struct Random(u64);

impl Random {
    fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Sum of four uniform numbers, standard deviation 1.
    fn normal(&mut self) -> f32 {
        let bits = self.bits();
        let sum: u32 = (0..4).map(|i| (bits >> (16 * i)) as u32 & 0xffff).sum();
        (sum as f32 / 65536.0 - 2.0) * 3_f32.sqrt()
    }
}

/// Elements of a type, as values and as bytes.
struct Elements {
    values: Vec<f32>,
    dtype: CudaDtype,
}

impl Elements {
    fn random(random: &mut Random, count: usize, dtype: CudaDtype) -> Self {
        let round = |x: f32| match dtype {
            CudaDtype::Bf16 => bf16::from_f32(x).to_f32(),
            CudaDtype::F16 => f16::from_f32(x).to_f32(),
            CudaDtype::F32 => x,
        };
        Self {
            values: (0..count).map(|_| round(random.normal())).collect(),
            dtype,
        }
    }

    fn bytes(&self) -> Vec<u8> {
        let values = self.values.iter();
        match self.dtype {
            CudaDtype::Bf16 => values
                .flat_map(|x| bf16::from_f32(*x).to_le_bytes())
                .collect(),
            CudaDtype::F16 => values
                .flat_map(|x| f16::from_f32(*x).to_le_bytes())
                .collect(),
            CudaDtype::F32 => values.flat_map(|x| x.to_le_bytes()).collect(),
        }
    }
}

fn read(bytes: &[u8], dtype: CudaDtype) -> Vec<f32> {
    match dtype {
        CudaDtype::Bf16 => bytes
            .chunks_exact(2)
            .map(|b| bf16::from_le_bytes([b[0], b[1]]).to_f32())
            .collect(),
        CudaDtype::F16 => bytes
            .chunks_exact(2)
            .map(|b| f16::from_le_bytes([b[0], b[1]]).to_f32())
            .collect(),
        CudaDtype::F32 => bytes
            .chunks_exact(4)
            .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
            .collect(),
    }
}

fn words(values: &[i32]) -> Vec<u8> {
    values.iter().flat_map(|x| x.to_le_bytes()).collect()
}

fn floats(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|x| x.to_le_bytes()).collect()
}

/// A case in memory, here and on the GPU.
struct Bench<'a> {
    case: &'a Case,
    gpu: &'a Arc<Gpu>,
    q: Elements,
    keys: Elements,
    values: Elements,
    slopes: Vec<f32>,
    sinks: Vec<f32>,
    /// Blocks of each row.
    tables: Vec<Vec<u32>>,
    table_stride: usize,
    blocks: usize,
    /// Elements between rows of q: queries are part of a wider row.
    q_width: usize,
    y_width: usize,
    held: Held,
}

/// What kernels read and write.
struct Held {
    /// Rows of q, then rows of results.
    arena: Buffer,
    keys: Buffer,
    values: Buffer,
    tables: Buffer,
    slopes: Buffer,
    sinks: Buffer,
    batch: Buffer,
}

impl<'a> Bench<'a> {
    fn new(gpu: &'a Arc<Gpu>, case: &'a Case) -> Result<Self> {
        let mut random = Random(case.rows.len() as u64);
        let size = case.block_size as usize;
        let blocks_of = |kv: u32| (kv as usize).div_ceil(size);
        let used: usize = case.rows.iter().map(|(_, kv)| blocks_of(*kv)).sum();
        let blocks = used + 3;
        // 7 and its neighbours' order: any permutation will do that is not the identity.
        let mut order: Vec<u32> = (0..blocks as u32).collect();
        for i in (1..blocks).rev() {
            order.swap(i, (random.bits() % (i as u64 + 1)) as usize);
        }
        let mut free = order.into_iter();
        let tables: Vec<Vec<u32>> = case
            .rows
            .iter()
            .map(|(_, kv)| free.by_ref().take(blocks_of(*kv)).collect())
            .collect();
        let plane = |dim: u32| blocks * case.kv_heads as usize * size * dim as usize;
        let (k_dim, v_dim) = (case.k_dim as usize, case.v_dim as usize);
        let q_width = case.heads as usize * k_dim + 2 * case.kv_heads as usize * k_dim;
        let y_width = case.heads as usize * v_dim;
        let mut keys = Elements::random(&mut random, plane(case.k_dim), case.dtype);
        let mut values = Elements::random(&mut random, plane(case.v_dim), case.dtype);
        // Backwards, so that the last token's does not depend on how many come with it.
        let mut q = Elements::random(&mut random, case.tokens() * q_width, case.dtype);
        q.values.reverse();
        // What no row has written is NaN.
        let mut filled = vec![0; blocks];
        for (table, (_, kv)) in tables.iter().zip(&case.rows) {
            for (i, block) in table.iter().enumerate() {
                filled[*block as usize] = (*kv as usize - i * size).min(size);
            }
        }
        for (elements, dim) in [(&mut keys.values, k_dim), (&mut values.values, v_dim)] {
            for (i, line) in elements.chunks_exact_mut(dim).enumerate() {
                if i % size >= filled[i / size / case.kv_heads as usize] {
                    line.fill(f32::NAN);
                }
            }
        }
        if case.values == ValueLayout::PrefixOfKey {
            let lines = keys.values.chunks_exact(k_dim);
            values.values = lines.flat_map(|k| k[..v_dim].iter().copied()).collect();
        }
        let slopes: Vec<f32> = (0..case.heads)
            .map(|h| 0.02 * 0.8_f32.powi(h as i32))
            .collect();
        let sinks: Vec<f32> = (0..case.heads).map(|_| 2.0 * random.normal()).collect();
        let table_stride = tables.iter().map(Vec::len).max().unwrap_or(0) + 1;
        let mut lines = Vec::new();
        for table in &tables {
            let line = table.iter().map(|b| *b as i32);
            lines.extend(line.chain(std::iter::repeat(0)).take(table_stride));
        }
        let element = case.dtype.bytes();
        let arena = gpu.allocate(case.tokens() * (q_width + y_width) * element, "a check")?;
        gpu.fill(arena.address(), 0xff, arena.bytes())?;
        arena.write(0, &q.bytes())?;
        let held = Held {
            arena,
            keys: gpu.upload(&keys.bytes(), "a check")?,
            values: gpu.upload(&values.bytes(), "a check")?,
            tables: gpu.upload(&words(&lines), "a check")?,
            slopes: gpu.upload(&floats(&slopes), "a check")?,
            sinks: gpu.upload(&floats(&sinks), "a check")?,
            batch: gpu.upload(&words(&batch_words(case)), "a check")?,
        };
        Ok(Self {
            case,
            gpu,
            q,
            keys,
            values,
            slopes,
            sinks,
            tables,
            table_stride,
            blocks,
            q_width,
            y_width,
            held,
        })
    }

    fn spec(&self) -> AttentionSpec {
        let case = self.case;
        let element = case.dtype.bytes();
        let place = |base: usize, stride: usize, width: u32| Place {
            arena: Rows::Tokens,
            base: base * element,
            stride: stride * element,
            offset: 0,
            width: width as usize,
            ty: ValueType::Model,
            element,
        };
        AttentionSpec {
            cache: 0,
            heads: case.heads,
            kv_heads: case.kv_heads,
            k_dim: case.k_dim,
            v_dim: case.v_dim,
            values: case.values,
            scale: scale(case),
            mask: if case.prefix {
                Mask::PrefixLm
            } else {
                Mask::Causal
            },
            window: case.window,
            softcap: case.softcap,
            alibi: case.alibi.then(|| self.held.slopes.address()),
            sinks: case.sinks.then(|| self.held.sinks.address()),
            q: place(0, self.q_width, case.heads * case.k_dim),
            y: place(self.q_width, self.y_width, case.heads * case.v_dim),
            dtype: case.dtype,
            block_size: case.block_size,
            numerics: case.numerics,
        }
    }

    /// Results of one (token, query head) in f64.
    fn reference(&self, row: usize, position: usize, token: usize, head: usize) -> Vec<f64> {
        let case = self.case;
        let (k_dim, v_dim) = (case.k_dim as usize, case.v_dim as usize);
        let kv_head = head / (case.heads / case.kv_heads) as usize;
        let size = case.block_size as usize;
        let line = |at: usize| {
            let block = self.tables[row][at / size] as usize;
            (block * case.kv_heads as usize + kv_head) * size + at % size
        };
        let q = &self.q.values[token * self.q_width + head * k_dim..][..k_dim];
        let from = case
            .window
            .map_or(0, |w| (position + 1).saturating_sub(w as usize));
        let score = |at: usize| {
            let k = &self.keys.values[line(at) * k_dim..][..k_dim];
            let dot: f64 = q
                .iter()
                .zip(k)
                .map(|(a, b)| f64::from(*a) * f64::from(*b))
                .sum();
            let mut s = dot * f64::from(scale(case));
            if let Some(cap) = case.softcap {
                s = f64::from(cap) * (s / f64::from(cap)).tanh();
            }
            if case.alibi {
                s += f64::from(self.slopes[head]) * (at as f64 - position as f64);
            }
            s
        };
        let end = (position + 1).max(case.prefix_len(case.rows[row]) as usize);
        let scores: Vec<f64> = (from..end).map(score).collect();
        let sink = case.sinks.then(|| f64::from(self.sinks[head]));
        let most = scores
            .iter()
            .copied()
            .chain(sink)
            .fold(f64::NEG_INFINITY, f64::max);
        let mut total = sink.map_or(0.0, |s| (s - most).exp());
        let mut sums = vec![0.0; v_dim];
        for (at, s) in (from..).zip(&scores) {
            let weight = (s - most).exp();
            total += weight;
            let v = &self.values.values[line(at) * v_dim..][..v_dim];
            for (sum, x) in sums.iter_mut().zip(v) {
                *sum += weight * f64::from(*x);
            }
        }
        sums.iter().map(|x| x / total).collect()
    }

    /// Result of the last token, as the kernel left it.
    fn last_token(&self) -> Result<Vec<u8>> {
        let element = self.case.dtype.bytes();
        let token = self.case.tokens() - 1;
        let mut bytes = vec![0; self.y_width * element];
        let at = self.case.tokens() * self.q_width + token * self.y_width;
        self.held.arena.read(at * element, &mut bytes)?;
        Ok(bytes)
    }

    /// Largest error as a share of the largest value of a (token, head), over the tokens compared. At most 4,000 pairs are, and
    /// fewer of long rows of many elements, each of which costs the reference dearly.
    fn error(&self) -> Result<f64> {
        let case = self.case;
        let element = case.dtype.bytes();
        let mut bytes = vec![0; case.tokens() * self.y_width * element];
        self.held
            .arena
            .read(case.tokens() * self.q_width * element, &mut bytes)?;
        let y = read(&bytes, case.dtype);
        let mut tokens = Vec::new();
        let mut first = 0;
        for (row, (len, kv)) in case.rows.iter().enumerate() {
            for i in 0..*len {
                if i % case.every == 0 || i + 1 == *len {
                    tokens.push((row, (kv - len + i) as usize, first + i as usize));
                }
            }
            first += *len as usize;
        }
        let v_dim = case.v_dim as usize;
        let heads = case.heads as usize;
        let longest = case.rows.iter().map(|(_, kv)| *kv).max().unwrap_or(1);
        let cost = longest as usize * (case.k_dim + case.v_dim) as usize;
        let most = (1_000_000_000 / cost.max(1)).clamp(64, 4000);
        let step = (tokens.len() * heads).div_ceil(most);
        let mut worst = 0.0_f64;
        for pair in (0..tokens.len() * heads).step_by(step) {
            let (row, position, token) = tokens[pair / heads];
            let head = pair % heads;
            let expected = self.reference(row, position, token, head);
            let largest = expected.iter().fold(0.0, |a: f64, x| a.max(x.abs()));
            for (x, e) in y[token * self.y_width + head * v_dim..]
                .iter()
                .zip(&expected)
            {
                let error = (f64::from(*x) - e).abs() / largest;
                if error.is_nan() {
                    return Ok(f64::NAN);
                }
                worst = worst.max(error);
            }
        }
        Ok(worst)
    }
}

fn scale(case: &Case) -> f32 {
    1.5 / (case.k_dim as f32).sqrt()
}

/// `first [R + 1]`, `kv_len [R]`, `slot [R]`, `prefix_len [R]`, `positions [T]`, `row_of [T]`.
fn batch_words(case: &Case) -> Vec<i32> {
    let mut first = vec![0];
    for (len, _) in &case.rows {
        first.push(first[first.len() - 1] + *len as i32);
    }
    let mut out = first;
    out.extend(case.rows.iter().map(|(_, kv)| *kv as i32));
    out.extend(0..case.rows.len() as i32);
    out.extend(case.rows.iter().map(|row| case.prefix_len(*row) as i32));
    out.extend(
        case.rows
            .iter()
            .flat_map(|(len, kv)| (kv - len..*kv).map(|p| p as i32)),
    );
    for (row, (len, _)) in case.rows.iter().enumerate() {
        out.extend(std::iter::repeat_n(row as i32, *len as usize));
    }
    out
}

/// Makes the kernel under test for a layer; none where it does not compute such attention.
pub(super) type Make<'a> = &'a dyn Fn(
    &Arc<Gpu>,
    &AttentionSpec,
    &Limits,
    &mut Planners,
) -> Result<Option<Box<dyn Kernel>>>;

/// Runs a case and compares.
///
/// # Errors
/// When memory is short or the GPU is lost.
pub(super) fn run(
    name: &'static str,
    gpu: &Arc<Gpu>,
    case: &Case,
    make: Make<'_>,
) -> Result<KernelReport> {
    let report = with_step(gpu, case, make, |bench, kernel, step| {
        let tolerance = match case.dtype {
            CudaDtype::Bf16 => 0.015,
            CudaDtype::F16 => 0.002,
            CudaDtype::F32 => 1e-5,
        };
        let mut report = KernelReport::new(name, case.label(), bench.error()?, tolerance);
        if case.timed {
            let timer = Timer::new(gpu)?;
            report.seconds = Some(timer.time(|| kernel.launch(step))?);
            report.flops = Some(case.flops());
            report.bytes = Some(case.bytes());
        }
        Ok(report)
    })?;
    Ok(report.unwrap_or_else(|| KernelReport::skipped(name, case.label())))
}

/// Whether the last token of several cases of one row has the same bits in all; the cases differ in its row's tokens alone.
///
/// # Errors
/// As for [`run`].
pub(super) fn agree(
    name: &'static str,
    gpu: &Arc<Gpu>,
    cases: &[(Case, Make<'_>)],
) -> Result<KernelReport> {
    let mut first: Option<Vec<u8>> = None;
    let mut label = String::new();
    let mut worst = 0.0;
    for (case, make) in cases {
        let last = with_step(gpu, case, *make, |bench, _, _| bench.last_token())?;
        label = format!(
            "bits of the last token in {} batches: {}",
            cases.len(),
            case.label()
        );
        match (last, &first) {
            (None, _) => return Ok(KernelReport::skipped(name, label)),
            (Some(bits), Some(first)) if bits != *first => worst = f64::INFINITY,
            (Some(bits), _) => first = Some(bits),
        }
    }
    Ok(KernelReport::new(name, label, worst, 0.0))
}

/// Launches a case's kernel once and looks at what it left; none where no kernel computes it.
fn with_step<R>(
    gpu: &Arc<Gpu>,
    case: &Case,
    make: Make<'_>,
    look: impl FnOnce(&Bench<'_>, &dyn Kernel, &Step<'_>) -> Result<R>,
) -> Result<Option<R>> {
    let bench = Bench::new(gpu, case)?;
    let rows = case.rows.len();
    let tokens = case.tokens();
    let limits = Limits {
        tokens: tokens as u32,
        rows: rows as u32,
        outputs: rows as u32,
        len: case.rows.iter().map(|(_, kv)| *kv).max().unwrap_or(1),
        block_size: case.block_size,
    };
    let mut planners = Planners::default();
    let Some(kernel) = make(gpu, &bench.spec(), &limits, &mut planners)? else {
        return Ok(None);
    };
    let mut first = 0;
    let mut plan_rows = Vec::new();
    for (row, (len, kv)) in case.rows.iter().enumerate() {
        plan_rows.push(PlanRow {
            row: row as u32,
            slot: row as u32,
            first,
            len: *len,
            kv_len: *kv,
            prefix_len: case.prefix_len((*len, *kv)),
        });
        first += len;
    }
    let mut plans = Vec::new();
    let mut buffers = Vec::new();
    for planner in planners.iter_mut() {
        let mut out = Vec::new();
        planner.plan(&plan_rows, &mut out);
        let buffer = gpu.upload(&words(&out), "a check")?;
        plans.push(PlanArgs {
            address: buffer.address(),
            words: out.len() as u32,
        });
        buffers.push(buffer);
    }
    let batch = bench.held.batch.address();
    let at = |index: usize| batch + 4 * index as u64;
    let caches = [CacheArgs {
        keys: bench.held.keys.address(),
        values: match case.values {
            ValueLayout::Separate => bench.held.values.address(),
            ValueLayout::PrefixOfKey => bench.held.keys.address(),
        },
        tables: bench.held.tables.address(),
        table_stride: bench.table_stride as i32,
        heads: case.kv_heads as i32,
        k_dim: case.k_dim as i32,
        v_dim: case.v_dim as i32,
        block_size: case.block_size as i32,
        blocks: bench.blocks as i32,
    }];
    let single = case.rows.iter().filter(|(len, _)| *len == 1).count();
    let scratch = gpu.allocate(kernel.scratch(), "a check")?;
    gpu.fill(scratch.address(), 0xff, scratch.bytes())?;
    let step = Step {
        gpu,
        kind: StepKind::Mixed,
        batch: BatchArgs {
            first: at(0),
            kv_len: at(rows + 1),
            slot: at(2 * rows + 1),
            prefix_len: at(3 * rows + 1),
            positions: at(4 * rows + 1),
            row_of: at(4 * rows + 1 + tokens),
            token_count: tokens as i32,
            row_count: rows as i32,
            ..BatchArgs::default()
        },
        single_rows: single as u32,
        long_rows: (rows - single) as u32,
        arenas: [bench.held.arena.address(), 0, 0],
        plans: &plans,
        caches: &caches,
        scratch: scratch.address(),
    };
    kernel.launch(&step)?;
    bench.gpu.synchronize()?;
    look(&bench, kernel.as_ref(), &step).map(Some)
}
