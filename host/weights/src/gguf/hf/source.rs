//! The tensors of a GGUF file under their Hugging Face names, with the converter's changes undone.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use half::{bf16, f16};

use super::super::cursor::malformed;
use super::super::{Gguf, GgufTensor};
use super::config::Keys;
use super::family::{Change, Current, Family, Heads, Kind};
use super::rope;
use crate::{DType, Scheme, TensorInfo, WeightSource, WeightsError, dequantize, prefix};

/// A [`WeightSource`] over a [`Gguf`].
///
/// Every tensor keeps its scheme: reordering rows moves whole rows of blocks, other changes only ever touch plain
/// tensors. Tensors that the architecture's name table lacks keep their GGUF name, so that they are reported as unused.
#[derive(Debug)]
pub struct GgufSource {
    gguf: Arc<Gguf>,
    /// In file order.
    entries: Vec<Entry>,
    by_name: HashMap<String, usize>,
}

#[derive(Debug)]
struct Entry {
    name: String,
    /// As presented, after undoing the change.
    info: TensorInfo,
    /// Position among the file's tensors.
    tensor: usize,
    undo: Undo,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Undo {
    Nothing,
    /// Row 2i + h of each head of `rows` rows becomes row h · rows/2 + i.
    Deinterleave {
        rows: usize,
    },
    SubtractOne(DType),
    Transpose,
    /// From all queries, all keys, all values to the parts of each key head.
    ByHead(Fused),
    /// One of the parts that the tensor has one after the other.
    Part(Part),
    /// Together with the values in another tensor, and as f32: rows of keys are columns here.
    Latents {
        values: usize,
    },
}

/// Heads of a fused projection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Fused {
    /// Query heads of a key head.
    queries: usize,
    kv_heads: usize,
}

/// More than any model has: experts multiply what a file's header lists.
const MOST_TENSORS: usize = 1 << 20;

/// A part of equal ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Part {
    index: usize,
    count: usize,
}

/// Name, info and what to undo.
type Presented = (String, TensorInfo, Undo);

impl GgufSource {
    /// Presents a file.
    ///
    /// # Errors
    /// For architectures without a name table, and files whose tensors do not fit their metadata.
    pub fn new(gguf: impl Into<Arc<Gguf>>) -> Result<Self, WeightsError> {
        let gguf = gguf.into();
        let family = Family::of(&gguf)?;
        let layout = Layout {
            family,
            keys: Keys::new(&gguf, family),
            conv1d_transposed: family.keeps_conv1d_transposed(&gguf),
            hides_rope_factors: rope::factors(&gguf)?.is_some_and(|f| f.expressible()),
        };
        let mut entries = Vec::with_capacity(gguf.tensors().len());
        let mut by_name = HashMap::new();
        for (tensor, stored) in gguf.tensors().iter().enumerate() {
            let presented = layout.present(&gguf, stored)?;
            if entries.len() + presented.len() > MOST_TENSORS {
                let what = format!("its experts make more than {MOST_TENSORS} tensors");
                return Err(malformed(gguf.path(), what));
            }
            for (name, info, undo) in presented {
                if by_name.insert(name.clone(), entries.len()).is_some() {
                    return Err(malformed(
                        gguf.path(),
                        format!("two of its tensors mean '{name}'"),
                    ));
                }
                entries.push(Entry {
                    name,
                    info,
                    tensor,
                    undo,
                });
            }
        }
        Ok(Self {
            gguf,
            entries,
            by_name,
        })
    }

    /// By the same prefix rule as [`crate::Safetensors`].
    fn find(&self, name: &str) -> Option<&Entry> {
        prefix::find(name, |name| self.by_name.get(name)).map(|&i| &self.entries[i])
    }

    /// The file.
    #[must_use]
    pub fn gguf(&self) -> &Arc<Gguf> {
        &self.gguf
    }
}

