//! A layer of experts (`kernels/moe`): pairs of row and expert sorted by expert on the GPU, a product with its activation, a
//! second product, and a weighted sum per row.
//!
//! Every grid depends on the number of rows alone, so that captured graphs can be replayed. A row's result does not depend
//! on the other rows: sums run over the inner dimension in order in every variant of the products, and a row's experts are
//! added in the order of its own list.

#![allow(unsafe_code)]

use std::sync::Arc;

use guesthouse_graph::{Gate, Rows};

use super::pointwise::activation;
use super::{Instr, Place, Step, Tensor, access};
use crate::cuda::compiler::Source;
use crate::cuda::driver::Gpu;
use crate::cuda::launch::{Grid, Kernel, Params};
use crate::cuda::options::CudaDtype;
use crate::cuda::weights::model_flag;
use crate::error::Result;

pub(crate) use weights::{ExpertMatrix, Form, down_rows, gate_up_rows};

mod weights;

/// `Order` of the kernels.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Order {
    pair_of: u64,
    slot_of: u64,
    tiles: u64,
    count: u64,
}

/// `SortParams` of the kernel.
#[repr(C)]
#[derive(Clone, Copy)]
struct SortParams {
    ids: Tensor,
    row_of: u64,
    order: Order,
    rows: i32,
    tile: i32,
}

// SAFETY: the kernel's structure; its addresses are those of the step's arenas, arrays and scratch.
unsafe impl Params for SortParams {}

/// `ProductParams` of the kernels.
#[repr(C)]
#[derive(Clone, Copy)]
struct ProductParams {
    x: Tensor,
    weights: u64,
    bias: u64,
    y: Tensor,
    order: Order,
    k: i32,
    rows: i32,
    alpha: f32,
    limit: f32,
}

// SAFETY: the kernels' structure; its addresses are those of the step's arenas and scratch, and of weights that the
// instruction holds.
unsafe impl Params for ProductParams {}

/// `CombineParams` of the kernel.
#[repr(C)]
#[derive(Clone, Copy)]
struct CombineParams {
    results: Tensor,
    weights: Tensor,
    y: Tensor,
    slot_of: u64,
    width: i64,
    rows: i32,
    padding: i32,
}

// SAFETY: as above.
unsafe impl Params for CombineParams {}

/// A layer's weights and operands.
pub(crate) struct ExpertsSpec {
    pub experts: usize,
    pub gate: Gate,
    /// Rows as [`gate_up_rows`] says.
    pub gate_up: ExpertMatrix,
    /// Rows as [`down_rows`] says.
    pub down: ExpertMatrix,
    pub x: Place,
    pub weights: Place,
    pub ids: Place,
    pub y: Place,
}

/// How products are cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cut {
    /// Without tensor cores.
    Generic,
    /// Tiles of 16 slots: bound by reading weights.
    Few,
    /// Tiles of 64 slots.
    Many,
}

impl Cut {
    /// Slots of a tile and packed rows of a block.
    fn tile(self) -> (u32, u32) {
        match self {
            Self::Generic | Self::Few => (16, 64),
            Self::Many => (64, 128),
        }
    }

    fn threads(self) -> u32 {
        match self {
            Self::Generic => 256,
            Self::Few | Self::Many => 128,
        }
    }

    /// Bytes of dynamic shared memory.
    fn shared(self, form: Form) -> u32 {
        let (slots, rows) = self.tile();
        let weights = match form {
            Form::Model => rows * 128,
            Form::Mxfp4 => rows / 8 * weights::MXFP4_BYTES as u32,
        };
        let stage = (slots * 128 + weights).next_multiple_of(128);
        match self {
            Self::Generic => 0,
            Self::Few => 6 * stage,
            Self::Many => 3 * stage,
        }
    }
}

/// One of the two products.
struct Product {
    cut: Cut,
    kernel: Kernel,
}

/// Both products for one size of tiles.
struct Products {
    up: Product,
    down: Product,
}

/// `(x [hidden], weights [top_k], ids [top_k]) → (y [hidden])`
pub(crate) struct Experts {
    spec: ExpertsSpec,
    dtype: CudaDtype,
    sort: Kernel,
    warps: u32,
    combine: Kernel,
    vec: usize,
    few: Products,
    /// Where tensor cores can be used.
    many: Option<Products>,
}

