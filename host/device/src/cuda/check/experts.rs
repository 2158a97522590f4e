//! Routing and experts against f64.

use std::borrow::Cow;
use std::sync::Arc;

use guesthouse_graph::{
    Activation, Gate, GateLayout, Route as Choice, RouteGroups, RouteScores, ValueType,
};
use guesthouse_weights::{DType, Scheme, TensorInfo, dequantize};

use super::KernelReport;
use super::memory::{DTYPES, Memory, Pending, Random, Words, error, round, run_together, timed};
use crate::cuda::driver::Gpu;
use crate::cuda::ops::Place;
use crate::cuda::ops::experts::{ExpertMatrix, Experts, ExpertsSpec, down_rows, gate_up_rows};
use crate::cuda::ops::route::Route;
use crate::cuda::options::CudaDtype;
use crate::cuda::weights::stored;
use crate::error::Result;
use crate::weights_eval::HostTensor;

/// Every kind of choice, and layers of few and many rows.
pub(super) fn check(gpu: &Arc<Gpu>, report: &mut dyn FnMut(KernelReport)) -> Result<()> {
    for dtype in DTYPES {
        let routes = choices()
            .into_iter()
            .map(|(experts, choice)| route(gpu, dtype, experts, choice))
            .collect::<Result<Vec<_>>>()?;
        run_together(&format!("route {}", dtype.name()), routes, report)?;
        let layers = layers()
            .into_iter()
            .map(|layer| experts(gpu, dtype, layer))
            .collect::<Result<Vec<_>>>()?;
        run_together(&format!("experts {}", dtype.name()), layers, report)?;
    }
    for scheme in [Storage::Model, Storage::Mxfp4] {
        for rows in [1, 64, 2048] {
            report(large(gpu, scheme, rows)?);
        }
    }
    Ok(())
}

/// Experts and how they are chosen: fewer than a warp, all of them, more than a warp, groups.
fn choices() -> Vec<(usize, Choice)> {
    let plain = Choice {
        top_k: 2,
        scores: RouteScores::Softmax,
        groups: None,
        correction: None,
        renormalize: false,
        scale: 1.0,
    };
    let groups = |count, top, sum_of| Some(RouteGroups { count, top, sum_of });
    vec![
        (8, plain),
        (
            128,
            Choice {
                top_k: 8,
                renormalize: true,
                ..plain
            },
        ),
        (
            5,
            Choice {
                top_k: 5,
                scores: RouteScores::SoftmaxOfChosen,
                ..plain
            },
        ),
        (
            60,
            Choice {
                top_k: 60,
                scale: 0.5,
                ..plain
            },
        ),
        (
            160,
            Choice {
                top_k: 6,
                groups: groups(8, 3, 1),
                scale: 16.0,
                ..plain
            },
        ),
        (
            256,
            Choice {
                top_k: 8,
                scores: RouteScores::Sigmoid,
                groups: groups(8, 4, 2),
                // Stands for a vector made here.
                correction: Some(guesthouse_graph::WeightId(0)),
                renormalize: true,
                scale: 2.5,
            },
        ),
    ]
}

const ROUTED: usize = 9;

