//! Recurrent layers against f64: two steps over the same states, so that what a step leaves is read by the next.

use std::sync::Arc;

use guesthouse_graph::{Activation, ValueType};

use super::KernelReport;
use super::memory::{
    DTYPES, Memory, Pending, Random, Words, error, round, rounding, run_together, timed,
};
use crate::cuda::driver::{Buffer, Gpu};
use crate::cuda::ops::recurrent::{CausalConv, ConvSpec, DeltaRule, DeltaSpec, StateSpec};
use crate::cuda::ops::{CacheArgs, Instr, Place};
use crate::cuda::options::CudaDtype;
use crate::cuda::weights::stored;
use crate::error::Result;

/// Slots, and entries of a line of the block tables.
const SLOTS: usize = 4;
const TABLE_STRIDE: usize = 4;

/// (slot, first position, tokens) of each row of two steps: prompts, then a prompt that goes on and single tokens.
const STEPS: [&[(usize, usize, usize)]; 2] = [
    &[(0, 0, 3), (2, 0, 70), (3, 0, 1)],
    &[(3, 1, 1), (0, 3, 20), (2, 70, 1)],
];

/// Rounding of f32 sums over a key and some tokens, as a share of the largest result.
const SUMS: f64 = 3e-5;

/// Every kernel and type, and the delta rule at the size of Qwen3-Next with its bandwidth.
pub(super) fn check(gpu: &Arc<Gpu>, report: &mut dyn FnMut(KernelReport)) -> Result<()> {
    let mut groups = Vec::new();
    for dtype in DTYPES {
        let mut convolutions = Vec::new();
        for (channels, taps, bias) in [(200, 4, false), (64, 2, true), (7, 50, true)] {
            convolutions.push(convolution(gpu, dtype, (channels, taps), bias)?);
        }
        let mut rules = Vec::new();
        for (heads, k, v) in [(2, 128, 128), (3, 9, 13), (1, 256, 40)] {
            for ty in [ValueType::Model, ValueType::F32] {
                rules.push(rule(gpu, dtype, ty, (heads, k, v))?);
            }
        }
        groups.extend([convolutions, rules].map(|cases| (dtype.name(), cases)));
    }
    for (what, cases) in groups {
        run_together(what, cases, report)?;
    }
    report(speed(gpu, "64 sequences, a token each", 64, 1)?);
    report(speed(gpu, "1 sequence, 2048 tokens", 1, 2048)?);
    Ok(())
}

/// States of a layer, every byte 0xff: what a sequence begins with must not be read.
struct Layer {
    states: Buffer,
    tables: Buffer,
    spec: StateSpec,
}

impl Layer {
    fn new(gpu: &Arc<Gpu>, floats: usize, slots: usize) -> Result<Self> {
        let stride = floats.next_multiple_of(4);
        let mut lines = vec![0i32; slots * TABLE_STRIDE];
        for (slot, line) in lines.chunks_mut(TABLE_STRIDE).enumerate() {
            line[0] = (slots - 1 - slot) as i32;
        }
        Ok(Self {
            states: gpu.upload(&vec![0xff; 4 * stride * slots], "checking")?,
            tables: gpu.upload(bytemuck::cast_slice(&lines), "checking")?,
            spec: StateSpec { cache: 0, stride },
        })
    }

    fn args(&self) -> Vec<CacheArgs> {
        vec![CacheArgs {
            keys: self.states.address(),
            values: 0,
            tables: self.tables.address(),
            table_stride: TABLE_STRIDE as i32,
            heads: 0,
            k_dim: 0,
            v_dim: 0,
            block_size: 16,
            blocks: 0,
        }]
    }
}

/// What describes these rows, and one of padding.
fn words(rows: &[(usize, usize, usize)]) -> Words {
    let mut words = Words::default();
    let mut token = 0;
    for (row, &(slot, start, len)) in rows.iter().enumerate() {
        words.first.push(token);
        words.kv_len.push((start + len) as i32);
        words.slot.push(slot as i32);
        words
            .positions
            .extend((start..start + len).map(|p| p as i32));
        words.row_of.extend(std::iter::repeat_n(row as i32, len));
        token += len as i32;
    }
    words.first.extend([token, token]);
    words.kv_len.push(0);
    words.slot.push(0);
    words.positions.push(0);
    words.row_of.push(-1);
    words
}

fn tokens(rows: &[(usize, usize, usize)]) -> usize {
    rows.iter().map(|r| r.2).sum()
}

/// Elements of each sequence's tokens, `[positions, width]` by slot.
type Sequences = Vec<Vec<f64>>;