/// Pairs per expert above which tiles of 64 are used.
const MANY: usize = 32;

impl Experts {
    /// The kernels of a layer; shapes have been checked.
    ///
    /// # Errors
    /// When a kernel is missing.
    pub(crate) fn new(gpu: &Arc<Gpu>, dtype: CudaDtype, spec: ExpertsSpec) -> Result<Self> {
        let top_k = spec.ids.width;
        // Counts of all warps take 32 KiB at most.
        let warps = (8192 / spec.experts.max(1))
            .clamp(4, 32)
            .next_power_of_two() as u32;
        let warps = if warps as usize * spec.experts > 8192 && warps > 4 {
            warps / 2
        } else {
            warps
        };
        let sort = Source::new("moe/sort.cu", "sort")
            .flag(model_flag(dtype))
            .define("EXPERTS", spec.experts)
            .define("TOP_K", top_k)
            .define("WARPS", warps);
        let vec = access::elements(&[&spec.y], &[spec.y.width]);
        let combine = Source::new("moe/combine.cu", "combine")
            .flag(model_flag(dtype))
            .define("TOP_K", top_k)
            .define("VEC", vec);
        // Tensor cores read 16 bytes of a row at a time.
        let whole = |k: usize| dtype != CudaDtype::F32 && k.is_multiple_of(8);
        let (up, down) = (
            whole(spec.gate_up.cols) && spec.x.is_aligned(),
            whole(spec.down.cols),
        );
        let products = |up: Cut, down: Cut| -> Result<Products> {
            Ok(Products {
                up: Self::up(gpu, dtype, &spec, up)?,
                down: Self::down(gpu, dtype, &spec, down)?,
            })
        };
        let small = |mma: bool| if mma { Cut::Few } else { Cut::Generic };
        let many = (up && down).then(|| products(Cut::Many, Cut::Many));
        Ok(Self {
            dtype,
            sort: gpu.kernel(&sort)?,
            warps,
            combine: gpu.kernel(&combine)?,
            vec,
            few: products(small(up), small(down))?,
            many: many.transpose()?,
            spec,
        })
    }

    fn source(dtype: CudaDtype, spec: &ExpertsSpec, cut: Cut, form: Form) -> Source {
        let file = match cut {
            Cut::Generic => "moe/generic.cu",
            Cut::Few | Cut::Many => "moe/grouped.cu",
        };
        let mut source = Source::new(file, "product")
            .flag(model_flag(dtype))
            .define("TOP_K", spec.ids.width);
        if cut != Cut::Generic {
            let (slots, rows) = cut.tile();
            source = source.define("SLOTS", slots).define("ROWS", rows);
        }
        match form {
            Form::Model => source,
            Form::Mxfp4 => source.flag("MXFP4"),
        }
    }

    fn up(gpu: &Arc<Gpu>, dtype: CudaDtype, spec: &ExpertsSpec, cut: Cut) -> Result<Product> {
        let source = Self::source(dtype, spec, cut, spec.gate_up.form)
            .flag("GATED")
            .flag("GATHER");
        let source = match spec.gate {
            Gate::Plain(a) => source.define("FUNCTION", activation(a)),
            Gate::Clamped { .. } => source.flag("CLAMPED"),
        };
        Ok(Product {
            cut,
            kernel: gpu.kernel(&source)?,
        })
    }

    fn down(gpu: &Arc<Gpu>, dtype: CudaDtype, spec: &ExpertsSpec, cut: Cut) -> Result<Product> {
        let source = Self::source(dtype, spec, cut, spec.down.form);
        Ok(Product {
            cut,
            kernel: gpu.kernel(&source)?,
        })
    }

    /// Bytes of scratch for so many rows.
    pub(crate) fn scratch(&self, rows: u32) -> usize {
        self.layout(rows as usize).bytes
    }

