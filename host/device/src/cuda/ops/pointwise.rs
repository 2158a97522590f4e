//! Element by element (`kernels/pointwise`).

#![allow(unsafe_code)]

use std::sync::Arc;

use guesthouse_graph::{Activation, Gate, GateLayout, Rows};

use super::input::Ints;
use super::{Instr, Place, Step, Tensor, access};
use crate::cuda::compiler::Source;
use crate::cuda::driver::Gpu;
use crate::cuda::launch::{Grid, Kernel, Params};
use crate::cuda::options::CudaDtype;
use crate::cuda::weights::model_flag;
use crate::error::{DeviceError, Result};

/// A function of one number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Unary {
    Activation(Activation),
    Scale(f32),
    Clamp(f32, f32),
    SoftCap(f32),
    Copy,
}

impl Unary {
    /// The kernels' name, and the two parameters.
    fn spelled(self) -> (&'static str, f32, f32) {
        match self {
            Self::Activation(a) => (activation(a), 0.0, 0.0),
            Self::Scale(by) => ("SCALE", by, 0.0),
            Self::Clamp(low, high) => ("CLAMP", low, high),
            Self::SoftCap(cap) => ("SOFTCAP", cap, 0.0),
            Self::Copy => ("COPY", 0.0, 0.0),
        }
    }
}

/// The kernels' name of an activation.
pub(crate) fn activation(a: Activation) -> &'static str {
    match a {
        Activation::Silu => "SILU",
        Activation::Gelu => "GELU",
        Activation::GeluTanh => "GELU_TANH",
        Activation::QuickGelu => "QUICK_GELU",
        Activation::Relu => "RELU",
        Activation::Relu2 => "RELU2",
        Activation::Sigmoid => "SIGMOID",
        Activation::Tanh => "TANH",
        Activation::Softplus => "SOFTPLUS",
        Activation::Exp => "EXP",
    }
}

/// Accesses of a thread.
const ITEMS: usize = 1;

/// `MapParams` of the kernel.
#[repr(C)]
#[derive(Clone, Copy)]
struct MapParams {
    x: Tensor,
    y: Tensor,
    width: i64,
    rows: i32,
    a: f32,
    b: f32,
    padding: i32,
}

// SAFETY: the kernel's structure; its addresses are those of the step's arenas, or of a weight that the instruction holds.
unsafe impl Params for MapParams {}

/// `y = f(x)`, of equal or different types.
pub(crate) struct Map {
    kernel: Kernel,
    function: Unary,
    x: Place,
    y: Place,
    vec: usize,
}

impl Map {
    /// The kernel for a function between two values of equal width.
    ///
    /// # Errors
    /// When the kernel is missing.
    pub(crate) fn new(
        gpu: &Arc<Gpu>,
        dtype: CudaDtype,
        function: Unary,
        x: Place,
        y: Place,
    ) -> Result<Self> {
        let is_int = x.ty == guesthouse_graph::ValueType::I32;
        let vec = if is_int {
            1
        } else {
            access::elements(&[&x, &y], &[x.width])
        };
        let source = Source::new("pointwise/map.cu", "map")
            .flag(model_flag(dtype))
            .define("FUNCTION", function.spelled().0)
            .define("X_TYPE", access::type_name(&x))
            .define("Y_TYPE", access::type_name(&y))
            .define("VEC", vec)
            .define("ITEMS", ITEMS);
        Ok(Self {
            kernel: gpu.kernel(&source)?,
            function,
            x,
            y,
            vec,
        })
    }
}

impl Instr for Map {
    fn launch(&self, step: &Step<'_>) -> Result<()> {
        let rows = step.rows(self.y.arena);
        let (_, a, b) = self.function.spelled();
        let params = MapParams {
            x: step.tensor(&self.x),
            y: step.tensor(&self.y),
            width: self.x.width as i64,
            rows: rows as i32,
            a,
            b,
            padding: 0,
        };
        let grid = access::rows_grid(self.x.width / self.vec, ITEMS, rows);
        self.kernel.launch(step.gpu, grid, &params)
    }

    fn name(&self) -> &'static str {
        "map"
    }
}

/// Where a gated activation finds its two inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GateInput {
    /// Two values.
    Pair(Place, Place),
    /// One value of twice the width.
    Merged(Place, GateLayout),
    /// One value of twice the width: eight elements of gate, their eight of up, and so on.
    Blocks(Place),
}

/// `GatedParams` of the kernel.
#[repr(C)]
#[derive(Clone, Copy)]
struct GatedParams {
    gate: Tensor,
    up: Tensor,
    y: Tensor,
    width: i64,
    rows: i32,
    alpha: f32,
    limit: f32,
    padding: i32,
}

// SAFETY: the kernel's structure; its addresses are those of the step's arenas.
unsafe impl Params for GatedParams {}

