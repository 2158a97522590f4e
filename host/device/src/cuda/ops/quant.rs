//! Quantized weights (`kernels/quant`): packed once at load, then read as they are.
//!
//! Few tokens are multiplied in one pass over the packed bytes. For many, rows are dequantized into scratch and the
//! library multiplies: each way reads the weights once, and the second is bound by operations instead of by unpacking.

#![allow(unsafe_code)]

mod embedding;
mod linear;

pub(crate) use embedding::QuantEmbedding;
pub(crate) use linear::{QuantLinear, QuantPart};

use std::sync::Arc;

use guesthouse_weights::{BlockType, Scheme};

use crate::cuda::compiler::Source;
use crate::cuda::driver::{Buffer, Gpu};
use crate::cuda::launch::{Grid, Params};
use crate::error::{DeviceError, Result};
use crate::weights_eval::HostTensor;

/// Rows of a panel (`PANEL` of `blocks.cuh`).
const PANEL: u32 = 16;

/// Columns that a warp takes at a time (`STAGE`).
const STAGE: u32 = 256;

/// Columns are counted in 26 bits by the kernels.
const MAX_COLUMNS: u32 = 1 << 26;

/// Segments of one launch (`SEGMENTS`).
const SEGMENTS: usize = 8;

/// Number of a type in the kernels.
const fn number(block: BlockType) -> u32 {
    match block {
        BlockType::Q4_0 => 0,
        BlockType::Q4_1 => 1,
        BlockType::Q5_0 => 2,
        BlockType::Q5_1 => 3,
        BlockType::Q8_0 => 4,
        BlockType::Q2K => 5,
        BlockType::Q3K => 6,
        BlockType::Q4K => 7,
        BlockType::Q5K => 8,
        BlockType::Q6K => 9,
    }
}

/// `QUANT_TYPES`: the types that a kernel is compiled for.
fn mask(blocks: impl IntoIterator<Item = BlockType>) -> u32 {
    blocks
        .into_iter()
        .fold(0, |mask, block| mask | 1 << number(block))
}

/// Columns of a chunk.
const fn chunk(block: BlockType) -> u32 {
    if block.block_len() == 32 { 64 } else { 256 }
}

/// Bytes that a stage of a panel takes.
const fn stage_bytes(block: BlockType) -> u32 {
    PANEL * block.block_bytes() as u32 * (STAGE / block.block_len() as u32)
}

/// `QuantRepackParams` of the kernel.
#[repr(C)]
#[derive(Clone, Copy)]
struct RepackParams {
    rows: u64,
    panels: u64,
    row_count: i32,
    k: i32,
    block: u32,
    padding: u32,
}

// SAFETY: the kernel's structure; both addresses are of buffers of the sizes that it assumes.
unsafe impl Params for RepackParams {}

/// A matrix `[n, k]` in blocks, as the kernels want them: the file's bits in another order.
pub(crate) struct QuantMatrix {
    buffer: Buffer,
    block: BlockType,
    n: u32,
    k: u32,
}

impl QuantMatrix {
    /// Puts a tensor on the GPU.
    ///
    /// # Errors
    /// When it is no matrix, its scheme has no kernel, or it does not fit the GPU.
    pub(crate) fn upload(gpu: &Arc<Gpu>, tensor: &HostTensor<'_>) -> Result<Self> {
        let refuse = |what: String| DeviceError::Weight {
            name: "a quantized matrix".to_owned(),
            what,
        };
        let Scheme::Block(block) = tensor.info.scheme else {
            return Err(refuse(format!(
                "the CUDA device has no kernel for {}",
                tensor.info.scheme
            )));
        };
        let [n, k] = tensor.info.shape[..] else {
            return Err(refuse(format!(
                "expected rows and columns, found shape {:?}",
                tensor.info.shape
            )));
        };
        let too_large = || refuse(format!("[{n}, {k}] is more than the kernels can address"));
        let fits = |x: usize, most: u32| u32::try_from(x).ok().filter(|x| *x < most);
        let (rows, columns) = (
            fits(n, i32::MAX as u32).ok_or_else(too_large)?,
            fits(k, MAX_COLUMNS).ok_or_else(too_large)?,
        );
        let expected = tensor
            .info
            .scheme
            .row_bytes(k)
            .and_then(|row| row.checked_mul(n));
        if expected != Some(tensor.bytes.len()) {
            return Err(refuse(format!(
                "[{n}, {k}] stored as {block} in {} bytes",
                tensor.bytes.len()
            )));
        }
        let chunks = u64::from(rows.div_ceil(PANEL)) * u64::from(columns.div_ceil(chunk(block)));
        let chunk_bytes =
            u64::from(PANEL * chunk(block) / block.block_len() as u32) * block.block_bytes() as u64;
        let bytes = chunks
            .checked_mul(chunk_bytes)
            .and_then(|b| usize::try_from(b).ok())
            .ok_or_else(too_large)?;
        let blocks = u32::try_from(chunks.div_ceil(8)).map_err(|_| too_large())?;
        let raw = gpu.upload(&tensor.bytes, "weights on their way")?;
        let buffer = gpu.allocate(bytes, "weights")?;
        let params = RepackParams {
            rows: raw.address(),
            panels: buffer.address(),
            row_count: rows as i32,
            k: columns as i32,
            block: number(block),
            padding: 0,
        };
        let source = Source::new("quant/repack.cu", "quant_repack")
            .flag("MODEL_F32")
            .define("QUANT_TYPES", mask(BlockType::ALL));
        gpu.kernel(&source)?
            .launch(gpu, Grid::new(blocks, 256), &params)?;
        // The raw bytes go when this returns.
        gpu.synchronize()?;
        Ok(Self {
            buffer,
            block,
            n: rows,
            k: columns,
        })
    }

    /// Rows and columns.
    pub(crate) fn shape(&self) -> (u32, u32) {
        (self.n, self.k)
    }

    /// Bytes on the GPU.
    pub(crate) fn bytes(&self) -> usize {
        self.buffer.bytes()
    }

    fn panels(&self) -> u32 {
        self.n.div_ceil(PANEL)
    }

    /// Address of a panel.
    fn panel(&self, panel: u32) -> u64 {
        let chunks = u64::from(panel) * u64::from(self.k.div_ceil(chunk(self.block)));
        let blocks = u64::from(PANEL * chunk(self.block) / self.block.block_len() as u32);
        self.buffer.address() + chunks * blocks * self.block.block_bytes() as u64
    }
}
