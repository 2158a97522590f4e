//! Kernels that move elements: nothing may change on the way.

use std::sync::Arc;

use guesthouse_graph::{Rows, ValueType};

use super::KernelReport;
use super::memory::{DTYPES, Memory, Pending, Words, error, rounding, run_together};
use crate::cuda::driver::Gpu;
use crate::cuda::ops::input::{CopyIds, GlmPositions, Ints};
use crate::cuda::ops::shape::{Copy, GatherOutputs, MeanOutputs, Strided, SwapAxes};
use crate::cuda::options::CudaDtype;
use crate::error::Result;

const ROWS: usize = 5;

/// Every kernel and type, over widths of whole accesses and odd ones.
pub(super) fn check(gpu: &Arc<Gpu>, report: &mut dyn FnMut(KernelReport)) -> Result<()> {
    let mut groups = vec![("int32", vec![ids(gpu)?, glm_positions(gpu)?])];
    for dtype in DTYPES {
        let (mut copies, mut swaps, mut gathers) = (vec![], vec![], vec![]);
        let mut means = vec![];
        for inner in [64, 3] {
            copies.extend([split(gpu, dtype, inner)?, repeat(gpu, dtype, inner)?]);
            swaps.push(swap(gpu, dtype, inner)?);
            gathers.push(gather(gpu, dtype, inner)?);
            means.push(mean(gpu, dtype, inner)?);
        }
        groups.extend([copies, swaps, gathers, means].map(|cases| (dtype.name(), cases)));
    }
    for (what, cases) in groups {
        run_together(what, cases, report)?;
    }
    Ok(())
}

fn exact(name: &'static str, case: String, worst: f64) -> KernelReport {
    KernelReport::new(name, case, worst, 0.0)
}

/// `[4, 10, inner]` into 3 and 7 along the middle, and back.
fn split(gpu: &Arc<Gpu>, dtype: CudaDtype, inner: usize) -> Result<Pending> {
    let dims = [4, 10, inner];
    let mut memory = Memory::new(gpu, dtype, ROWS, 0);
    let (x, values) = memory.input(40 * inner, ValueType::Model);
    let a = memory.output(12 * inner, ValueType::Model);
    let b = memory.output(28 * inner, ValueType::Model);
    let joined = memory.output(40 * inner, ValueType::Model);
    let ready = memory.ready(&Words::default(), Vec::new())?;
    let parts = [(a, 0, 3), (b, 3, 7)].map(|(y, start, len)| {
        let strided = Strided::take(&dims, 1, start, len);
        strided.map(|s| (x, y, s))
    });
    let parts: Vec<_> = parts.into_iter().flatten().collect();
    let back = parts
        .iter()
        .map(|&(_, y, s)| (y, joined, s.reversed()))
        .collect();
    let forth_instr = Copy::new(gpu, "split", parts)?;
    let back_instr = Copy::new(gpu, "concat", back)?;
    Ok(Box::new(move || {
        ready.launch(&forth_instr)?;
        ready.launch(&back_instr)?;
        let first: Vec<f64> = values
            .chunks(10 * inner)
            .flat_map(|run| run[..3 * inner].iter().copied())
            .collect();
        let worst = error(&ready.read(&a)?, &first).max(error(&ready.read(&joined)?, &values));
        let case = format!("{} split and joined [4, 10, {inner}]", dtype.name());
        Ok(exact("shape/copy", case, worst))
    }))
}

fn repeat(gpu: &Arc<Gpu>, dtype: CudaDtype, d: usize) -> Result<Pending> {
    let (heads, times) = (3, 9);
    let mut memory = Memory::new(gpu, dtype, ROWS, 0);
    let (x, values) = memory.input(heads * d, ValueType::Model);
    let y = memory.output(heads * times * d, ValueType::Model);
    let ready = memory.ready(&Words::default(), Vec::new())?;
    let instr = Copy::repeat(gpu, x, y, d, times)?;
    Ok(Box::new(move || {
        ready.launch(&instr)?;
        let expected: Vec<f64> = values.chunks(d).flat_map(|h| h.repeat(times)).collect();
        let case = format!("{} [{heads}, {d}] {times} times", dtype.name());
        Ok(exact(
            "shape/copy",
            case,
            error(&ready.read(&y)?, &expected),
        ))
    }))
}

fn swap(gpu: &Arc<Gpu>, dtype: CudaDtype, b: usize) -> Result<Pending> {
    let a = 7;
    let mut memory = Memory::new(gpu, dtype, ROWS, 0);
    let (x, values) = memory.input(a * b, ValueType::Model);
    let y = memory.output(a * b, ValueType::Model);
    let ready = memory.ready(&Words::default(), Vec::new())?;
    let instr = SwapAxes::new(gpu, (a, b), x, y)?;
    Ok(Box::new(move || {
        ready.launch(&instr)?;
        let expected: Vec<f64> = values
            .chunks(a * b)
            .flat_map(|row| (0..a * b).map(move |i| row[i % a * b + i / a]))
            .collect();
        let case = format!("{} [{a}, {b}]", dtype.name());
        Ok(exact(
            "shape/swap",
            case,
            error(&ready.read(&y)?, &expected),
        ))
    }))
}

