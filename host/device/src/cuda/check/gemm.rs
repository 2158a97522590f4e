//! Our matrix products against f64 sums, every variant of each shape; bitwise equality where a row's result must not depend
//! on the batch.

use std::sync::Arc;

use super::KernelReport;
use super::memory::{Random, decode, error, round, rounding};
use super::timing::Timer;
use crate::cuda::blas::{Operands, Product};
use crate::cuda::driver::Gpu;
use crate::cuda::ops::own::{Gating, Own};
use crate::cuda::options::{CudaDtype, Numerics};
use crate::error::Result;

/// `(n, k)`: whole tiles and odd ones, more columns than a stage has and fewer.
const SHAPES: [(u32, u32); 4] = [(1024, 2048), (1008, 1000), (80, 4104), (16, 8)];

/// Tokens: each tile, whole or not, and several of them.
const TOKENS: [u32; 8] = [1, 3, 8, 16, 31, 64, 130, 600];

/// `(m, n, k)` that are timed: Llama-3.1-8B's.
const TIMED: [(u32, u32, u32); 8] = [
    (1, 6144, 4096),
    (1, 4096, 4096),
    (1, 28672, 4096),
    (1, 4096, 14336),
    (64, 28672, 4096),
    (64, 4096, 14336),
    (256, 28672, 4096),
    (2048, 28672, 4096),
];

/// Random operands on the GPU and their values.
struct Case {
    product: Product,
    x: Vec<f64>,
    w: Vec<f64>,
    bias: Vec<f64>,
}

impl Case {
    fn new(seed: u64, product: Product) -> Self {
        let mut random = Random::new(seed);
        let mut values = |count: u32, scale: f64| -> Vec<f64> {
            (0..count)
                .map(|_| round(product.input, scale * random.next()))
                .collect()
        };
        Self {
            x: values(product.m * product.x_stride, 1.0),
            w: values(product.n * product.k, 1.0 / f64::from(product.k).sqrt()),
            bias: values(product.n, 1.0),
            product,
        }
    }

    /// The result `[m, outputs]`, not rounded at the end.
    fn expected(&self) -> Vec<f64> {
        let p = &self.product;
        let (n, k) = (p.n as usize, p.k as usize);
        let mut y = Vec::new();
        for x in self.x.chunks(p.x_stride as usize) {
            let of = |row: usize| {
                let w = &self.w[row * k..(row + 1) * k];
                let sum: f64 = x.iter().zip(w).map(|(x, w)| x * w).sum();
                if p.bias { sum + self.bias[row] } else { sum }
            };
            match p.gating {
                None => y.extend((0..n).map(of)),
                Some(gating) => y.extend((0..n / 2).map(|i| {
                    let row = i / Gating::BLOCK * 2 * Gating::BLOCK + i % Gating::BLOCK;
                    let gate = round(p.input, of(row));
                    let up = round(p.input, of(row + Gating::BLOCK));
                    round(p.input, activate(gating, gate)) * up
                })),
            }
        }
        y
    }

    /// What each variant makes of it.
    fn found(&self, gpu: &Arc<Gpu>, own: &Own, variants: &[u32]) -> Result<Vec<Vec<f64>>> {
        let p = &self.product;
        let upload = |values: &[f64]| gpu.upload(&encode(p.input, values), "checking");
        let (x, w, bias) = (upload(&self.x)?, upload(&self.w)?, upload(&self.bias)?);
        let bytes = p.m as usize * p.y_stride as usize * p.output.bytes();
        let y = gpu.allocate(bytes, "checking")?;
        let outputs = p.n / if p.gating.is_some() { 2 } else { 1 };
        let mut all = Vec::new();
        for &variant in variants {
            gpu.fill(y.address(), 0xff, bytes)?;
            let operands = Operands {
                x: x.address(),
                w: w.address(),
                bias: if p.bias { bias.address() } else { 0 },
                y: y.address(),
            };
            own.run(gpu, p, &operands, variant)?;
            gpu.synchronize()?;
            let mut raw = vec![0; bytes];
            y.read(0, &mut raw)?;
            let values = decode(p.output, &raw);
            let rows = values.chunks(p.y_stride as usize);
            // What lies between the rows stays as it was.
            let stray = rows
                .clone()
                .any(|row| row[outputs as usize..].iter().any(|v| !v.is_nan()));
            all.push(if stray {
                Vec::new()
            } else {
                rows.flat_map(|row| row[..outputs as usize].to_vec())
                    .collect()
            });
        }
        Ok(all)
    }
}

fn activate(gating: Gating, x: f64) -> f64 {
    match gating {
        Gating::Silu => x / (1.0 + (-x).exp()),
        // erf by its series, which converges for all x that occur here.
        Gating::Gelu => {
            let z = x / 2f64.sqrt();
            let (mut term, mut sum) = (z, z);
            for n in 1..200 {
                let n = f64::from(n);
                term *= -z * z / n;
                sum += term / (2.0 * n + 1.0);
            }
            0.5 * x * (1.0 + 2.0 / std::f64::consts::PI.sqrt() * sum)
        }
        Gating::GeluTanh => {
            let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x * x * x);
            0.5 * x * (1.0 + inner.tanh())
        }
    }
}

fn encode(dtype: CudaDtype, values: &[f64]) -> Vec<u8> {
    let of = |x: &f64| match dtype {
        CudaDtype::F16 => half::f16::from_f64(*x).to_le_bytes(),
        _ => half::bf16::from_f64(*x).to_le_bytes(),
    };
    values.iter().flat_map(of).collect()
}

fn product(m: u32, n: u32, k: u32, input: CudaDtype) -> Product {
    Product {
        m,
        n,
        k,
        x_stride: k,
        y_stride: n,
        input,
        output: input,
        bias: false,
        gating: None,
    }
}

