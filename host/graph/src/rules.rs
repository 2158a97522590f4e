//! What each op takes and gives. The builder and the verifier share these rules.

use guesthouse_weights::Scheme;

use crate::{CacheId, CacheSpec, GraphError, Op, ValueInfo, Weight, WeightExpr};

pub(crate) struct Context<'a> {
    pub(crate) op: &'static str,
    pub(crate) scope: &'a str,
    pub(crate) weights: &'a [Weight],
    pub(crate) caches: &'a [CacheSpec],
}
pub(crate) fn elements(shape: &[u32]) -> Option<usize> {
    shape
        .iter()
        .try_fold(1usize, |n, &d| n.checked_mul(d as usize))
}
pub(crate) fn infer(
    cx: &Context<'_>,
    _op: &Op,
    _inputs: &[&ValueInfo],
) -> Result<Vec<ValueInfo>, GraphError> {
    Err(todo_error(cx))
}
pub(crate) fn infer_weight(
    cx: &Context<'_>,
    _expr: &WeightExpr,
    _shape: Option<&[u32]>,
) -> Result<(Vec<u32>, Scheme), GraphError> {
    Err(todo_error(cx))
}
pub(crate) fn check_weight(cx: &Context<'_>, _weight: &Weight) -> Result<(), GraphError> {
    Err(todo_error(cx))
}
pub(crate) fn check_cache(_spec: &CacheSpec, _at: &str) -> Result<(), GraphError> {
    Ok(())
}
#[derive(Clone, Copy)]
pub(crate) struct Access {
    pub(crate) cache: CacheId,
}
pub(crate) fn cache_access(_op: &Op, _inputs: usize) -> Option<Access> {
    None
}
pub(crate) fn check_access(
    _a: Access,
    _written: bool,
    _at: impl Fn() -> String,
) -> Result<(), GraphError> {
    Ok(())
}
fn todo_error(cx: &Context<'_>) -> GraphError {
    let _ = (cx.weights, cx.caches);
    GraphError::Output {
        at: format!("{} in {}", cx.op, cx.scope),
        found: "unfinished".into(),
    }
}
