//! Moving elements: what is not a view (`kernels/shape`).

#![allow(unsafe_code)]

use std::sync::Arc;

use guesthouse_graph::Rows;

use super::{BatchArgs, Instr, Place, Step, Tensor, access};
use crate::cuda::compiler::Source;
use crate::cuda::driver::Gpu;
use crate::cuda::launch::{Grid, Kernel, Params};
use crate::cuda::options::CudaDtype;
use crate::error::Result;

/// A regular copy within a row, in elements: `outer` runs of `len`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Strided {
    pub outer: usize,
    pub len: usize,
    /// First element and distance of runs in x.
    pub from: (usize, usize),
    /// Likewise in y.
    pub to: (usize, usize),
}

impl Strided {
    /// `start..start + len` of an axis of a value with these dimensions, packed in the result. None when it does not fit.
    pub(crate) fn take(dims: &[usize], axis: usize, start: usize, len: usize) -> Option<Self> {
        let size = *dims.get(axis)?;
        if start.checked_add(len)? > size {
            return None;
        }
        let inner: usize = dims[axis + 1..].iter().product();
        Some(Self {
            outer: dims[..axis].iter().product(),
            len: len * inner,
            from: (start * inner, size * inner),
            to: (0, len * inner),
        })
    }

    /// The copy that undoes this one.
    pub(crate) fn reversed(self) -> Self {
        Self {
            from: self.to,
            to: self.from,
            ..self
        }
    }
}

/// Parts of one launch.
const MAX_PARTS: usize = 8;

/// `CopyPart` of the kernel; lengths are in units.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct PartParams {
    x: u64,
    y: u64,
    x_stride: i64,
    y_stride: i64,
    outer: i32,
    len: i32,
    x_first: i32,
    x_step: i32,
    y_first: i32,
    y_step: i32,
}

/// `CopyParams` of the kernel.
#[repr(C)]
#[derive(Clone, Copy)]
struct CopyParams {
    parts: [PartParams; MAX_PARTS],
    rows: i32,
    count: i32,
}

// SAFETY: the kernel's structure; its addresses are those of the step's arenas.
unsafe impl Params for CopyParams {}

/// Copies runs between values: splits, slices, concatenations, repeated heads.
pub(crate) struct Copy {
    kernel: Kernel,
    parts: Vec<(Place, Place, Strided)>,
    /// Elements that move together.
    vec: usize,
    name: &'static str,
}

impl Copy {
    /// Copies of values of one element type; runs lie within the widths.
    ///
    /// # Errors
    /// When the kernel is missing.
    pub(crate) fn new(
        gpu: &Arc<Gpu>,
        name: &'static str,
        parts: Vec<(Place, Place, Strided)>,
    ) -> Result<Self> {
        let places: Vec<&Place> = parts.iter().flat_map(|(x, y, _)| [x, y]).collect();
        let lengths: Vec<usize> = parts
            .iter()
            .flat_map(|(_, _, s)| [s.len, s.from.0, s.from.1, s.to.0, s.to.1])
            .collect();
        let element = places.first().map_or(4, |p| p.element);
        // Either everything moves in units of 16 bytes, or element by element.
        let widest = 16 / element;
        let vec = if access::elements(&places, &lengths) == widest {
            widest
        } else {
            1
        };
        let source = Source::new("shape/copy.cu", "copy_parts")
            .flag("MODEL_F32")
            .define("BYTES", vec * element);
        Ok(Self {
            kernel: gpu.kernel(&source)?,
            parts,
            vec,
            name,
        })
    }

    /// Each head of `x [heads, d]` `times` times in a row.
    ///
    /// # Errors
    /// When the kernel is missing.
    pub(crate) fn repeat(
        gpu: &Arc<Gpu>,
        x: Place,
        y: Place,
        d: usize,
        times: usize,
    ) -> Result<Self> {
        let part = |r: usize| Strided {
            outer: x.width / d.max(1),
            len: d,
            from: (0, d),
            to: (r * d, times * d),
        };
        let parts = (0..times).map(|r| (x, y, part(r))).collect();
        Self::new(gpu, "repeat heads", parts)
    }
}

impl Instr for Copy {
    fn launch(&self, step: &Step<'_>) -> Result<()> {
        let units = |elements: usize| (elements / self.vec) as i32;
        for parts in self.parts.chunks(MAX_PARTS) {
            let rows = step.rows(parts[0].1.arena);
            let mut params = CopyParams {
                parts: [PartParams::default(); MAX_PARTS],
                rows: rows as i32,
                count: parts.len() as i32,
            };
            let mut largest = 0;
            for ((x, y, s), part) in parts.iter().zip(&mut params.parts) {
                let (x, y) = (step.tensor(x), step.tensor(y));
                *part = PartParams {
                    x: x.data,
                    y: y.data,
                    x_stride: x.stride / self.vec as i64,
                    y_stride: y.stride / self.vec as i64,
                    outer: s.outer as i32,
                    len: units(s.len),
                    x_first: units(s.from.0),
                    x_step: units(s.from.1),
                    y_first: units(s.to.0),
                    y_step: units(s.to.1),
                };
                largest = largest.max(s.outer * s.len / self.vec);
            }
            self.kernel
                .launch(step.gpu, access::rows_grid(largest, 1, rows), &params)?;
        }
        Ok(())
    }

    fn name(&self) -> &'static str {
        self.name
    }
}