struct Layout<'a> {
    family: &'static Family,
    keys: Keys<'a>,
    conv1d_transposed: bool,
    hides_rope_factors: bool,
}

impl Layout<'_> {
    /// The tensors that a stored one is; none where the config, or another one, expresses it.
    fn present(&self, gguf: &Gguf, stored: &GgufTensor) -> Result<Vec<Presented>, WeightsError> {
        if stored.name == rope::TENSOR && self.hides_rope_factors
            || self.family.kind == Kind::Current(Current::Phi3)
                && [rope::LONG, rope::SHORT].contains(&&*stored.name)
        {
            return Ok(Vec::new());
        }
        let (name, change) = self
            .family
            .map(&stored.name)
            .unwrap_or_else(|| (stored.name.clone(), Change::None));
        let mut info = stored.info.clone();
        let undo = match change {
            Change::None => Undo::Nothing,
            Change::HalvesInterleaved(heads) => Undo::Deinterleave {
                rows: self.head_rows(gguf, stored, heads)?,
            },
            Change::OneAdded => match info.scheme {
                Scheme::Plain(dtype @ (DType::F32 | DType::F16 | DType::Bf16)) => {
                    Undo::SubtractOne(dtype)
                }
                other => {
                    return Err(malformed(
                        gguf.path(),
                        format!(
                            "norm '{}' is stored as {other}, expected f32, f16 or bf16",
                            stored.name
                        ),
                    ));
                }
            },
            Change::Stacked => Undo::ByHead(self.fused(gguf, stored)?),
            Change::Experts(matrix) => return experts(gguf, stored, &name, matrix),
            Change::LatentKeys => {
                let (shape, values) = latents(gguf, stored)?;
                info = TensorInfo::new(shape, DType::F32);
                Undo::Latents { values }
            }
            // Presented with the keys.
            Change::LatentValues => return Ok(Vec::new()),
            Change::Transposed if self.conv1d_transposed || info.shape.len() != 2 => Undo::Nothing,
            Change::Transposed => {
                info.shape.reverse();
                Undo::Transpose
            }
        };
        Ok(vec![(name, info, undo)])
    }

    fn fused(&self, gguf: &Gguf, stored: &GgufTensor) -> Result<Fused, WeightsError> {
        let (heads, kv_heads) = (self.keys.heads()?, self.keys.kv_heads()?);
        Self::plain_if_vector(gguf, stored)?;
        let rows = stored.info.shape.first().copied().unwrap_or(1);
        if heads.is_multiple_of(kv_heads) && rows.is_multiple_of(heads + 2 * kv_heads) {
            return Ok(Fused {
                queries: heads / kv_heads,
                kv_heads,
            });
        }
        Err(malformed(
            gguf.path(),
            format!(
                "tensor '{}' has {rows} rows, which {heads} query heads and {kv_heads} key heads cannot share",
                stored.name
            ),
        ))
    }

    /// Elements of a bias move one by one, so that they must not be blocks.
    fn plain_if_vector(gguf: &Gguf, stored: &GgufTensor) -> Result<(), WeightsError> {
        if stored.info.shape.len() == 1 && stored.info.scheme.is_row_blocked() {
            let (name, scheme) = (&stored.name, stored.info.scheme);
            let what = format!("bias '{name}' is stored as {scheme}, expected a plain type");
            return Err(malformed(gguf.path(), what));
        }
        Ok(())
    }

    /// Rows of one head of a query or key projection.
    fn head_rows(
        &self,
        gguf: &Gguf,
        stored: &GgufTensor,
        heads: Heads,
    ) -> Result<usize, WeightsError> {
        let heads = match heads {
            Heads::Query => self.keys.heads()?,
            Heads::KeyValue => self.keys.kv_heads()?,
        };
        let rows = stored.info.shape.first().copied().unwrap_or(1);
        Self::plain_if_vector(gguf, stored)?;
        if heads > 0 && rows.is_multiple_of(2 * heads) {
            return Ok(rows / heads);
        }
        Err(malformed(
            gguf.path(),
            format!(
                "tensor '{}' has {rows} rows, which {heads} heads cannot share in pairs",
                stored.name
            ),
        ))
    }
}