/// `act(gate) * up`
pub(crate) struct Gated {
    kernel: Kernel,
    gate: Gate,
    /// Gate and up; equal when they are interleaved.
    inputs: (Place, Place),
    y: Place,
    vec: usize,
}

impl Gated {
    /// The kernel for a gated activation; widths have been checked.
    ///
    /// # Errors
    /// When the kernel is missing.
    pub(crate) fn new(
        gpu: &Arc<Gpu>,
        dtype: CudaDtype,
        gate: Gate,
        input: GateInput,
        y: Place,
    ) -> Result<Self> {
        let inputs = match input {
            GateInput::Pair(gate, up) => (gate, up),
            GateInput::Merged(x, GateLayout::Halves) => {
                (x.columns(0, y.width), x.columns(y.width, y.width))
            }
            GateInput::Merged(x, GateLayout::Interleaved) | GateInput::Blocks(x) => (x, x),
        };
        let vec = access::elements(&[&inputs.0, &inputs.1, &y], &[y.width]);
        let mut source = access::source("pointwise/gated.cu", "gated", dtype, &y)
            .define("VEC", vec)
            .define("ITEMS", ITEMS);
        source = match gate {
            Gate::Plain(a) => source.define("FUNCTION", activation(a)),
            Gate::Clamped { .. } => source.flag("CLAMPED"),
        };
        if matches!(input, GateInput::Merged(_, GateLayout::Interleaved)) {
            source = source.flag("INTERLEAVED");
        }
        if matches!(input, GateInput::Blocks(_)) {
            if vec != 8 {
                return Err(DeviceError::plan("gate and up in blocks are not aligned"));
            }
            source = source.flag("BLOCKS");
        }
        Ok(Self {
            kernel: gpu.kernel(&source)?,
            gate,
            inputs,
            y,
            vec,
        })
    }
}

impl Instr for Gated {
    fn launch(&self, step: &Step<'_>) -> Result<()> {
        let rows = step.rows(self.y.arena);
        let (alpha, limit) = match self.gate {
            Gate::Plain(_) => (0.0, 0.0),
            Gate::Clamped { alpha, limit } => (alpha, limit),
        };
        let params = GatedParams {
            gate: step.tensor(&self.inputs.0),
            up: step.tensor(&self.inputs.1),
            y: step.tensor(&self.y),
            width: self.y.width as i64,
            rows: rows as i32,
            alpha,
            limit,
            padding: 0,
        };
        let grid = access::rows_grid(self.y.width / self.vec, ITEMS, rows);
        self.kernel.launch(step.gpu, grid, &params)
    }

    fn name(&self) -> &'static str {
        "gated"
    }
}

/// A function of two numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Binary {
    Add,
    Mul,
}

/// Dimensions of [`Spread::Dims`] at most.
const MAX_RANK: usize = 6;

/// How the second operand's elements meet the first's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Spread {
    /// Equal widths.
    Same,
    /// One number.
    One,
    /// By dimensions, the last first: its size in a, and the distance of its indices in b, 0 where b repeats.
    Dims {
        rank: usize,
        sizes: [i32; MAX_RANK],
        steps: [i32; MAX_RANK],
    },
}

impl Spread {
    /// Aligned at the last dimension; missing or unit dimensions of b repeat. Neighbouring dimensions of one kind are
    /// merged. None when the shapes do not broadcast, or alternate too often.
    pub(crate) fn new(a: &[usize], b: &[usize]) -> Option<Self> {
        let width = |d: &[usize]| d.iter().product::<usize>();
        if width(b) == 1 {
            return Some(Self::One);
        }
        let missing = a.len().checked_sub(b.len())?;
        let in_b = |i: usize| if i < missing { 1 } else { b[i - missing] };
        if (0..a.len()).any(|i| in_b(i) != a[i] && in_b(i) != 1) {
            return None;
        }
        if width(a) == width(b) {
            return Some(Self::Same);
        }
        let (mut rank, mut sizes, mut steps) = (0, [1; MAX_RANK], [0; MAX_RANK]);
        let mut step = 1;
        for i in (0..a.len()).rev().filter(|&i| a[i] != 1) {
            let repeats = in_b(i) == 1;
            if rank > 0 && (steps[rank - 1] == 0) == repeats {
                sizes[rank - 1] *= i32::try_from(a[i]).ok()?;
            } else {
                *sizes.get_mut(rank)? = i32::try_from(a[i]).ok()?;
                steps[rank] = if repeats { 0 } else { step };
                rank += 1;
            }
            step *= i32::try_from(in_b(i)).ok()?;
        }
        Some(Self::Dims { rank, sizes, steps })
    }
}

