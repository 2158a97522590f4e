//! Weight expressions evaluated to tensors in host memory.
//!
//! Row operations move stored bytes and lose nothing, whatever the scheme. The others compute in f32 and store the
//! result in the scheme that the verifier gave the weight.

use std::borrow::Cow;
use std::collections::BTreeMap;

use guesthouse_graph::{Graph, Op, Weight, WeightExpr, WeightId};
use guesthouse_weights::{DType, Scheme, TensorInfo, WeightSource, dequantize};
use half::{bf16, f16};

use crate::error::{DeviceError, Result};

#[cfg(test)]
mod tests;

/// A tensor in host memory: row-major bytes in the scheme's storage layout.
#[derive(Clone, Debug, PartialEq)]
pub struct HostTensor<'a> {
    /// Shape and storage.
    pub info: TensorInfo,
    /// [`TensorInfo::byte_len`] bytes.
    pub bytes: Cow<'a, [u8]>,
}

impl HostTensor<'_> {
    /// All elements as f32.
    ///
    /// # Errors
    /// When the scheme has no dequantization.
    pub fn to_f32(&self) -> Result<Vec<f32>> {
        let elements = self.info.elements().unwrap_or(0);
        let mut out = vec![0f32; elements];
        dequantize(self.info.scheme, &self.bytes, &mut out)?;
        Ok(out)
    }
}

/// The checkpoint tensor that a weight is, when it is nothing else.
#[must_use]
pub fn param_name(graph: &Graph, id: WeightId) -> Option<&str> {
    match &graph.weights.get(id.index())?.expr {
        WeightExpr::Param { name } => Some(name),
        _ => None,
    }
}

/// Evaluates one weight.
///
/// # Errors
/// When a tensor is missing or differs from what the graph was built for, or an expression does not fit its operands.
pub fn evaluate<'a>(
    graph: &Graph,
    id: WeightId,
    source: &'a dyn WeightSource,
) -> Result<HostTensor<'a>> {
    let mut done: BTreeMap<WeightId, HostTensor<'a>> = BTreeMap::new();
    for id in needed(graph, id)? {
        let weight = graph.weight(id);
        let tensor = one(graph, id, weight, &done, source)?;
        let found = tensor.info.byte_len();
        if found != Some(tensor.bytes.len())
            || shape_of(weight) != tensor.info.shape
            || tensor.info.scheme != weight.scheme
        {
            return Err(wrong(
                graph,
                id,
                format!(
                    "expected shape {:?} stored as {}, found {:?} stored as {} in {} bytes",
                    weight.shape,
                    weight.scheme,
                    tensor.info.shape,
                    tensor.info.scheme,
                    tensor.bytes.len()
                ),
            ));
        }
        done.insert(id, tensor);
    }
    done.remove(&id)
        .ok_or_else(|| wrong(graph, id, "no such weight".to_owned()))
}

fn shape_of(weight: &Weight) -> Vec<usize> {
    weight.shape.iter().map(|&d| d as usize).collect()
}

fn wrong(graph: &Graph, id: WeightId, what: String) -> DeviceError {
    let name = param_name(graph, id).map_or_else(|| id.to_string(), str::to_owned);
    DeviceError::Weight { name, what }
}

fn operands(expr: &WeightExpr) -> &[WeightId] {
    match expr {
        WeightExpr::Param { .. } | WeightExpr::Constant { .. } => &[],
        WeightExpr::ConcatRows { of } => of,
        WeightExpr::Rows { of, .. }
        | WeightExpr::SelectRows { of, .. }
        | WeightExpr::Transpose { of }
        | WeightExpr::Reshape { of }
        | WeightExpr::Scale { of, .. }
        | WeightExpr::NormalizeRows { of, .. }
        | WeightExpr::Dequantize { of } => std::slice::from_ref(of),
    }
}

/// The weight and everything it is made of, operands first (an operand's id is lower than its user's).
fn needed(graph: &Graph, id: WeightId) -> Result<Vec<WeightId>> {
    let mut found = std::collections::BTreeSet::new();
    let mut open = vec![id];
    while let Some(id) = open.pop() {
        let Some(weight) = graph.weights.get(id.index()) else {
            return Err(DeviceError::plan(format!(
                "weight {id} is not in the graph's {}",
                graph.weights.len()
            )));
        };
        if found.insert(id) {
            for &of in operands(&weight.expr) {
                if of >= id {
                    return Err(DeviceError::plan(format!(
                        "weight {id} is made of {of}, which is not defined before it"
                    )));
                }
                open.push(of);
            }
        }
    }
    Ok(found.into_iter().collect())
}

