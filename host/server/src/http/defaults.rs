//! A tenant's values for fields that its requests leave out.

use crate::openai::{ApiError, parse};
use bytes::Bytes;
use guesthouse_tenants::Tenant;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// Names of one thing: who sends one of them says all of them.
const ALTERNATIVES: &[&[&str]] = &[
    &["max_tokens", "max_completion_tokens"],
    &[
        "response_format",
        "structured_outputs",
        "guided_json",
        "guided_regex",
        "guided_choice",
        "guided_grammar",
    ],
    &["sampler", "use_beam_search", "best_of"],
];

#[derive(Deserialize)]
struct Streamed {
    stream: Option<bool>,
}

/// The request with the tenant's defaults where it says nothing; null says nothing.
///
/// # Errors
/// When the body is no JSON object.
pub(super) fn fill(body: Bytes, tenant: &Tenant) -> Result<Bytes, ApiError> {
    let defaults = &tenant.policy.defaults;
    if defaults.is_empty() {
        return Ok(body);
    }
    let said: BTreeMap<String, Option<IgnoredAny>> = parse(&body)?;
    let says = |name: &str| said.get(name).is_some_and(Option::is_some);
    let settled = |name: &str| {
        let mut groups = ALTERNATIVES.iter().filter(|group| group.contains(&name));
        says(name) || groups.any(|group| group.iter().any(|other| says(other)))
    };
    let mut added: Map<String, Value> = defaults
        .iter()
        .filter(|(name, _)| !settled(name))
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect();
    // Options of a stream are refused where nothing is streamed.
    let streams = match parse::<Streamed>(&body)?.stream {
        Some(streams) => streams,
        None => added.get("stream").and_then(Value::as_bool) == Some(true),
    };
    if !streams {
        added.remove("stream_options");
    }
    if added.is_empty() {
        return Ok(body);
    }
    if added.keys().any(|name| said.contains_key(name)) {
        let mut whole: Map<String, Value> = parse(&body)?;
        whole.extend(added);
        return Ok(Value::Object(whole).to_string().into());
    }
    Ok(appended(&body, &said, added))
}

/// The object's text with more fields at its end: what the client wrote stays as it is, faults included.
fn appended(
    body: &[u8],
    said: &BTreeMap<String, Option<IgnoredAny>>,
    added: Map<String, Value>,
) -> Bytes {
    let text = body.trim_ascii_end();
    let open = text.strip_suffix(b"}").unwrap_or(text);
    let more = Value::Object(added).to_string();
    let mut whole = open.to_vec();
    if !said.is_empty() {
        whole.push(b',');
    }
    // Without its opening brace.
    whole.extend_from_slice(&more.as_bytes()[1..]);
    whole.into()
}

#[cfg(test)]
mod tests;
