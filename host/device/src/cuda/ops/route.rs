//! Choice of experts (`kernels/moe/route.cu`).

#![allow(unsafe_code)]

use std::sync::Arc;

use guesthouse_graph::{Route as Choice, RouteScores};

use super::{Instr, Place, Step, Tensor, access};
use crate::cuda::driver::{Buffer, Gpu};
use crate::cuda::launch::{Grid, Kernel, Params};
use crate::cuda::options::CudaDtype;
use crate::error::{DeviceError, Result};

/// Most experts that the kernel chooses from.
pub(crate) const MAX_EXPERTS: usize = 1024;

/// Warps of a block, a row each.
const WARPS: u32 = 4;

/// `RouteParams` of the kernel.
#[repr(C)]
#[derive(Clone, Copy)]
struct RouteParams {
    logits: Tensor,
    weights: Tensor,
    ids: Tensor,
    correction: u64,
    rows: i32,
    scale: f32,
}

// SAFETY: the kernel's structure; its addresses are those of the step's arenas, and of a vector that the instruction holds.
unsafe impl Params for RouteParams {}

/// `logits [experts]` → `weights [top_k]`, `ids [top_k]`.
pub(crate) struct Route {
    kernel: Kernel,
    correction: Option<Arc<Buffer>>,
    scale: f32,
    logits: Place,
    weights: Place,
    ids: Place,
}

impl Route {
    /// The kernel for a choice; `correction` is its f32 vector, widths have been checked.
    ///
    /// # Errors
    /// For more than [`MAX_EXPERTS`], or when the kernel is missing.
    pub(crate) fn new(
        gpu: &Arc<Gpu>,
        dtype: CudaDtype,
        route: &Choice,
        correction: Option<Arc<Buffer>>,
        (logits, weights, ids): (Place, Place, Place),
    ) -> Result<Self> {
        let experts = logits.width;
        if experts > MAX_EXPERTS {
            return Err(DeviceError::plan(format!(
                "{experts} experts; the GPU chooses from at most {MAX_EXPERTS}"
            )));
        }
        let scores = match route.scores {
            RouteScores::Softmax => 0,
            RouteScores::SoftmaxOfChosen => 1,
            RouteScores::Sigmoid => 2,
        };
        let mut source = access::source("moe/route.cu", "route", dtype, &logits)
            .define("EXPERTS", experts)
            .define("TOP_K", ids.width)
            .define("SCORES", scores);
        if correction.is_some() {
            source = source.flag("CORRECTION");
        }
        if route.renormalize {
            source = source.flag("RENORMALIZE");
        }
        if let Some(groups) = route.groups {
            source = source
                .define("GROUPS", groups.count)
                .define("GROUP_TOP", groups.top)
                .define("SUM_OF", groups.sum_of);
        }
        Ok(Self {
            kernel: gpu.kernel(&source)?,
            correction,
            scale: route.scale,
            logits,
            weights,
            ids,
        })
    }
}

impl Instr for Route {
    fn launch(&self, step: &Step<'_>) -> Result<()> {
        let rows = step.rows(self.ids.arena);
        let params = RouteParams {
            logits: step.tensor(&self.logits),
            weights: step.tensor(&self.weights),
            ids: step.tensor(&self.ids),
            correction: self.correction.as_ref().map_or(0, |c| c.address()),
            rows: rows as i32,
            scale: self.scale,
        };
        let grid = Grid::new(rows.div_ceil(WARPS), 32 * WARPS);
        self.kernel.launch(step.gpu, grid, &params)
    }

    fn name(&self) -> &'static str {
        "route"
    }
}
