//! Ranges of numbers.

use super::super::ApiError;

/// A number of `low..=high`, or a refusal that names the field.
pub(super) fn number(
    param: &str,
    value: Option<f64>,
    low: f64,
    high: f64,
) -> Result<Option<f64>, ApiError> {
    match value {
        Some(found) if !(low..=high).contains(&found) => {
            let expected = if high.is_infinite() {
                format!("at least {low}")
            } else {
                format!("between {low} and {high}")
            };
            Err(ApiError::invalid(
                param,
                format!("`{param}` must be {expected}, but is {found}"),
            ))
        }
        _ => Ok(value),
    }
}

/// A number above 0, up to `high`.
pub(super) fn positive(
    param: &str,
    value: Option<f64>,
    high: f64,
) -> Result<Option<f64>, ApiError> {
    match value {
        Some(found) if !(found > 0.0 && found <= high && found.is_finite()) => {
            let upto = if high.is_infinite() {
                String::new()
            } else {
                format!(" and at most {high}")
            };
            Err(ApiError::invalid(
                param,
                format!("`{param}` must be above 0{upto}, but is {found}"),
            ))
        }
        _ => Ok(value),
    }
}

/// A whole number of `low..=high`.
pub(super) fn count(
    param: &str,
    value: Option<i64>,
    low: u32,
    high: u32,
) -> Result<Option<u32>, ApiError> {
    let Some(found) = value else { return Ok(None) };
    match u32::try_from(found) {
        Ok(count) if (low..=high).contains(&count) => Ok(Some(count)),
        _ if high == u32::MAX => Err(ApiError::invalid(
            param,
            format!("`{param}` must be at least {low}, but is {found}"),
        )),
        _ => Err(ApiError::invalid(
            param,
            format!("`{param}` must be between {low} and {high}, but is {found}"),
        )),
    }
}
