//! Rules of caches: specs, and the order of writing and reading.

use std::fmt;

use super::context::Context;
use crate::{CacheId, CacheKind, CacheSpec, GraphError, Op, ValueLayout};

/// "cache3 (full, 8 heads, keys of 128, values of 128)"
pub(super) struct CacheText<'a>(pub(super) CacheId, pub(super) &'a CacheSpec);

impl fmt::Display for CacheText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.0, self.1)
    }
}

/// "full, 8 heads, keys of 128, values of 128"
impl fmt::Display for CacheSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            CacheKind::Recurrent { bytes } => return write!(f, "recurrent, {bytes} bytes"),
            CacheKind::Full => write!(f, "full")?,
            CacheKind::Window { window } => write!(f, "window of {window}")?,
        }
        let s = if self.kv_heads == 1 { "" } else { "s" };
        write!(f, ", {} head{s}, keys of {}", self.kv_heads, self.k_dim)?;
        match self.values {
            ValueLayout::Separate => write!(f, ", values of {}", self.v_dim),
            ValueLayout::PrefixOfKey => write!(f, ", whose first {} are the values", self.v_dim),
        }
    }
}

/// A spec that makes sense by itself. Everything is bounded so that sizes cannot overflow.
pub(crate) fn check_cache(spec: &CacheSpec, at: &str) -> Result<(), GraphError> {
    const MAX_DIM: u32 = 1 << 20;
    let bad = |name: &'static str, found: u32, expected: &str| {
        Err(GraphError::Parameter {
            at: at.to_owned(),
            name,
            found: found.to_string(),
            expected: expected.to_owned(),
        })
    };
    match spec.kind {
        CacheKind::Recurrent { bytes: 0 } => return bad("recurrent", 0, "1 byte or more"),
        CacheKind::Recurrent { .. } => {
            return match (spec.kv_heads, spec.k_dim, spec.v_dim) {
                (0, 0, 0) => Ok(()),
                (heads, _, _) => bad(
                    "kv-heads",
                    heads,
                    "0, like k-dim and v-dim, for a recurrent state",
                ),
            };
        }
        CacheKind::Window { window: 0 } => return bad("window", 0, "1 or more"),
        CacheKind::Full | CacheKind::Window { .. } => {}
    }
    for (name, dim) in [
        ("kv-heads", spec.kv_heads),
        ("k-dim", spec.k_dim),
        ("v-dim", spec.v_dim),
    ] {
        if dim == 0 || dim > MAX_DIM {
            return bad(name, dim, "from 1 to 2^20");
        }
    }
    if spec.values == ValueLayout::PrefixOfKey && spec.v_dim > spec.k_dim {
        return bad(
            "v-dim",
            spec.v_dim,
            "at most k-dim where values are part of the keys",
        );
    }
    Ok(())
}

/// The spec of a cache of keys and separate values.
pub(super) fn heads_cache<'a>(cx: &Context<'a>, id: CacheId) -> Result<&'a CacheSpec, GraphError> {
    let spec = cx.cache(id)?;
    let kv = matches!(spec.kind, CacheKind::Full | CacheKind::Window { .. });
    if kv && spec.values == ValueLayout::Separate && spec.kv_heads > 0 {
        return Ok(spec);
    }
    Err(cx.cache_error(
        CacheText(id, spec).to_string(),
        "a cache of keys and values of their own",
    ))
}

/// The spec of a cache of keys and values, wherever the values live.
pub(super) fn kv_cache<'a>(cx: &Context<'a>, id: CacheId) -> Result<&'a CacheSpec, GraphError> {
    let spec = cx.cache(id)?;
    let kv = matches!(spec.kind, CacheKind::Full | CacheKind::Window { .. });
    if kv && spec.kv_heads > 0 {
        return Ok(spec);
    }
    Err(cx.cache_error(
        CacheText(id, spec).to_string(),
        "a cache of keys and values",
    ))
}

/// A cache of one head, whose keys are latent and rope side by side.
pub(super) fn latent_cache(
    cx: &Context<'_>,
    id: CacheId,
    rank: u32,
    key: u32,
) -> Result<(), GraphError> {
    let spec = cx.cache(id)?;
    let fits = spec.kind == CacheKind::Full
        && spec.values == ValueLayout::PrefixOfKey
        && (spec.kv_heads, spec.k_dim, spec.v_dim) == (1, key, rank);
    if fits {
        return Ok(());
    }
    Err(cx.cache_error(
        CacheText(id, spec).to_string(),
        format!("full, 1 head, keys of rank + rope = {key}, v-in-k with values of {rank}"),
    ))
}

/// A cache of exactly so many bytes of f32 state.
pub(super) fn state_cache(cx: &Context<'_>, id: CacheId, dims: &[u32]) -> Result<(), GraphError> {
    let spec = cx.cache(id)?;
    let bytes = dims
        .iter()
        .try_fold(4u64, |n, &d| n.checked_mul(u64::from(d)));
    if let CacheKind::Recurrent { bytes: found } = spec.kind
        && Some(u64::from(found)) == bytes
    {
        return Ok(());
    }
    let bytes = bytes.map_or_else(|| "too many".to_owned(), |n| n.to_string());
    Err(cx.cache_error(
        CacheText(id, spec).to_string(),
        format!("recurrent, {bytes} bytes: float32 {dims:?}"),
    ))
}

/// What an op does with its cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Access {
    pub(crate) cache: CacheId,
    pub(crate) kind: AccessKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AccessKind {
    /// Writes this step's rows (and may read afterwards). One op per cache.
    Write,
    /// Reads what was written.
    Read,
}

/// The cache an op touches; `inputs` is the number of its inputs.
pub(crate) fn cache_access(op: &Op, inputs: usize) -> Option<Access> {
    let (cache, kind) = match *op {
        Op::Attention(a) if inputs == 1 => (a.cache, AccessKind::Read),
        Op::PagedAttention(a) => (a.cache, AccessKind::Read),
        Op::Attention(a) => (a.cache, AccessKind::Write),
        Op::LatentAttention(a) => (a.cache, AccessKind::Write),
        Op::RopeWrite { cache, .. }
        | Op::WriteKv { cache }
        | Op::CausalConv { cache, .. }
        | Op::DeltaRule { cache, .. } => (cache, AccessKind::Write),
        _ => return None,
    };
    Some(Access { cache, kind })
}

/// Each cache is written once per step, and before it is read.
pub(crate) fn check_access(
    access: Access,
    written: bool,
    at: impl Fn() -> String,
) -> Result<(), GraphError> {
    let (found, expected) = match (access.kind, written) {
        (AccessKind::Write, false) | (AccessKind::Read, true) => return Ok(()),
        (AccessKind::Write, true) => (
            format!("{} has been written by an earlier op", access.cache),
            "a cache of its own; use attention-shared to read another layer's",
        ),
        (AccessKind::Read, false) => (
            format!("nothing has written {} so far", access.cache),
            "an earlier attention that writes it",
        ),
    };
    Err(GraphError::Cache {
        at: at(),
        found,
        expected: expected.to_owned(),
    })
}
