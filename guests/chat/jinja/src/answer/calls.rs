//! Tool calls in the forms that models are trained to write them.

use crate::python::{Dumps, dumps};
use minijinja::{Value, value::Serde};
use serde_json::{Map, Value as Json};
use std::collections::HashMap;

/// How calls are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Calls {
    /// Not at all.
    None,
    /// `<tool_call>…</tool_call>` with JSON (Hermes, Qwen), `<function=…><parameter=…>` (Qwen3-Coder), or a name with `<arg_key>` and
    /// `<arg_value>` (GLM) inside.
    Tags,
    /// `[TOOL_CALLS]` with a JSON list, or with a name, `[ARGS]` and JSON (Mistral).
    Brackets,
    /// `<｜tool▁calls▁begin｜>` with calls of name, separator and JSON (DeepSeek V3).
    Sections,
    /// The whole answer is JSON with `name` and `parameters`, `<|python_tag|>` before it or not (Llama 3).
    Object,
}

/// Begins a whole answer that is a call.
pub(super) const PYTHON: &str = "<|python_tag|>";
const CALL_BEGIN: &str = "<｜tool▁call▁begin｜>";
const CALL_END: &str = "<｜tool▁call▁end｜>";
const SEPARATOR: &str = "<｜tool▁sep｜>";

/// A call, whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// The model's own name for it.
    pub id: Option<String>,
    /// Function.
    pub name: String,
    /// JSON object.
    pub arguments: String,
}

impl Call {
    fn new(name: &str, arguments: &Json) -> Option<Self> {
        Some(Self {
            id: None,
            name: name.to_owned(),
            arguments: dumps(&Value::from(Serde(arguments)), &Dumps::default()).ok()?,
        })
    }

    /// Of `{"name": …, "arguments" or "parameters": …}`.
    fn of_json(call: &Json) -> Option<Self> {
        let name = call.get("name")?.as_str()?;
        let arguments = call.get("arguments").or_else(|| call.get("parameters"));
        let id = call.get("id").and_then(Json::as_str).map(str::to_owned);
        let call = match arguments {
            None | Some(Json::Null) => Self::new(name, &Json::Object(Map::new()))?,
            Some(Json::String(text)) => Self {
                id: None,
                name: name.to_owned(),
                arguments: text.clone(),
            },
            Some(value) => Self::new(name, value)?,
        };
        Some(Self { id, ..call })
    }
}

/// Which parameters of the request's functions are text: the forms without JSON do not say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ToolTypes(HashMap<(String, String), String>);

impl ToolTypes {
    /// Of the request's tools; none if there are none.
    pub fn of_request(tools: &str) -> Option<Self> {
        let tools: Vec<Json> = serde_json::from_str(tools).ok()?;
        let mut types = HashMap::new();
        for tool in &tools {
            let function = tool.get("function").unwrap_or(tool);
            let name = function.get("name").and_then(Json::as_str);
            let properties = function.pointer("/parameters/properties");
            let (Some(name), Some(Json::Object(properties))) = (name, properties) else {
                continue;
            };
            for (parameter, schema) in properties {
                if let Some(kind) = schema.get("type").and_then(Json::as_str) {
                    types.insert((name.to_owned(), parameter.clone()), kind.to_owned());
                }
            }
        }
        (!tools.is_empty()).then_some(Self(types))
    }

    /// A value as text; what the function wants otherwise, and is JSON, becomes that.
    fn value(&self, function: &str, parameter: &str, text: &str) -> Json {
        let kind = self.0.get(&(function.to_owned(), parameter.to_owned()));
        let read = |text: &str| serde_json::from_str(text.trim()).ok();
        let value = match kind.map(String::as_str) {
            None | Some("string") => None,
            // As Python writes it.
            Some("boolean") => read(&text.to_lowercase()),
            Some(_) => read(text),
        };
        value.unwrap_or_else(|| Json::String(text.to_owned()))
    }
}

impl Calls {
    pub(super) fn of_template(spells: impl Fn(&str) -> bool) -> Self {
        if spells("[TOOL_CALLS]") {
            Self::Brackets
        } else if spells("<｜tool▁calls▁begin｜>") {
            Self::Sections
        } else if spells("<tool_call>") {
            Self::Tags
        } else if spells("Respond in the format {\"name\": function name") {
            Self::Object
        } else {
            Self::None
        }
    }

