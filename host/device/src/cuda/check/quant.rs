//! Quantized weights against the scalar dequantization and f64 sums.

use std::borrow::Cow;
use std::sync::Arc;

use guesthouse_graph::ValueType;
use guesthouse_weights::{BlockType, Scheme, TensorInfo, dequantize};

use super::KernelReport;
use super::memory::{DTYPES, Memory, Random, Words, error, round, rounding, timed};
use crate::cuda::driver::{Buffer, Gpu};
use crate::cuda::matmul::Matmul;
use crate::cuda::ops::input::Ints;
use crate::cuda::ops::quant::{QuantEmbedding, QuantLinear, QuantMatrix, QuantPart};
use crate::cuda::ops::{Instr, Place, Step};
use crate::cuda::options::{CudaDtype, Numerics};
use crate::cuda::weights::stored;
use crate::error::Result;
use crate::weights_eval::HostTensor;

/// Merged linears: every type, and mixtures as files have them.
const MIXTURES: [&[BlockType]; 4] = [
    &[BlockType::Q4K, BlockType::Q4K, BlockType::Q6K],
    &[BlockType::Q8_0, BlockType::Q4_1],
    &[BlockType::Q4_0, BlockType::Q5_0, BlockType::Q5_1],
    &[BlockType::Q2K, BlockType::Q3K, BlockType::Q5K],
];

/// Rows of a part: more than one panel, the last not full.
const ROWS: [usize; 3] = [37, 16, 65];

/// Tokens: each shape of the one-pass kernel, whole or not.
const FEW: [usize; 7] = [1, 2, 3, 8, 13, 16, 30];

/// Tokens for which weights are dequantized first, unless results may not depend on how many there are.
const MANY: [usize; 2] = [33, 70];

/// Rows and columns that are timed.
const TIMED: [(usize, usize); 2] = [(4096, 4096), (14336, 4096)];

/// Embeddings, products, and times.
pub(super) fn check(gpu: &Arc<Gpu>, report: &mut dyn FnMut(KernelReport)) -> Result<()> {
    for dtype in DTYPES {
        for block in BlockType::ALL {
            report(embedding(gpu, dtype, block)?);
        }
    }
    for numerics in [Numerics::Fast, Numerics::BatchInvariant] {
        let matmul = Matmul::open(gpu, numerics, None)?;
        for dtype in DTYPES {
            // Other types take the same ways; they are left out because each is compiled.
            let count = match (dtype, numerics) {
                (CudaDtype::Bf16, Numerics::Fast) => MIXTURES.len(),
                (_, Numerics::Fast) => 2,
                (_, Numerics::BatchInvariant) => 1,
            };
            for blocks in &MIXTURES[..count] {
                let merged = Merged::new(gpu, dtype, blocks, dtype == CudaDtype::Bf16)?;
                report(products(gpu, &matmul, &merged, &FEW)?);
                report(products(gpu, &matmul, &merged, &MANY)?);
                if numerics == Numerics::BatchInvariant {
                    report(invariant(gpu, &matmul, &merged)?);
                }
            }
        }
    }
    let matmul = Matmul::open(gpu, Numerics::Fast, None)?;
    for block in [
        BlockType::Q4K,
        BlockType::Q6K,
        BlockType::Q8_0,
        BlockType::Q4_1,
    ] {
        for shape in TIMED {
            for tokens in [1, 8, 32] {
                report(large(gpu, &matmul, block, shape, tokens)?);
            }
        }
    }
    Ok(())
}

/// Random blocks whose values are of about 1, and the values.
fn matrix(
    seed: u64,
    block: BlockType,
    n: usize,
    k: usize,
) -> Result<(HostTensor<'static>, Vec<f64>)> {
    let mut random = Random::new(seed);
    let count = n * k / block.block_len();
    let mut bytes = vec![0u8; count * block.block_bytes()];
    for byte in &mut bytes {
        *byte = (random.next() * 4096.0) as i32 as u8;
    }
    // f16 scales and minimums, of a size that makes up for the integers that they multiply.
    let halves: &[(usize, f64)] = match block {
        BlockType::Q4_0 => &[(0, 0.2)],
        BlockType::Q4_1 => &[(0, 0.1), (2, 1.0)],
        BlockType::Q5_0 => &[(0, 0.1)],
        BlockType::Q5_1 => &[(0, 0.05), (2, 1.0)],
        BlockType::Q8_0 => &[(0, 0.01)],
        BlockType::Q2K => &[(80, 0.05), (82, 0.05)],
        BlockType::Q3K => &[(108, 0.02)],
        BlockType::Q4K => &[(0, 0.003), (2, 0.02)],
        BlockType::Q5K => &[(0, 0.002), (2, 0.02)],
        BlockType::Q6K => &[(208, 0.0005)],
    };
    for one in bytes.chunks_mut(block.block_bytes()) {
        for &(at, size) in halves {
            let half = half::f16::from_f64(size * random.next());
            one[at..at + 2].copy_from_slice(&half.to_le_bytes());
        }
    }
    let scheme = Scheme::Block(block);
    let mut values = vec![0f32; n * k];
    dequantize(scheme, &bytes, &mut values)?;
    let tensor = HostTensor {
        info: TensorInfo::new([n, k], scheme),
        bytes: Cow::Owned(bytes),
    };
    Ok((tensor, values.into_iter().map(f64::from).collect()))
}

