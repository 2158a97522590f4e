//! MXFP4 tensors in the two parts that gpt-oss's checkpoints store: `x_blocks [..., groups, 16]`, bytes of two elements
//! each, the even one in the low nibble, and `x_scales [..., groups]`, e8m0 bytes.

use std::collections::BTreeMap;

use super::Stored;
use crate::{DType, Scheme, TensorInfo};

/// Replaces each pair of parts that fit together by the tensor they make.
pub(super) fn join(tensors: &mut BTreeMap<String, Stored>) {
    let joined: Vec<(String, TensorInfo)> = tensors
        .iter()
        .filter_map(|(name, blocks)| {
            let base = name.strip_suffix("_blocks")?;
            let scales = tensors.get(&format!("{base}_scales"))?;
            let info = whole(&blocks.info, &scales.info)?;
            (!tensors.contains_key(base)).then(|| (base.to_owned(), info))
        })
        .collect();
    for (name, info) in joined {
        let parts = (
            tensors.remove(&format!("{name}_blocks")),
            tensors.remove(&format!("{name}_scales")),
        );
        if let (Some(blocks), Some(scales)) = parts {
            let scales = Some((scales.shard, scales.range));
            let stored = Stored {
                info,
                scales,
                ..blocks
            };
            tensors.insert(name, stored);
        }
    }
}

/// The tensor that two parts make, if they do.
fn whole(blocks: &TensorInfo, scales: &TensorInfo) -> Option<TensorInfo> {
    let bytes = Scheme::Plain(DType::U8);
    let [outer @ .., 16] = &blocks.shape[..] else {
        return None;
    };
    if blocks.scheme != bytes || scales.scheme != bytes || outer != scales.shape {
        return None;
    }
    let mut shape = outer.to_vec();
    let cols = shape.last_mut()?;
    *cols = cols.checked_mul(32)?;
    let info = TensorInfo::new(shape, Scheme::Mxfp4);
    info.byte_len().map(|_| info)
}

/// Blocks as [`Scheme::Mxfp4`] has them.
pub(super) fn blocks(pairs: &[u8], scales: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(pairs.len() + scales.len());
    for (pairs, &scale) in pairs.as_chunks::<16>().0.iter().zip(scales) {
        let element = |i: usize| pairs[i / 2] >> (i % 2 * 4) & 15;
        out.push(scale);
        out.extend((0..16).map(|i| element(i) | element(i + 16) << 4));
    }
    out
}
