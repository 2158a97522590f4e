//! The syntaxes, and what the matcher reads of a source.

use crate::error::clip;
use crate::{GrammarError, Limits, Place, gbnf, regex, schema, structural};
use llguidance::api::TopLevelGrammar;
use serde_json::Value;
use std::str::FromStr;

/// How a grammar is written: the `syntax` of a `grammar` stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Syntax {
    /// Any JSON object; the source is not read.
    JsonObject,
    /// A JSON schema. What it cannot follow exactly is an error.
    JsonSchema,
    /// A regular expression of the whole output, in the syntax of Rust's `regex` without look-around.
    Regex,
    /// A JSON list of strings, one of which is the output.
    Choice,
    /// Lark, in `llguidance`'s variant; the rule `start` is the output.
    Lark,
    /// llama.cpp's grammars; the rule `root` is the output.
    Gbnf,
    /// vLLM's structural tags: free text with tagged JSON in it.
    StructuralTag,
}

/// What the matcher reads.
pub(crate) struct Read {
    pub(crate) grammar: TopLevelGrammar,
    /// Where it is a schema alone: to find the part that is to blame for an error.
    pub(crate) schema: Option<Value>,
}

impl From<TopLevelGrammar> for Read {
    fn from(grammar: TopLevelGrammar) -> Self {
        Self {
            grammar,
            schema: None,
        }
    }
}

impl Syntax {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::JsonObject,
        Self::JsonSchema,
        Self::Regex,
        Self::Choice,
        Self::Lark,
        Self::Gbnf,
        Self::StructuralTag,
    ];

    /// As the stage writes it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::JsonObject => "json_object",
            Self::JsonSchema => "json_schema",
            Self::Regex => "regex",
            Self::Choice => "choice",
            Self::Lark => "lark",
            Self::Gbnf => "gbnf",
            Self::StructuralTag => "structural_tag",
        }
    }

    pub(crate) fn read(self, source: &str, limits: &Limits) -> Result<Read, GrammarError> {
        Ok(match self {
            Self::JsonObject => {
                let any = serde_json::json!({"type": "object"});
                TopLevelGrammar::from_json_schema(schema::prepare(any)).into()
            }
            Self::JsonSchema => {
                let schema = schema::read(source)?;
                Read {
                    grammar: TopLevelGrammar::from_json_schema(schema.clone()),
                    schema: Some(schema),
                }
            }
            Self::Regex => TopLevelGrammar::from_regex(regex::whole(source)?).into(),
            Self::Choice => TopLevelGrammar::from_lark(choice(source, limits)?).into(),
            Self::Lark => {
                check_lark(source, limits)?;
                TopLevelGrammar::from_lark(source.to_owned()).into()
            }
            Self::Gbnf => TopLevelGrammar::from_lark(gbnf::to_lark(source, limits)?).into(),
            Self::StructuralTag => TopLevelGrammar::from_lark(structural::to_lark(source)?).into(),
        })
    }

    /// The matcher's message with the place that it begins with: `at 3(7): …`, or `3(7): …`. Other syntaxes' sources are
    /// not what the matcher read.
    pub(crate) fn located(self, message: &str) -> GrammarError {
        if self != Self::Lark {
            return GrammarError::whole(message.lines().next().unwrap_or_default());
        }
        let place = || {
            let (numbers, cause) = message
                .strip_prefix("at ")
                .unwrap_or(message)
                .split_once("): ")?;
            let (line, column) = numbers.split_once('(')?;
            let place = Place::Line {
                line: line.parse().ok()?,
                column: column.parse().ok()?,
            };
            Some((place, cause.lines().next().unwrap_or_default().to_owned()))
        };
        let (place, cause) = place().unwrap_or_else(|| {
            let first = message.lines().next().unwrap_or_default().to_owned();
            (Place::Whole, first)
        });
        GrammarError::Invalid { place, cause }
    }
}

impl FromStr for Syntax {
    type Err = GrammarError;

    fn from_str(name: &str) -> Result<Self, GrammarError> {
        let found = Self::ALL.into_iter().find(|syntax| syntax.name() == name);
        found.ok_or_else(|| GrammarError::Syntax {
            found: clip(name),
            known: Self::ALL.map(Self::name).join(", "),
        })
    }
}

/// A Lark grammar with one terminal.
fn choice(source: &str, limits: &Limits) -> Result<String, GrammarError> {
    let choices: Vec<String> = serde_json::from_str(source).map_err(|e| GrammarError::Invalid {
        place: Place::Line {
            line: e.line(),
            column: e.column(),
        },
        cause: format!("expected a JSON list of strings: {e}"),
    })?;
    if choices.is_empty() {
        return Err(GrammarError::whole(
            "the list of choices is empty; give at least one",
        ));
    }
    if choices.len() > limits.rules {
        return Err(GrammarError::TooLarge {
            place: Place::Whole,
            what: "the number of choices",
            found: choices.len(),
            limit: limits.rules,
        });
    }
    let optional = if choices.iter().any(String::is_empty) {
        "?"
    } else {
        ""
    };
    let quoted: Vec<String> = choices
        .iter()
        .filter(|choice| !choice.is_empty())
        .map(|choice| quote(choice))
        .collect();
    if quoted.is_empty() {
        return Ok("start: \"\"\n".into());
    }
    Ok(format!(
        "start: CHOICE{optional}\nCHOICE: {}\n",
        quoted.join(" | ")
    ))
}

/// A string as Lark reads it.
pub(crate) fn quote(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            '\n' => quoted.push_str("\\n"),
            '\u{0}'..='\u{1f}' | '\u{7f}' => {
                quoted.push_str(&format!("\\u{:04x}", u32::from(c)));
            }
            _ => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}

/// What the matcher's reader does not bound: how many definitions there are, and how deep brackets nest. Strings, regular
/// expressions and comments are skipped roughly: what is mistaken only counts.
fn check_lark(source: &str, limits: &Limits) -> Result<(), GrammarError> {
    let rules = source.lines().filter(|line| line.contains(':')).count();
    if rules > limits.rules {
        return Err(GrammarError::TooLarge {
            place: Place::Whole,
            what: "the number of rules",
            found: rules,
            limit: limits.rules,
        });
    }
    let mut depth = 0_usize;
    let mut quote = None;
    let mut escaped = false;
    for (at, byte) in source.bytes().enumerate() {
        if byte == b'\n' {
            quote = None;
        }
        match quote {
            _ if std::mem::take(&mut escaped) => {}
            Some(_) if byte == b'\\' => escaped = true,
            Some(end) => {
                if byte == end {
                    quote = None;
                }
            }
            None => match byte {
                b'"' | b'/' => quote = Some(byte),
                b'(' | b'[' | b'{' => depth += 1,
                b')' | b']' | b'}' => depth = depth.saturating_sub(1),
                _ => {}
            },
        }
        if depth > limits.nesting {
            return Err(GrammarError::TooLarge {
                place: Place::of_byte(source, at),
                what: "the depth of brackets",
                found: depth,
                limit: limits.nesting,
            });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
