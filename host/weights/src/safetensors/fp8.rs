//! FP8 matrices with a scale per block (DeepSeek-V3, arXiv:2412.19437, section 3.3): `{name}` in E4M3, and
//! `{name}_scale_inv [rows / 128, cols / 128]` in f32, by which the elements of a block are multiplied. They are given out as the
//! bf16 matrices that they stand for, as DeepSeek's own conversion makes them.

use std::collections::BTreeMap;
use std::path::Path;

use half::bf16;

use super::Stored;
use crate::{DType, Scheme, TensorInfo, WeightsError, dequantize};

/// Rows and columns of a block.
const BLOCK: usize = 128;

const SCALES: &str = "_scale_inv";

/// Joins matrices with their scales, which are then no tensors of their own.
///
/// # Errors
/// When scales belong to nothing that they fit.
pub(super) fn join(
    path: &Path,
    tensors: &mut BTreeMap<String, Stored>,
) -> Result<(), WeightsError> {
    let scaled: Vec<String> = tensors
        .keys()
        .filter(|name| name.ends_with(SCALES))
        .cloned()
        .collect();
    for name in scaled {
        let Some(scales) = tensors.remove(&name) else {
            continue;
        };
        let of = name.trim_end_matches(SCALES);
        let Some(matrix) = tensors.get_mut(of) else {
            return Err(unsupported(
                path,
                &format!("'{name}' scales '{of}', which is not in the checkpoint"),
            ));
        };
        let fits = match (&matrix.info.shape[..], matrix.info.scheme) {
            ([rows, cols], Scheme::Plain(DType::F8E4M3)) => {
                let blocks = [rows.div_ceil(BLOCK), cols.div_ceil(BLOCK)];
                scales.info == TensorInfo::new(blocks, DType::F32)
            }
            _ => false,
        };
        if !fits {
            return Err(unsupported(
                path,
                &format!(
                    "'{of}' {:?} stored as {} has scales {:?} stored as {}; supported are f8_e4m3 matrices with one f32 \
                     per {BLOCK} x {BLOCK} elements",
                    matrix.info.shape, matrix.info.scheme, scales.info.shape, scales.info.scheme
                ),
            ));
        }
        matrix.info.scheme = Scheme::Plain(DType::Bf16);
        matrix.scales = Some((scales.shard, scales.range));
    }
    Ok(())
}

fn unsupported(path: &Path, what: &str) -> WeightsError {
    let what = format!("{what}; convert the checkpoint to bf16 first");
    WeightsError::Unsupported {
        path: path.to_owned(),
        what,
    }
}

/// The bf16 elements of a matrix of `cols` columns.
///
/// # Errors
/// Never, where [`join`] found the sizes to fit.
pub(super) fn expand(cols: usize, bytes: &[u8], scales: &[u8]) -> Result<Vec<u8>, WeightsError> {
    let (scales, _) = scales.as_chunks::<4>();
    let across = cols.div_ceil(BLOCK).max(1);
    let mut out = Vec::with_capacity(2 * bytes.len());
    let mut line = vec![0f32; cols];
    for (row, bytes) in bytes.chunks_exact(cols.max(1)).enumerate() {
        dequantize(Scheme::Plain(DType::F8E4M3), bytes, &mut line)?;
        let scales = &scales[row / BLOCK * across..];
        for (block, scale) in line.chunks(BLOCK).zip(scales) {
            let scale = f32::from_le_bytes(*scale);
            let scaled = block.iter().map(|x| bf16::from_f32(x * scale));
            out.extend(scaled.flat_map(bf16::to_le_bytes));
        }
    }
    Ok(out)
}
