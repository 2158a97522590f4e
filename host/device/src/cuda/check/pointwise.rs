//! Element-wise kernels against f64.

use std::sync::Arc;

use guesthouse_graph::{Activation, Gate, GateLayout, ValueType};

use super::KernelReport;
use super::memory::{
    DTYPES, LARGE, Memory, Pending, Words, error, round, rounding, run_together, timed,
};
use crate::cuda::driver::Gpu;
use crate::cuda::ops::input::Ints;
use crate::cuda::ops::pointwise::{Binary, GateInput, Gated, LogNScale, Map, Spread, Unary, Zip};
use crate::cuda::options::CudaDtype;
use crate::error::{DeviceError, Result};

const ACTIVATIONS: [Activation; 10] = [
    Activation::Silu,
    Activation::Gelu,
    Activation::GeluTanh,
    Activation::QuickGelu,
    Activation::Relu,
    Activation::Relu2,
    Activation::Sigmoid,
    Activation::Tanh,
    Activation::Softplus,
    Activation::Exp,
];

/// A width of whole accesses, and an odd one.
const WIDTHS: [usize; 2] = [4096, 77];

const ROWS: usize = 3;

/// Every function, type and path.
pub(super) fn check(gpu: &Arc<Gpu>, report: &mut dyn FnMut(KernelReport)) -> Result<()> {
    let mut groups = Vec::new();
    for dtype in DTYPES {
        let (mut maps, mut gateds, mut zips, mut logns) =
            (vec![casts(gpu, dtype)?], vec![], vec![], vec![]);
        for width in WIDTHS {
            let others = [
                Unary::Scale(0.7),
                Unary::Clamp(-1.5, 1.0),
                Unary::SoftCap(2.0),
                Unary::Copy,
            ];
            for function in ACTIVATIONS.map(Unary::Activation).into_iter().chain(others) {
                maps.push(map(gpu, dtype, function, width)?);
            }
            for layout in [
                None,
                Some(GateLayout::Halves),
                Some(GateLayout::Interleaved),
            ] {
                for gate in gates() {
                    gateds.push(gated(gpu, dtype, gate, layout, width)?);
                }
            }
            logns.push(logn(gpu, dtype, width)?);
        }
        for function in [Binary::Add, Binary::Mul] {
            for (a, b) in shapes() {
                zips.push(zip(gpu, dtype, function, a, b)?);
            }
        }
        groups.extend([maps, gateds, zips, logns].map(|cases| (dtype.name(), cases)));
    }
    for (what, cases) in groups {
        run_together(what, cases, report)?;
    }
    report(large(gpu)?);
    Ok(())
}

fn gates() -> [Gate; 3] {
    [
        Gate::Plain(Activation::Silu),
        Gate::Plain(Activation::GeluTanh),
        Gate::Clamped {
            alpha: 1.702,
            limit: 1.5,
        },
    ]
}

/// Equal, one number, repeated along the last, the first, the middle and both outer dimensions.
fn shapes() -> [(&'static [usize], &'static [usize]); 7] {
    [
        (&[4096], &[4096]),
        (&[77], &[77]),
        (&[4096], &[1]),
        (&[8, 64], &[8, 1]),
        (&[8, 64], &[1, 64]),
        (&[3, 5, 7], &[3, 1, 7]),
        (&[3, 5, 7], &[1, 5, 1]),
    ]
}

fn activate(a: Activation, x: f64) -> f64 {
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    match a {
        Activation::Silu => x * sigmoid(x),
        Activation::Gelu => 0.5 * x * (1.0 + erf(x / std::f64::consts::SQRT_2)),
        Activation::GeluTanh => {
            let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x.powi(3));
            0.5 * x * (1.0 + inner.tanh())
        }
        Activation::QuickGelu => x * sigmoid(1.702 * x),
        Activation::Relu => x.max(0.0),
        Activation::Relu2 => x.max(0.0).powi(2),
        Activation::Sigmoid => sigmoid(x),
        Activation::Tanh => x.tanh(),
        Activation::Softplus => x.max(0.0) + (-x.abs()).exp().ln_1p(),
        Activation::Exp => x.exp(),
    }
}

