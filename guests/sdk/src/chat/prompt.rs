//! What templates written by hand share: messages, control tokens, segments, parsers of plain answers.

use serde_json::Value;

use super::{ControlToken, Conversation, Delta, File, Parser, Segment};
use crate::{Config, Error};

/// Who speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// `system`, and `developer`, its newer name.
    System,
    /// `user`
    User,
    /// `assistant`
    Assistant,
    /// `tool`: the result of a call.
    Tool,
}

/// A message whose content is text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Who speaks.
    pub role: Role,
    /// What; text parts are joined by newlines, no content is empty.
    pub content: String,
}

/// The messages of a conversation. Other parts than text are [`Error::Unsupported`].
pub fn messages(conversation: &Conversation) -> Result<Vec<Message>, Error> {
    let all: Vec<Value> = serde_json::from_str(&conversation.messages)
        .map_err(|e| Error::request(format!("messages: {e}")))?;
    let read = |(i, message): (usize, &Value)| {
        let role = match message.get("role").and_then(Value::as_str) {
            Some("system" | "developer") => Role::System,
            Some("user") => Role::User,
            Some("assistant") => Role::Assistant,
            Some("tool") => Role::Tool,
            other => {
                return Err(Error::request(format!(
                    "messages[{i}].role is {other:?}; expected system, user, assistant or tool"
                )));
            }
        };
        let content = text(message.get("content"), i)?;
        Ok(Message { role, content })
    };
    all.iter().enumerate().map(read).collect()
}

fn text(content: Option<&Value>, i: usize) -> Result<String, Error> {
    match content {
        None | Some(Value::Null) => Ok(String::new()),
        Some(Value::String(text)) => Ok(text.clone()),
        Some(Value::Array(parts)) => {
            let texts = parts.iter().map(|part| {
                let text = part.get("text").and_then(Value::as_str);
                text.ok_or_else(|| {
                    Error::Unsupported(format!(
                        "messages[{i}].content has a part that is not text; this model reads text only"
                    ))
                })
            });
            Ok(texts.collect::<Result<Vec<_>, _>>()?.join("\n"))
        }
        Some(other) => Err(Error::request(format!(
            "messages[{i}].content is {other}; expected a string or parts"
        ))),
    }
}

/// A model file that is a JSON object, such as `config.json`; an empty one if there is none.
pub fn config(files: &[File], name: &str) -> Result<Config, Error> {
    let file = files.iter().find(|file| file.name == name);
    Config::parse(file.map_or("{}", |file| &file.content))
}

/// The control tokens of a tokenizer.
#[derive(Clone, Debug, Default)]
pub struct Controls(Vec<ControlToken>);

impl Controls {
    /// As [`Template::create`](super::Template::create) gets them.
    pub fn new(tokens: Vec<ControlToken>) -> Self {
        Self(tokens)
    }

    /// The token of a literal.
    pub fn find(&self, literal: &str) -> Option<u32> {
        let token = self.0.iter().find(|token| token.literal == literal)?;
        Some(token.id)
    }

    /// The token of a literal that the format cannot do without.
    pub fn need(&self, literal: &str) -> Result<u32, Error> {
        self.find(literal).ok_or_else(|| {
            Error::config(format!(
                "the tokenizer has no control token {literal:?}; list it with its id in \"added_tokens_decoder\" of tokenizer_config.json, with \"special\": true"
            ))
        })
    }

    /// The token of an id, if it is a control token.
    pub fn with_id(&self, id: u32) -> Option<u32> {
        self.0.iter().find(|token| token.id == id).map(|t| t.id)
    }
}

/// Refuses tools, for formats without them.
pub fn without_tools(conversation: &Conversation) -> Result<(), Error> {
    match conversation.tools.as_deref().map(str::trim) {
        None | Some("[]" | "null") => Ok(()),
        Some(_) => Err(Error::Unsupported(
            "tools: this model's prompt format has no place for them".into(),
        )),
    }
}

/// Segments while they are collected.
#[derive(Debug, Default)]
pub struct Prompt(Vec<Segment>);

impl Prompt {
    /// Adds text; what stands side by side becomes one segment.
    pub fn text(&mut self, text: &str) -> &mut Self {
        match self.0.last_mut() {
            _ if text.is_empty() => {}
            Some(Segment::Text(last)) => last.push_str(text),
            _ => self.0.push(Segment::Text(text.into())),
        }
        self
    }

    /// Adds a control token.
    pub fn special(&mut self, id: u32) -> &mut Self {
        self.0.push(Segment::Special(id));
        self
    }

    /// The segments.
    pub fn finish(self) -> Vec<Segment> {
        self.0
    }
}

/// A parser for answers that are content as they stand.
#[derive(Debug, Default)]
pub struct Plain;

impl Parser for Plain {
    fn push(&mut self, text: &str) -> Vec<Delta> {
        content(text.to_owned())
    }

    fn finish(&mut self) -> Vec<Delta> {
        vec![]
    }
}

/// A parser for answers whose white space at both ends belongs to the format.
#[derive(Debug, Default)]
pub struct Trimmed {
    begun: bool,
    /// White space that is dropped if nothing follows it.
    blank: String,
}

impl Trimmed {
    /// For an answer to a conversation: one that goes on with an open message keeps its beginning.
    pub fn after(conversation: &Conversation) -> Self {
        Self {
            begun: conversation.continue_final_message,
            blank: String::new(),
        }
    }
}

impl Parser for Trimmed {
    fn push(&mut self, text: &str) -> Vec<Delta> {
        let text = if self.begun { text } else { text.trim_start() };
        let solid = text.trim_end();
        if solid.is_empty() {
            if self.begun {
                self.blank.push_str(text);
            }
            return vec![];
        }
        self.begun = true;
        let mut out = std::mem::take(&mut self.blank);
        out.push_str(solid);
        self.blank.push_str(&text[solid.len()..]);
        content(out)
    }

    fn finish(&mut self) -> Vec<Delta> {
        vec![]
    }
}

fn content(text: String) -> Vec<Delta> {
    if text.is_empty() {
        vec![]
    } else {
        vec![Delta::Content(text)]
    }
}

#[cfg(test)]
mod tests;