fn gather(gpu: &Arc<Gpu>, dtype: CudaDtype, width: usize) -> Result<Pending> {
    let wanted = [4, 0, 3];
    let mut memory = Memory::new(gpu, dtype, ROWS, wanted.len());
    let (x, values) = memory.input(width, ValueType::Model);
    let y = memory.poisoned(Rows::Outputs, width, ValueType::Model);
    let words = Words {
        outputs: wanted.to_vec(),
        ..Words::default()
    };
    let ready = memory.ready(&words, Vec::new())?;
    let instr = GatherOutputs::new(gpu, x, y)?;
    Ok(Box::new(move || {
        ready.launch(&instr)?;
        let row = |&t: &i32| {
            let at = t as usize * width;
            values[at..at + width].iter().copied()
        };
        let expected: Vec<f64> = wanted.iter().flat_map(row).collect();
        let case = format!("{} {} of {ROWS} × {width}", dtype.name(), wanted.len());
        Ok(exact(
            "input/gather",
            case,
            error(&ready.read(&y)?, &expected),
        ))
    }))
}

/// Of sequences of two and three tokens, the last tokens' outputs.
fn mean(gpu: &Arc<Gpu>, dtype: CudaDtype, width: usize) -> Result<Pending> {
    let mut memory = Memory::new(gpu, dtype, ROWS, 2);
    let (x, values) = memory.input(width, ValueType::Model);
    let y = memory.poisoned(Rows::Outputs, width, ValueType::Model);
    let words = Words {
        outputs: vec![4, 1],
        row_of: vec![0, 0, 1, 1, 1],
        first: vec![0, 2, 5],
        ..Words::default()
    };
    let ready = memory.ready(&words, Vec::new())?;
    let instr = MeanOutputs::new(gpu, dtype, x, y)?;
    Ok(Box::new(move || {
        ready.launch(&instr)?;
        let of = |tokens: std::ops::Range<usize>| -> Vec<f64> {
            let sum = |i| tokens.clone().map(|t| values[t * width + i]).sum::<f64>();
            (0..width).map(|i| sum(i) / tokens.len() as f64).collect()
        };
        let expected = [of(2..5), of(0..2)].concat();
        let worst = error(&ready.read(&y)?, &expected);
        let case = format!("{} 2 sequences of width {width}", dtype.name());
        Ok(KernelReport::new(
            "input/mean",
            case,
            worst,
            rounding(dtype),
        ))
    }))
}

fn ids(gpu: &Arc<Gpu>) -> Result<Pending> {
    let rows = 300;
    let mut memory = Memory::new(gpu, CudaDtype::F32, rows, 0);
    let y = memory.output(1, ValueType::I32);
    let words = Words {
        positions: (0..rows as i32).map(|i| 7 * i).collect(),
        ..Words::default()
    };
    let ready = memory.ready(&words, Vec::new())?;
    let instr = CopyIds::new(gpu, Ints::Positions, 2, y)?;
    Ok(Box::new(move || {
        ready.launch(&instr)?;
        let expected: Vec<f64> = words.positions.iter().map(|&p| f64::from(p + 2)).collect();
        let worst = error(&ready.read(&y)?, &expected);
        Ok(exact("input/ids", format!("{rows} positions + 2"), worst))
    }))
}

/// Two rows of which one is before, at and beyond the begin of its block, and padding.
fn glm_positions(gpu: &Arc<Gpu>) -> Result<Pending> {
    let expected = [[0, 0], [1, 0], [1, 1], [1, 2], [40, 7], [0, 0]];
    let mut memory = Memory::new(gpu, CudaDtype::F32, expected.len(), 0);
    let y = memory.output(2, ValueType::I32);
    let words = Words {
        positions: vec![0, 1, 2, 3, 56, 0],
        row_of: vec![1, 1, 1, 1, 0, -1],
        slot: vec![0, 1],
        mask_at: vec![40, 1],
        block_start: vec![50, 2],
        ..Words::default()
    };
    let ready = memory.ready(&words, Vec::new())?;
    let instr = GlmPositions::new(gpu, y)?;
    Ok(Box::new(move || {
        ready.launch(&instr)?;
        let expected: Vec<f64> = expected.iter().flatten().map(|&x| f64::from(x)).collect();
        let worst = error(&ready.read(&y)?, &expected);
        Ok(exact(
            "input/glm",
            format!("{} tokens", expected.len() / 2),
            worst,
        ))
    }))
}