/// The error function by its series, which converges for the small arguments of these checks.
fn erf(x: f64) -> f64 {
    let (mut term, mut sum) = (x, x);
    for n in 1..200 {
        term *= -x * x / f64::from(n);
        sum += term / f64::from(2 * n + 1);
    }
    std::f64::consts::FRAC_2_SQRT_PI * sum
}

fn map(gpu: &Arc<Gpu>, dtype: CudaDtype, function: Unary, width: usize) -> Result<Pending> {
    let mut memory = Memory::new(gpu, dtype, ROWS, 0);
    let (x, values) = memory.input(width, ValueType::Model);
    let y = memory.output(width, ValueType::Model);
    let ready = memory.ready(&Words::default(), Vec::new())?;
    let instr = Map::new(gpu, dtype, function, x, y)?;
    Ok(Box::new(move || {
        ready.launch(&instr)?;
        let expected: Vec<f64> = values
            .iter()
            .map(|&x| match function {
                Unary::Activation(a) => activate(a, x),
                Unary::Scale(by) => f64::from(by) * x,
                Unary::Clamp(low, high) => x.clamp(low.into(), high.into()),
                Unary::SoftCap(cap) => f64::from(cap) * (x / f64::from(cap)).tanh(),
                Unary::Copy => x,
            })
            .collect();
        let case = format!("{} {function:?} {ROWS}×{width}", dtype.name());
        Ok(KernelReport::new(
            "pointwise/map",
            case,
            error(&ready.read(&y)?, &expected),
            rounding(dtype),
        ))
    }))
}

/// To f32 and back.
fn casts(gpu: &Arc<Gpu>, dtype: CudaDtype) -> Result<Pending> {
    let width = 520;
    let mut memory = Memory::new(gpu, dtype, ROWS, 0);
    let (x, values) = memory.input(width, ValueType::Model);
    let (wide, fine) = memory.input(width, ValueType::F32);
    let y = memory.output(width, ValueType::F32);
    let back = memory.output(width, ValueType::Model);
    let ready = memory.ready(&Words::default(), Vec::new())?;
    let forth_instr = Map::new(gpu, dtype, Unary::Copy, x, y)?;
    let back_instr = Map::new(gpu, dtype, Unary::Copy, wide, back)?;
    Ok(Box::new(move || {
        ready.launch(&forth_instr)?;
        ready.launch(&back_instr)?;
        let rounded: Vec<f64> = fine.iter().map(|&x| round(dtype, x)).collect();
        let worst = error(&ready.read(&y)?, &values).max(error(&ready.read(&back)?, &rounded));
        let case = format!("{} to f32 and back {ROWS}×{width}", dtype.name());
        Ok(KernelReport::new("pointwise/map", case, worst, 0.0))
    }))
}

fn gated(
    gpu: &Arc<Gpu>,
    dtype: CudaDtype,
    gate: Gate,
    layout: Option<GateLayout>,
    width: usize,
) -> Result<Pending> {
    let mut memory = Memory::new(gpu, dtype, ROWS, 0);
    let (input, pairs) = match layout {
        None => {
            let (g, gates) = memory.input(width, ValueType::Model);
            let (u, ups) = memory.input(width, ValueType::Model);
            (
                GateInput::Pair(g, u),
                gates.into_iter().zip(ups).collect::<Vec<_>>(),
            )
        }
        Some(layout) => {
            let (x, values) = memory.input(2 * width, ValueType::Model);
            let pair = |row: &[f64], i: usize| match layout {
                GateLayout::Halves => (row[i], row[width + i]),
                GateLayout::Interleaved => (row[2 * i], row[2 * i + 1]),
            };
            let rows = values.chunks(2 * width);
            let pairs = rows.flat_map(|row| (0..width).map(move |i| pair(row, i)));
            (GateInput::Merged(x, layout), pairs.collect())
        }
    };
    let y = memory.output(width, ValueType::Model);
    let ready = memory.ready(&Words::default(), Vec::new())?;
    let instr = Gated::new(gpu, dtype, gate, input, y)?;
    Ok(Box::new(move || {
        ready.launch(&instr)?;
        let expected: Vec<f64> = pairs
            .iter()
            .map(|&(g, u)| match gate {
                Gate::Plain(a) => round(dtype, activate(a, g)) * u,
                Gate::Clamped { alpha, limit } => {
                    let limit = f64::from(limit);
                    let (g, u) = (g.min(limit), u.clamp(-limit, limit));
                    g / (1.0 + (-f64::from(alpha) * g).exp()) * (u + 1.0)
                }
            })
            .collect();
        let case = format!("{} {gate:?} {layout:?} {ROWS}×{width}", dtype.name());
        Ok(KernelReport::new(
            "pointwise/gated",
            case,
            error(&ready.read(&y)?, &expected),
            2.0 * rounding(dtype),
        ))
    }))
}

