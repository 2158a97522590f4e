//! Ropes and cache writes against f64 rotations by the CPU device's frequencies.

use std::sync::Arc;

use guesthouse_graph::{NormRounding, Rope, RopeScaling, RopeStyle, ValueLayout, ValueType};

use super::KernelReport;
use super::memory::{
    DTYPES, LARGE, Memory, Pending, Random, Words, decode, error, round, rounding, run_together,
    timed,
};
use crate::cpu::rope::frequencies;
use crate::cuda::driver::Gpu;
use crate::cuda::ops::CacheArgs;
use crate::cuda::ops::input::Ints;
use crate::cuda::ops::rope::{HeadNorm, Places, RopeTable, Rotate, RotateSpec, Rotation, Writing};
use crate::cuda::options::CudaDtype;
use crate::cuda::weights::{VectorType, stored};
use crate::error::Result;

const BLOCK: u32 = 16;

/// Heads of a case: query heads, key heads, elements of a key and of a value.
type Heads = (usize, usize, usize, usize);

/// Positions from the first to the last of 128k, block boundaries, and padding at the end; the row of each token.
const TOKENS: [(i32, i32); 9] = [
    (0, 0),
    (15, 0),
    (16, 0),
    (511, 1),
    (4095, 1),
    (4096, 2),
    (131_071, 2),
    (99_999, 1),
    (0, -1),
];

/// Every pairing, part and scaling.
pub(super) fn check(gpu: &Arc<Gpu>, report: &mut dyn FnMut(KernelReport)) -> Result<()> {
    let mut groups = Vec::new();
    for dtype in DTYPES {
        let mut cases = Vec::new();
        for style in [RopeStyle::Neox, RopeStyle::Interleaved] {
            let plain = |rotary, start| rope(rotary, start, style, RopeScaling::None);
            let whole = || Case::new(plain(128, 0), (4, 2, 128, 128));
            cases.extend([
                whole(),
                whole().norm(NormRounding::CastThenWeight),
                whole().norm(NormRounding::WeightThenCast),
                Case::new(plain(32, 8), (4, 4, 96, 64)),
                Case::new(plain(6, 1), (3, 1, 9, 5)),
            ]);
        }
        let cases = cases.into_iter().map(|case| one(gpu, dtype, case));
        groups.push((dtype.name(), cases.collect::<Result<Vec<_>>>()?));
    }
    for scaling in scalings() {
        let rope = rope(64, 0, RopeStyle::Neox, scaling);
        let case = Case::new(rope, (2, 1, 64, 64));
        groups.push(("scaled", vec![one(gpu, CudaDtype::F32, case)?]));
    }
    for (what, cases) in groups {
        run_together(what, cases, report)?;
    }
    report(large(gpu)?);
    Ok(())
}

fn rope(rotary: u32, start: u32, style: RopeStyle, scaling: RopeScaling) -> Rope {
    Rope {
        rotary,
        theta: 10_000.0,
        style,
        scaling,
        axis: 0,
        start,
    }
}

fn scalings() -> [RopeScaling; 6] {
    [
        RopeScaling::Linear { factor: 4.0 },
        RopeScaling::Dynamic {
            factor: 4.0,
            original: 2048,
        },
        RopeScaling::DynamicQwen { original: 2048 },
        RopeScaling::Yarn {
            factor: 4.0,
            original: 2048,
            beta_fast: 32.0,
            beta_slow: 1.0,
            attention_factor: 1.138_629_4,
            truncate: true,
        },
        RopeScaling::Llama3 {
            factor: 8.0,
            low: 1.0,
            high: 4.0,
            original: 8192,
        },
        RopeScaling::LongRope {
            short: vec![1.0; 32],
            long: vec![4.0; 32],
            original: 4096,
            attention_factor: 1.19,
        },
    ]
}

/// What the rows of [`TOKENS`] have.
fn words() -> Words {
    Words {
        positions: TOKENS.iter().map(|t| t.0).collect(),
        row_of: TOKENS.iter().map(|t| t.1).collect(),
        slot: vec![2, 0, 1],
        prompt_len: vec![17, 600, 10],
        admitted_len: vec![5000, 600, 10],
        ..Words::default()
    }
}

/// A rotation of some heads.
struct Case {
    rope: Rope,
    heads: Heads,
    /// Heads are normalised first.
    norm: Option<NormRounding>,
}