fn one<'a>(
    graph: &Graph,
    id: WeightId,
    weight: &Weight,
    done: &BTreeMap<WeightId, HostTensor<'a>>,
    source: &'a dyn WeightSource,
) -> Result<HostTensor<'a>> {
    let get = |of: &WeightId| {
        done.get(of)
            .ok_or_else(|| wrong(graph, *of, "was not evaluated".to_owned()))
    };
    let fail = |what: String| wrong(graph, id, what);
    let info = TensorInfo::new(shape_of(weight), weight.scheme);
    match &weight.expr {
        WeightExpr::Param { name } => {
            let found = source
                .info(name)
                .ok_or_else(|| fail("is not in the checkpoint".to_owned()))?;
            Ok(HostTensor {
                info: found,
                bytes: source.read(name)?,
            })
        }
        WeightExpr::Constant { data } => {
            let bytes = data.iter().flat_map(|x| x.to_le_bytes()).collect();
            Ok(HostTensor {
                info,
                bytes: Cow::Owned(bytes),
            })
        }
        WeightExpr::Rows { of, start, len } => {
            let (of, row) = rows_of(get(of)?).map_err(fail)?;
            let (start, end) = (
                *start as usize * row,
                (*start as usize + *len as usize) * row,
            );
            let part = of
                .bytes
                .get(start..end)
                .ok_or_else(|| fail(out_of(&of.info)))?;
            Ok(HostTensor {
                info,
                bytes: Cow::Owned(part.to_vec()),
            })
        }
        WeightExpr::SelectRows { of, index } => {
            let (of, row) = rows_of(get(of)?).map_err(fail)?;
            let mut bytes = Vec::with_capacity(index.len().saturating_mul(row).min(of.bytes.len()));
            for &i in index {
                let start = i as usize * row;
                bytes.extend_from_slice(
                    of.bytes
                        .get(start..start + row)
                        .ok_or_else(|| fail(out_of(&of.info)))?,
                );
            }
            Ok(HostTensor {
                info,
                bytes: Cow::Owned(bytes),
            })
        }
        WeightExpr::ConcatRows { of } => {
            let mut bytes = Vec::new();
            for of in of {
                let part = get(of)?;
                if part.info.scheme != weight.scheme {
                    return Err(fail(format!(
                        "joins {} with {}",
                        weight.scheme, part.info.scheme
                    )));
                }
                bytes.extend_from_slice(&part.bytes);
            }
            Ok(HostTensor {
                info,
                bytes: Cow::Owned(bytes),
            })
        }
        WeightExpr::Transpose { of } => {
            let of = get(of)?;
            let (Some(element), [.., rows, cols]) =
                (of.info.scheme.plain().map(DType::bytes), &of.info.shape[..])
            else {
                return Err(fail(format!(
                    "cannot transpose {:?} stored as {}",
                    of.info.shape, of.info.scheme
                )));
            };
            let mut bytes = Vec::with_capacity(of.bytes.len());
            for matrix in of.bytes.chunks_exact((rows * cols * element).max(1)) {
                for c in 0..*cols {
                    for r in 0..*rows {
                        let at = (r * cols + c) * element;
                        bytes.extend_from_slice(&matrix[at..at + element]);
                    }
                }
            }
            Ok(HostTensor {
                info,
                bytes: Cow::Owned(bytes),
            })
        }
        WeightExpr::Reshape { of } => {
            let of = get(of)?;
            Ok(HostTensor {
                info: TensorInfo::new(info.shape, of.info.scheme),
                bytes: of.bytes.clone(),
            })
        }
        WeightExpr::Scale { of, by } => {
            let mut values = get(of)?.to_f32()?;
            for v in &mut values {
                *v *= by;
            }
            store(info, &values).map_err(fail)
        }
        WeightExpr::NormalizeRows { of, eps } => {
            let of = get(of)?;
            let mut values = of.to_f32()?;
            for row in values.chunks_mut(of.info.cols().max(1)) {
                let norm = row
                    .iter()
                    .map(|x| f64::from(*x) * f64::from(*x))
                    .sum::<f64>()
                    .sqrt() as f32;
                for x in row {
                    *x /= norm + eps;
                }
            }
            store(info, &values).map_err(fail)
        }
        WeightExpr::Dequantize { of } => store(info, &get(of)?.to_f32()?).map_err(fail),
    }
}