fn route(gpu: &Arc<Gpu>, dtype: CudaDtype, experts: usize, choice: Choice) -> Result<Pending> {
    let mut memory = Memory::new(gpu, dtype, ROUTED, 0);
    let mut random = Random::new(experts as u64);
    // Distinct in every type, so that there is one best choice: multiples of 1/64, shuffled.
    let mut values = Vec::new();
    for _ in 0..ROUTED {
        let mut row: Vec<f64> = (0..experts)
            .map(|e| (e as f64 - experts as f64 / 2.0).round() / 64.0)
            .collect();
        for i in (1..experts).rev() {
            row.swap(i, (random.next().abs() * 1e6) as usize % (i + 1));
        }
        values.extend(row);
    }
    let logits = memory.given(experts, ValueType::Model, &values);
    let top_k = choice.top_k as usize;
    let weights = memory.output(top_k, ValueType::F32);
    let ids = memory.output(top_k, ValueType::I32);
    let correction: Vec<f32> = (0..experts).map(|_| 0.3 * random.next() as f32).collect();
    let on_gpu = match choice.correction {
        Some(_) => Some(Arc::new(
            gpu.upload(bytemuck::cast_slice(&correction), "checking")?,
        )),
        None => None,
    };
    let instr = Route::new(gpu, dtype, &choice, on_gpu, (logits, weights, ids))?;
    let ready = memory.ready(&Words::default(), Vec::new())?;
    Ok(Box::new(move || {
        ready.launch(&instr)?;
        let (found_ids, found) = (ready.read(&ids)?, ready.read(&weights)?);
        let correction = choice.correction.map(|_| &correction[..]);
        let (mut ids, mut expected) = (Vec::new(), Vec::new());
        for row in values.chunks(experts) {
            let (i, w) = chosen(&choice, correction, row);
            ids.extend(i);
            expected.extend(w);
        }
        let off = if ids == found_ids {
            error(&found, &expected)
        } else {
            f64::INFINITY
        };
        let case = format!("{} of {experts} by {:?}", choice.top_k, choice.scores);
        Ok(KernelReport::new("moe/route", case, off, 1e-5))
    }))
}

fn chosen(choice: &Choice, correction: Option<&[f32]>, logits: &[f64]) -> (Vec<f64>, Vec<f64>) {
    let scores: Vec<f64> = match choice.scores {
        RouteScores::Softmax => softmax(logits),
        RouteScores::SoftmaxOfChosen => logits.to_vec(),
        RouteScores::Sigmoid => logits.iter().map(|x| 1.0 / (1.0 + (-x).exp())).collect(),
    };
    let merit = |e: &usize| scores[*e] + correction.map_or(0.0, |c| f64::from(c[*e]));
    let sorted = |mut of: Vec<usize>| {
        of.sort_by(|a, b| merit(b).total_cmp(&merit(a)));
        of
    };
    let mut open: Vec<usize> = (0..logits.len()).collect();
    if let Some(g) = choice.groups {
        let size = logits.len() / g.count as usize;
        let total = |group: usize| -> f64 {
            let members = sorted((group * size..(group + 1) * size).collect());
            members.iter().take(g.sum_of as usize).map(merit).sum()
        };
        let mut order: Vec<usize> = (0..g.count as usize).collect();
        order.sort_by(|&a, &b| total(b).total_cmp(&total(a)));
        order.truncate(g.top as usize);
        open.retain(|e| order.contains(&(e / size)));
    }
    let mut ids = sorted(open);
    ids.truncate(choice.top_k as usize);
    let mut weights: Vec<f64> = ids.iter().map(|&e| scores[e]).collect();
    if choice.scores == RouteScores::SoftmaxOfChosen {
        weights = softmax(&weights);
    }
    let sum: f64 = if choice.renormalize {
        weights.iter().sum()
    } else {
        1.0
    };
    let scale = f64::from(choice.scale);
    (
        ids.iter().map(|&e| e as f64).collect(),
        weights.iter().map(|w| w / sum * scale).collect(),
    )
}

fn softmax(x: &[f64]) -> Vec<f64> {
    let max = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let e: Vec<f64> = x.iter().map(|x| (x - max).exp()).collect();
    let sum: f64 = e.iter().sum();
    e.iter().map(|e| e / sum).collect()
}

/// How a layer's weights are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Storage {
    Model,
    Mxfp4,
}

/// Who goes where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Crowd {
    /// Anywhere, all experts of a row distinct.
    Spread,
    /// All rows to the same experts; others have none.
    Same,
    /// Spread, and every third row is padding.
    Padded,
}

#[derive(Clone, Copy, Debug)]
struct Layer {
    rows: usize,
    experts: usize,
    top_k: usize,
    hidden: usize,
    ffn: usize,
    storage: Storage,
    layout: GateLayout,
    gate: Gate,
    bias: bool,
    crowd: Crowd,
}

