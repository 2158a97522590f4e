//! vLLM's structural tags: free text until a trigger, then one of the tags that begin with it, its JSON, and its end.

use crate::syntax::quote;
use crate::{GrammarError, Place, schema};
use serde::Deserialize;
use serde_json::Value;
use std::fmt::Write as _;

#[derive(Deserialize)]
struct Tags {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    structures: Vec<Structure>,
    #[serde(default)]
    triggers: Vec<String>,
    /// The newer form, which we do not read.
    format: Option<Value>,
}

#[derive(Deserialize)]
struct Structure {
    begin: String,
    schema: Value,
    end: String,
}

/// # Errors
/// What is missing or wrong, and where.
pub(crate) fn to_lark(source: &str) -> Result<String, GrammarError> {
    let tags: Tags = serde_json::from_str(source).map_err(|e| GrammarError::Invalid {
        place: Place::Line {
            line: e.line(),
            column: e.column(),
        },
        cause: format!("not structural tags: {e}"),
    })?;
    if tags.kind != "structural_tag" {
        return Err(GrammarError::at("/type", "must be \"structural_tag\""));
    }
    if tags.format.is_some() {
        return Err(GrammarError::at(
            "/format",
            "not supported; use `structures` and `triggers`",
        ));
    }
    if tags.structures.is_empty() {
        return Err(GrammarError::at("/structures", "must have at least one"));
    }
    if tags.triggers.is_empty() {
        return Err(GrammarError::at("/triggers", "must have at least one"));
    }
    let mut text = String::new();
    let mut used = vec![Vec::new(); tags.triggers.len()];
    for (at, structure) in tags.structures.iter().enumerate() {
        // The longest trigger that begins the tag.
        let begins = |trigger: &&String| structure.begin.starts_with(trigger.as_str());
        let triggers = tags.triggers.iter().filter(begins);
        let Some(trigger) = triggers.max_by_key(|trigger| trigger.len()) else {
            return Err(GrammarError::at(
                format!("/structures/{at}/begin"),
                "none of the triggers begins it",
            ));
        };
        let rest = &structure.begin[trigger.len()..];
        let schema = read_schema(&structure.schema, at)?;
        let _ = writeln!(
            text,
            "tag{at}: {} json{at} {}\njson{at}: %json {schema}",
            quote(rest),
            quote(&structure.end)
        );
        let index = tags.triggers.iter().position(|t| t == trigger);
        used[index.unwrap_or_default()].push(format!("tag{at}"));
    }
    let mut tagged = Vec::new();
    for (at, (trigger, tags)) in tags.triggers.iter().zip(&used).enumerate() {
        if trigger.is_empty() {
            return Err(GrammarError::at(
                format!("/triggers/{at}"),
                "must not be empty",
            ));
        }
        if tags.is_empty() {
            return Err(GrammarError::at(
                format!("/triggers/{at}"),
                "no structure begins with it, or one with a longer trigger",
            ));
        }
        // Lazy: it ends with the first trigger.
        let _ = writeln!(text, "free{at}[lazy]: /(?s:.)*/ {}", quote(trigger));
        tagged.push(format!("free{at} ({})", tags.join(" | ")));
    }
    Ok(format!(
        "start: ({})* FREE?\nFREE: /(?s:.)+/ & ~CONTAINS\nCONTAINS: /(?s:.)*/ ({}) /(?s:.)*/\n{text}",
        tagged.join(" | "),
        tags.triggers
            .iter()
            .map(|trigger| quote(trigger))
            .collect::<Vec<_>>()
            .join(" | "),
    ))
}

/// A schema with our settings. Its own checks tell the place within the tags.
fn read_schema(schema: &Value, at: usize) -> Result<Value, GrammarError> {
    schema::read(&schema.to_string()).map_err(|error| match error {
        GrammarError::Invalid { place, cause } => {
            let inner = match place {
                Place::Pointer(pointer) => pointer,
                Place::Whole | Place::Line { .. } => String::new(),
            };
            GrammarError::at(format!("/structures/{at}/schema{inner}"), cause)
        }
        other => other,
    })
}