/// Columns of a small matrix: an odd number of blocks.
fn columns(blocks: &[BlockType]) -> usize {
    3 * blocks.iter().map(|b| b.block_len()).max().unwrap_or(32)
}

fn embedding(gpu: &Arc<Gpu>, dtype: CudaDtype, block: BlockType) -> Result<KernelReport> {
    let (n, k) = (ROWS[0], columns(&[block]));
    let (tensor, values) = matrix(7, block, n, k)?;
    let table = Arc::new(QuantMatrix::upload(gpu, &tensor)?);
    let ids: Vec<i32> = vec![0, 36, 8, 15, 16, 5, 31, 32, 7, 0, 20];
    let mut memory = Memory::new(gpu, dtype, ids.len(), 0);
    let y = memory.output(k, ValueType::Model);
    let instr = QuantEmbedding::new(gpu, dtype, table, Ints::Tokens, y)?;
    let words = Words {
        tokens: ids.clone(),
        ..Words::default()
    };
    let ready = memory.ready(&words, Vec::new())?;
    ready.launch(&instr)?;
    let expected: Vec<f64> = ids
        .iter()
        .flat_map(|&id| &values[id as usize * k..(id as usize + 1) * k])
        .map(|&x| round(dtype, x))
        .collect();
    // The same bits.
    Ok(KernelReport::new(
        "quant/embedding",
        format!("{} {block} {n}×{k}", dtype.name()),
        error(&ready.read(&y)?, &expected),
        0.0,
    ))
}

/// A quantized linear as an instruction.
struct Product<'a> {
    linear: QuantLinear,
    matmul: &'a Matmul,
    tokens: u32,
    x: Place,
    y: Place,
    scratch: Buffer,
}

impl Instr for Product<'_> {
    fn launch(&self, step: &Step<'_>) -> Result<()> {
        let operands = (step.tensor(&self.x), step.tensor(&self.y));
        let scratch = self.scratch.address();
        self.linear
            .run(step.gpu, self.matmul, self.tokens, operands, scratch)
    }

    fn name(&self) -> &'static str {
        "quantized linear"
    }
}

/// A merged linear, on the GPU and as numbers.
struct Merged {
    dtype: CudaDtype,
    k: usize,
    /// Weights and bias of each row.
    rows: Vec<(Vec<f64>, f64)>,
    parts: Vec<(Arc<QuantMatrix>, Option<Arc<Buffer>>, u32)>,
    label: String,
}

impl Merged {
    fn new(gpu: &Arc<Gpu>, dtype: CudaDtype, blocks: &[BlockType], biased: bool) -> Result<Self> {
        let k = columns(blocks);
        let (mut rows, mut parts) = (Vec::new(), Vec::new());
        for (i, (&block, &n)) in blocks.iter().zip(&ROWS).enumerate() {
            let (tensor, values) = matrix(i as u64 + 1, block, n, k)?;
            let mut random = Random::new(i as u64 + 100);
            let bias: Vec<f64> = (0..n).map(|_| round(dtype, random.next())).collect();
            let floats: Vec<f32> = bias.iter().map(|&x| x as f32).collect();
            let buffer = gpu.upload(&stored(&floats, dtype), "checking")?;
            let bias = if biased { bias } else { vec![0.0; n] };
            parts.push((
                Arc::new(QuantMatrix::upload(gpu, &tensor)?),
                biased.then(|| Arc::new(buffer)),
                rows.len() as u32,
            ));
            rows.extend(values.chunks(k).map(<[f64]>::to_vec).zip(bias));
        }
        let names: Vec<&str> = blocks.iter().map(|b| b.name()).collect();
        Ok(Self {
            dtype,
            k,
            label: format!("{} {} {}×{k}", dtype.name(), names.join("+"), rows.len()),
            rows,
            parts,
        })
    }

