//! JSON schemas.

use crate::{GrammarError, Place};
use serde_json::{Map, Value, json};
use std::time::{Duration, Instant};

/// Most white space between two parts of a document. Without a bound, a model may go on with it for ever.
const WHITE_SPACE: &str = r"[\x20\x0A\x0D\x09]{1,64}";
/// Longest search for the part of a schema that is to blame.
const BLAME_TIME: Duration = Duration::from_secs(2);
const BLAME_PARTS: usize = 200;

/// Keywords whose value is a schema, a list of schemas, or a map of schemas.
const ONE: [&str; 3] = ["items", "additionalProperties", "additionalItems"];
const LISTS: [&str; 4] = ["anyOf", "allOf", "oneOf", "prefixItems"];
const MAPS: [&str; 4] = ["properties", "patternProperties", "$defs", "definitions"];

/// Reads a schema for the matcher.
pub(crate) fn read(source: &str) -> Result<Value, GrammarError> {
    let schema: Value = serde_json::from_str(source).map_err(|e| GrammarError::Invalid {
        place: Place::Line {
            line: e.line(),
            column: e.column(),
        },
        cause: format!("the schema is not JSON: {e}"),
    })?;
    match schema {
        Value::Bool(true) => Ok(prepare(json!({}))),
        Value::Bool(false) => Err(GrammarError::at("", "the schema `false` allows nothing")),
        Value::Object(_) => {
            check_references(&schema)?;
            Ok(prepare(schema))
        }
        other => Err(GrammarError::at(
            "",
            format!("a schema is an object, found {}", kind(&other)),
        )),
    }
}

/// Sets our rules of white space, and makes of `oneOf` an `anyOf` where that is the same.
pub(crate) fn prepare(mut schema: Value) -> Value {
    let root = schema.clone();
    exclusive(&mut schema, &root);
    if let Value::Object(map) = &mut schema {
        map.insert(
            "x-guidance".into(),
            json!({"whitespace_pattern": WHITE_SPACE}),
        );
    }
    schema
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

/// Every part of a schema that is one itself, with its pointer relative to the whole.
fn parts(schema: &Value) -> Vec<(String, &Value)> {
    let mut parts = Vec::new();
    let Value::Object(map) = schema else {
        return parts;
    };
    for (key, value) in map {
        match value {
            Value::Object(inner) if MAPS.contains(&key.as_str()) => {
                let named = inner.iter();
                parts.extend(named.map(|(name, part)| (format!("/{key}/{}", escape(name)), part)));
            }
            Value::Array(list) if LISTS.contains(&key.as_str()) || key == "items" => {
                let numbered = list.iter().enumerate();
                parts.extend(numbered.map(|(at, part)| (format!("/{key}/{at}"), part)));
            }
            Value::Object(_) if ONE.contains(&key.as_str()) => {
                parts.push((format!("/{key}"), value));
            }
            _ => {}
        }
    }
    parts
}

fn escape(name: &str) -> String {
    name.replace('~', "~0").replace('/', "~1")
}

/// Every `$ref` must point into the schema. Other documents are never fetched; `$id` and anchors are the matcher's matter.
fn check_references(root: &Value) -> Result<(), GrammarError> {
    let mut open = vec![(String::new(), root)];
    while let Some((at, schema)) = open.pop() {
        if let Some(reference) = schema.get("$ref") {
            let Some(reference) = reference.as_str() else {
                return Err(GrammarError::at(
                    format!("{at}/$ref"),
                    format!("`$ref` is a string, found {}", kind(reference)),
                ));
            };
            let pointer = reference.strip_prefix('#');
            if pointer.is_some_and(|p| p.starts_with('/') && !p.contains('%'))
                && pointer.and_then(|p| root.pointer(p)).is_none()
            {
                return Err(GrammarError::at(
                    format!("{at}/$ref"),
                    format!("`{}` is not in the schema", crate::error::clip(reference)),
                ));
            }
        }
        let inner = parts(schema).into_iter();
        open.extend(inner.map(|(pointer, part)| (format!("{at}{pointer}"), part)));
    }
    Ok(())
}

/// The matcher takes a `oneOf` only where it sees that no two options can hold at once, which it does not through `$ref`s.
/// Options that each fix the same required property to another constant (discriminated unions) cannot.
fn exclusive(schema: &mut Value, root: &Value) {
    match schema {
        Value::Array(list) => list.iter_mut().for_each(|part| exclusive(part, root)),
        Value::Object(map) => {
            let apart = match map.get("oneOf") {
                Some(Value::Array(options)) => !map.contains_key("anyOf") && differ(options, root),
                _ => false,
            };
            if apart && let Some(options) = map.remove("oneOf") {
                map.insert("anyOf".into(), options);
            }
            for (key, value) in map {
                // Constants are data.
                if key != "const" && key != "enum" && key != "default" && key != "examples" {
                    exclusive(value, root);
                }
            }
        }
        _ => {}
    }
}

fn differ(options: &[Value], root: &Value) -> bool {
    let mut resolved = Vec::new();
    for option in options {
        let option = match option.get("$ref").and_then(Value::as_str) {
            Some(reference) => reference.strip_prefix('#').and_then(|p| root.pointer(p)),
            None => Some(option),
        };
        match option.and_then(Value::as_object) {
            Some(option) => resolved.push(option),
            None => return false,
        }
    }
    let Some(first) = resolved.first() else {
        return false;
    };
    let names = first.get("properties").and_then(Value::as_object);
    names.is_some_and(|names| {
        names.keys().any(|name| {
            let values: Option<Vec<&Value>> = resolved.iter().map(|o| fixed(o, name)).collect();
            values.is_some_and(|values| {
                (1..values.len()).all(|at| !values[..at].contains(&values[at]))
            })
        })
    })
}

/// The one value that a required property may have.
fn fixed<'a>(option: &'a Map<String, Value>, name: &str) -> Option<&'a Value> {
    let required = option.get("required")?.as_array()?;
    let property = option.get("properties")?.get(name)?;
    let value = match (property.get("const"), property.get("enum")) {
        (Some(value), _) => value,
        (None, Some(Value::Array(values))) if values.len() == 1 => &values[0],
        _ => return None,
    };
    (option.get("type").is_some_and(|t| t == "object") && required.iter().any(|r| r == name))
        .then_some(value)
}