/// Few and many rows a tile, one row, one expert for all, an expert without rows, all experts, odd widths, padding.
fn layers() -> Vec<Layer> {
    let clamped = Gate::Clamped {
        alpha: 1.702,
        limit: 1.5,
    };
    let one = Layer {
        rows: 1,
        experts: 8,
        top_k: 2,
        hidden: 128,
        ffn: 96,
        storage: Storage::Model,
        layout: GateLayout::Halves,
        gate: Gate::Plain(Activation::Silu),
        bias: false,
        crowd: Crowd::Spread,
    };
    let mut all = Vec::new();
    for storage in [Storage::Model, Storage::Mxfp4] {
        let one = Layer { storage, ..one };
        let gpt = Layer {
            layout: GateLayout::Interleaved,
            gate: clamped,
            bias: true,
            hidden: 160,
            ..one
        };
        all.extend([
            one,
            Layer { rows: 40, ..one },
            Layer {
                rows: 300,
                experts: 7,
                ..one
            },
            Layer {
                rows: 150,
                crowd: Crowd::Same,
                ..one
            },
            Layer {
                rows: 33,
                experts: 5,
                top_k: 5,
                ..gpt
            },
            Layer {
                rows: 200,
                crowd: Crowd::Padded,
                ..gpt
            },
            Layer {
                rows: 17,
                experts: 300,
                top_k: 4,
                hidden: 96,
                ffn: 32,
                gate: Gate::Plain(Activation::GeluTanh),
                ..one
            },
        ]);
    }
    all.extend([
        // Rows that are no whole accesses, and a last block that is not full.
        Layer {
            rows: 19,
            hidden: 45,
            ffn: 27,
            bias: true,
            ..one
        },
        Layer {
            rows: 300,
            hidden: 200,
            ffn: 104,
            ..one
        },
    ]);
    all
}

/// A layer's instruction and what its kernels read, rounded as they read it.
struct Made {
    memory: Memory,
    instr: Experts,
    words: Words,
    y: Place,
    x: Vec<f64>,
    weights: Vec<f64>,
    ids: Vec<i32>,
    up: Vec<f32>,
    down: Vec<f32>,
    up_bias: Vec<f32>,
    down_bias: Vec<f32>,
}

/// Random matrices `[experts, rows, cols]` of about unit results, and their elements.
fn matrices(
    dtype: CudaDtype,
    storage: Storage,
    shape: [usize; 3],
    random: &mut Random,
) -> Result<(HostTensor<'static>, Vec<f32>)> {
    let [experts, rows, cols] = shape;
    let n = experts * rows * cols;
    let size = 1.0 / (cols as f64).sqrt();
    let (scheme, bytes) = match storage {
        Storage::Model => {
            let pattern: Vec<f32> = (0..n.min(1 << 20))
                .map(|_| (size * random.next()) as f32)
                .collect();
            let values: Vec<f32> = pattern.iter().copied().cycle().take(n).collect();
            let scheme = match dtype {
                CudaDtype::F32 => DType::F32,
                CudaDtype::Bf16 => DType::Bf16,
                CudaDtype::F16 => DType::F16,
            };
            (Scheme::Plain(scheme), stored(&values, dtype))
        }
        Storage::Mxfp4 => {
            // Half of the largest magnitude is 3.
            let e = (127.0 + (size / 3.0).log2().round()) as u8;
            let block = |random: &mut Random| {
                let mut block = vec![e - u8::from(random.next() > 0.0)];
                block.extend((0..16).map(|_| (random.next().abs() * 1e6) as u64 as u8));
                block
            };
            let blocks = n / 32;
            let pattern: Vec<u8> = (0..blocks.min(1 << 15))
                .flat_map(|_| block(random))
                .collect();
            let bytes = pattern.iter().copied().cycle().take(blocks * 17).collect();
            (Scheme::Mxfp4, bytes)
        }
    };
    let mut values = vec![0f32; n];
    dequantize(scheme, &bytes, &mut values)?;
    let tensor = HostTensor {
        info: TensorInfo::new(shape, scheme),
        bytes: Cow::Owned(bytes),
    };
    Ok((tensor, values))
}

