//! A request's conversation, checked and brought into the shape that templates expect.

use crate::controls::{BREAKER, CONTINUE_MARK, is_reserved};
use crate::error::Error;
use crate::python::{Dumps, dumps};
use minijinja::value::Serde;
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// Variables that `chat_template_kwargs` may not set.
pub const RESERVED: &[&str] = &[
    "messages",
    "tools",
    "documents",
    "add_generation_prompt",
    "continue_final_message",
    "chat_template",
    "tool_choice",
];

/// How a template takes the content of one role's messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContentFormat {
    /// As one string: text parts are joined by newlines.
    String,
    /// Either way, with the same result: content is passed on as it came.
    Either,
    /// As a list of parts only: a string becomes one part.
    Parts,
}

/// What a template is given where a message has no content (an assistant's that only calls tools).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoContent {
    /// `none`, as transformers passes it.
    Null,
    /// The empty string, for templates that would fail on `none` or write "None".
    Empty,
}

/// How a template takes a tool call's arguments, which clients send as JSON text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arguments {
    /// As an object, as transformers' documentation asks for.
    Object,
    /// As JSON text.
    Text,
}

/// What a template expects of messages.
#[derive(Clone, Debug)]
pub struct Shape {
    /// Content of roles that `by_role` does not name.
    pub format: ContentFormat,
    /// Content by role.
    pub by_role: BTreeMap<&'static str, ContentFormat>,
    /// For all roles.
    pub no_content: NoContent,
    /// For all calls.
    pub arguments: Arguments,
    /// Literals of control tokens that the template assembles from pieces; see [`break_up`].
    pub assembled: Vec<String>,
}

impl Shape {
    /// Everything as the client sent it.
    pub const AS_SENT: Self = Self {
        format: ContentFormat::Either,
        by_role: BTreeMap::new(),
        no_content: NoContent::Null,
        arguments: Arguments::Object,
        assembled: Vec::new(),
    };
}

/// What the model is asked to do after the last message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Write an answer: the template adds the assistant's header.
    Answer,
    /// Go on with the last message.
    Continue,
    /// Nothing is added.
    Closed,
}

/// JSON fields of a request, still text.
#[derive(Clone, Debug)]
pub struct Fields<'a> {
    /// Array of messages.
    pub messages: &'a str,
    /// Array of tools.
    pub tools: Option<&'a str>,
    /// Array of documents.
    pub documents: Option<&'a str>,
    /// Object of template variables.
    pub kwargs: Option<&'a str>,
    /// What comes after the last message.
    pub turn: Turn,
}

/// A checked conversation. No string or key in it has reserved code points but [`BREAKER`] and [`CONTINUE_MARK`].
#[derive(Clone, Debug)]
pub struct Conversation {
    /// Array of objects, at least one.
    pub messages: Value,
    /// Array, or null.
    pub tools: Value,
    /// Array, or null.
    pub documents: Value,
    /// Further variables.
    pub kwargs: Map<String, Value>,
    /// What comes after the last message.
    pub turn: Turn,
    /// The last message's text without white space around it, if the model is to continue it.
    pub unfinished: Option<String>,
}