/// Finds the innermost part that does not compile by itself, so that the error names its place.
pub(crate) fn blame(
    schema: &Value,
    cause: String,
    compiles: impl Fn(&Value) -> Result<(), String>,
) -> GrammarError {
    let deadline = Instant::now() + BLAME_TIME;
    let mut tries = 0;
    let mut found = (String::new(), schema, cause);
    'deeper: loop {
        for (pointer, part) in parts(found.1) {
            tries += 1;
            if tries > BLAME_PARTS || Instant::now() > deadline {
                break 'deeper;
            }
            let Some(alone) = alone(part, schema) else {
                continue;
            };
            if let Err(cause) = compiles(&alone) {
                found = (found.0 + &pointer, part, cause);
                continue 'deeper;
            }
        }
        // A reference's target may be it.
        let target = found.1.get("$ref").and_then(Value::as_str);
        let target = target.and_then(|reference| reference.strip_prefix('#'));
        match target.and_then(|pointer| Some((pointer, schema.pointer(pointer)?))) {
            Some((pointer, part)) if tries < BLAME_PARTS && !pointer.is_empty() => {
                tries += 1;
                found = (pointer.to_owned(), part, found.2);
            }
            _ => break,
        }
    }
    let (pointer, _, cause) = found;
    GrammarError::at(pointer, cause.lines().next().unwrap_or_default())
}

/// A part with the definitions that it may refer to.
fn alone(part: &Value, root: &Value) -> Option<Value> {
    let mut map = part.as_object()?.clone();
    for key in ["$defs", "definitions", "$schema", "x-guidance"] {
        if let (Some(value), false) = (root.get(key), map.contains_key(key)) {
            map.insert(key.into(), value.clone());
        }
    }
    Some(Value::Object(map))
}

#[cfg(test)]
mod tests;