fn describe(p: &Product) -> String {
    format!(
        "{} {}×{}×{}{}{}{}",
        p.input.name(),
        p.m,
        p.n,
        p.k,
        if p.output == p.input { "" } else { " to f32" },
        if p.bias { " bias" } else { "" },
        p.gating.map_or(String::new(), |g| format!(" {g:?}")),
    )
}

/// Every variant over shapes, dtypes and epilogues.
pub(super) fn check(gpu: &Arc<Gpu>, report: &mut dyn FnMut(KernelReport)) -> Result<()> {
    let own = Own::new(gpu)?;
    for (i, &m) in TOKENS.iter().enumerate() {
        for (j, &(n, k)) in SHAPES.iter().enumerate() {
            let input = [CudaDtype::Bf16, CudaDtype::F16][(i + j) % 2];
            let plain = Product {
                x_stride: k + 8,
                y_stride: n + 16,
                bias: j % 2 == 0,
                ..product(m, n, k, input)
            };
            let gating = [Gating::Silu, Gating::Gelu, Gating::GeluTanh][(i + j) % 3];
            report(variants(gpu, &own, plain)?);
            match j {
                0 => report(variants(
                    gpu,
                    &own,
                    Product {
                        output: CudaDtype::F32,
                        bias: false,
                        ..plain
                    },
                )?),
                _ => report(variants(
                    gpu,
                    &own,
                    Product {
                        gating: Some(gating),
                        y_stride: n / 2 + 16,
                        ..plain
                    },
                )?),
            }
        }
    }
    for gating in [None, Some(Gating::Silu)] {
        if let Some(found) = invariance(gpu, &own, gating)? {
            report(found);
        }
    }
    for (m, n, k) in TIMED {
        report(timed(gpu, &own, product(m, n, k, CudaDtype::Bf16))?);
    }
    Ok(())
}

fn variants(gpu: &Arc<Gpu>, own: &Own, p: Product) -> Result<KernelReport> {
    let mut ways = own.candidates(&p, Numerics::Fast);
    ways.extend(own.candidates(&p, Numerics::BatchInvariant));
    let case = format!("{}: {} variants", describe(&p), ways.len());
    if ways.is_empty() {
        return Ok(KernelReport::skipped("gemm", case));
    }
    let case_ = Case::new(u64::from(p.m * 31 + p.n), p);
    let expected = case_.expected();
    let worst = case_
        .found(gpu, own, &ways)?
        .iter()
        .map(|found| error(found, &expected))
        .fold(0.0, f64::max);
    // A gated product rounds gate and up where they may fall to either side.
    let allowed = match p.gating {
        None => rounding(p.output),
        Some(_) => 3.0 * rounding(p.output),
    };
    Ok(KernelReport::new("gemm", case, worst, allowed))
}

/// Rows of a large product, each computed again among others: share of elements that differ.
fn invariance(gpu: &Arc<Gpu>, own: &Own, gating: Option<Gating>) -> Result<Option<KernelReport>> {
    let whole = Product {
        gating,
        y_stride: 1024,
        ..product(600, 1024, 2048, CudaDtype::Bf16)
    };
    let ways = own.candidates(&whole, Numerics::BatchInvariant);
    if ways.is_empty() {
        return Ok(None);
    }
    let case = Case::new(5, whole);
    let all = case.found(gpu, own, &ways)?.swap_remove(0);
    let width = all.len() / 600;
    let mut differ = 0usize;
    for (first, m) in [
        (0, 1),
        (17, 8),
        (3, 13),
        (100, 32),
        (37, 64),
        (200, 128),
        (5, 250),
    ] {
        let part = Case {
            product: Product { m, ..whole },
            x: case.x[first * 2048..(first + m as usize) * 2048].to_vec(),
            w: case.w.clone(),
            bias: case.bias.clone(),
        };
        let found = part.found(gpu, own, &ways)?.swap_remove(0);
        let same = &all[first * width..(first + m as usize) * width];
        differ += found.iter().zip(same).filter(|(a, b)| a != b).count();
    }
    let name = format!("{} batch-invariant", describe(&whole));
    Ok(Some(KernelReport::new("gemm", name, differ as f64, 0.0)))
}

/// The fastest variant on a large shape; its result is not compared.
fn timed(gpu: &Arc<Gpu>, own: &Own, p: Product) -> Result<KernelReport> {
    let (m, n, k) = (p.m as usize, p.n as usize, p.k as usize);
    let mut random = Random::new(3);
    let some: Vec<f64> = (0..1 << 16).map(|_| random.next()).collect();
    let some = encode(p.input, &some);
    let upload = |elements: usize| {
        let repeated: Vec<u8> = some.iter().copied().cycle().take(elements * 2).collect();
        gpu.upload(&repeated, "checking")
    };
    let (x, w) = (upload(m * k)?, upload(n * k)?);
    let y = gpu.allocate(m * n * 2, "checking")?;
    let operands = Operands {
        x: x.address(),
        w: w.address(),
        bias: 0,
        y: y.address(),
    };
    let timer = Timer::new(gpu)?;
    let mut best = f64::INFINITY;
    for variant in own.candidates(&p, Numerics::Fast) {
        best = best.min(timer.time(|| own.run(gpu, &p, &operands, variant))?);
    }
    let mut report = KernelReport::new("gemm", describe(&p), 0.0, 0.0);
    if best.is_finite() {
        report.seconds = Some(best);
        if m <= 128 {
            report.bytes = Some(2.0 * (n * k + m * (n + k)) as f64);
        } else {
            report.flops = Some(2.0 * (m * n * k) as f64);
        }
    }
    Ok(report)
}
