//! Instructions: launches with all operands resolved when the model was loaded.

use guesthouse_graph::{Rows, ValueType};

use super::driver::Gpu;
use crate::error::Result;

// One file per kind of kernel: parameters, choice of variant, launch.
pub(crate) mod access;
pub(crate) mod attention;
pub(crate) mod attention_decode;
pub(crate) mod attention_generic;
pub(crate) mod attention_latent;
pub(crate) mod attention_prefill;
pub(crate) mod experts;
pub(crate) mod gated_linear;
pub(crate) mod gemv;
pub(crate) mod head_linear;
pub(crate) mod input;
pub(crate) mod kv;
pub(crate) mod linear;
pub(crate) mod norm;
pub(crate) mod own;
pub(crate) mod pointwise;
pub(crate) mod quant;
pub(crate) mod recurrent;
pub(crate) mod rope;
pub(crate) mod route;
pub(crate) mod shape;
pub(crate) mod skinny;

/// Where a value lives, bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// Which arena.
    pub arena: Rows,
    /// Bytes per row of the arena before this value's buffer.
    pub base: usize,
    /// Bytes from row to row.
    pub stride: usize,
    /// Bytes into the row.
    pub offset: usize,
    /// Elements per row.
    pub width: usize,
    /// Element type.
    pub ty: ValueType,
    /// Bytes of an element.
    pub element: usize,
}

impl Place {
    /// Part of the value: `width` elements from element `start` on.
    pub(crate) fn columns(&self, start: usize, width: usize) -> Self {
        debug_assert!(start + width <= self.width);
        Self {
            offset: self.offset + start * self.element,
            width,
            ..*self
        }
    }

    /// Whether rows begin at multiples of 16 bytes, whatever the number of rows.
    pub(crate) fn is_aligned(&self) -> bool {
        // Buffers begin at multiples of 64 bytes.
        self.stride.is_multiple_of(16) && self.offset.is_multiple_of(16)
    }
}

/// Rows of a value in one step: `Rows<T>` of the kernels.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tensor {
    /// Address of element 0 of row 0.
    pub data: u64,
    /// Elements from row to row; 0 repeats one row.
    pub stride: i64,
}

/// `Batch` of the kernels: device addresses of a step's arrays, and their lengths.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct BatchArgs {
    /// `[T]` ids.
    pub tokens: u64,
    /// `[T]`
    pub positions: u64,
    /// `[T]`, -1 for padding.
    pub row_of: u64,
    /// `[R + 1]` first token of each row.
    pub first: u64,
    /// `[R]` cache positions after this step; 0 for padding.
    pub kv_len: u64,
    /// `[R]` line of the block tables.
    pub slot: u64,
    /// `[R]`
    pub prompt_len: u64,
    /// `[O]` token of each output row.
    pub outputs: u64,
    /// T.
    pub token_count: i32,
    /// R.
    pub row_count: i32,
    /// O.
    pub output_count: i32,
    /// Keeps the size a multiple of 8.
    pub padding: i32,
    /// `[R]` tokens known when the sequence was admitted: the prompt, or more after a preemption.
    pub admitted_len: u64,
    /// `[R]` positions below it see each other.
    pub prefix_len: u64,
    /// `[R]` GLM's first position of tokens from `block_start` on.
    pub mask_at: u64,
    /// `[R]` where GLM's block positions begin.
    pub block_start: u64,
}

/// `Cache` of the kernels: one layer's keys and values. A recurrent layer's states stand at `keys`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CacheArgs {
    /// `[blocks, heads, block_size, k_dim]`
    pub keys: u64,
    /// `[blocks, heads, block_size, v_dim]`; `keys` where values are the prefix of keys.
    pub values: u64,
    /// `[slots, table_stride]`
    pub tables: u64,
    pub table_stride: i32,
    pub heads: i32,
    pub k_dim: i32,
    pub v_dim: i32,
    pub block_size: i32,
    /// Blocks that exist; padding to the kernels.
    pub blocks: i32,
}

/// One sequence of a step, for planning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PlanRow {
    /// Row of the batch.
    pub row: u32,
    /// Line of the block tables.
    pub slot: u32,
    /// Its first token.
    pub first: u32,
    /// Tokens that it computes.
    pub len: u32,
    /// Cache positions once they are written; `kv_len - len` is the position of the first.
    pub kv_len: u32,
    /// Positions below it see each other; at most `kv_len`.
    pub prefix_len: u32,
}