/// `ZipParams` of the kernel.
#[repr(C)]
#[derive(Clone, Copy)]
struct ZipParams {
    a: Tensor,
    b: Tensor,
    y: Tensor,
    width: i64,
    rows: i32,
    rank: i32,
    sizes: [i32; MAX_RANK],
    steps: [i32; MAX_RANK],
}

// SAFETY: the kernel's structure; its addresses are those of the step's arenas.
unsafe impl Params for ZipParams {}

/// `y = a ∘ b`
pub(crate) struct Zip {
    kernel: Kernel,
    function: Binary,
    a: Place,
    b: Place,
    spread: Spread,
    y: Place,
    vec: usize,
}

impl Zip {
    /// The kernel for a function of two values; widths have been checked.
    ///
    /// # Errors
    /// When the kernel is missing.
    pub(crate) fn new(
        gpu: &Arc<Gpu>,
        dtype: CudaDtype,
        function: Binary,
        (a, b, y): (Place, Place, Place),
        spread: Spread,
    ) -> Result<Self> {
        let (name, vec) = match spread {
            Spread::Same => ("SAME", access::elements(&[&a, &b, &y], &[y.width])),
            Spread::One => ("ONE", access::elements(&[&a, &y], &[y.width])),
            Spread::Dims { sizes, steps, .. } if steps[0] == 0 => {
                ("OUTER", access::elements(&[&a, &y], &[sizes[0] as usize]))
            }
            // Steps of outer dimensions are multiples of the innermost size.
            Spread::Dims { sizes, .. } => (
                "INNER",
                access::elements(&[&a, &b, &y], &[sizes[0] as usize]),
            ),
        };
        let source = access::source("pointwise/zip.cu", "zip", dtype, &y)
            .define("MULTIPLY", i32::from(function == Binary::Mul))
            .define("SPREAD", name)
            .define("VEC", vec)
            .define("ITEMS", ITEMS);
        Ok(Self {
            kernel: gpu.kernel(&source)?,
            function,
            a,
            b,
            spread,
            y,
            vec,
        })
    }
}

impl Instr for Zip {
    fn launch(&self, step: &Step<'_>) -> Result<()> {
        let rows = step.rows(self.y.arena);
        let (rank, sizes, steps) = match self.spread {
            Spread::Same | Spread::One => (0, [1; MAX_RANK], [0; MAX_RANK]),
            Spread::Dims { rank, sizes, steps } => (rank, sizes, steps),
        };
        let params = ZipParams {
            a: step.tensor(&self.a),
            b: step.tensor(&self.b),
            y: step.tensor(&self.y),
            width: self.y.width as i64,
            rows: rows as i32,
            rank: rank as i32,
            sizes,
            steps,
        };
        let grid = access::rows_grid(self.y.width / self.vec, ITEMS, rows);
        self.kernel.launch(step.gpu, grid, &params)
    }

    fn name(&self) -> &'static str {
        match self.function {
            Binary::Add => "add",
            Binary::Mul => "multiply",
        }
    }
}

/// `LogNParams` of the kernel.
#[repr(C)]
#[derive(Clone, Copy)]
struct LogNParams {
    x: Tensor,
    y: Tensor,
    positions: Tensor,
    width: i32,
    log_train: f32,
}

// SAFETY: the kernel's structure; its addresses are those of the step's arenas and description.
unsafe impl Params for LogNParams {}

/// Qwen 1's factor on queries beyond the length of training.
pub(crate) struct LogNScale {
    kernel: Kernel,
    log_train: f32,
    x: Place,
    positions: Ints,
    y: Place,
}

impl LogNScale {
    /// The kernel; widths have been checked.
    ///
    /// # Errors
    /// When x is not a value of token rows.
    pub(crate) fn new(
        gpu: &Arc<Gpu>,
        dtype: CudaDtype,
        train_len: u32,
        (x, positions, y): (Place, Ints, Place),
    ) -> Result<Self> {
        if y.arena != Rows::Tokens {
            return Err(DeviceError::plan(
                "positions scale a value without token rows",
            ));
        }
        let vec = access::elements(&[&x, &y], &[x.width]);
        let source =
            access::source("pointwise/logn.cu", "logn_scale", dtype, &x).define("VEC", vec);
        Ok(Self {
            kernel: gpu.kernel(&source)?,
            log_train: (train_len as f32).ln(),
            x,
            positions,
            y,
        })
    }
}

impl Instr for LogNScale {
    fn launch(&self, step: &Step<'_>) -> Result<()> {
        let params = LogNParams {
            x: step.tensor(&self.x),
            y: step.tensor(&self.y),
            positions: self.positions.tensor(step),
            width: self.x.width as i32,
            log_train: self.log_train,
        };
        let grid = Grid::new(step.rows(self.y.arena), access::THREADS);
        self.kernel.launch(step.gpu, grid, &params)
    }

    fn name(&self) -> &'static str {
        "logn scale"
    }
}

#[cfg(test)]
mod tests;
