//! Products of each head with a matrix of its own, against f64.

use std::sync::Arc;

use guesthouse_graph::ValueType;

use super::KernelReport;
use super::memory::{
    DTYPES, Memory, Pending, Random, Words, error, round, rounding, run_together, timed,
};
use crate::cuda::driver::Gpu;
use crate::cuda::ops::head_linear::{HeadLinear, HeadShape};
use crate::cuda::options::CudaDtype;
use crate::cuda::weights::stored;
use crate::error::Result;

/// Whole tiles, parts of them, and what tensor cores do not take.
const SHAPES: [HeadShape; 5] = [
    shape(5, 128, 512, 64),
    shape(5, 512, 128, 0),
    shape(3, 24, 40, 8),
    shape(2, 200, 72, 16),
    shape(3, 10, 7, 3),
];

/// One token, a tile of few and more, a tile of many and more.
const TOKENS: [usize; 5] = [1, 16, 17, 64, 130];

const fn shape(heads: u32, inp: u32, out: u32, rest: u32) -> HeadShape {
    HeadShape {
        heads,
        inp,
        out,
        rest,
    }
}

/// Every type, shape and number of tokens.
pub(super) fn check(gpu: &Arc<Gpu>, report: &mut dyn FnMut(KernelReport)) -> Result<()> {
    for dtype in DTYPES {
        let mut cases = Vec::new();
        for shape in SHAPES {
            for tokens in TOKENS {
                cases.push(one(gpu, dtype, shape, tokens)?);
            }
        }
        run_together(dtype.name(), cases, report)?;
    }
    for (shape, tokens) in [
        (shape(128, 128, 512, 64), 64),
        (shape(128, 512, 128, 0), 64),
        (shape(128, 128, 512, 64), 2048),
    ] {
        report(large(gpu, shape, tokens)?);
    }
    Ok(())
}

fn name(dtype: CudaDtype, s: HeadShape, tokens: usize) -> String {
    let HeadShape {
        heads,
        inp,
        out,
        rest,
    } = s;
    format!(
        "{} {tokens} tokens, {heads} heads of {inp} to {out}, and {rest}",
        dtype.name()
    )
}

fn one(gpu: &Arc<Gpu>, dtype: CudaDtype, s: HeadShape, tokens: usize) -> Result<Pending> {
    let [heads, inp, out, rest] = [s.heads, s.inp, s.out, s.rest].map(|n| n as usize);
    let mut memory = Memory::new(gpu, dtype, tokens, 0);
    // Heads are columns of a wider value, as behind a merged linear.
    let (wide, values) = memory.input(heads * (inp + rest) + 16, ValueType::Model);
    let x = wide.columns(8, heads * (inp + rest));
    let y = memory.output(heads * (out + rest), ValueType::Model);
    let mut random = Random::new(u64::from(s.out) + 3);
    let weight: Vec<f64> = (0..heads * out * inp)
        .map(|_| round(dtype, random.next()))
        .collect();
    let floats: Vec<f32> = weight.iter().map(|&w| w as f32).collect();
    let buffer = Arc::new(gpu.upload(&stored(&floats, dtype), "checking")?);
    let ready = memory.ready(&Words::default(), Vec::new())?;
    let instr = HeadLinear::new(gpu, dtype, s, buffer, (x, y))?;
    Ok(Box::new(move || {
        ready.launch(&instr)?;
        let mut expected = Vec::new();
        for row in values.chunks(heads * (inp + rest) + 16) {
            let row = &row[8..8 + heads * (inp + rest)];
            for (x, w) in row.chunks(inp + rest).zip(weight.chunks(out * inp)) {
                let dot = |w: &[f64]| w.iter().zip(x).map(|(w, x)| w * x).sum::<f64>();
                expected.extend(w.chunks(inp).map(dot));
                expected.extend_from_slice(&x[inp..]);
            }
        }
        let worst = error(&ready.read(&y)?, &expected);
        Ok(KernelReport::new(
            "gemm/heads",
            name(dtype, s, tokens),
            worst,
            rounding(dtype),
        ))
    }))
}

/// DeepSeek-V3's, whose results are not compared.
fn large(gpu: &Arc<Gpu>, s: HeadShape, tokens: usize) -> Result<KernelReport> {
    let dtype = CudaDtype::Bf16;
    let mut memory = Memory::new(gpu, dtype, tokens, 0);
    let [heads, inp, out, rest] = [s.heads, s.inp, s.out, s.rest].map(|n| n as usize);
    let x = memory.noise(heads * (inp + rest));
    let y = memory.output(heads * (out + rest), ValueType::Model);
    let weight = gpu.allocate_zeroed(2 * heads * out * inp, "checking")?;
    let ready = memory.ready(&Words::default(), Vec::new())?;
    let instr = HeadLinear::new(gpu, dtype, s, Arc::new(weight), (x, y))?;
    let seconds = ready.time(&instr)?;
    let bytes = 2 * heads * (out * inp + tokens * (inp + out + 2 * rest));
    let mut report = KernelReport::new("gemm/heads", name(dtype, s, tokens), 0.0, 0.0);
    report.flops = Some(2.0 * (heads * out * inp * tokens) as f64);
    Ok(timed(report, seconds, bytes))
}