fn make(gpu: &Arc<Gpu>, dtype: CudaDtype, l: Layer) -> Result<Made> {
    let mut memory = Memory::new(gpu, dtype, l.rows, 0);
    let mut random = Random::new((l.rows * l.hidden + l.experts) as u64);
    let (x, values) = memory.input(l.hidden, ValueType::Model);
    let mut ids = Vec::new();
    for row in 0..l.rows {
        let first = match l.crowd {
            Crowd::Same => 1,
            Crowd::Spread | Crowd::Padded => row * 5 + (random.next().abs() * 1e6) as usize,
        };
        // Neighbours, in an order that is not theirs.
        ids.extend((0..l.top_k).map(|k| ((first + l.top_k - k) % l.experts) as i32));
    }
    let weights: Vec<f64> = (0..l.rows * l.top_k)
        .map(|_| f64::from((0.3 + 0.2 * random.next()) as f32))
        .collect();
    let as_numbers: Vec<f64> = ids.iter().map(|&i| f64::from(i)).collect();
    let weights_place = memory.given(l.top_k, ValueType::F32, &weights);
    let ids_place = memory.given(l.top_k, ValueType::I32, &as_numbers);
    let y = memory.output(l.hidden, ValueType::Model);
    let (up, up_values) = matrices(
        dtype,
        l.storage,
        [l.experts, 2 * l.ffn, l.hidden],
        &mut random,
    )?;
    let (down, down_values) =
        matrices(dtype, l.storage, [l.experts, l.hidden, l.ffn], &mut random)?;
    let mut bias = |n: usize| -> Vec<f32> {
        let of = |random: &mut Random| if l.bias { random.next() as f32 } else { 0.0 };
        (0..l.experts * n).map(|_| of(&mut random)).collect()
    };
    let (up_bias, down_bias) = (bias(2 * l.ffn), bias(l.hidden));
    let given = |b: &Vec<f32>| l.bias.then(|| b.clone());
    let spec = ExpertsSpec {
        experts: l.experts,
        gate: l.gate,
        gate_up: ExpertMatrix::upload(
            gpu,
            dtype,
            &up,
            given(&up_bias).as_deref(),
            &gate_up_rows(l.ffn, l.layout),
        )?,
        down: ExpertMatrix::upload(
            gpu,
            dtype,
            &down,
            given(&down_bias).as_deref(),
            &down_rows(l.hidden),
        )?,
        x,
        weights: weights_place,
        ids: ids_place,
        y,
    };
    let padded = |row: usize| l.crowd == Crowd::Padded && row % 3 == 2;
    let words = Words {
        row_of: (0..l.rows).map(|r| -i32::from(padded(r))).collect(),
        ..Words::default()
    };
    Ok(Made {
        memory,
        instr: Experts::new(gpu, dtype, spec)?,
        words,
        y,
        x: values,
        weights,
        ids,
        up: up_values,
        down: down_values,
        up_bias,
        down_bias,
    })
}