impl Case {
    fn new(rope: Rope, heads: Heads) -> Self {
        Self {
            rope,
            heads,
            norm: None,
        }
    }

    fn norm(mut self, rounding: NormRounding) -> Self {
        self.norm = Some(rounding);
        self
    }
}

/// A norm with random weights, and those of queries and keys.
fn head_norm(
    gpu: &Arc<Gpu>,
    dtype: CudaDtype,
    d: usize,
    rounding: NormRounding,
) -> Result<(HeadNorm, [Vec<f64>; 2])> {
    let mut random = Random::new(11);
    let weights = [(); 2].map(|()| {
        let values = (0..d).map(|_| round(dtype, 0.5 * random.next()));
        values.collect::<Vec<f64>>()
    });
    let upload = |values: &[f64]| {
        let floats: Vec<f32> = values.iter().map(|&x| x as f32).collect();
        gpu.upload(&stored(&floats, dtype), "checking")
            .map(Arc::new)
    };
    let norm = HeadNorm {
        q_weight: upload(&weights[0])?,
        k_weight: upload(&weights[1])?,
        weight_type: VectorType::Model,
        eps: 1e-6,
        offset: 1.0,
        rounding,
    };
    Ok((norm, weights))
}

/// Heads as they are rotated: normalised and rounded, or as they came.
fn normalised(
    dtype: CudaDtype,
    x: &[f64],
    d: usize,
    weight: Option<&Vec<f64>>,
    case: &Case,
) -> Vec<f64> {
    let (Some(weight), Some(rounding)) = (weight, case.norm) else {
        return x.to_vec();
    };
    let head = |x: &[f64]| {
        let mean = x.iter().map(|x| x * x).sum::<f64>() / d as f64;
        let factor = (mean + f64::from(1e-6f32)).sqrt().recip();
        let each = x.iter().zip(weight).map(|(x, w)| {
            let y = match rounding {
                NormRounding::CastThenWeight => round(dtype, x * factor),
                NormRounding::WeightThenCast => x * factor,
            };
            round(dtype, y * (w + 1.0))
        });
        each.collect::<Vec<f64>>()
    };
    x.chunks(d).flat_map(head).collect()
}

