//! What a template does with harmless conversations: which control tokens it assembles from pieces, and in which form
//! it takes content.
//!
//! Each question is asked only of templates whose source gives a reason to ask it (see [`Signs`]), since a template is
//! constructed for every request.

use crate::controls::{Control, Controls};
use crate::conversation::{Arguments, ContentFormat, Conversation, Fields, NoContent, Shape, Turn};
use crate::marking::Signs;
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// What probing found out.
#[derive(Clone, Debug)]
pub struct Habits {
    /// Tokens that the template builds from pieces; matched as literals in its output.
    pub assembled: BTreeSet<Control>,
    /// The form of messages that it takes.
    pub shape: Shape,
}

/// Roles whose content may be taken in different forms; the user's also stands for all others.
const ROLES: [&str; 4] = ["user", "system", "assistant", "tool"];

/// Asks `render` for harmless conversations; it returns the raw output, or nothing where the template refuses.
pub fn habits(
    signs: Signs,
    controls: &Controls,
    render: &dyn Fn(&Conversation) -> Option<String>,
) -> Habits {
    let ask = |messages: Value, tools: Option<&Value>, shape: &Shape| {
        let messages = messages.to_string();
        let tools = tools.map(Value::to_string);
        let fields = Fields {
            messages: &messages,
            tools: tools.as_deref(),
            documents: None,
            kwargs: None,
            turn: Turn::Answer,
        };
        render(&Conversation::parse(&fields, shape).ok()?)
    };
    let mut shape = Shape {
        format: ContentFormat::String,
        ..Shape::AS_SENT
    };
    if signs.reads_parts {
        for role in ROLES {
            let with = |content: Value| ask(turns(role, &content), None, &Shape::AS_SENT);
            let format = format_of(
                with(json!("probe")).as_deref(),
                with(json!([{"type": "text", "text": "probe"}])).as_deref(),
            );
            match (role, format) {
                ("user", Some(format)) => shape.format = format,
                (_, Some(format)) => drop(shape.by_role.insert(role, format)),
                (_, None) => {}
            }
        }
    }
    if signs.reads_calls {
        let with = |content: Value, arguments: Arguments| {
            let shape = Shape {
                no_content: NoContent::Null,
                arguments,
                ..shape.clone()
            };
            ask(
                json!([say("user", "x"), call(&content), result()]),
                None,
                &shape,
            )
            .filter(|o| o.contains("probe"))
        };
        (shape.no_content, shape.arguments) = calls(&with);
    }
    let mut assembled = BTreeSet::new();
    if signs.assembles {
        let (user, assistant) = (say("user", "probe"), say("assistant", "probe"));
        let conversations = [
            json!([user]),
            json!([say("system", "probe"), user, assistant, user]),
            json!([say("developer", "probe"), user]),
            json!([user, assistant, user]),
            json!([user, call(&json!("")), result()]),
        ];
        for messages in conversations {
            for tools in [None, Some(&tools())] {
                let Some(output) = ask(messages.clone(), tools, &shape) else {
                    continue;
                };
                assembled.extend(
                    controls
                        .find_all(&output)
                        .into_iter()
                        .map(|(_, _, control)| control),
                );
            }
        }
        shape.assembled = assembled
            .iter()
            .map(|&c| controls.literal(c).to_owned())
            .collect();
    }
    Habits { assembled, shape }
}

/// From what came of a string and of one part with the same text.
fn format_of(string: Option<&str>, part: Option<&str>) -> Option<ContentFormat> {
    let shown = |output: &Option<&str>| output.is_some_and(|o| o.contains("probe"));
    if shown(&string) {
        return Some(if string == part {
            ContentFormat::Either
        } else {
            ContentFormat::String
        });
    }
    // A template that prints a list as it is shows its keys too.
    (shown(&part) && !part.is_some_and(|o| o.contains("type"))).then_some(ContentFormat::Parts)
}

/// `none` and an object, as in transformers, unless that makes the template fail, write "None" or leave out the call.
fn calls(shown: &dyn Fn(Value, Arguments) -> Option<String>) -> (NoContent, Arguments) {
    let count = |output: &str| output.matches("None").count();
    for arguments in [Arguments::Object, Arguments::Text] {
        match (shown(Value::Null, arguments), shown(json!(""), arguments)) {
            (Some(null), Some(empty)) if count(&null) > count(&empty) => {
                return (NoContent::Empty, arguments);
            }
            (Some(_), _) => return (NoContent::Null, arguments),
            (None, Some(_)) => return (NoContent::Empty, arguments),
            (None, None) => {}
        }
    }
    (NoContent::Empty, Arguments::Object)
}

fn say(role: &str, content: &str) -> Value {
    json!({"role": role, "content": content})
}

fn call(content: &Value) -> Value {
    let function = json!({"name": "probe", "arguments": {"probe": "probe"}});
    json!({"role": "assistant", "content": content, "tool_calls": [{"id": "probe0000", "type": "function", "function": function}]})
}

fn result() -> Value {
    json!({"role": "tool", "content": "x", "name": "x", "tool_call_id": "probe0000"})
}

fn tools() -> Value {
    let parameters = json!({
        "type": "object",
        "properties": {"probe": {"type": "string", "description": "probe"}},
        "required": [],
    });
    json!([{"type": "function", "function": {"name": "probe", "description": "probe", "parameters": parameters}}])
}

/// A conversation in which nobody but `role` says "probe".
fn turns(role: &str, content: &Value) -> Value {
    let message = json!({"role": role, "content": content});
    match role {
        "system" => json!([message, say("user", "x")]),
        "assistant" => json!([say("user", "x"), message, say("user", "x")]),
        "tool" => json!([say("user", "x"), {"role": "assistant", "content": "", "tool_calls": [
            {"id": "call00000", "type": "function", "function": {"name": "x", "arguments": {}}}
        ]}, {"role": "tool", "name": "x", "tool_call_id": "call00000", "content": message["content"]}]),
        _ => json!([message]),
    }
}

#[cfg(test)]
mod tests;
