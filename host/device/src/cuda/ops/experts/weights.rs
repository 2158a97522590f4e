//! Matrices of experts in the order in which the kernels take them.

use std::borrow::Cow;
use std::sync::Arc;

use guesthouse_graph::GateLayout;
use guesthouse_weights::{DType, Scheme, dequantize};

use crate::cuda::driver::{Buffer, Gpu};
use crate::cuda::options::CudaDtype;
use crate::cuda::weights::stored;
use crate::error::{DeviceError, Result};
use crate::weights_eval::{HostTensor, ordered_rows};

#[cfg(test)]
mod tests;

/// Rows of gate, then as many of up (`ROWS_TOGETHER` of the kernels).
const ROWS_TOGETHER: usize = 8;

/// Columns of a chunk of MXFP4, and bytes of one of eight rows.
const MXFP4_CHUNK: usize = 64;
pub(super) const MXFP4_BYTES: usize = 272;
const MXFP4_SCALES: usize = 256;

/// How the kernels read elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// The model's type, row-major.
    Model,
    /// As `moe/order.cuh` says.
    Mxfp4,
}

/// Matrices of all experts, one after the other.
pub(crate) struct ExpertMatrix {
    pub buffer: Arc<Buffer>,
    /// `[experts, rows]`, f32.
    pub bias: Option<Arc<Buffer>>,
    pub form: Form,
    /// Packed rows of one expert.
    pub rows: usize,
    pub cols: usize,
}

/// The stored row of each packed row of gate and up: eight of gate, their eight of up, and so on; none for padding.
pub(crate) fn gate_up_rows(ffn: usize, layout: GateLayout) -> Vec<Option<usize>> {
    let blocks = (0..ffn.next_multiple_of(ROWS_TOGETHER)).step_by(ROWS_TOGETHER);
    blocks
        .flat_map(|first| {
            (0..2).flat_map(move |part| {
                (first..first + ROWS_TOGETHER).map(move |r| {
                    (r < ffn).then_some(match layout {
                        GateLayout::Halves => part * ffn + r,
                        GateLayout::Interleaved => 2 * r + part,
                    })
                })
            })
        })
        .collect()
}

/// The same for the second product: in order, filled up to a multiple of eight.
pub(crate) fn down_rows(hidden: usize) -> Vec<Option<usize>> {
    (0..hidden.next_multiple_of(ROWS_TOGETHER))
        .map(|r| (r < hidden).then_some(r))
        .collect()
}

impl ExpertMatrix {
    /// Uploads matrices `[experts, stored rows, cols]` with the rows that `rows` lists, and a bias `[experts, stored rows]`
    /// likewise. Quantized blocks other than MXFP4 are expanded to the model's type.
    ///
    /// # Errors
    /// When the tensor is none of matrices, has no dequantization, or does not fit the GPU.
    pub(crate) fn upload(
        gpu: &Arc<Gpu>,
        dtype: CudaDtype,
        tensor: &HostTensor<'_>,
        bias: Option<&[f32]>,
        rows: &[Option<usize>],
    ) -> Result<Self> {
        let [count, _, cols] = tensor.info.shape[..] else {
            return Err(DeviceError::plan(format!(
                "experts of shape {:?}",
                tensor.info.shape
            )));
        };
        let (form, bytes) = match tensor.info.scheme {
            Scheme::Mxfp4 if small_scales(&tensor.bytes) => {
                let ordered = ordered_rows(&tensor.bytes, count, rows, &tensor.info)?;
                (Form::Mxfp4, packed_mxfp4(&ordered, cols).into())
            }
            scheme => (Form::Model, in_model_type(scheme, dtype, tensor, rows)?),
        };
        let buffer = gpu.upload(&bytes, "weights")?;
        let bias = bias.map(|b| {
            let each = (b.len() / count.max(1)).max(1);
            let values: Vec<f32> = b
                .chunks_exact(each)
                .flat_map(|b| rows.iter().map(|r| r.and_then(|r| b.get(r)).copied()))
                .map(Option::unwrap_or_default)
                .collect();
            gpu.upload(bytemuck::cast_slice(&values), "weights")
                .map(Arc::new)
        });
        Ok(Self {
            buffer: Arc::new(buffer),
            bias: bias.transpose()?,
            form,
            rows: rows.len(),
            cols,
        })
    }

    /// Bytes on the GPU.
    pub(crate) fn bytes(&self) -> usize {
        self.buffer.bytes() + self.bias.as_ref().map_or(0, |b| b.bytes())
    }
}

/// Whether no scale is above 2: larger ones, which no model has, are beyond the kernels' arithmetic.
fn small_scales(blocks: &[u8]) -> bool {
    let (blocks, _) = blocks.as_chunks::<17>();
    blocks.iter().all(|b| b[0] <= 128)
}

/// Rows in order, of the model's type.
fn in_model_type<'t>(
    scheme: Scheme,
    dtype: CudaDtype,
    tensor: &'t HostTensor<'_>,
    rows: &[Option<usize>],
) -> Result<Cow<'t, [u8]>> {
    let count = tensor.info.shape.first().copied().unwrap_or(0);
    let ordered = ordered_rows(&tensor.bytes, count, rows, &tensor.info)?;
    let same = matches!(
        (scheme, dtype),
        (Scheme::Plain(DType::Bf16), CudaDtype::Bf16)
            | (Scheme::Plain(DType::F16), CudaDtype::F16)
            | (Scheme::Plain(DType::F32), CudaDtype::F32)
    );
    if same {
        return Ok(ordered);
    }
    let cols = tensor.info.cols();
    let mut out = Vec::with_capacity(count * rows.len() * cols * dtype.bytes());
    let mut values = vec![0f32; cols];
    let row_bytes = tensor.info.row_bytes().unwrap_or(1).max(1);
    for row in ordered.chunks_exact(row_bytes) {
        dequantize(scheme, row, &mut values)?;
        out.extend(stored(&values, dtype));
    }
    Ok(out.into())
}

/// Rows of [`Scheme::Mxfp4`] blocks, a multiple of eight, as `moe/order.cuh` says.
fn packed_mxfp4(rows: &[u8], cols: usize) -> Vec<u8> {
    let blocks = cols / 32;
    let chunks = cols.div_ceil(MXFP4_CHUNK);
    let group_bytes = chunks * MXFP4_BYTES;
    let row_bytes = (blocks * 17).max(1);
    let count = rows.len() / row_bytes;
    let mut out = vec![0u8; count / ROWS_TOGETHER * group_bytes];
    for (row, bytes) in rows.chunks_exact(row_bytes).enumerate() {
        let group = &mut out[row / ROWS_TOGETHER * group_bytes..][..group_bytes];
        let r = row % ROWS_TOGETHER;
        for (b, block) in bytes.as_chunks::<17>().0.iter().enumerate() {
            let chunk = &mut group[b / 2 * MXFP4_BYTES..][..MXFP4_BYTES];
            chunk[MXFP4_SCALES + 2 * r + b % 2] = block[0];
            for i in 0..32 {
                let code = block[1 + i % 16] >> (i / 16 * 4) & 15;
                // Step of 16 columns, half, lane and place in the pair.
                let (s, half, t, second) = (i / 16, i % 16 / 8, i % 8 / 2, i % 2);
                let bit = 4 * (2 * s + half) + 16 * second;
                chunk[32 * r + 8 * t + 4 * (b % 2) + bit / 8] |= code << (bit % 8);
            }
        }
    }
    out
}
