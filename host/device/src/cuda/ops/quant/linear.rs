//! Products with quantized weights.

use std::sync::Arc;

use super::{PANEL, QuantMatrix, SEGMENTS, STAGE, mask, number, stage_bytes};
use crate::cuda::blas::{Operands, Product};
use crate::cuda::compiler::Source;
use crate::cuda::driver::{Buffer, Gpu};
use crate::cuda::launch::{Grid, Kernel, Params};
use crate::cuda::matmul::{Matmul, Weights};
use crate::cuda::ops::Tensor;
use crate::cuda::options::{CudaDtype, Numerics};
use crate::cuda::weights::{Matrix, Part, model_flag};
use crate::error::{DeviceError, Result};

/// Some rows of W.
pub(crate) struct QuantPart {
    /// `[n, k]`
    pub matrix: Arc<QuantMatrix>,
    /// `[n]` of the model's dtype.
    pub bias: Option<Arc<Buffer>>,
    /// First column of y.
    pub column: u32,
}

impl QuantPart {
    /// A part, if its matrix is in blocks.
    pub(crate) fn of(part: &Part) -> Option<Self> {
        let Matrix::Quant(matrix) = &part.matrix else {
            return None;
        };
        Some(Self {
            matrix: Arc::clone(matrix),
            bias: part.bias.clone(),
            column: part.column,
        })
    }
}

/// `QuantLinearSegment` of the kernel.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct LinearSegment {
    panels: u64,
    bias: u64,
    block: u32,
    rows: i32,
    column: i32,
    first_block: i32,
}

/// `QuantLinearParams` of the kernel.
#[repr(C)]
#[derive(Clone, Copy)]
struct LinearParams {
    x: u64,
    y: u64,
    x_stride: i64,
    y_stride: i64,
    tokens: i32,
    k: i32,
    segment_count: i32,
    padding: i32,
    segments: [LinearSegment; SEGMENTS],
}

// SAFETY: the kernel's structure; its addresses are those of the step's arenas and of weights that the instruction holds.
unsafe impl Params for LinearParams {}

/// `QuantRowsSegment` of the kernel.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct RowsSegment {
    panels: u64,
    block: u32,
    rows: i32,
    first_panel: i32,
    first_row: i32,
}

/// `QuantRowsParams` of the kernel.
#[repr(C)]
#[derive(Clone, Copy)]
struct RowsParams {
    out: u64,
    stride: i64,
    k: i32,
    stages: i32,
    panels: i32,
    segment_count: i32,
    segments: [RowsSegment; SEGMENTS],
}

// SAFETY: the kernel's structure; its addresses are those of the step's scratch and of weights that the instruction holds.
unsafe impl Params for RowsParams {}

/// How the one-pass kernel is compiled, of what was fastest on an H200.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shape {
    /// Tokens that share a product's eight columns, and such groups of a block.
    tokens: u32,
    tiles: u32,
    /// Panels of a block.
    panels: u32,
    /// Blocks that shall fit on a multiprocessor: a bound on registers.
    resident: u32,
    /// Stages that a warp has on its way.
    depth: u32,
}

/// Warps of a block, the same in all shapes: each sums up a share of the columns, in the same order wherever `tokens` is 8.
const WARPS: u32 = 8;

impl Shape {
    /// The shape for so many tokens at a time, where a stage of a panel takes `slot` bytes.
    fn new(tokens: u32, slot: u32, shared_per_block: u32) -> Self {
        let heavy = slot > 3000;
        let (per_product, tiles, panels, resident, depth) = match tokens {
            1 | 2 if heavy => (tokens, 1, 1, 2, 3),
            1 | 2 => (tokens, 1, 1, 3, 2),
            8 => (8, 1, 1, 2, if heavy { 3 } else { 2 }),
            16 => (8, 2, 2, 1, 2),
            _ => (8, 4, 2, 1, 2),
        };
        let most = shared_per_block / (WARPS * panels * slot.max(1));
        Self {
            tokens: per_product,
            tiles,
            panels,
            resident,
            depth: depth.min(most).max(1),
        }
    }

    /// Tokens of a block.
    const fn most(self) -> u32 {
        self.tokens * self.tiles
    }

    /// Dynamic shared memory of a block.
    const fn shared(self, slot: u32) -> u32 {
        WARPS * self.depth * self.panels * slot
    }
}

/// Tokens that there is a shape for.
const TOKENS: [u32; 5] = [1, 2, 8, 16, 32];

/// The first of [`TOKENS`] from which on results do not depend on the shape.
const SAME_ORDER: usize = 2;

/// Bytes of dequantized rows at a time: they stay in L2 until they are multiplied.
const EXPANDED: usize = 64 << 20;

/// Rows of a product that are dequantized together.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Piece {
    /// First column of y, and rows.
    column: u32,
    n: u32,
    /// Address, or 0.
    bias: u64,
    panels: i32,
    segments: Vec<RowsSegment>,
}