/// Bounds on any step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    /// Tokens of one step.
    pub tokens: u32,
    /// Rows of one step.
    pub rows: u32,
    /// Output rows computed at a time.
    pub outputs: u32,
    /// Positions of a sequence.
    pub len: u32,
    /// Positions of a block.
    pub block_size: u32,
}

/// Divides a step's attention among blocks, on the host. What it writes is in device memory when the step runs, at an
/// address that never changes. Layers of equal geometry share one planner.
pub(crate) trait Planner: Send {
    /// Most 32-bit words that it writes.
    fn capacity(&self, limits: &Limits) -> usize;

    /// Appends the plan of a step to `out`. `rows` are the step's real rows: no padding.
    fn plan(&mut self, rows: &[PlanRow], out: &mut Vec<i32>);
}

/// The planners of a program.
#[derive(Default)]
pub(crate) struct Planners {
    list: Vec<(String, Box<dyn Planner>)>,
}

impl Planners {
    /// The planner with this key, which says all that its plans depend on; made by `new` if there is none yet.
    pub(crate) fn share(
        &mut self,
        key: String,
        new: impl FnOnce() -> Box<dyn Planner>,
    ) -> PlanSlot {
        let at = self.list.iter().position(|(k, _)| *k == key);
        PlanSlot(at.unwrap_or_else(|| {
            self.list.push((key, new()));
            self.list.len() - 1
        }))
    }

    /// All, in order of their slots.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Box<dyn Planner>> {
        self.list.iter_mut().map(|(_, planner)| planner)
    }
}

/// A planner of the program, by index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PlanSlot(pub usize);

/// Where a planner's words are in this step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PlanArgs {
    /// Device address.
    pub address: u64,
    /// Words written; a captured graph must not depend on it.
    pub words: u32,
}

/// What kind of step runs. Captured graphs are of the first kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StepKind {
    /// Every row advances by one token; counts are those of a bucket.
    Decode,
    /// Anything.
    Mixed,
}

/// A step as instructions see it.
pub(crate) struct Step<'a> {
    pub gpu: &'a Gpu,
    pub kind: StepKind,
    /// Counts are T, R and O with padding.
    pub batch: BatchArgs,
    /// Rows that advance by one token and by more; the latter is 0 in a decode step.
    pub single_rows: u32,
    pub long_rows: u32,
    /// Addresses of the token, output and broadcast arenas.
    pub arenas: [u64; 3],
    /// One per planner.
    pub plans: &'a [PlanArgs],
    /// One per cache of the graph.
    pub caches: &'a [CacheArgs],
    /// Memory that instructions may use until they end, of the size they asked for.
    pub scratch: u64,
}

impl Step<'_> {
    /// Rows of an arena in this step.
    pub(crate) fn rows(&self, arena: Rows) -> u32 {
        match arena {
            Rows::Tokens => self.batch.token_count as u32,
            Rows::Outputs => self.batch.output_count as u32,
            Rows::Broadcast => 1,
        }
    }

    /// A value. A broadcast value has stride 0.
    pub(crate) fn tensor(&self, place: &Place) -> Tensor {
        let rows = self.rows(place.arena) as usize;
        let (arena, stride) = match place.arena {
            Rows::Tokens => (self.arenas[0], place.stride),
            Rows::Outputs => (self.arenas[1], place.stride),
            Rows::Broadcast => (self.arenas[2], 0),
        };
        Tensor {
            data: arena + (place.base * rows + place.offset) as u64,
            stride: (stride / place.element) as i64,
        }
    }

    /// What a planner wrote.
    pub(crate) fn plan(&self, slot: PlanSlot) -> PlanArgs {
        self.plans.get(slot.0).copied().unwrap_or_default()
    }
}

/// One or more launches.
pub(crate) trait Instr: Send {
    /// Enqueues them.
    ///
    /// # Errors
    /// When a kernel does not compile or the driver refuses a launch.
    fn launch(&self, step: &Step<'_>) -> Result<()>;

    /// For messages, such as `linear`.
    fn name(&self) -> &'static str;

    /// For profiles: the name, with the shape where instructions of one name differ much.
    fn label(&self) -> String {
        self.name().to_owned()
    }
}