/// Those that a step's rows have, with a padding token of NaN.
fn of_step(all: &Sequences, rows: &[(usize, usize, usize)], width: usize) -> Vec<f64> {
    let mut out = Vec::new();
    for &(slot, start, len) in rows {
        out.extend_from_slice(&all[slot][start * width..(start + len) * width]);
    }
    out.extend(std::iter::repeat_n(f64::NAN, width));
    out
}

/// Random elements for every position of both steps.
fn random(width: usize, seed: u64, element: impl Fn(f64) -> f64) -> Sequences {
    let mut random = Random::new(seed);
    let len = |slot: usize| {
        let rows = STEPS.iter().flat_map(|s| s.iter());
        rows.filter(|r| r.0 == slot).map(|r| r.2).sum::<usize>()
    };
    (0..SLOTS)
        .map(|slot| {
            (0..len(slot) * width)
                .map(|_| element(random.next()))
                .collect()
        })
        .collect()
}

/// Makes an instruction of a step's inputs and result.
type Make<'a> = &'a dyn Fn(&[Place], Place) -> Result<Box<dyn Instr>>;

/// Runs an instruction, made anew from each step's places, over both steps; the worst error of its results.
fn run(
    gpu: &Arc<Gpu>,
    dtype: CudaDtype,
    layer: &Layer,
    inputs: &[(usize, ValueType, &Sequences)],
    (width, ty, expected): (usize, ValueType, &Sequences),
    instr: Make<'_>,
) -> Result<f64> {
    let mut worst = 0f64;
    for rows in STEPS {
        let mut memory = Memory::new(gpu, dtype, tokens(rows) + 1, 0);
        let places: Vec<Place> = inputs
            .iter()
            .map(|(width, ty, all)| memory.given(*width, *ty, &of_step(all, rows, *width)))
            .collect();
        let y = memory.output(width, ty);
        let ready = memory.ready(&words(rows), layer.args())?;
        ready.launch(instr(&places, y)?.as_ref())?;
        worst = worst.max(error(&ready.read(&y)?, &of_step(expected, rows, width)));
    }
    Ok(worst)
}

fn convolution(
    gpu: &Arc<Gpu>,
    dtype: CudaDtype,
    (channels, taps): (usize, usize),
    bias: bool,
) -> Result<Pending> {
    let mut noise = Random::new(7);
    let mut weights = |n: usize| -> Vec<f64> {
        (0..n)
            .map(|_| round(CudaDtype::F32, 0.5 * noise.next()))
            .collect()
    };
    let (w, b) = (weights(channels * taps), weights(channels));
    let upload = |x: &[f64]| {
        let floats: Vec<f32> = x.iter().map(|&x| x as f32).collect();
        gpu.upload(&stored(&floats, CudaDtype::F32), "checking")
            .map(Arc::new)
    };
    let (weight, bias) = (upload(&w)?, bias.then(|| upload(&b)).transpose()?);
    let x = random(channels, 11, |x| round(dtype, 1.5 * x));
    let expected: Sequences = x
        .iter()
        .map(|x| {
            let at = |t: usize, c: usize| {
                let terms = (0..taps.min(t + 1))
                    .map(|back| x[(t - back) * channels + c] * w[c * taps + taps - 1 - back]);
                let y = terms.sum::<f64>() + if bias.is_some() { b[c] } else { 0.0 };
                y / (1.0 + (-y).exp())
            };
            (0..x.len())
                .map(|i| at(i / channels, i % channels))
                .collect()
        })
        .collect();
    let layer = Layer::new(gpu, (taps - 1) * channels, SLOTS)?;
    let gpu = Arc::clone(gpu);
    Ok(Box::new(move || {
        let model = ValueType::Model;
        let instr = |x: &[Place], y: Place| -> Result<Box<dyn Instr>> {
            let spec = ConvSpec {
                weight: Arc::clone(&weight),
                bias: bias.clone(),
                activation: Some(Activation::Silu),
                state: layer.spec,
                taps,
                x: x[0],
                y,
            };
            Ok(Box::new(CausalConv::new(&gpu, dtype, spec)?))
        };
        let inputs = [(channels, model, &x)];
        let worst = run(
            &gpu,
            dtype,
            &layer,
            &inputs,
            (channels, model, &expected),
            &instr,
        )?;
        let case = format!("{} {channels} channels, {taps} positions", dtype.name());
        Ok(KernelReport::new(
            "recurrent/conv",
            case,
            worst,
            rounding(dtype) + SUMS,
        ))
    }))
}