/// The experts of a stack `[experts, rows, cols]`, under the name of their layer.
fn experts(
    gguf: &Gguf,
    stored: &GgufTensor,
    layer: &str,
    matrix: &str,
) -> Result<Vec<Presented>, WeightsError> {
    /// Bounds what a file's header makes us allocate.
    const MOST: usize = 4096;
    let [count, rows, cols] = stored.info.shape[..] else {
        let (name, shape) = (&stored.name, &stored.info.shape);
        let what = format!("tensor '{name}' has shape {shape:?}, expected a matrix per expert");
        return Err(malformed(gguf.path(), what));
    };
    if count > MOST {
        let what = format!("it claims {count} experts, at most {MOST} are possible");
        return Err(malformed(gguf.path(), what));
    }
    let layer = layer.trim_end_matches(".weight");
    let info = TensorInfo::new([rows, cols], stored.info.scheme);
    let each = |index| {
        let undo = Undo::Part(Part { index, count });
        (
            format!("{layer}.{index}.{matrix}.weight"),
            info.clone(),
            undo,
        )
    };
    Ok((0..count).map(each).collect())
}

/// Shape of a latent's expansion whose keys are given, and the tensor of its values.
fn latents(gguf: &Gguf, keys: &GgufTensor) -> Result<([usize; 2], usize), WeightsError> {
    let name = keys.name.replace("attn_k_b", "attn_v_b");
    let at = gguf.tensors().iter().position(|t| t.name == name);
    let values = at.map(|at| &gguf.tensors()[at].info.shape[..]);
    match (&keys.info.shape[..], values, at) {
        (&[heads, rank, nope], Some(&[v_heads, v, v_rank]), Some(at))
            if (heads, rank) == (v_heads, v_rank) && heads * rank * nope * v > 0 =>
        {
            Ok(([heads * (nope + v), rank], at))
        }
        (shape, values, _) => Err(malformed(
            gguf.path(),
            format!(
                "tensor '{}' has shape {shape:?} and '{name}' {values:?}, expected [heads, rank, key] and [heads, value, rank]",
                keys.name
            ),
        )),
    }
}

impl WeightSource for GgufSource {
    fn info(&self, name: &str) -> Option<TensorInfo> {
        self.find(name).map(|entry| entry.info.clone())
    }

    fn names(&self) -> Vec<String> {
        self.entries.iter().map(|e| e.name.clone()).collect()
    }

    fn resolve(&self, name: &str) -> Option<String> {
        self.find(name).map(|entry| entry.name.clone())
    }

    fn read(&self, name: &str) -> Result<Cow<'_, [u8]>, WeightsError> {
        let entry = self
            .find(name)
            .ok_or_else(|| WeightsError::missing(name, self.gguf.path().display().to_string()))?;
        let stored = &self.gguf.tensors()[entry.tensor];
        if let Undo::Part(Part { index, count }) = entry.undo {
            return self.gguf.part(stored, index, count).map(Cow::Owned);
        }
        let bytes = self.gguf.bytes(stored)?;
        Ok(Cow::Owned(match entry.undo {
            Undo::Nothing | Undo::Part(_) => bytes,
            Undo::Deinterleave { rows } => deinterleave(&bytes, stored, rows),
            Undo::SubtractOne(dtype) => subtract_one(dtype, &bytes),
            Undo::Transpose => transpose(&bytes, &stored.info),
            Undo::ByHead(fused) => by_head(&bytes, fused),
            Undo::Latents { values } => {
                let values = &self.gguf.tensors()[values];
                let read = self.gguf.bytes(values)?;
                expansion((stored, &bytes), (values, &read))?
            }
        }))
    }
}

