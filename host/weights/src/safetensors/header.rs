//! The header of one safetensors file: `[n: u64][n bytes of JSON][data]`, offsets relative to the data.

use std::ops::Range;
use std::path::Path;

use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::file::Head;
use crate::json::UniqueMap;
use crate::{DType, TensorInfo, WeightsError};

/// The limit of the reference implementation.
const MAX_HEADER_BYTES: u64 = 100_000_000;

/// More dimensions than any model has; bounds what a hostile shape can cost.
const MAX_DIMS: usize = 16;

/// One tensor of the file.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) name: String,
    pub(super) info: TensorInfo,
    /// Bytes from the start of the file, within it, as many as `info` needs.
    pub(super) range: Range<usize>,
}

#[derive(Deserialize)]
struct Raw {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: (u64, u64),
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Item {
    Tensor(Raw),
    Other(IgnoredAny),
}

pub(super) fn malformed(path: &Path, what: impl Into<String>) -> WeightsError {
    WeightsError::Malformed {
        path: path.to_owned(),
        format: "safetensors",
        what: what.into(),
    }
}

/// Checks the whole header: tensors must tile the data exactly, in any order.
pub(super) fn parse(path: &Path, head: Head<'_>) -> Result<Vec<Entry>, WeightsError> {
    let bad = |what: String| malformed(path, what);
    let Some((length, rest)) = head.bytes.split_first_chunk::<8>() else {
        return Err(bad(format!(
            "expected a header length in its first 8 bytes, but it has {} bytes",
            head.file_len
        )));
    };
    let length = u64::from_le_bytes(*length);
    if length > MAX_HEADER_BYTES {
        return Err(bad(format!(
            "its header claims {length} bytes, the format allows {MAX_HEADER_BYTES}"
        )));
    }
    let (json, _) = rest.split_at_checked(length as usize).ok_or_else(|| {
        bad(format!(
            "its header claims {length} bytes, but only {} follow",
            head.file_len - 8
        ))
    })?;
    let UniqueMap(items) = serde_json::from_slice::<UniqueMap<Item>>(json)
        .map_err(|e| bad(format!("its header is not the expected JSON object: {e}")))?;

    let data_start = 8 + json.len();
    let data_len = head.file_len - data_start;
    let mut entries = Vec::with_capacity(items.len());
    for (name, item) in items {
        match item {
            _ if name == "__metadata__" => {}
            _ if name.contains(char::is_control) => {
                return Err(bad(format!("tensor name {name:?} has control characters")));
            }
            Item::Tensor(raw) => entries.push(entry(path, name, &raw, data_len, data_start)?),
            Item::Other(_) => {
                return Err(bad(format!(
                    "tensor '{name}' needs dtype, shape and data_offsets"
                )));
            }
        }
    }
    check_tiling(path, &entries, data_start, head.file_len)?;
    Ok(entries)
}

fn entry(
    path: &Path,
    name: String,
    raw: &Raw,
    data_len: usize,
    data_start: usize,
) -> Result<Entry, WeightsError> {
    let bad = |what: String| malformed(path, format!("tensor '{name}' {what}"));
    let dtype = dtype(path, &name, &raw.dtype)?;
    if raw.shape.len() > MAX_DIMS {
        let dims = raw.shape.len();
        return Err(bad(format!(
            "has {dims} dimensions, at most {MAX_DIMS} are possible"
        )));
    }
    let shape = raw.shape.iter().map(|&dim| usize::try_from(dim));
    let shape: Vec<usize> = shape.collect::<Result<_, _>>().map_err(|_| {
        bad(format!(
            "has shape {:?}, too large for this machine",
            raw.shape
        ))
    })?;
    let info = TensorInfo::new(shape, dtype);

    let (begin, end) = raw.data_offsets;
    if begin > end || end > data_len as u64 {
        return Err(bad(format!(
            "has data_offsets [{begin}, {end}], but the data has {data_len} bytes"
        )));
    }
    // Both fit: they are at most data_len.
    let range = data_start + begin as usize..data_start + end as usize;
    match info.byte_len() {
        Some(needed) if needed == range.len() => Ok(Entry { name, info, range }),
        Some(needed) => Err(bad(format!(
            "of {dtype} {:?} needs {needed} bytes, its data_offsets span {}",
            info.shape,
            range.len()
        ))),
        None => Err(bad(format!(
            "has shape {:?}, whose size overflows",
            info.shape
        ))),
    }
}

fn dtype(path: &Path, tensor: &str, name: &str) -> Result<DType, WeightsError> {
    Ok(match name {
        "F32" => DType::F32,
        "F16" => DType::F16,
        "BF16" => DType::Bf16,
        "F8_E4M3" => DType::F8E4M3,
        "F8_E5M2" => DType::F8E5M2,
        "I64" => DType::I64,
        "I32" => DType::I32,
        "I16" => DType::I16,
        "I8" => DType::I8,
        "U8" => DType::U8,
        "BOOL" => DType::Bool,
        other => {
            return Err(WeightsError::Unsupported {
                path: path.to_owned(),
                what: format!(
                    "tensor '{tensor}' has dtype {other:?}; supported are F32, F16, BF16, F8_E4M3, F8_E5M2, I64, I32, \
                     I16, I8, U8 and BOOL, so save the checkpoint with one of these"
                ),
            });
        }
    })
}

/// The format leaves no holes: sorted by offset, each tensor begins where the one before it ends.
fn check_tiling(
    path: &Path,
    entries: &[Entry],
    data_start: usize,
    file_len: usize,
) -> Result<(), WeightsError> {
    let mut sorted: Vec<&Entry> = entries.iter().collect();
    sorted.sort_by_key(|e| (e.range.start, e.range.end));
    let mut end = data_start;
    let mut before = "the header";
    for entry in sorted {
        let (name, start) = (&entry.name, entry.range.start);
        if start < end {
            return Err(malformed(
                path,
                format!(
                    "tensor '{name}' overlaps '{before}' by {} bytes",
                    end - start
                ),
            ));
        }
        if start > end {
            return Err(malformed(
                path,
                format!(
                    "{} bytes between '{before}' and '{name}' belong to no tensor",
                    start - end
                ),
            ));
        }
        end = entry.range.end;
        before = name;
    }
    if end == file_len {
        return Ok(());
    }
    Err(malformed(
        path,
        format!(
            "{} bytes after '{before}' belong to no tensor",
            file_len - end
        ),
    ))
}
