//! A conversation whose shape is right and which cannot speak as the template.

use super::super::{ApiError, ConversationFields};
use crate::serving::Conversation;
use serde_json::{Map, Value};

/// Variables of templates that a client must not set.
const RESERVED: &[&str] = &[
    "messages",
    "tools",
    "tool_choice",
    "documents",
    "add_generation_prompt",
    "continue_final_message",
    "bos_token",
    "eos_token",
    "unk_token",
    "pad_token",
    "sep_token",
    "cls_token",
    "mask_token",
    "additional_special_tokens",
    "chat_template",
    "template",
    "conversation",
    "tokenize",
    "return_dict",
    "raise_exception",
    "strftime_now",
    "namespace",
    "range",
    "dict",
    "joiner",
    "cycler",
    "lipsum",
    "loop",
    "self",
    "super",
    "now",
];

/// Messages, tools and what belongs to them.
#[derive(Clone, Debug, PartialEq)]
pub struct ValidConversation {
    messages: Vec<Value>,
    tools: Vec<Value>,
    tool_choice: Option<Value>,
    documents: Option<Vec<Value>>,
    kwargs: Map<String, Value>,
    add_generation_prompt: bool,
    continue_final_message: bool,
}

impl ValidConversation {
    /// Checks shape and strings.
    ///
    /// # Errors
    /// With the place at fault.
    pub fn new(fields: ConversationFields) -> Result<Self, ApiError> {
        let mut messages = fields.messages.unwrap_or_default();
        if messages.is_empty() {
            return Err(ApiError::invalid(
                "messages",
                "`messages` must have at least one message",
            ));
        }
        for (i, message) in messages.iter().enumerate() {
            check_message(&format!("messages[{i}]"), message)?;
        }
        messages.iter_mut().for_each(fill_content);
        let tools = fields.tools.unwrap_or_default();
        for (i, tool) in tools.iter().enumerate() {
            check_tool(&format!("tools[{i}]"), tool)?;
        }
        if let Some(choice) = &fields.tool_choice {
            check_tool_choice(choice, &tools)?;
        }
        if fields.chat_template.is_some() {
            return Err(ApiError::invalid(
                "chat_template",
                "`chat_template` is not accepted: templates come with the model; leave it out",
            ));
        }
        let kwargs = fields.chat_template_kwargs.unwrap_or_default();
        if let Some(key) = kwargs.keys().find(|key| RESERVED.contains(&key.as_str())) {
            return Err(ApiError::invalid(
                "chat_template_kwargs",
                format!(
                    "`chat_template_kwargs` must not set {key:?}, which the server itself gives to the template"
                ),
            ));
        }
        for (i, document) in fields.documents.iter().flatten().enumerate() {
            if !document.is_object() {
                return Err(ApiError::invalid(
                    "documents",
                    format!(
                        "`documents[{i}]` must be an object, such as {{\"title\": …, \"text\": …}}"
                    ),
                ));
            }
        }
        let continue_final_message = fields.continue_final_message.unwrap_or(false);
        if continue_final_message && fields.add_generation_prompt == Some(true) {
            return Err(ApiError::invalid(
                "continue_final_message",
                "`continue_final_message` and `add_generation_prompt` exclude each other; set one of them",
            ));
        }
        let add_generation_prompt = fields
            .add_generation_prompt
            .unwrap_or(!continue_final_message);
        check_strings("messages", messages.iter())?;
        check_strings("tools", tools.iter())?;
        check_strings("tool_choice", fields.tool_choice.iter())?;
        check_strings("documents", fields.documents.iter().flatten())?;
        check_strings("chat_template_kwargs", kwargs.values())?;
        for key in kwargs.keys() {
            check_string("chat_template_kwargs", key)?;
        }
        Ok(Self {
            messages,
            tools,
            tool_choice: fields.tool_choice,
            documents: fields.documents,
            kwargs,
            add_generation_prompt,
            continue_final_message,
        })
    }

    /// As the chat guest takes it.
    #[must_use]
    pub fn to_guest(&self, now: u64) -> Conversation {
        let list = |values: &[Value]| Value::Array(values.to_vec()).to_string();
        Conversation {
            messages: list(&self.messages),
            tools: (!self.tools.is_empty()).then(|| list(&self.tools)),
            tool_choice: self.tool_choice.as_ref().map(Value::to_string),
            documents: self.documents.as_deref().map(list),
            add_generation_prompt: self.add_generation_prompt,
            continue_final_message: self.continue_final_message,
            now,
            kwargs: (!self.kwargs.is_empty())
                .then(|| Value::Object(self.kwargs.clone()).to_string()),
        }
    }

    /// The last message's text if the assistant said it.
    #[must_use]
    pub fn last_assistant_text(&self) -> Option<&str> {
        let last = self.messages.last()?;
        (last.get("role")?.as_str()? == "assistant")
            .then(|| last.get("content")?.as_str())
            .flatten()
    }
}

