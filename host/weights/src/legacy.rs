//! What old checkpoints call things, and what they hold beside parameters.

use crate::{DType, Scheme, TensorInfo};

/// The name under which checkpoints made before 2019 hold a norm's tensor: `gamma` for weight, `beta` for bias.
pub(crate) fn old_name(name: &str) -> Option<String> {
    let (place, last) = name.rsplit_once('.')?;
    match last {
        "weight" => Some(format!("{place}.gamma")),
        "bias" => Some(format!("{place}.beta")),
        _ => None,
    }
}

/// Whether a tensor is no parameter but a buffer that older versions of a model's code saved with them: tables that follow
/// from the configuration. A graph need not name these. They are told by the last part of the name and a shape or type
/// that no parameter of such a name has:
///
/// - `inv_freq`, `cos_cached`, `sin_cached`: rope's tables;
/// - `bias` of shape `[1, 1, n, n]`: the causal mask (a linear's bias has one dimension);
/// - `masked_bias` of one element: the score of what is masked;
/// - `position_ids` of integers: 0, 1, 2, ….
#[must_use]
pub fn is_buffer(name: &str, info: &TensorInfo) -> bool {
    let last = name.rsplit('.').next().unwrap_or(name);
    match (last, info.shape.as_slice()) {
        ("inv_freq", [_]) => true,
        ("cos_cached" | "sin_cached", _) => true,
        ("bias", [1, 1, n, m]) => n == m,
        ("masked_bias", _) => info.elements() == Some(1),
        ("position_ids", _) => matches!(info.scheme, Scheme::Plain(DType::I64 | DType::I32)),
        _ => false,
    }
}

#[cfg(test)]
mod tests;