fn experts(gpu: &Arc<Gpu>, dtype: CudaDtype, l: Layer) -> Result<Pending> {
    let made = make(gpu, dtype, l)?;
    let Made {
        memory,
        instr,
        words,
        y,
        ..
    } = made;
    let (x, weights, ids, row_of) = (made.x, made.weights, made.ids, words.row_of.clone());
    let (up, down) = (made.up, made.down);
    let (up_bias, down_bias) = (made.up_bias, made.down_bias);
    let scratch = instr.scratch(l.rows as u32);
    let ready = memory.ready(&words, Vec::new())?.with_scratch(scratch)?;
    Ok(Box::new(move || {
        ready.launch(&instr)?;
        let found = ready.read(&y)?;
        let mut expected = Vec::new();
        for row in 0..l.rows {
            let x = &x[row * l.hidden..(row + 1) * l.hidden];
            let mut sum = vec![0f64; l.hidden];
            for k in 0..l.top_k {
                if row_of[row] < 0 {
                    continue;
                }
                let (e, weight) = (ids[row * l.top_k + k] as usize, weights[row * l.top_k + k]);
                let dot = |w: &[f32], x: &[f64], bias: f32| -> f64 {
                    let dot: f64 = w.iter().zip(x).map(|(w, x)| f64::from(*w) * x).sum();
                    round(dtype, dot + f64::from(bias))
                };
                let at = |r: usize| {
                    let line = e * 2 * l.ffn + r;
                    dot(&up[line * l.hidden..][..l.hidden], x, up_bias[line])
                };
                let inner: Vec<f64> = (0..l.ffn)
                    .map(|i| match l.layout {
                        GateLayout::Halves => gated(dtype, l.gate, at(i), at(l.ffn + i)),
                        GateLayout::Interleaved => gated(dtype, l.gate, at(2 * i), at(2 * i + 1)),
                    })
                    .collect();
                for (c, sum) in sum.iter_mut().enumerate() {
                    let line = e * l.hidden + c;
                    *sum += weight * dot(&down[line * l.ffn..][..l.ffn], &inner, down_bias[line]);
                }
            }
            expected.extend(sum.iter().map(|&s| round(dtype, s)));
        }
        let case = format!(
            "{} rows {} of {} experts {}x{} {:?} {:?} {:?}",
            l.rows, l.top_k, l.experts, l.hidden, l.ffn, l.storage, l.layout, l.crowd
        );
        Ok(KernelReport::new(
            "moe/experts",
            case,
            error(&found, &expected),
            tolerance(dtype),
        ))
    }))
}

/// Several roundings meet: of gate, up, their product, the results and the sum.
fn tolerance(dtype: CudaDtype) -> f64 {
    match dtype {
        CudaDtype::F32 => 2e-5,
        CudaDtype::Bf16 => 1.5 / 128.0,
        CudaDtype::F16 => 1.5 / 1024.0,
    }
}

fn gated(dtype: CudaDtype, gate: Gate, g: f64, u: f64) -> f64 {
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    round(
        dtype,
        match gate {
            Gate::Clamped { alpha, limit } => {
                let limit = f64::from(limit);
                let (g, u) = (g.min(limit), u.clamp(-limit, limit));
                g * sigmoid(f64::from(alpha) * g) * (u + 1.0)
            }
            Gate::Plain(Activation::GeluTanh) => {
                let inner = (2.0 / std::f64::consts::PI).sqrt() * (g + 0.044_715 * g.powi(3));
                round(dtype, 0.5 * g * (1.0 + inner.tanh())) * u
            }
            Gate::Plain(_) => round(dtype, g * sigmoid(g)) * u,
        },
    )
}

/// Time of a layer like Qwen3-30B-A3B's, or in MXFP4 like gpt-oss-20b's.
fn large(gpu: &Arc<Gpu>, storage: Storage, rows: usize) -> Result<KernelReport> {
    let (experts, top_k, hidden, ffn) = match storage {
        Storage::Model => (128, 8, 2048, 768),
        Storage::Mxfp4 => (32, 4, 2880, 2880),
    };
    let layer = Layer {
        rows,
        experts,
        top_k,
        hidden,
        ffn,
        storage,
        layout: GateLayout::Halves,
        gate: Gate::Plain(Activation::Silu),
        bias: false,
        crowd: Crowd::Spread,
    };
    let dtype = CudaDtype::Bf16;
    let Made {
        memory,
        instr,
        words,
        ids,
        ..
    } = make(gpu, dtype, layer)?;
    let scratch = instr.scratch(rows as u32);
    let ready = memory.ready(&words, Vec::new())?.with_scratch(scratch)?;
    let seconds = ready.time(&instr)?;
    let read = ids.iter().collect::<std::collections::BTreeSet<_>>().len();
    let elements = 3 * hidden * ffn;
    let bytes = match storage {
        Storage::Model => 2 * elements,
        Storage::Mxfp4 => elements / 32 * 17,
    };
    let case = format!("{rows} rows {top_k} of {experts} experts {hidden}x{ffn} {storage:?}");
    let mut found = timed(
        KernelReport::new("moe/experts", case, 0.0, 1.0),
        seconds,
        read * bytes,
    );
    found.flops = Some(2.0 * (rows * top_k * elements) as f64);
    Ok(found)
}