fn check_message(place: &str, message: &Value) -> Result<(), ApiError> {
    let Some(message) = message.as_object() else {
        return Err(ApiError::invalid(
            place,
            format!("`{place}` must be an object with `role` and `content`"),
        ));
    };
    let role = match message.get("role") {
        Some(Value::String(role)) if !role.is_empty() => role.as_str(),
        _ => {
            let at = format!("{place}.role");
            return Err(ApiError::invalid(
                &at,
                format!("`{at}` must be a string such as \"user\""),
            ));
        }
    };
    let at = format!("{place}.content");
    match message.get("content") {
        Some(Value::String(_)) => {}
        Some(Value::Array(parts)) => {
            for (i, part) in parts.iter().enumerate() {
                check_part(&format!("{at}[{i}]"), part)?;
            }
        }
        None | Some(Value::Null) if role == "assistant" => {}
        None | Some(Value::Null) => {
            return Err(ApiError::invalid(
                &at,
                format!("`{at}` is missing; only the assistant's may be left out"),
            ));
        }
        Some(_) => {
            return Err(ApiError::invalid(
                &at,
                format!("`{at}` must be a string or a list of text parts"),
            ));
        }
    }
    check_tool_calls(place, message.get("tool_calls"))
}

/// An answer of tool calls alone has no content; many templates append it all the same, so it is empty, as in vLLM.
fn fill_content(message: &mut Value) {
    if let Some(fields) = message.as_object_mut()
        && fields.get("content").is_none_or(Value::is_null)
    {
        fields.insert("content".to_owned(), Value::String(String::new()));
    }
}

fn check_part(place: &str, part: &Value) -> Result<(), ApiError> {
    match part.get("type").and_then(Value::as_str) {
        Some("text") if part.get("text").is_some_and(Value::is_string) => Ok(()),
        Some("text") => Err(ApiError::invalid(
            place,
            format!("`{place}.text` must be a string"),
        )),
        Some(kind) => Err(ApiError::invalid(
            place,
            format!(
                "`{place}` is of type {kind:?}, which this model does not take; only \"text\" is supported"
            ),
        )),
        None => Err(ApiError::invalid(
            place,
            format!("`{place}` must be an object with `type` \"text\" and `text`"),
        )),
    }
}

fn check_tool_calls(place: &str, calls: Option<&Value>) -> Result<(), ApiError> {
    let at = format!("{place}.tool_calls");
    let calls = match calls {
        None | Some(Value::Null) => return Ok(()),
        Some(Value::Array(calls)) => calls,
        Some(_) => return Err(ApiError::invalid(&at, format!("`{at}` must be a list"))),
    };
    for (i, call) in calls.iter().enumerate() {
        if !call.pointer("/function/name").is_some_and(Value::is_string) {
            let at = format!("{at}[{i}].function.name");
            return Err(ApiError::invalid(&at, format!("`{at}` must be a string")));
        }
    }
    Ok(())
}

fn check_tool(place: &str, tool: &Value) -> Result<(), ApiError> {
    if tool.get("type").and_then(Value::as_str) != Some("function") {
        return Err(ApiError::invalid(
            place,
            format!("`{place}.type` must be \"function\""),
        ));
    }
    match tool.pointer("/function/name") {
        Some(Value::String(name)) if !name.is_empty() => {}
        _ => {
            return Err(ApiError::invalid(
                place,
                format!("`{place}.function.name` must be a string that is not empty"),
            ));
        }
    }
    match tool.pointer("/function/parameters") {
        None | Some(Value::Null | Value::Object(_)) => Ok(()),
        Some(_) => Err(ApiError::invalid(
            place,
            format!("`{place}.function.parameters` must be a JSON schema (an object)"),
        )),
    }
}

fn check_tool_choice(choice: &Value, tools: &[Value]) -> Result<(), ApiError> {
    let refuse = |message: String| Err(ApiError::invalid("tool_choice", message));
    let named = match choice {
        Value::String(word) if word == "none" || word == "auto" => return Ok(()),
        Value::String(word) if word == "required" => {
            return if tools.is_empty() {
                refuse("`tool_choice` \"required\" needs `tools`".to_owned())
            } else {
                Ok(())
            };
        }
        Value::Object(_) if choice.get("type").and_then(Value::as_str) == Some("function") => {
            choice.pointer("/function/name").and_then(Value::as_str)
        }
        _ => None,
    };
    match named {
        None => refuse("`tool_choice` must be \"none\", \"auto\", \"required\" or {\"type\": \"function\", \"function\": {\"name\": …}}".to_owned()),
        Some(name) if tools.iter().any(|tool| tool.pointer("/function/name").and_then(Value::as_str) == Some(name)) => Ok(()),
        Some(name) => refuse(format!("`tool_choice` names {name:?}, which is not among `tools`")),
    }
}

/// Templates mark control tokens with plane 15's private-use code points; in a client's text they could forge one.
fn check_strings<'a>(param: &str, values: impl Iterator<Item = &'a Value>) -> Result<(), ApiError> {
    let mut open: Vec<&Value> = values.collect();
    while let Some(value) = open.pop() {
        match value {
            Value::String(text) => check_string(param, text)?,
            Value::Array(items) => open.extend(items),
            Value::Object(fields) => {
                for (key, value) in fields {
                    check_string(param, key)?;
                    open.push(value);
                }
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }
    Ok(())
}

fn check_string(param: &str, text: &str) -> Result<(), ApiError> {
    match text
        .chars()
        .find(|c| ('\u{F0000}'..='\u{FFFFD}').contains(c))
    {
        None => Ok(()),
        Some(found) => Err(ApiError::invalid(
            param,
            format!(
                "`{param}` contains the private-use character U+{:X}, which is reserved (U+F0000 to U+FFFFD); remove it",
                u32::from(found)
            ),
        )),
    }
}
