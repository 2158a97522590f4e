//! Norms against f64.

use std::sync::Arc;

use guesthouse_graph::{NormRounding, ValueType};

use super::KernelReport;
use super::memory::{
    DTYPES, LARGE, Memory, Pending, Random, Words, error, round, rounding, run_together, timed,
};
use crate::cuda::driver::{Buffer, Gpu};
use crate::cuda::ops::norm::{Norm, NormKind, NormSpec, NormWeights};
use crate::cuda::options::CudaDtype;
use crate::cuda::weights::{VectorType, stored};
use crate::error::Result;

const EPS: f32 = 1e-5;

/// One shape.
#[derive(Clone, Copy)]
struct Case {
    rows: usize,
    vectors: usize,
    d: usize,
    residual: bool,
    per_vector: bool,
    ty: ValueType,
}

/// A wide row with a residual, heads, heads with weights of their own, an odd length, one element, f32 beside 16 bits.
const CASES: [Case; 6] = [
    Case::new(3, 1, 4096).residual(),
    Case::new(7, 5, 128),
    Case::new(7, 3, 64).per_vector(),
    Case::new(5, 2, 37),
    Case::new(2, 1, 1),
    Case::new(4, 1, 5120).residual().f32(),
];

impl Case {
    const fn new(rows: usize, vectors: usize, d: usize) -> Self {
        Self {
            rows,
            vectors,
            d,
            residual: false,
            per_vector: false,
            ty: ValueType::Model,
        }
    }

    const fn residual(mut self) -> Self {
        self.residual = true;
        self
    }

    const fn per_vector(mut self) -> Self {
        self.per_vector = true;
        self
    }

    const fn f32(mut self) -> Self {
        self.ty = ValueType::F32;
        self
    }
}

const KINDS: [(&str, NormKind); 4] = [
    (
        "norm/rms",
        NormKind::Rms {
            offset: 0.0,
            rounding: NormRounding::CastThenWeight,
        },
    ),
    (
        "norm/rms",
        NormKind::Rms {
            offset: 1.0,
            rounding: NormRounding::WeightThenCast,
        },
    ),
    ("norm/layer", NormKind::Layer),
    ("norm/l2", NormKind::L2),
];

/// Every kind and type over the cases, and a large one with its bandwidth.
pub(super) fn check(gpu: &Arc<Gpu>, report: &mut dyn FnMut(KernelReport)) -> Result<()> {
    let mut groups = Vec::new();
    for dtype in DTYPES {
        for (name, kind) in KINDS {
            let cases = CASES.map(|case| one(gpu, dtype, name, kind, case));
            let cases = cases.into_iter().collect::<Result<Vec<_>>>()?;
            groups.push((dtype.name(), cases));
        }
    }
    for (what, cases) in groups {
        run_together(what, cases, report)?;
    }
    report(large(gpu)?);
    Ok(())
}

/// Random weights of the model's type, and their values.
fn weights(
    gpu: &Arc<Gpu>,
    dtype: CudaDtype,
    len: usize,
    seed: u64,
) -> Result<(Arc<Buffer>, Vec<f64>)> {
    let mut random = Random::new(seed);
    let values: Vec<f64> = (0..len)
        .map(|_| round(dtype, 0.5 * random.next()))
        .collect();
    let floats: Vec<f32> = values.iter().map(|&x| x as f32).collect();
    let buffer = gpu.upload(&stored(&floats, dtype), "checking")?;
    Ok((Arc::new(buffer), values))
}