impl Conversation {
    /// Parses and checks.
    ///
    /// # Errors
    /// For JSON of the wrong shape and for reserved code points, naming the field.
    pub fn parse(fields: &Fields<'_>, shape: &Shape) -> Result<Self, Error> {
        let mut messages = json("messages", fields.messages)?;
        let Value::Array(list) = &mut messages else {
            return Err(bad("messages", "expected an array"));
        };
        if list.is_empty() {
            return Err(bad("messages", "expected at least one message"));
        }
        for (i, message) in list.iter_mut().enumerate() {
            let name = format!("messages[{i}]");
            let Value::Object(object) = message else {
                return Err(bad(&name, "expected an object"));
            };
            let role = normalise(&name, object, shape)?;
            // Only now: parsing a call's arguments can bring code points to light that JSON had escaped.
            guard(&name, message, &shape.assembled)?;
            // The role is what such a template means to put between the pieces.
            if role
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-'))
            {
                message["role"] = Value::String(role);
            }
        }
        let unfinished = if fields.turn == Turn::Continue {
            Some(mark_end(list.last_mut())?)
        } else {
            None
        };
        let optional = |name: &str, text: Option<&str>| {
            let mut value = text.map_or(Ok(Value::Null), |t| json(name, t))?;
            guard(name, &mut value, &shape.assembled)?;
            Ok(value)
        };
        let kwargs = match optional("chat_template_kwargs", fields.kwargs)? {
            Value::Null => Map::new(),
            Value::Object(map) => map,
            _ => return Err(bad("chat_template_kwargs", "expected an object")),
        };
        if let Some(key) = kwargs
            .keys()
            .find(|k| RESERVED.contains(&k.as_str()) || k.ends_with("_token"))
        {
            return Err(bad(
                "chat_template_kwargs",
                &format!("'{key}' is set by the server and cannot be overridden"),
            ));
        }
        let tools = list_of_objects("tools", optional("tools", fields.tools)?)?;
        let documents = list_of_objects("documents", optional("documents", fields.documents)?)?;
        Ok(Self {
            messages,
            tools,
            documents,
            kwargs,
            turn: fields.turn,
            unfinished,
        })
    }
}

fn bad(field: &str, what: &str) -> Error {
    Error::InvalidRequest(format!("{field}: {what}"))
}

fn json(field: &str, text: &str) -> Result<Value, Error> {
    serde_json::from_str(text).map_err(|e| bad(field, &e.to_string()))
}

fn list_of_objects(field: &str, value: Value) -> Result<Value, Error> {
    match &value {
        Value::Null => Ok(value),
        Value::Array(items) if items.is_empty() => Ok(Value::Null),
        Value::Array(items) if items.iter().all(Value::is_object) => Ok(value),
        _ => Err(bad(field, "expected an array of objects")),
    }
}