    fn layout(&self, rows: usize) -> Layout {
        let pairs = rows * self.spec.ids.width;
        let mut at = 0;
        let mut take = |bytes: usize| {
            let start = at;
            at += bytes.next_multiple_of(256);
            start as u64
        };
        let element = self.dtype.bytes();
        let mut layout = Layout {
            pair_of: take(4 * pairs),
            slot_of: take(4 * pairs),
            tiles: take(16 * self.tiles(pairs, 16)),
            count: take(4),
            inner: take(pairs * self.spec.gate_up.rows / 2 * element),
            results: take(pairs * self.spec.down.rows * element),
            bytes: 0,
        };
        layout.bytes = at;
        layout
    }

    /// Most tiles of so many slots that the pairs make.
    fn tiles(&self, pairs: usize, tile: usize) -> usize {
        pairs / tile + pairs.min(self.spec.experts)
    }
}

/// Where scratch holds what, bytes.
struct Layout {
    pair_of: u64,
    slot_of: u64,
    tiles: u64,
    count: u64,
    /// `[pairs, rows / 2]` of the first product.
    inner: u64,
    /// `[pairs, rows]` of the second.
    results: u64,
    bytes: usize,
}

impl Instr for Experts {
    fn launch(&self, step: &Step<'_>) -> Result<()> {
        let spec = &self.spec;
        let rows = step.rows(spec.y.arena);
        let pairs = rows as usize * spec.ids.width;
        let layout = self.layout(rows as usize);
        let at = |offset: u64| step.scratch + offset;
        let order = Order {
            pair_of: at(layout.pair_of),
            slot_of: at(layout.slot_of),
            tiles: at(layout.tiles),
            count: at(layout.count),
        };
        let products = match &self.many {
            Some(many) if pairs >= MANY * spec.experts => many,
            _ => &self.few,
        };
        let tile = products.up.cut.tile().0;
        let is_token = spec.y.arena == Rows::Tokens;
        let sort = SortParams {
            ids: step.tensor(&spec.ids),
            row_of: if is_token { step.batch.row_of } else { 0 },
            order,
            rows: rows as i32,
            tile: tile as i32,
        };
        let shared = 4 * (self.warps + 3) * spec.experts as u32;
        let grid = Grid::new(u32::from(rows > 0), 32 * self.warps).shared(shared);
        self.sort.launch(step.gpu, grid, &sort)?;

        let (alpha, limit) = match spec.gate {
            Gate::Plain(_) => (0.0, 0.0),
            Gate::Clamped { alpha, limit } => (alpha, limit),
        };
        let inner = Tensor {
            data: at(layout.inner),
            stride: (spec.gate_up.rows / 2) as i64,
        };
        let results = Tensor {
            data: at(layout.results),
            stride: spec.down.rows as i64,
        };
        let tiles = self.tiles(pairs, tile as usize) as u32;
        let run = |product: &Product, matrix: &ExpertMatrix, x: Tensor, y: Tensor| {
            let params = ProductParams {
                x,
                weights: matrix.buffer.address(),
                bias: matrix.bias.as_ref().map_or(0, |b| b.address()),
                y,
                order,
                k: matrix.cols as i32,
                rows: matrix.rows as i32,
                alpha,
                limit,
            };
            let cut = product.cut;
            let blocks = (matrix.rows as u32).div_ceil(cut.tile().1);
            let grid = Grid::new(blocks, cut.threads())
                .yz(tiles, 1)
                .shared(cut.shared(matrix.form));
            product.kernel.launch(step.gpu, grid, &params)
        };
        run(&products.up, &spec.gate_up, step.tensor(&spec.x), inner)?;
        run(&products.down, &spec.down, inner, results)?;

        let combine = CombineParams {
            results,
            weights: step.tensor(&spec.weights),
            y: step.tensor(&spec.y),
            slot_of: order.slot_of,
            width: spec.y.width as i64,
            rows: rows as i32,
            padding: 0,
        };
        let grid = access::rows_grid(spec.y.width / self.vec, 1, rows);
        self.combine.launch(step.gpu, grid, &combine)
    }

    fn name(&self) -> &'static str {
        "experts"
    }

    fn label(&self) -> String {
        let (n, k) = (self.spec.gate_up.rows, self.spec.gate_up.cols);
        format!("experts {} of {n} by {k}", self.spec.experts)
    }
}