fn zip(
    gpu: &Arc<Gpu>,
    dtype: CudaDtype,
    function: Binary,
    a: &'static [usize],
    b: &'static [usize],
) -> Result<Pending> {
    let (width_a, width_b) = (a.iter().product(), b.iter().product());
    let mut memory = Memory::new(gpu, dtype, ROWS, 0);
    let (x, left) = memory.input(width_a, ValueType::Model);
    let (z, right) = memory.input(width_b, ValueType::Model);
    let y = memory.output(width_a, ValueType::Model);
    let ready = memory.ready(&Words::default(), Vec::new())?;
    let case = format!("{} {function:?} {a:?} with {b:?}", dtype.name());
    let Some(spread) = Spread::new(a, b) else {
        return Err(DeviceError::plan(case));
    };
    let instr = Zip::new(gpu, dtype, function, (x, z, y), spread)?;
    Ok(Box::new(move || {
        ready.launch(&instr)?;
        let expected: Vec<f64> = (0..ROWS * width_a)
            .map(|i| {
                let (row, at) = (i / width_a, i % width_a);
                let p = left[i];
                let q = right[row * width_b + index(a, b, at)];
                match function {
                    Binary::Add => p + q,
                    Binary::Mul => p * q,
                }
            })
            .collect();
        Ok(KernelReport::new(
            "pointwise/zip",
            case,
            error(&ready.read(&y)?, &expected),
            rounding(dtype),
        ))
    }))
}

/// Element of b that meets element `at` of a.
fn index(a: &[usize], b: &[usize], at: usize) -> usize {
    let (mut rest, mut step, mut from) = (at, 1, 0);
    for (&n, &m) in a.iter().zip(b).rev() {
        from += if m == 1 { 0 } else { rest % n * step };
        rest /= n;
        step *= m;
    }
    if b == [1] { 0 } else { from }
}

fn logn(gpu: &Arc<Gpu>, dtype: CudaDtype, width: usize) -> Result<Pending> {
    let mut memory = Memory::new(gpu, dtype, ROWS, 0);
    let (x, values) = memory.input(width, ValueType::Model);
    let y = memory.output(width, ValueType::Model);
    let positions = vec![5, 2048, 131_071];
    let words = Words {
        positions: positions.clone(),
        ..Words::default()
    };
    let ready = memory.ready(&words, Vec::new())?;
    let instr = LogNScale::new(gpu, dtype, 2048, (x, Ints::Positions, y))?;
    Ok(Box::new(move || {
        ready.launch(&instr)?;
        let expected: Vec<f64> = values
            .chunks(width)
            .zip(&positions)
            .flat_map(|(x, &p)| {
                let by = (f64::from(p + 1).ln() / 2048f64.ln()).max(1.0);
                x.iter().map(move |x| x * by)
            })
            .collect();
        let case = format!("{} {ROWS}×{width} at 131071", dtype.name());
        Ok(KernelReport::new(
            "pointwise/logn",
            case,
            error(&ready.read(&y)?, &expected),
            rounding(dtype),
        ))
    }))
}

fn large(gpu: &Arc<Gpu>) -> Result<KernelReport> {
    let (rows, width) = LARGE;
    let dtype = CudaDtype::Bf16;
    let mut memory = Memory::new(gpu, dtype, rows, 0);
    let (x, y) = (memory.noise(2 * width), memory.noise(width));
    let input = GateInput::Merged(x, GateLayout::Halves);
    let instr = Gated::new(gpu, dtype, gates()[0], input, y)?;
    let seconds = memory.ready(&Words::default(), Vec::new())?.time(&instr)?;
    let case = format!("{} silu {rows}×{width}", dtype.name());
    let report = KernelReport::new("pointwise/gated", case, 0.0, 0.0);
    Ok(timed(report, seconds, 3 * 2 * rows * width))
}