/// Refuses reserved code points in strings and keys, and breaks up literals.
fn guard(field: &str, value: &mut Value, assembled: &[String]) -> Result<(), Error> {
    let refuse = || {
        bad(
            field,
            "code points from U+F0000 on are private to the server; remove them",
        )
    };
    match value {
        Value::String(s) => {
            if is_reserved(s) {
                return Err(refuse());
            }
            if !assembled.is_empty() {
                *s = break_up(s, assembled);
            }
        }
        Value::Array(items) => {
            for item in items {
                guard(field, item, assembled)?;
            }
        }
        Value::Object(map) => {
            if map.keys().any(|k| is_reserved(k)) {
                return Err(refuse());
            }
            if !assembled.is_empty() {
                *map = std::mem::take(map)
                    .into_iter()
                    .map(|(k, v)| (break_up(&k, assembled), v))
                    .collect();
            }
            for item in map.values_mut() {
                guard(field, item, assembled)?;
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
    Ok(())
}

/// Puts a [`BREAKER`] wherever a client's string could begin a literal, or go on with one that came before it, so that
/// only the template can make a whole one.
fn break_up(s: &str, literals: &[String]) -> String {
    let mut out = String::with_capacity(s.len() + 8);
    let goes_on = |rest: &str| !s.is_empty() && (rest.starts_with(s) || s.starts_with(rest));
    if literals
        .iter()
        .any(|l| l.char_indices().skip(1).any(|(at, _)| goes_on(&l[at..])))
    {
        out.push(BREAKER);
    }
    for c in s.chars() {
        out.push(c);
        if literals.iter().any(|l| l.starts_with(c)) {
            out.push(BREAKER);
        }
    }
    out
}

/// Fields that are null are left out, as if the client had not sent them; content takes the template's form. Returns
/// the role.
fn normalise(name: &str, message: &mut Map<String, Value>, shape: &Shape) -> Result<String, Error> {
    message.retain(|key, value| {
        let nothing =
            value.is_null() || key == "tool_calls" && value.as_array().is_some_and(Vec::is_empty);
        !nothing
    });
    let Some(role) = message
        .get("role")
        .and_then(Value::as_str)
        .map(str::to_owned)
    else {
        return Err(bad(
            &format!("{name}.role"),
            "expected a string such as \"user\"",
        ));
    };
    let format = *shape.by_role.get(role.as_str()).unwrap_or(&shape.format);
    let content = match message.remove("content") {
        None if shape.no_content == NoContent::Null => Value::Null,
        None => Value::String(String::new()),
        Some(Value::String(text)) if format == ContentFormat::Parts => {
            Value::Array(vec![part(text)])
        }
        Some(Value::String(text)) => Value::String(text),
        Some(Value::Array(parts)) => {
            let texts = parts
                .iter()
                .map(|p| text_of_part(name, p))
                .collect::<Result<Vec<_>, _>>()?;
            match format {
                ContentFormat::String => Value::String(texts.join("\n")),
                ContentFormat::Either | ContentFormat::Parts => {
                    Value::Array(texts.into_iter().map(|t| part(t.to_owned())).collect())
                }
            }
        }
        Some(_) => {
            return Err(bad(
                &format!("{name}.content"),
                "expected a string or a list of text parts",
            ));
        }
    };
    message.insert("content".into(), content);
    let calls = message.get_mut("tool_calls").and_then(Value::as_array_mut);
    for call in calls.into_iter().flatten() {
        if let Some(arguments) = call
            .get_mut("function")
            .and_then(|f| f.get_mut("arguments"))
        {
            convert(arguments, shape.arguments);
        }
    }
    Ok(role)
}

/// Text that is not an object of JSON stays as it is.
fn convert(arguments: &mut Value, form: Arguments) {
    let object = match arguments.as_str().map(str::trim) {
        Some("") => Map::new(),
        Some(text) => match serde_json::from_str(text) {
            Ok(object) => object,
            Err(_) => return,
        },
        None => match arguments {
            Value::Object(object) => std::mem::take(object),
            _ => return,
        },
    };
    *arguments = match form {
        Arguments::Object => Value::Object(object),
        Arguments::Text => {
            let text = dumps(&minijinja::Value::from(Serde(&object)), &Dumps::default());
            Value::String(text.unwrap_or_default())
        }
    };
}

fn part(text: String) -> Value {
    let entries = [
        ("type", Value::String("text".into())),
        ("text", Value::String(text)),
    ];
    Value::Object(
        entries
            .into_iter()
            .map(|(k, v)| (k.to_owned(), v))
            .collect(),
    )
}

/// A part that is text. Others are refused: a template would write a token for an image that nothing stands behind.
fn text_of_part<'a>(name: &str, part: &'a Value) -> Result<&'a str, Error> {
    let kind = part.get("type").and_then(Value::as_str);
    let text = match kind {
        None | Some("text" | "input_text" | "output_text") => {
            part.as_str().or_else(|| part.get("text")?.as_str())
        }
        Some("refusal") => part.get("refusal").and_then(Value::as_str),
        Some(_) => None,
    };
    text.ok_or_else(|| {
        let what = format!(
            "a part of type {:?} is not text; only text can be given to this model",
            kind.unwrap_or("unknown")
        );
        bad(&format!("{name}.content"), &what)
    })
}

/// Ends the last message's text with [`CONTINUE_MARK`] and a blank; see `template` for why the blank. Returns the text.
fn mark_end(message: Option<&mut Value>) -> Result<String, Error> {
    let text = match message.and_then(|m| m.get_mut("content")) {
        Some(Value::Array(parts)) => parts.last_mut().and_then(|p| p.get_mut("text")),
        other => other,
    };
    let Some(Value::String(text)) = text else {
        return Err(bad(
            "continue_final_message",
            "the last message has no text to continue",
        ));
    };
    let before = text.trim().to_owned();
    text.push(CONTINUE_MARK);
    text.push(' ');
    Ok(before)
}

#[cfg(test)]
mod tests;