fn one(gpu: &Arc<Gpu>, dtype: CudaDtype, case: Case) -> Result<Pending> {
    let (rope, (heads, kv_heads, k_dim, v_dim)) = (case.rope.clone(), case.heads);
    let rows = TOKENS.len();
    let mut memory = Memory::new(gpu, dtype, rows, 0);
    // Queries, keys and values are columns of one value, as behind a merged linear.
    let (wq, wk, wv) = (heads * k_dim, kv_heads * k_dim, kv_heads * v_dim);
    let (merged, values) = memory.input(wq + wk + wv, ValueType::Model);
    let y = memory.output(wq, ValueType::Model);
    let words = words();
    // Only what is needed has a block of its own, from 1 on.
    let stride = 131_072 / BLOCK as usize;
    let mut tables = vec![0; words.slot.len() * stride];
    let mut blocks = 1;
    for (&position, &row) in words.positions.iter().zip(&words.row_of) {
        let Some(&slot) = usize::try_from(row)
            .ok()
            .and_then(|row| words.slot.get(row))
        else {
            continue;
        };
        let entry = &mut tables[slot as usize * stride + position as usize / BLOCK as usize];
        if *entry == 0 {
            *entry = blocks;
            blocks += 1;
        }
    }
    let blocks = blocks as usize;
    let tables_buffer = gpu.upload(bytemuck::cast_slice(&tables), "checking")?;
    let block = move |dim: usize| kv_heads * dim * BLOCK as usize * dtype.bytes();
    let poisoned = |dim: usize| {
        let buffer = gpu.allocate(blocks * block(dim), "checking")?;
        gpu.fill(buffer.address(), 0xff, blocks * block(dim))?;
        Ok::<_, crate::error::DeviceError>(buffer)
    };
    let (keys, vals) = (poisoned(k_dim)?, poisoned(v_dim)?);
    let cache = CacheArgs {
        keys: keys.address(),
        values: vals.address(),
        tables: tables_buffer.address(),
        table_stride: stride as i32,
        heads: kv_heads as i32,
        k_dim: k_dim as i32,
        v_dim: v_dim as i32,
        block_size: BLOCK as i32,
        blocks: blocks as i32,
    };
    let ready = memory.ready(&words, vec![cache])?;
    let table = RopeTable::new(gpu, &rope, None, Ints::Positions, rows as u32)?;
    let places = Places::new(gpu, &[0], rows as u32)?;
    let writing = Writing {
        cache: 0,
        places: places.places().remove(0),
        kv_heads,
        k_dim,
        v_dim,
        values: ValueLayout::Separate,
        block_size: BLOCK,
        k: merged.columns(wq, wk),
        v: merged.columns(wq + wk, wv),
    };
    let rotation = Rotation {
        table: table.table(),
        rotary: rope.rotary as usize,
        start: rope.start as usize,
        style: rope.style,
    };
    let (norm, weights) = match case.norm {
        Some(rounding) => {
            let (norm, weights) = head_norm(gpu, dtype, k_dim, rounding)?;
            (Some(norm), Some(weights))
        }
        None => (None, None),
    };
    let spec = RotateSpec {
        rotation: Some(rotation),
        q: Some((merged.columns(0, wq), y, k_dim)),
        write: Some(writing),
        norm,
    };
    let instr = Rotate::new(gpu, dtype, spec)?;
    Ok(Box::new(move || {
        ready.launch(&table)?;
        ready.launch(&places)?;
        ready.launch(&instr)?;
        let found = ready.read(&y)?;
        // The tables are read until here.
        drop(tables_buffer);
        let mut worst = 0f64;
        for (t, row) in values.chunks(wq + wk + wv).enumerate() {
            let (q, rest) = row.split_at(wq);
            let (k, v) = rest.split_at(wk);
            let angles = angles(&rope, &words, t);
            let weight = |i: usize| weights.as_ref().map(|w| &w[i]);
            let q = normalised(dtype, q, k_dim, weight(0), &case);
            let k = normalised(dtype, k, k_dim, weight(1), &case);
            let expected = rotate(&rope, &q, k_dim, &angles);
            worst = worst.max(error(&found[t * wq..(t + 1) * wq], &expected));
            let Ok(row) = usize::try_from(words.row_of[t]) else {
                continue;
            };
            let position = words.positions[t] as usize;
            let slot = words.slot[row] as usize;
            let number = tables[slot * stride + position / BLOCK as usize] as usize;
            let rotated = rotate(&rope, &k, k_dim, &angles);
            for (buffer, dim, expected) in [(&keys, k_dim, &rotated[..]), (&vals, v_dim, v)] {
                let mut bytes = vec![0; block(dim)];
                buffer.read(number * block(dim), &mut bytes)?;
                let mut left = decode(dtype, &bytes);
                for (head, expected) in expected.chunks(dim).enumerate() {
                    let at = (head * BLOCK as usize + position % BLOCK as usize) * dim;
                    worst = worst.max(error(&left[at..at + dim], expected));
                    left[at..at + dim].fill(f64::NAN);
                }
                // Neighbours in a block are written by no other token of these, but for positions 0 and 15.
                if position > 15 && left.iter().any(|x| !x.is_nan()) {
                    worst = f64::INFINITY;
                }
            }
        }
        let text = format!(
            "{} {heads}/{kv_heads}×{k_dim}/{v_dim}, {} from {} {:?}, {}{}",
            dtype.name(),
            rope.rotary,
            rope.start,
            rope.style,
            scaling_name(&rope.scaling),
            if case.norm.is_some() {
                ", heads normalised"
            } else {
                ""
            }
        );
        // Frequencies that depend on the length may differ by one unit in the last place, times the position.
        let computed = matches!(
            rope.scaling,
            RopeScaling::Dynamic { .. } | RopeScaling::DynamicQwen { .. }
        );
        // A value that is rounded the other way before it rotates moves two results.
        let tolerance = match (computed, case.norm) {
            (true, _) => 3e-2,
            (false, None) => rounding(dtype),
            (false, Some(_)) => 4.0 * rounding(dtype),
        };
        Ok(KernelReport::new("rope", text, worst, tolerance))
    }))
}

fn scaling_name(scaling: &RopeScaling) -> String {
    let text = format!("{scaling:?}");
    text.split([' ', '(', '{'])
        .next()
        .unwrap_or_default()
        .to_owned()
}