/// `SwapParams` of the kernel.
#[repr(C)]
#[derive(Clone, Copy)]
struct SwapParams {
    x: Tensor,
    y: Tensor,
    a: i32,
    b: i32,
    rows: i32,
    padding: i32,
}

// SAFETY: the kernel's structure; its addresses are those of the step's arenas.
unsafe impl Params for SwapParams {}

/// `[a, b] → [b, a]`
pub(crate) struct SwapAxes {
    kernel: Kernel,
    a: usize,
    b: usize,
    x: Place,
    y: Place,
}

impl SwapAxes {
    /// The kernel; both values have `a * b` elements.
    ///
    /// # Errors
    /// When the kernel is missing.
    pub(crate) fn new(gpu: &Arc<Gpu>, (a, b): (usize, usize), x: Place, y: Place) -> Result<Self> {
        let source = Source::new("shape/swap.cu", "swap_axes")
            .flag("MODEL_F32")
            .define("BYTES", x.element);
        Ok(Self {
            kernel: gpu.kernel(&source)?,
            a,
            b,
            x,
            y,
        })
    }
}

impl Instr for SwapAxes {
    fn launch(&self, step: &Step<'_>) -> Result<()> {
        let rows = step.rows(self.y.arena);
        let params = SwapParams {
            x: step.tensor(&self.x),
            y: step.tensor(&self.y),
            a: self.a as i32,
            b: self.b as i32,
            rows: rows as i32,
            padding: 0,
        };
        let grid = access::rows_grid(self.a * self.b, 1, rows);
        self.kernel.launch(step.gpu, grid, &params)
    }

    fn name(&self) -> &'static str {
        "swap axes"
    }
}

/// `GatherParams` of the kernel; strides and width are in units.
#[repr(C)]
#[derive(Clone, Copy)]
struct GatherParams {
    x: Tensor,
    y: Tensor,
    outputs: u64,
    tokens: i32,
    width: i32,
}

// SAFETY: the kernel's structure; its addresses are those of the step's arenas and description.
unsafe impl Params for GatherParams {}

/// Rows of the tokens whose output is wanted.
pub(crate) struct GatherOutputs {
    kernel: Kernel,
    x: Place,
    y: Place,
    vec: usize,
}

impl GatherOutputs {
    /// The kernel, for values of equal width.
    ///
    /// # Errors
    /// When the kernel is missing.
    pub(crate) fn new(gpu: &Arc<Gpu>, x: Place, y: Place) -> Result<Self> {
        let widest = 16 / x.element;
        let vec = if access::elements(&[&x, &y], &[x.width]) == widest {
            widest
        } else {
            1
        };
        let source = Source::new("input/gather.cu", "gather_outputs")
            .flag("MODEL_F32")
            .define("BYTES", vec * x.element);
        Ok(Self {
            kernel: gpu.kernel(&source)?,
            x,
            y,
            vec,
        })
    }
}

impl Instr for GatherOutputs {
    fn launch(&self, step: &Step<'_>) -> Result<()> {
        let units = |t: Tensor| Tensor {
            data: t.data,
            stride: t.stride / self.vec as i64,
        };
        let width = self.x.width / self.vec;
        let params = GatherParams {
            x: units(step.tensor(&self.x)),
            y: units(step.tensor(&self.y)),
            outputs: step.batch.outputs,
            tokens: step.batch.token_count,
            width: width as i32,
        };
        let rows = step.rows(Rows::Outputs);
        let chunks = (width as u32).div_ceil(access::THREADS);
        let grid = Grid::new(rows, access::THREADS).yz(chunks, 1);
        self.kernel.launch(step.gpu, grid, &params)
    }

    fn name(&self) -> &'static str {
        "gather outputs"
    }
}

/// `MeanParams` of the kernel.
#[repr(C)]
#[derive(Clone, Copy)]
struct MeanParams {
    x: Tensor,
    y: Tensor,
    batch: BatchArgs,
    width: i32,
    padding: i32,
}

// SAFETY: the kernel's structure; its addresses are those of the step's arenas and description.
unsafe impl Params for MeanParams {}

/// Means over the sequences whose output is wanted; each has all of its tokens in the step.
pub(crate) struct MeanOutputs {
    kernel: Kernel,
    x: Place,
    y: Place,
}

impl MeanOutputs {
    /// Threads of a block.
    const THREADS: u32 = 128;

    /// The kernel, for values of equal width.
    ///
    /// # Errors
    /// When the kernel is missing.
    pub(crate) fn new(gpu: &Arc<Gpu>, dtype: CudaDtype, x: Place, y: Place) -> Result<Self> {
        let source = access::source("input/mean.cu", "mean_outputs", dtype, &x);
        Ok(Self {
            kernel: gpu.kernel(&source)?,
            x,
            y,
        })
    }
}

impl Instr for MeanOutputs {
    fn launch(&self, step: &Step<'_>) -> Result<()> {
        let params = MeanParams {
            x: step.tensor(&self.x),
            y: step.tensor(&self.y),
            batch: step.batch,
            width: self.x.width as i32,
            padding: 0,
        };
        let chunks = (self.x.width as u32).div_ceil(Self::THREADS);
        let grid = Grid::new(step.rows(Rows::Outputs), Self::THREADS).yz(chunks, 1);
        self.kernel.launch(step.gpu, grid, &params)
    }

    fn name(&self) -> &'static str {
        "mean"
    }
}

#[cfg(test)]
mod tests;