/// `y = x Wᵀ + b`, row blocks of W side by side, each of its own type.
pub(crate) struct QuantLinear {
    parts: Vec<QuantPart>,
    dtype: CudaDtype,
    output: CudaDtype,
    k: u32,
    /// Most bytes that a stage of a panel takes.
    slot: u32,
    /// One for each shape that may be used.
    few: Vec<(Shape, Kernel)>,
    /// None where results may not depend on how many tokens there are.
    many: Option<(Kernel, Vec<Piece>)>,
}

impl QuantLinear {
    /// The kernels; their compilation begins. `aligned` says whether rows of x begin at multiples of 16 bytes.
    ///
    /// # Errors
    /// When the parts differ in width, or a kernel is missing.
    pub(crate) fn new(
        gpu: &Arc<Gpu>,
        (dtype, output): (CudaDtype, CudaDtype),
        numerics: Numerics,
        aligned: bool,
        parts: Vec<QuantPart>,
    ) -> Result<Self> {
        let k = parts.first().map_or(0, |p| p.matrix.k);
        if parts.iter().any(|p| p.matrix.k != k) {
            return Err(DeviceError::plan("merged matrices differ in width"));
        }
        let types = mask(parts.iter().map(|p| p.matrix.block));
        let slot = parts.iter().map(|p| stage_bytes(p.matrix.block)).max();
        let slot = slot.unwrap_or(0);
        let (tokens, many) = match numerics {
            Numerics::Fast => {
                let source = Source::new("quant/dequantize.cu", "quant_rows")
                    .flag(model_flag(dtype))
                    .define("QUANT_TYPES", types);
                let rows = EXPANDED / dtype.bytes() / (k as usize).max(1);
                (
                    &TOKENS[..],
                    Some((gpu.kernel(&source)?, pieces(&parts, dtype, rows))),
                )
            }
            Numerics::BatchInvariant => (&TOKENS[SAME_ORDER..], None),
        };
        let few = tokens
            .iter()
            .map(|&tokens| {
                let shape = Shape::new(tokens, slot, gpu.properties.shared_per_block);
                let mut source = Source::new("quant/linear.cu", "quant_linear")
                    .flag(model_flag(dtype))
                    .define("QUANT_TYPES", types)
                    .define("TOKENS", shape.tokens)
                    .define("TOKEN_TILES", shape.tiles)
                    .define("PANELS", shape.panels)
                    .define("MIN_BLOCKS", shape.resident)
                    .define("WARPS", WARPS)
                    .define("DEPTH", shape.depth);
                if !aligned {
                    source = source.flag("X_SCALAR");
                }
                if output != dtype {
                    source = source.flag("OUT_F32");
                }
                Ok((shape, gpu.kernel(&source)?))
            })
            .collect::<Result<Vec<_>>>()?;
        Ok(Self {
            parts,
            dtype,
            output,
            k,
            slot,
            few,
            many,
        })
    }

    /// Most tokens that are multiplied in one pass.
    fn most(&self) -> u32 {
        match (&self.many, self.few.last()) {
            (Some(_), Some((shape, _))) => shape.most(),
            _ => u32::MAX,
        }
    }

    /// Bytes of scratch that so many tokens may need.
    pub(crate) fn scratch(&self, tokens: u32) -> usize {
        let Some((_, pieces)) = self.many.as_ref().filter(|_| tokens > self.most()) else {
            return 0;
        };
        let rows = pieces.iter().map(|p| p.n as usize).max().unwrap_or(0);
        rows * self.k as usize * self.dtype.bytes()
    }

    /// Enqueues the product for `m` tokens. `y` has all columns; `scratch` is the address of [`Self::scratch`] bytes.
    ///
    /// # Errors
    /// When the driver or the library refuses a launch.
    pub(crate) fn run(
        &self,
        gpu: &Gpu,
        matmul: &Matmul,
        m: u32,
        (x, y): (Tensor, Tensor),
        scratch: u64,
    ) -> Result<()> {
        match &self.many {
            Some((kernel, pieces)) if m > self.most() => {
                for piece in pieces {
                    self.expand(gpu, kernel, piece, scratch)?;
                    let product = Product {
                        m,
                        n: piece.n,
                        k: self.k,
                        x_stride: x.stride as u32,
                        y_stride: y.stride as u32,
                        input: self.dtype,
                        output: self.output,
                        bias: piece.bias != 0,
                        gating: None,
                    };
                    let operands = Operands {
                        x: x.data,
                        w: scratch,
                        bias: piece.bias,
                        y: y.data + u64::from(piece.column) * self.output.bytes() as u64,
                    };
                    // A kernel of ours would read the scratch before it is written.
                    matmul.run_on(&product, &operands, Weights::Written)?;
                }
                Ok(())
            }
            _ => self.one_pass(gpu, m, x, y),
        }
    }

