//! What an answer must follow: the fields of structured output, of which a request has at most one.

use super::super::{ApiError, SamplingFields};
use serde_json::{Map, Value, json};

/// A grammar that a client asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Structured {
    /// The field that asked.
    pub param: &'static str,
    /// One of the crate `guesthouse-grammar`'s.
    pub syntax: &'static str,
    /// The grammar.
    pub source: String,
}

impl Structured {
    /// Puts it where the sampler guest looks for it.
    pub(super) fn add_to(&self, request: &mut Map<String, Value>) {
        let grammar = json!({"syntax": self.syntax, "source": self.source});
        request.insert("grammar".to_owned(), grammar);
    }
}

/// # Errors
/// More than one, or one that is not what its field says. The grammar itself is judged when it is compiled.
pub(super) fn structured(fields: &SamplingFields) -> Result<Option<Structured>, ApiError> {
    let given: [(&'static str, Reader, &Option<Value>); 6] = [
        ("response_format", response_format, &fields.response_format),
        (
            "structured_outputs",
            structured_outputs,
            &fields.structured_outputs,
        ),
        (
            "guided_json",
            |f, v| schema(f, f, v).map(Some),
            &fields.guided_json,
        ),
        (
            "guided_regex",
            |f, v| regex(f, f, v).map(Some),
            &fields.guided_regex,
        ),
        (
            "guided_choice",
            |f, v| choice(f, f, v).map(Some),
            &fields.guided_choice,
        ),
        (
            "guided_grammar",
            |f, v| grammar(f, f, v).map(Some),
            &fields.guided_grammar,
        ),
    ];
    let mut found: Option<Structured> = None;
    for (field, read, value) in given {
        let Some(value) = value else { continue };
        let Some(next) = read(field, value)? else {
            continue;
        };
        if let Some(first) = &found {
            return Err(ApiError::invalid(
                field,
                format!(
                    "`{}` and `{field}` both say what the answer must follow; leave one out",
                    first.param
                ),
            ));
        }
        found = Some(next);
    }
    Ok(found)
}

type Reader = fn(&'static str, &Value) -> Result<Option<Structured>, ApiError>;

fn response_format(field: &'static str, value: &Value) -> Result<Option<Structured>, ApiError> {
    match value.get("type").and_then(Value::as_str) {
        Some("text") => Ok(None),
        Some("json_object") => Ok(Some(json_object(field))),
        Some("json_schema") => {
            let given = value
                .get("json_schema")
                .and_then(|format| format.get("schema"));
            match given {
                Some(given) => schema(field, "response_format.json_schema.schema", given).map(Some),
                None => Err(ApiError::invalid(
                    field,
                    "`response_format.json_schema.schema` is missing; it is the JSON schema of the answer",
                )),
            }
        }
        Some("structural_tag") => Ok(Some(Structured {
            param: field,
            syntax: "structural_tag",
            source: value.to_string(),
        })),
        _ => Err(ApiError::invalid(
            field,
            "`response_format` must be an object whose `type` is \"text\", \"json_object\", \"json_schema\" or \"structural_tag\"",
        )),
    }
}

fn structured_outputs(field: &'static str, value: &Value) -> Result<Option<Structured>, ApiError> {
    const KINDS: &str = "`json`, `regex`, `choice`, `grammar`, `json_object` or `structural_tag`";
    let Value::Object(map) = value else {
        return Err(ApiError::invalid(
            field,
            format!("`{field}` must be an object with one of {KINDS}"),
        ));
    };
    let mut found = Vec::new();
    for (key, value) in map.iter().filter(|(_, value)| !value.is_null()) {
        let read = match key.as_str() {
            "json" => schema(field, "structured_outputs.json", value)?,
            "regex" => regex(field, "structured_outputs.regex", value)?,
            "choice" => choice(field, "structured_outputs.choice", value)?,
            "grammar" => grammar(field, "structured_outputs.grammar", value)?,
            "structural_tag" => tags(field, value)?,
            "json_object" => match value {
                Value::Bool(true) => json_object(field),
                Value::Bool(false) => continue,
                _ => {
                    return Err(expected(
                        field,
                        "structured_outputs.json_object",
                        "a boolean",
                    ));
                }
            },
            // There is one engine for grammars, so nothing to fall back to.
            "disable_fallback" => continue,
            other => {
                return Err(ApiError::invalid(
                    field,
                    format!("`{field}.{other}` is not supported; known are {KINDS}"),
                ));
            }
        };
        found.push(read);
    }
    match found.len() {
        1 => Ok(found.pop()),
        count => Err(ApiError::invalid(
            field,
            format!("`{field}` has {count} of {KINDS}; it must have exactly one"),
        )),
    }
}

fn expected(field: &'static str, path: &str, what: &str) -> ApiError {
    ApiError::invalid(field, format!("`{path}` must be {what}"))
}

fn json_object(param: &'static str) -> Structured {
    Structured {
        param,
        syntax: "json_object",
        source: String::new(),
    }
}

/// A schema, or a string that holds one.
fn schema(param: &'static str, path: &str, value: &Value) -> Result<Structured, ApiError> {
    let source = match value {
        Value::Object(_) | Value::Bool(_) => value.to_string(),
        Value::String(source) => source.clone(),
        _ => {
            return Err(expected(
                param,
                path,
                "a JSON schema or a string that holds one",
            ));
        }
    };
    Ok(Structured {
        param,
        syntax: "json_schema",
        source,
    })
}

fn regex(param: &'static str, path: &str, value: &Value) -> Result<Structured, ApiError> {
    match value {
        Value::String(source) => Ok(Structured {
            param,
            syntax: "regex",
            source: source.clone(),
        }),
        _ => Err(expected(param, path, "a string")),
    }
}

fn choice(param: &'static str, path: &str, value: &Value) -> Result<Structured, ApiError> {
    match value {
        Value::Array(choices) if choices.iter().all(Value::is_string) => Ok(Structured {
            param,
            syntax: "choice",
            source: value.to_string(),
        }),
        _ => Err(expected(param, path, "a list of strings")),
    }
}

fn grammar(param: &'static str, path: &str, value: &Value) -> Result<Structured, ApiError> {
    match value {
        Value::String(source) => Ok(Structured {
            param,
            syntax: match is_gbnf(source) {
                true => "gbnf",
                false => "lark",
            },
            source: source.clone(),
        }),
        _ => Err(expected(param, path, "a string: a grammar in Lark or GBNF")),
    }
}

/// GBNF's rules are written with `::=`.
fn is_gbnf(source: &str) -> bool {
    source.lines().any(|line| {
        let name = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        let rest = line.trim_start().trim_start_matches(name);
        rest.len() < line.trim_start().len() && rest.trim_start().starts_with("::=")
    })
}

fn tags(param: &'static str, value: &Value) -> Result<Structured, ApiError> {
    let source = match value {
        Value::Object(_) => value.to_string(),
        Value::String(source) => source.clone(),
        _ => {
            return Err(expected(
                param,
                "structured_outputs.structural_tag",
                "an object or a string that holds one",
            ));
        }
    };
    Ok(Structured {
        param,
        syntax: "structural_tag",
        source,
    })
}

#[cfg(test)]
mod tests;