    /// Control tokens that belong to the form.
    pub(super) fn tokens(self) -> &'static [&'static str] {
        match self {
            Self::None => &[],
            Self::Tags => &["<tool_call>", "</tool_call>"],
            Self::Brackets => &["[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"],
            Self::Sections => &[
                "<｜tool▁calls▁begin｜>",
                "<｜tool▁calls▁end｜>",
                CALL_BEGIN,
                CALL_END,
                SEPARATOR,
            ],
            Self::Object => &[PYTHON],
        }
    }

    /// What calls begin with; none where only the whole answer can be one.
    pub(super) fn begin(self) -> Option<&'static str> {
        match self {
            Self::None | Self::Object => None,
            Self::Tags => Some("<tool_call>"),
            Self::Brackets => Some("[TOOL_CALLS]"),
            Self::Sections => Some("<｜tool▁calls▁begin｜>"),
        }
    }

    /// What they end with; none for the end of the answer, or the next call.
    pub(super) fn end(self) -> Option<&'static str> {
        match self {
            Self::None | Self::Object | Self::Brackets => None,
            Self::Tags => Some("</tool_call>"),
            Self::Sections => Some("<｜tool▁calls▁end｜>"),
        }
    }

    /// The calls between beginning and end; none if it is something else.
    pub(super) fn parse(self, body: &str, tools: &ToolTypes) -> Option<Vec<Call>> {
        let body = body.trim();
        match self {
            Self::None => None,
            Self::Tags if body.starts_with("<function=") => functions(body, tools),
            Self::Tags if !body.starts_with(['{', '[']) => Some(vec![keys(body, tools)?]),
            Self::Tags => Some(vec![Call::of_json(&serde_json::from_str(body).ok()?)?]),
            Self::Brackets if body.starts_with(['[', '{']) => {
                match serde_json::from_str(body).ok()? {
                    Json::Array(calls) => calls.iter().map(Call::of_json).collect(),
                    call => Some(vec![Call::of_json(&call)?]),
                }
            }
            Self::Brackets => Some(vec![named(body)?]),
            Self::Sections => sections(body),
            Self::Object => objects(body),
        }
    }
}

/// `<function=name><parameter=key>value</parameter></function>`; one line break at both ends of a value is the form's.
fn functions(body: &str, tools: &ToolTypes) -> Option<Vec<Call>> {
    let mut calls = Vec::new();
    for function in body.split("<function=").skip(1) {
        let (name, rest) = function.split_once('>')?;
        let mut arguments = Map::new();
        for parameter in rest.split("<parameter=").skip(1) {
            let (key, rest) = parameter.split_once('>')?;
            let end = rest
                .rfind("</parameter>")
                .or_else(|| rest.find("</function>"));
            let value = &rest[..end.unwrap_or(rest.len())];
            let value = value.strip_prefix('\n').unwrap_or(value);
            let value = value.strip_suffix('\n').unwrap_or(value);
            arguments.insert(key.to_owned(), tools.value(name, key, value));
        }
        calls.push(Call::new(name, &Json::Object(arguments))?);
    }
    (!calls.is_empty()).then_some(calls)
}

/// `name<arg_key>key</arg_key><arg_value>value</arg_value>`
fn keys(body: &str, tools: &ToolTypes) -> Option<Call> {
    let mut parts = body.split("<arg_key>");
    let name = parts.next()?.trim();
    let word = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | '.');
    if name.is_empty() || !name.chars().all(word) {
        return None;
    }
    let mut arguments = Map::new();
    for part in parts {
        let (key, rest) = part.split_once("</arg_key>")?;
        let (_, rest) = rest.split_once("<arg_value>")?;
        let (value, _) = rest.rsplit_once("</arg_value>")?;
        arguments.insert(key.trim().to_owned(), tools.value(name, key.trim(), value));
    }
    Call::new(name, &Json::Object(arguments))
}

/// `name[CALL_ID]id[ARGS]{…}`, or the name and the object alone.
fn named(body: &str) -> Option<Call> {
    let (head, arguments) = match body.split_once("[ARGS]") {
        Some(parts) => parts,
        None => body.split_at(body.find('{')?),
    };
    let (name, id) = match head.split_once("[CALL_ID]") {
        Some((name, id)) => (name, Some(id.trim().to_owned())),
        None => (head, None),
    };
    let arguments: Json = serde_json::from_str(arguments).ok()?;
    if name.trim().is_empty() || !arguments.is_object() {
        return None;
    }
    Some(Call {
        id,
        ..Call::new(name.trim(), &arguments)?
    })
}

/// V3 writes a type, the separator, a name and a fenced block; V3.1 a name, the separator and JSON.
fn sections(body: &str) -> Option<Vec<Call>> {
    let mut calls = Vec::new();
    for section in body.split(CALL_BEGIN).skip(1) {
        let section = section.split(CALL_END).next()?;
        let (before, after) = section.split_once(SEPARATOR)?;
        let after = after.trim();
        let (name, arguments) = if after.starts_with('{') {
            (before, after)
        } else {
            let (name, block) = after.split_once('\n')?;
            let block = block.trim().strip_prefix("```json")?;
            (name, block.strip_suffix("```").unwrap_or(block))
        };
        let arguments: Json = serde_json::from_str(arguments.trim()).ok()?;
        calls.push(Call::new(name.trim(), &arguments)?);
    }
    (!calls.is_empty()).then_some(calls)
}

/// One object or several, with semicolons between.
fn objects(body: &str) -> Option<Vec<Call>> {
    let mut calls = Vec::new();
    let mut rest = body;
    while !rest.is_empty() {
        let mut values = serde_json::Deserializer::from_str(rest).into_iter::<Json>();
        calls.push(Call::of_json(&values.next()?.ok()?)?);
        rest = rest[values.byte_offset()..]
            .trim_start_matches(|c: char| c == ';' || c.is_whitespace());
    }
    (!calls.is_empty()).then_some(calls)
}

#[cfg(test)]
mod tests;
