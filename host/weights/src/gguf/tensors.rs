//! The tensor table.

use std::collections::HashSet;
use std::ops::Range;

use super::cursor::Cursor;
use super::metadata::Metadata;
use crate::{BlockType, DType, Scheme, TensorInfo, WeightsError};

/// Real files have some thousands.
pub(super) const MAX_TENSORS: usize = 1 << 17;
/// GGML_MAX_DIMS.
const MAX_DIMS: usize = 4;
/// GGML_MAX_NAME is 64 or 128; leave room.
const MAX_NAME: usize = 256;
/// Bytes of the largest possible table: names, and the fixed part of each entry.
const MAX_BYTES: usize = MAX_TENSORS * (MAX_NAME + 64);
const DEFAULT_ALIGNMENT: u64 = 32;
const MAX_ALIGNMENT: u64 = 1 << 20;

/// A tensor of a GGUF file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GgufTensor {
    /// Name in the file, like `blk.0.attn_q.weight`.
    pub name: String,
    /// Shape, outermost dimension first (the file lists them the other way round), and scheme.
    pub info: TensorInfo,
    /// Bytes from the start of the file, within it, as many as `info` needs.
    pub(super) range: Range<usize>,
}

/// The alignment of tensor data, a power of two from 8.
pub(super) fn alignment(metadata: &Metadata, cursor: &Cursor<'_>) -> Result<usize, WeightsError> {
    let alignment = metadata
        .u64("general.alignment")?
        .unwrap_or(DEFAULT_ALIGNMENT);
    if alignment.is_power_of_two() && (8..=MAX_ALIGNMENT).contains(&alignment) {
        return Ok(alignment as usize);
    }
    Err(cursor.malformed(format!(
        "its general.alignment is {alignment}, expected a power of two from 8 to {MAX_ALIGNMENT}"
    )))
}

/// A table entry before the start of the data is known.
struct Entry {
    name: String,
    info: TensorInfo,
    /// Bytes of the tensor.
    len: usize,
    /// From the start of the data.
    offset: u64,
}

pub(super) fn parse(
    cursor: &mut Cursor<'_>,
    count: usize,
    alignment: usize,
) -> Result<Vec<GgufTensor>, WeightsError> {
    cursor.limit(MAX_BYTES);
    let mut entries = Vec::new();
    let mut names = HashSet::new();
    for _ in 0..count {
        let entry = parse_entry(cursor)?;
        if !names.insert(entry.name.clone()) {
            return Err(cursor.malformed(format!("tensor '{}' appears twice", entry.name)));
        }
        if !entry.offset.is_multiple_of(alignment as u64) {
            return Err(cursor.malformed(format!(
                "tensor '{}' begins at offset {}, not a multiple of the alignment {alignment}",
                entry.name, entry.offset
            )));
        }
        entries.push(entry);
    }
    // The position is within the file and the alignment small: no overflow.
    let data_start = cursor.position().next_multiple_of(alignment);
    let tensors = entries
        .into_iter()
        .map(|entry| place(cursor, entry, data_start))
        .collect::<Result<Vec<_>, _>>()?;
    check_overlap(cursor, &tensors)?;
    Ok(tensors)
}

fn parse_entry(cursor: &mut Cursor<'_>) -> Result<Entry, WeightsError> {
    let name = cursor.string("a tensor name")?.to_owned();
    if name.is_empty() || name.len() > MAX_NAME || name.contains(char::is_control) {
        return Err(cursor.malformed(format!(
            "a tensor name before byte {} has {} bytes, expected 1 to {MAX_NAME} and no control characters",
            cursor.position(),
            name.len()
        )));
    }
    let dims = cursor.u32("a dimension count")? as usize;
    if dims > MAX_DIMS {
        return Err(cursor.malformed(format!(
            "tensor '{name}' has {dims} dimensions, at most {MAX_DIMS} are possible"
        )));
    }
    let mut shape = Vec::with_capacity(dims);
    for _ in 0..dims {
        let dim = cursor.u64("a dimension")?;
        match usize::try_from(dim) {
            Ok(dim) if dim > 0 => shape.push(dim),
            _ => return Err(cursor.malformed(format!("tensor '{name}' has a dimension of {dim}"))),
        }
    }
    shape.reverse();
    let scheme = match scheme(cursor.u32("a tensor type")?) {
        Ok(scheme) => scheme,
        Err(other) => {
            return Err(cursor.unsupported(format!(
                "tensor '{name}' has type {other}; supported are F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0 and Q2_K to \
                 Q6_K, so choose another quantization of this model"
            )));
        }
    };
    let offset = cursor.u64("a tensor offset")?;
    let info = TensorInfo { shape, scheme };
    let len = info.byte_len().ok_or_else(|| {
        cursor.malformed(format!(
            "tensor '{name}' has shape {:?}, which {scheme} (blocks of {}) cannot have",
            info.shape,
            scheme.unit().0
        ))
    })?;
    Ok(Entry {
        name,
        info,
        len,
        offset,
    })
}