/// Cosine and sine of each pair of a token, times the scaling's factor.
fn angles(rope: &Rope, words: &Words, token: usize) -> Vec<(f64, f64)> {
    let (found, factor) = frequencies(rope, None);
    let position = words.positions[token];
    let (mut len, mut admitted) = (position as u32 + 1, 0);
    if let Ok(row) = usize::try_from(words.row_of[token]) {
        len = len.max(words.prompt_len[row] as u32);
        admitted = words.admitted_len[row] as u32;
    }
    let frequencies = found.at(len, admitted, rope.rotary as usize);
    let of = |f: &f32| {
        // The product is rounded to f32 on every device.
        let angle = f64::from(position as f32 * f);
        (
            angle.cos() * f64::from(factor),
            angle.sin() * f64::from(factor),
        )
    };
    frequencies.iter().map(of).collect()
}

fn rotate(rope: &Rope, x: &[f64], d: usize, angles: &[(f64, f64)]) -> Vec<f64> {
    let (start, half) = (rope.start as usize, angles.len());
    let mut y = x.to_vec();
    for (x, y) in x.chunks(d).zip(y.chunks_mut(d)) {
        for (i, (cos, sin)) in angles.iter().enumerate() {
            let (a, b) = match rope.style {
                RopeStyle::Neox => (start + i, start + i + half),
                RopeStyle::Interleaved => (start + 2 * i, start + 2 * i + 1),
            };
            y[a] = x[a] * cos - x[b] * sin;
            y[b] = x[b] * cos + x[a] * sin;
        }
    }
    y
}

/// Llama 3's shape, one sequence.
fn large(gpu: &Arc<Gpu>) -> Result<KernelReport> {
    let (rows, dtype) = (LARGE.0, CudaDtype::Bf16);
    let (heads, kv_heads, d) = (32, 8, 128);
    let mut memory = Memory::new(gpu, dtype, rows, 0);
    let merged = memory.noise((heads + 2 * kv_heads) * d);
    let y = memory.output(heads * d, ValueType::Model);
    let stride = rows / BLOCK as usize;
    let tables: Vec<i32> = (0..stride as i32).collect();
    let tables = gpu.upload(bytemuck::cast_slice(&tables), "checking")?;
    let bytes = rows * kv_heads * d * dtype.bytes();
    let (keys, vals) = (
        gpu.allocate(bytes, "checking")?,
        gpu.allocate(bytes, "checking")?,
    );
    let cache = CacheArgs {
        keys: keys.address(),
        values: vals.address(),
        tables: tables.address(),
        table_stride: stride as i32,
        heads: kv_heads as i32,
        k_dim: d as i32,
        v_dim: d as i32,
        block_size: BLOCK as i32,
        blocks: stride as i32,
    };
    let words = Words {
        positions: (0..rows as i32).collect(),
        row_of: vec![0; rows],
        slot: vec![0],
        prompt_len: vec![rows as i32],
        admitted_len: vec![rows as i32],
        ..Words::default()
    };
    let ready = memory.ready(&words, vec![cache])?;
    let rope = rope(d as u32, 0, RopeStyle::Neox, RopeScaling::None);
    let table = RopeTable::new(gpu, &rope, None, Ints::Positions, rows as u32)?;
    let places = Places::new(gpu, &[0], rows as u32)?;
    ready.launch(&table)?;
    ready.launch(&places)?;
    let wq = heads * d;
    let writing = Writing {
        cache: 0,
        places: places.places().remove(0),
        kv_heads,
        k_dim: d,
        v_dim: d,
        values: ValueLayout::Separate,
        block_size: BLOCK,
        k: merged.columns(wq, kv_heads * d),
        v: merged.columns(wq + kv_heads * d, kv_heads * d),
    };
    let rotation = Rotation {
        table: table.table(),
        rotary: d,
        start: 0,
        style: RopeStyle::Neox,
    };
    let spec = RotateSpec {
        rotation: Some(rotation),
        q: Some((merged.columns(0, wq), y, d)),
        write: Some(writing),
        norm: None,
    };
    let instr = Rotate::new(gpu, dtype, spec)?;
    let seconds = ready.time(&instr)?;
    let case = format!("{} {rows} tokens of {heads}/{kv_heads}×{d}", dtype.name());
    let moved = 2 * 2 * rows * (heads + 2 * kv_heads) * d + 4 * rows * d;
    Ok(timed(
        KernelReport::new("rope", case, 0.0, 0.0),
        seconds,
        moved,
    ))
}