    /// Dequantizes a piece's rows, one after the other.
    fn expand(&self, gpu: &Gpu, kernel: &Kernel, piece: &Piece, out: u64) -> Result<()> {
        let stages = self.k.div_ceil(STAGE);
        let mut params = RowsParams {
            out,
            stride: i64::from(self.k),
            k: self.k as i32,
            stages: stages as i32,
            panels: piece.panels,
            segment_count: piece.segments.len() as i32,
            segments: [RowsSegment::default(); SEGMENTS],
        };
        for (to, from) in params.segments.iter_mut().zip(&piece.segments) {
            *to = *from;
        }
        let warps = piece.panels as u32 * stages;
        kernel.launch(gpu, Grid::new(warps.div_ceil(8), 256), &params)
    }

    fn one_pass(&self, gpu: &Gpu, m: u32, x: Tensor, y: Tensor) -> Result<()> {
        let fits = self.few.iter().find(|(shape, _)| m <= shape.most());
        let Some((shape, kernel)) = fits.or(self.few.last()) else {
            return Ok(());
        };
        for parts in self.parts.chunks(SEGMENTS) {
            let mut params = LinearParams {
                x: x.data,
                y: y.data,
                x_stride: x.stride,
                y_stride: y.stride,
                tokens: m as i32,
                k: self.k as i32,
                segment_count: parts.len() as i32,
                padding: 0,
                segments: [LinearSegment::default(); SEGMENTS],
            };
            let mut blocks = 0;
            for (to, part) in params.segments.iter_mut().zip(parts) {
                *to = LinearSegment {
                    panels: part.matrix.panel(0),
                    bias: part.bias.as_ref().map_or(0, |b| b.address()),
                    block: number(part.matrix.block),
                    rows: part.matrix.n as i32,
                    column: part.column as i32,
                    first_block: blocks as i32,
                };
                blocks += part.matrix.panels().div_ceil(shape.panels);
            }
            let mut shared = shape.shared(self.slot);
            if shape.resident > 2 && blocks <= 2 * gpu.properties.multiprocessors {
                // All run at once. While the blocks of the kernel ahead still hold some multiprocessors, three of these would
                // share another one and be the last to end: at most two fit.
                shared = shared.max(gpu.properties.shared_per_block / 3 + 1);
            }
            let grid = Grid::new(blocks, WARPS * 32)
                .yz(m.div_ceil(shape.most()), 1)
                .shared(shared);
            kernel.launch(gpu, grid, &params)?;
        }
        Ok(())
    }
}

/// What cutting looks at: rows of a part, its first column of y, and whether it has a bias.
#[derive(Clone, Copy, Debug)]
struct Span {
    n: u32,
    column: u32,
    bias: bool,
}

/// Rows of one part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cut {
    part: usize,
    row: u32,
    rows: u32,
}

/// Cuts the rows of all parts into pieces of about `most` rows and of even size; cuts within a part are between panels.
/// Parts without biases whose columns are neighbours share pieces.
fn cut(spans: &[Span], most: usize) -> Vec<Vec<Cut>> {
    let joins = |a: &Span, b: &Span| !a.bias && !b.bias && a.column + a.n == b.column;
    let mut pieces = Vec::new();
    let mut part = 0;
    for run in spans.chunk_by(joins) {
        let total: u32 = run.iter().map(|s| s.n).sum();
        let count = (total as usize).div_ceil(most.max(1)).max(1) as u32;
        // Products are fastest with rows in multiples of their tiles.
        let room = total.div_ceil(count).next_multiple_of(128);
        let mut open: Vec<Cut> = Vec::new();
        let mut used = 0;
        for span in run {
            let mut row = 0;
            while row < span.n {
                let rows = (span.n - row).min((room - used) / PANEL * PANEL);
                if rows == 0 || open.len() == SEGMENTS {
                    pieces.push(std::mem::take(&mut open));
                    used = 0;
                    continue;
                }
                open.push(Cut { part, row, rows });
                row += rows;
                used += rows;
            }
            part += 1;
        }
        if !open.is_empty() {
            pieces.push(open);
        }
    }
    pieces
}

/// The pieces of all parts, of about `most` rows each.
fn pieces(parts: &[QuantPart], dtype: CudaDtype, most: usize) -> Vec<Piece> {
    let spans: Vec<Span> = parts
        .iter()
        .map(|p| Span {
            n: p.matrix.n,
            column: p.column,
            bias: p.bias.is_some(),
        })
        .collect();
    let piece = |cuts: Vec<Cut>| {
        let (mut n, mut panels) = (0, 0);
        let segments = cuts.iter().map(|cut| {
            let matrix = &parts[cut.part].matrix;
            let segment = RowsSegment {
                panels: matrix.panel(cut.row / PANEL),
                block: number(matrix.block),
                rows: cut.rows as i32,
                first_panel: panels,
                first_row: n as i32,
            };
            n += cut.rows;
            panels += cut.rows.div_ceil(PANEL) as i32;
            segment
        });
        let segments = segments.collect();
        let first = cuts[0];
        let bias = parts[first.part].bias.as_ref().map_or(0, |b| {
            b.address() + u64::from(first.row) * dtype.bytes() as u64
        });
        Piece {
            column: spans[first.part].column + first.row,
            n,
            bias,
            panels,
            segments,
        }
    };
    cut(&spans, most).into_iter().map(piece).collect()
}

#[cfg(test)]
mod tests;