    fn product<'m>(
        &self,
        gpu: &Arc<Gpu>,
        matmul: &'m Matmul,
        tokens: usize,
        (x, y): (Place, Place),
    ) -> Result<Product<'m>> {
        let parts = self.parts.iter().map(|(matrix, bias, column)| QuantPart {
            matrix: Arc::clone(matrix),
            bias: bias.clone(),
            column: *column,
        });
        let types = (self.dtype, self.dtype);
        let numerics = matmul.numerics();
        let linear = QuantLinear::new(gpu, types, numerics, x.is_aligned(), parts.collect())?;
        Ok(Product {
            scratch: gpu.allocate(linear.scratch(tokens as u32), "checking")?,
            linear,
            matmul,
            tokens: tokens as u32,
            x,
            y,
        })
    }

    /// `x Wᵀ + b`; weights are rounded first where they are dequantized to the model's type.
    fn expected(&self, x: &[f64], expanded: bool) -> Vec<f64> {
        let weight = |w: f64| if expanded { round(self.dtype, w) } else { w };
        let sum =
            |x: &[f64], w: &[f64]| -> f64 { w.iter().zip(x).map(|(&w, x)| weight(w) * x).sum() };
        x.chunks(self.k)
            .flat_map(|x| self.rows.iter().map(move |(w, bias)| sum(x, w) + bias))
            .collect()
    }
}

/// Some numbers of tokens on one merged linear; the worst counts.
fn products(
    gpu: &Arc<Gpu>,
    matmul: &Matmul,
    merged: &Merged,
    tokens: &[usize],
) -> Result<KernelReport> {
    let (mut worst, mut tolerance) = (0f64, rounding(merged.dtype) + 1e-5);
    for &tokens in tokens {
        let mut memory = Memory::new(gpu, merged.dtype, tokens, 0);
        let (x, values) = memory.input(merged.k, ValueType::Model);
        let y = memory.output(merged.rows.len(), ValueType::Model);
        let product = merged.product(gpu, matmul, tokens, (x, y))?;
        let expanded = product.linear.scratch(tokens as u32) > 0;
        if expanded {
            // The library may round a sum before it adds the bias or another part of the columns.
            tolerance = 2.0 * rounding(merged.dtype);
        }
        let ready = memory.ready(&Words::default(), Vec::new())?;
        ready.launch(&product)?;
        let expected = merged.expected(&values, expanded);
        worst = worst.max(error(&ready.read(&y)?, &expected));
    }
    let case = format!("{} by {tokens:?} {:?}", merged.label, matmul.numerics());
    Ok(KernelReport::new("quant/linear", case, worst, tolerance))
}

/// The first tokens among more and more others: the same bits.
fn invariant(gpu: &Arc<Gpu>, matmul: &Matmul, merged: &Merged) -> Result<KernelReport> {
    let counts = [&FEW[..], &MANY[..]].concat();
    let most = counts.iter().copied().max().unwrap_or(1);
    let mut memory = Memory::new(gpu, merged.dtype, most, 0);
    let (x, _) = memory.input(merged.k, ValueType::Model);
    let width = merged.rows.len();
    let results: Vec<(usize, Place)> = counts
        .iter()
        .map(|&tokens| (tokens, memory.output(width, ValueType::Model)))
        .collect();
    let ready = memory.ready(&Words::default(), Vec::new())?;
    let mut all = Vec::new();
    for &(tokens, y) in &results {
        ready.launch(&merged.product(gpu, matmul, tokens, (x, y))?)?;
        all = ready.read(&y)?;
    }
    let mut worst = 0f64;
    for &(tokens, y) in &results {
        let some = ready.read(&y)?;
        worst = worst.max(error(&some[..tokens * width], &all[..tokens * width]));
    }
    let case = format!("{} by {counts:?}: the same", merged.label);
    Ok(KernelReport::new("quant/linear", case, worst, 0.0))
}

/// Time of a large matrix; its results are not compared.
fn large(
    gpu: &Arc<Gpu>,
    matmul: &Matmul,
    block: BlockType,
    (n, k): (usize, usize),
    tokens: usize,
) -> Result<KernelReport> {
    let dtype = CudaDtype::Bf16;
    let scheme = Scheme::Block(block);
    // A small matrix again and again.
    let (small, _) = matrix(3, block, 64, k)?;
    let tensor = HostTensor {
        info: TensorInfo::new([n, k], scheme),
        bytes: Cow::Owned(small.bytes.repeat(n / 64)),
    };
    let bytes = tensor.bytes.len();
    let mut memory = Memory::new(gpu, dtype, tokens, 0);
    let (x, _) = memory.input(k, ValueType::Model);
    let y = memory.output(n, ValueType::Model);
    let part = QuantPart {
        matrix: Arc::new(QuantMatrix::upload(gpu, &tensor)?),
        bias: None,
        column: 0,
    };
    let types = (dtype, dtype);
    let linear = QuantLinear::new(gpu, types, matmul.numerics(), x.is_aligned(), vec![part])?;
    let scratch = gpu.allocate(linear.scratch(tokens as u32), "checking")?;
    let product = Product {
        linear,
        matmul,
        tokens: tokens as u32,
        x,
        y,
        scratch,
    };
    let seconds = memory
        .ready(&Words::default(), Vec::new())?
        .time(&product)?;
    let case = format!("{} {block} {n}×{k} by {tokens}", dtype.name());
    let report = KernelReport::new("quant/linear", case, 0.0, 0.0);
    Ok(timed(report, seconds, bytes))
}