/// Of matrices `[count, rows, cols]` one after the other, the rows that `rows` lists for each, zeros for none.
pub(crate) fn ordered_rows<'t>(
    bytes: &'t [u8],
    count: usize,
    rows: &[Option<usize>],
    info: &TensorInfo,
) -> Result<Cow<'t, [u8]>> {
    let (Some(row), [_, stored, _]) = (info.row_bytes(), &info.shape[..]) else {
        return Err(DeviceError::plan(format!(
            "experts of shape {:?}",
            info.shape
        )));
    };
    if row == 0 || bytes.len() != count * stored * row || rows.iter().flatten().any(|r| r >= stored)
    {
        return Err(DeviceError::plan(format!(
            "{} bytes of experts of shape {:?}",
            bytes.len(),
            info.shape
        )));
    }
    if rows.len() == *stored && rows.iter().enumerate().all(|(i, r)| *r == Some(i)) {
        return Ok(Cow::Borrowed(bytes));
    }
    let mut ordered = vec![0; count * rows.len() * row];
    let matrices = bytes.chunks_exact(stored * row);
    for (from, to) in matrices.zip(ordered.chunks_exact_mut((rows.len() * row).max(1))) {
        for (r, to) in rows.iter().zip(to.chunks_exact_mut(row)) {
            if let Some(r) = r {
                to.copy_from_slice(&from[r * row..][..row]);
            }
        }
    }
    Ok(Cow::Owned(ordered))
}

/// A tensor and the bytes of one index of its first dimension.
fn rows_of<'t, 'a>(
    of: &'t HostTensor<'a>,
) -> std::result::Result<(&'t HostTensor<'a>, usize), String> {
    let rows = of.info.shape.first().copied().unwrap_or(0);
    if rows == 0
        || !of.bytes.len().is_multiple_of(rows)
        || (of.info.shape.len() < 2 && of.info.scheme.is_row_blocked())
    {
        return Err(format!(
            "cannot take rows of {:?} stored as {}",
            of.info.shape, of.info.scheme
        ));
    }
    Ok((of, of.bytes.len() / rows))
}

fn out_of(info: &TensorInfo) -> String {
    format!("takes rows outside {:?}", info.shape)
}

/// f32 values in a plain scheme, rounded to nearest.
fn store<'a>(info: TensorInfo, values: &[f32]) -> std::result::Result<HostTensor<'a>, String> {
    let bytes: Vec<u8> = match info.scheme {
        Scheme::Plain(DType::F32) => values.iter().flat_map(|x| x.to_le_bytes()).collect(),
        Scheme::Plain(DType::F16) => values
            .iter()
            .flat_map(|x| f16::from_f32(*x).to_le_bytes())
            .collect(),
        Scheme::Plain(DType::Bf16) => values
            .iter()
            .flat_map(|x| bf16::from_f32(*x).to_le_bytes())
            .collect(),
        other => return Err(format!("cannot compute into {other}; dequantize first")),
    };
    Ok(HostTensor {
        info,
        bytes: Cow::Owned(bytes),
    })
}

/// Distinct weights that operations name; an estimate of the total that loading counts to.
pub(crate) fn used(graph: &Graph) -> usize {
    let mut ids = std::collections::HashSet::new();
    for node in &graph.nodes {
        match &node.op {
            Op::Embedding { table } => ids.extend([*table]),
            Op::WeightValue { weight } | Op::HeadLinear { weight } => ids.extend([*weight]),
            Op::Linear { segments, .. } => {
                ids.extend(segments.iter().map(|s| s.weight));
                ids.extend(segments.iter().filter_map(|s| s.bias));
            }
            Op::RmsNorm(n) | Op::AddRmsNorm(n) => ids.extend(n.weight),
            Op::LayerNorm(n) | Op::AddLayerNorm(n) => {
                ids.extend(n.weight.into_iter().chain(n.bias));
            }
            Op::Attention(a) | Op::PagedAttention(a) => {
                ids.extend(a.alibi.into_iter().chain(a.sinks));
            }
            Op::Route(r) => ids.extend(r.correction),
            Op::Experts(e) => {
                ids.extend([e.gate_up, e.down]);
                ids.extend(e.gate_up_bias.into_iter().chain(e.down_bias));
            }
            _ => {}
        }
    }
    let keys: std::collections::HashSet<std::result::Result<&str, WeightId>> = ids
        .into_iter()
        .map(|id| param_name(graph, id).ok_or(id))
        .collect();
    keys.len()
}