fn rule(
    gpu: &Arc<Gpu>,
    dtype: CudaDtype,
    ty: ValueType,
    (heads, k, v): (usize, usize, usize),
) -> Result<Pending> {
    let value = if ty == ValueType::F32 {
        CudaDtype::F32
    } else {
        dtype
    };
    // Keys about as long as 1, a decay of 0.5 to 1, a step size of 0 to 1.
    let short = 1.0 / (k as f64).sqrt();
    let f32 = |x: f64| round(CudaDtype::F32, x);
    let all: [Sequences; 5] = [
        random(heads * k, 1, |x| round(value, x)),
        random(heads * k, 2, |x| round(value, short * x)),
        random(heads * v, 3, |x| round(value, x)),
        random(heads, 4, |x| f32(-0.2 * x.abs())),
        random(heads, 5, |x| f32(1.0 / (1.0 + (-x).exp()))),
    ];
    let scale = 0.25f32;
    let expected = (0..SLOTS)
        .map(|slot| {
            let one = [0, 1, 2, 3, 4].map(|i| all[i][slot].as_slice());
            delta_rule(one, (heads, k, v), f64::from(scale))
        })
        .collect();
    let layer = Layer::new(gpu, heads * k * v, SLOTS)?;
    let gpu = Arc::clone(gpu);
    Ok(Box::new(move || {
        let instr = |x: &[Place], y: Place| -> Result<Box<dyn Instr>> {
            let spec = DeltaSpec {
                scale,
                state: layer.spec,
                heads,
                dims: (k, v),
                inputs: [x[0], x[1], x[2], x[3], x[4]],
                y,
            };
            let rule = DeltaRule::new(&gpu, dtype, spec)?;
            let rule = rule.ok_or_else(|| crate::error::DeviceError::plan("a key is too long"))?;
            Ok(Box::new(rule))
        };
        let widths = [heads * k, heads * k, heads * v, heads, heads];
        let types = [ty, ty, ty, ValueType::F32, ValueType::F32];
        let inputs: Vec<_> = (0..5).map(|i| (widths[i], types[i], &all[i])).collect();
        let worst = run(
            &gpu,
            dtype,
            &layer,
            &inputs,
            (heads * v, ty, &expected),
            &instr,
        )?;
        let case = format!("{} {heads} heads of {k}×{v} {ty:?}", dtype.name());
        Ok(KernelReport::new(
            "recurrent/delta",
            case,
            worst,
            rounding(value) + SUMS,
        ))
    }))
}

/// One sequence, as the paper writes it: `S ← S e^g (I − beta k kᵀ) + beta v kᵀ`, `y = scale S q`, with `S [v, k]`.
fn delta_rule(
    [q, k, v, g, beta]: [&[f64]; 5],
    (heads, dk, dv): (usize, usize, usize),
    scale: f64,
) -> Vec<f64> {
    let tokens = g.len() / heads;
    let mut y = vec![0.0; tokens * heads * dv];
    for head in 0..heads {
        let mut state = vec![0.0; dv * dk];
        for t in 0..tokens {
            let at = t * heads + head;
            let (q, k) = (&q[at * dk..][..dk], &k[at * dk..][..dk]);
            let (decay, beta) = (g[at].exp(), beta[at]);
            for (i, row) in state.chunks_mut(dk).enumerate() {
                let along: f64 = row.iter().zip(k).map(|(s, k)| s * k).sum();
                let v = v[at * dv + i];
                for (s, k) in row.iter_mut().zip(k) {
                    *s = decay * (*s - beta * along * k) + beta * v * k;
                }
                y[at * dv + i] = scale * row.iter().zip(q).map(|(s, q)| s * q).sum::<f64>();
            }
        }
    }
    y
}

/// 32 heads of 128 × 128 in bf16; the bytes are those of states, read and written.
fn speed(gpu: &Arc<Gpu>, what: &str, rows: usize, len: usize) -> Result<KernelReport> {
    let (heads, d) = (32, 128);
    let dtype = CudaDtype::Bf16;
    let mut memory = Memory::new(gpu, dtype, rows * len + 1, 0);
    let [q, k, v] = [(); 3].map(|()| memory.noise(heads * d));
    let (g, _) = memory.input(heads, ValueType::F32);
    let (beta, _) = memory.input(heads, ValueType::F32);
    let y = memory.output(heads * d, ValueType::Model);
    let layer = Layer::new(gpu, heads * d * d, rows)?;
    let list: Vec<_> = (0..rows).map(|slot| (slot, 16, len)).collect();
    let spec = DeltaSpec {
        scale: 0.1,
        state: layer.spec,
        heads,
        dims: (d, d),
        inputs: [q, k, v, g, beta],
        y,
    };
    let rule = DeltaRule::new(gpu, dtype, spec)?;
    let rule = rule.ok_or_else(|| crate::error::DeviceError::plan("a key is too long"))?;
    let seconds = memory.ready(&words(&list), layer.args())?.time(&rule)?;
    let report = KernelReport::new(
        "recurrent/delta",
        format!("bf16 32×128×128, {what}"),
        0.0,
        0.0,
    );
    Ok(timed(report, seconds, 2 * 4 * rows * heads * d * d))
}