/// `[heads * (nope + v), rank]` from keys `[heads, rank, nope]` and values `[heads, v, rank]`, as f32.
fn expansion(
    keys: (&GgufTensor, &[u8]),
    values: (&GgufTensor, &[u8]),
) -> Result<Vec<u8>, WeightsError> {
    let floats = |(tensor, bytes): (&GgufTensor, &[u8])| {
        let mut out = vec![0f32; tensor.info.elements().unwrap_or(0)];
        dequantize(tensor.info.scheme, bytes, &mut out)?;
        Ok::<_, WeightsError>(out)
    };
    let shape = &keys.0.info.shape;
    let (rank, nope, v) = (shape[1], shape[2], values.0.info.shape[1]);
    let (keys, values) = (floats(keys)?, floats(values)?);
    let mut out = Vec::with_capacity(4 * (keys.len() + values.len()));
    let heads = keys.chunks(rank * nope).zip(values.chunks(v * rank));
    for (keys, values) in heads {
        for column in 0..nope {
            let row = keys[column..].iter().step_by(nope);
            out.extend(row.flat_map(|x| x.to_le_bytes()));
        }
        out.extend(values.iter().flat_map(|x| x.to_le_bytes()));
    }
    Ok(out)
}

/// Moves whole rows. A bias counts as a column.
fn deinterleave(bytes: &[u8], stored: &GgufTensor, head_rows: usize) -> Vec<u8> {
    let row_bytes = bytes.len() / stored.info.shape.first().copied().unwrap_or(1);
    let half = head_rows / 2;
    let mut out = Vec::with_capacity(bytes.len());
    for head in bytes.chunks_exact(head_rows * row_bytes) {
        for row in (0..half).map(|i| 2 * i).chain((0..half).map(|i| 2 * i + 1)) {
            out.extend_from_slice(&head[row * row_bytes..(row + 1) * row_bytes]);
        }
    }
    out
}

/// Moves whole heads.
fn by_head(bytes: &[u8], fused: Fused) -> Vec<u8> {
    let Fused { queries, kv_heads } = fused;
    let head = bytes.len() / (kv_heads * (queries + 2));
    let (q, kv) = bytes.split_at(queries * kv_heads * head);
    let (k, v) = kv.split_at(kv_heads * head);
    let mut out = Vec::with_capacity(bytes.len());
    for i in 0..kv_heads {
        out.extend_from_slice(&q[i * queries * head..(i + 1) * queries * head]);
        out.extend_from_slice(&k[i * head..(i + 1) * head]);
        out.extend_from_slice(&v[i * head..(i + 1) * head]);
    }
    out
}

fn subtract_one(dtype: DType, bytes: &[u8]) -> Vec<u8> {
    fn each<const N: usize>(bytes: &[u8], minus_one: impl Fn([u8; N]) -> [u8; N]) -> Vec<u8> {
        let (elements, _) = bytes.as_chunks::<N>();
        elements.iter().flat_map(|&e| minus_one(e)).collect()
    }
    match dtype {
        DType::F16 => each(bytes, |e| {
            f16::from_f32(f16::from_le_bytes(e).to_f32() - 1.0).to_le_bytes()
        }),
        DType::Bf16 => each(bytes, |e| {
            bf16::from_f32(bf16::from_le_bytes(e).to_f32() - 1.0).to_le_bytes()
        }),
        // `present` admits nothing else.
        _ => each(bytes, |e| (f32::from_le_bytes(e) - 1.0).to_le_bytes()),
    }
}

/// `[rows, cols]` → `[cols, rows]` of a plain tensor.
fn transpose(bytes: &[u8], info: &TensorInfo) -> Vec<u8> {
    let (rows, cols) = (info.shape[0], info.shape[1]);
    let element = bytes.len() / (rows * cols);
    let mut out = Vec::with_capacity(bytes.len());
    for col in 0..cols {
        for row in 0..rows {
            let at = (row * cols + col) * element;
            out.extend_from_slice(&bytes[at..at + element]);
        }
    }
    out
}