fn place(cursor: &Cursor<'_>, entry: Entry, data_start: usize) -> Result<GgufTensor, WeightsError> {
    let start = usize::try_from(entry.offset)
        .ok()
        .and_then(|offset| offset.checked_add(data_start));
    let range = start.and_then(|start| Some(start..start.checked_add(entry.len)?));
    match range {
        Some(range) if range.end <= cursor.file_len() => Ok(GgufTensor {
            name: entry.name,
            info: entry.info,
            range,
        }),
        _ => Err(cursor.malformed(format!(
            "tensor '{}' needs {} bytes at offset {} of the data, which begins at byte {data_start}, but the file has {} bytes",
            entry.name,
            entry.len,
            entry.offset,
            cursor.file_len()
        ))),
    }
}

fn check_overlap(cursor: &Cursor<'_>, tensors: &[GgufTensor]) -> Result<(), WeightsError> {
    let mut sorted: Vec<&GgufTensor> = tensors.iter().collect();
    sorted.sort_by_key(|t| t.range.start);
    for pair in sorted.windows(2) {
        let [a, b] = pair else { continue };
        if b.range.start < a.range.end {
            return Err(cursor.malformed(format!(
                "tensors '{}' and '{}' overlap by {} bytes",
                a.name,
                b.name,
                a.range.end - b.range.start
            )));
        }
    }
    Ok(())
}

/// The scheme of a `ggml_type`, or the name of one that has none.
fn scheme(code: u32) -> Result<Scheme, String> {
    Ok(match code {
        0 => DType::F32.into(),
        1 => DType::F16.into(),
        30 => DType::Bf16.into(),
        2 => BlockType::Q4_0.into(),
        3 => BlockType::Q4_1.into(),
        6 => BlockType::Q5_0.into(),
        7 => BlockType::Q5_1.into(),
        8 => BlockType::Q8_0.into(),
        10 => BlockType::Q2K.into(),
        11 => BlockType::Q3K.into(),
        12 => BlockType::Q4K.into(),
        13 => BlockType::Q5K.into(),
        14 => BlockType::Q6K.into(),
        39 => Scheme::Mxfp4,
        other => {
            let name = OTHER_TYPES.iter().find(|(code, _)| *code == other);
            return Err(name.map_or_else(
                || format!("number {other}, which is unknown"),
                |(_, name)| (*name).to_owned(),
            ));
        }
    })
}

const OTHER_TYPES: [(u32, &str); 25] = [
    (4, "Q4_2"),
    (5, "Q4_3"),
    (9, "Q8_1"),
    (15, "Q8_K"),
    (16, "IQ2_XXS"),
    (17, "IQ2_XS"),
    (18, "IQ3_XXS"),
    (19, "IQ1_S"),
    (20, "IQ4_NL"),
    (21, "IQ3_S"),
    (22, "IQ2_S"),
    (23, "IQ4_XS"),
    (24, "I8"),
    (25, "I16"),
    (26, "I32"),
    (27, "I64"),
    (28, "F64"),
    (29, "IQ1_M"),
    (31, "Q4_0_4_4"),
    (32, "Q4_0_4_8"),
    (33, "Q4_0_8_8"),
    (34, "TQ1_0"),
    (35, "TQ2_0"),
    (36, "IQ4_NL_4_4"),
    (40, "NVFP4"),
];