fn one(
    gpu: &Arc<Gpu>,
    dtype: CudaDtype,
    name: &'static str,
    kind: NormKind,
    case: Case,
) -> Result<Pending> {
    let Case {
        rows, vectors, d, ..
    } = case;
    let width = vectors * d;
    let value = if case.ty == ValueType::F32 {
        CudaDtype::F32
    } else {
        dtype
    };
    let mut memory = Memory::new(gpu, dtype, rows, 0);
    let (x, mut values) = memory.input(width, case.ty);
    let (r, residual) = memory.input(width, case.ty);
    let (sum, y) = (memory.output(width, case.ty), memory.output(width, case.ty));
    let count = if case.per_vector { width } else { d };
    let (weight, w) = weights(gpu, dtype, count, 3)?;
    let (bias, b) = weights(gpu, dtype, count, 5)?;
    let weighted = kind != NormKind::L2;
    let spec = NormSpec {
        kind,
        eps: EPS,
        d,
        weights: NormWeights {
            weight: weighted.then_some(weight),
            bias: (kind == NormKind::Layer).then_some(bias),
            per_vector: case.per_vector,
        },
        weight_type: VectorType::Model,
        x,
        residual: case.residual.then_some((r, sum)),
        y,
        dtype,
    };
    let ready = memory.ready(&Words::default(), Vec::new())?;
    let norm = Norm::new(gpu, spec)?;
    Ok(Box::new(move || {
        ready.launch(&norm)?;
        let mut worst = 0f64;
        if case.residual {
            for (x, r) in values.iter_mut().zip(&residual) {
                *x = round(value, *x + r);
            }
            worst = error(&ready.read(&sum)?, &values);
        }
        let expected: Vec<f64> = values
            .chunks(d)
            .enumerate()
            .flat_map(|(vector, x)| {
                let first = if case.per_vector {
                    vector % vectors * d
                } else {
                    0
                };
                normalise(kind, value, x, &w[first..first + d], &b[first..first + d])
            })
            .collect();
        worst = worst.max(error(&ready.read(&y)?, &expected));
        let add = if case.residual { " + residual" } else { "" };
        let text = format!("{} {rows}×{vectors}×{d}{add} {:?}", dtype.name(), case.ty);
        Ok(KernelReport::new(name, text, worst, 2.0 * rounding(value)))
    }))
}

fn normalise(kind: NormKind, value: CudaDtype, x: &[f64], w: &[f64], b: &[f64]) -> Vec<f64> {
    let d = x.len() as f64;
    let mean = match kind {
        NormKind::Layer => x.iter().sum::<f64>() / d,
        NormKind::Rms { .. } | NormKind::L2 => 0.0,
    };
    let squares: f64 = x.iter().map(|x| (x - mean).powi(2)).sum();
    let divisor = match kind {
        NormKind::L2 => squares + f64::from(EPS),
        NormKind::Rms { .. } | NormKind::Layer => squares / d + f64::from(EPS),
    };
    let factor = divisor.sqrt().recip();
    x.iter()
        .zip(w)
        .zip(b)
        .map(|((x, w), b)| {
            let y = (x - mean) * factor;
            match kind {
                NormKind::L2 => y,
                NormKind::Layer => y * w + b,
                NormKind::Rms { offset, rounding } => {
                    let y = match rounding {
                        NormRounding::CastThenWeight => round(value, y),
                        NormRounding::WeightThenCast => y,
                    };
                    y * (w + f64::from(offset))
                }
            }
        })
        .collect()
}

fn large(gpu: &Arc<Gpu>) -> Result<KernelReport> {
    let (rows, d) = LARGE;
    let dtype = CudaDtype::Bf16;
    let mut memory = Memory::new(gpu, dtype, rows, 0);
    let values = [(); 4].map(|()| memory.noise(d));
    let (weight, _) = weights(gpu, dtype, d, 3)?;
    let spec = NormSpec {
        kind: KINDS[0].1,
        eps: EPS,
        d,
        weights: NormWeights {
            weight: Some(weight),
            bias: None,
            per_vector: false,
        },
        weight_type: VectorType::Model,
        x: values[0],
        residual: Some((values[1], values[2])),
        y: values[3],
        dtype,
    };
    let norm = Norm::new(gpu, spec)?;
    let seconds = memory.ready(&Words::default(), Vec::new())?.time(&norm)?;
    let case = format!("{} {rows}×{d} + residual", dtype.name());
    Ok(timed(
        KernelReport::new("norm/rms", case, 0.0, 0.0),
        seconds,
        4 * 2 * rows * d,
    ))
}
