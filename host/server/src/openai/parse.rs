//! From bytes to typed requests, with the field at fault in every error.

use super::ApiError;
use serde::de::DeserializeOwned;

/// Reads one JSON object. Unknown fields are passed over.
///
/// # Errors
/// [`ApiError::Invalid`] with the path of the field whose type is wrong.
pub fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, ApiError> {
    if body.is_empty() {
        return Err(ApiError::Invalid {
            param: None,
            message: "the body is empty, expected a JSON object".to_owned(),
        });
    }
    // Structs could also be read from lists, field by field; the API knows objects alone.
    if body
        .trim_ascii_start()
        .first()
        .is_some_and(|&byte| byte != b'{' && is_json_start(byte))
    {
        return Err(ApiError::Invalid {
            param: None,
            message: "the body is JSON, but not an object; expected {…} with the request's fields"
                .to_owned(),
        });
    }
    let mut deserializer = serde_json::Deserializer::from_slice(body);
    let value = serde_path_to_error::deserialize(&mut deserializer).map_err(|error| {
        let path = error.path().to_string();
        explain(&path, error.inner())
    })?;
    deserializer.end().map_err(|error| explain(".", &error))?;
    Ok(value)
}

/// First bytes of JSON values. Others are left to the parser, which says where they stand.
fn is_json_start(byte: u8) -> bool {
    matches!(byte, b'[' | b'"' | b'-' | b'0'..=b'9' | b't' | b'f' | b'n')
}

fn explain(path: &str, error: &serde_json::Error) -> ApiError {
    if !error.is_data() {
        return ApiError::Invalid {
            param: None,
            message: format!("the body is not valid JSON: {error}"),
        };
    }
    let text = error.to_string();
    // serde names a missing or repeated field in the text alone.
    let missing = text
        .strip_prefix("missing field `")
        .or_else(|| text.strip_prefix("duplicate field `"))
        .and_then(|rest| rest.split('`').next());
    let param = match (missing, path) {
        (Some(field), "." | "?") => Some(field.to_owned()),
        (Some(field), parent) => Some(format!("{parent}.{field}")),
        (None, "." | "?") => None,
        (None, path) => Some(path.to_owned()),
    };
    let message = match &param {
        Some(param) => format!("`{param}`: {text}"),
        None => text,
    };
    ApiError::Invalid {
        param: param.map(|param| reported(&param)),
        message,
    }
}

/// Clients look for the field's own name; only inside messages and tools is the place worth telling.
fn reported(path: &str) -> String {
    if path.starts_with("messages") || path.starts_with("tools") {
        return path.to_owned();
    }
    path.split(['.', '[']).next().unwrap_or(path).to_owned()
}

#[cfg(test)]
mod tests;
