//! Takes a model's text apart while it streams: thoughts, content, tool calls.
//!
//! What counts is decided by the template: if it spells `</think>`, thoughts in `<think>…</think>` before the answer
//! are reasoning; if it spells `<tool_call>` and the request has tools, JSON in `<tool_call>…</tool_call>` is a call.

use crate::python::{Dumps, dumps};
use minijinja::{Value, value::Serde};

/// Next piece of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Delta {
    /// Part of the answer.
    Content(String),
    /// Part of a thought.
    Reasoning(String),
    /// A whole call.
    ToolCall {
        /// 0, 1, …
        index: u32,
        /// Function.
        name: String,
        /// JSON object.
        arguments: String,
    },
}

/// Where an answer begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// A thought may come first.
    Open,
    /// The prompt ended inside a thought.
    Thinking,
}

/// Whether a syntax is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Syntax {
    /// Text is taken as it is.
    Off,
    /// Tags are recognised.
    Tags,
}

/// What a template's models write.
#[derive(Clone, Debug)]
pub struct AnswerFormat {
    /// `<think>…</think>`
    pub thoughts: Syntax,
    /// `<tool_call>{"name": …, "arguments": …}</tool_call>`
    pub calls: Syntax,
}

const THINK: &str = "<think>";
const END_THINK: &str = "</think>";
const CALL: &str = "<tool_call>";
const END_CALL: &str = "</tool_call>";

impl AnswerFormat {
    /// Decides from the sources of the templates.
    pub fn of_template(sources: &[&str]) -> Self {
        let on = |what: &str| {
            if sources.iter().any(|s| s.contains(what)) {
                Syntax::Tags
            } else {
                Syntax::Off
            }
        };
        Self {
            thoughts: on(END_THINK),
            calls: on(CALL),
        }
    }

    /// Where an answer to a prompt with this end begins.
    pub fn start_after(&self, tail: &str) -> Start {
        let open = tail
            .rfind(THINK)
            .is_some_and(|at| !tail[at..].contains(END_THINK));
        if self.thoughts == Syntax::Tags && open {
            Start::Thinking
        } else {
            Start::Open
        }
    }

    /// A parser for one choice. `calls` is `Off` when the request has no tools.
    pub fn parser(&self, start: Start, calls: Syntax) -> Parser {
        let mode = match (start, self.thoughts) {
            (Start::Thinking, _) => Mode::Reasoning,
            (Start::Open, Syntax::Tags) => Mode::Beginning,
            (Start::Open, Syntax::Off) => Mode::Content,
        };
        let calls = if self.calls == Syntax::Tags {
            calls
        } else {
            Syntax::Off
        };
        Parser {
            mode,
            calls,
            buffer: String::new(),
            blank: String::new(),
            after_call: false,
            next_index: 0,
            searched: 0,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// Nothing but white space so far; `<think>` may follow.
    Beginning,
    Reasoning,
    Content,
    Call,
}

/// State of one choice.
#[derive(Debug)]
pub struct Parser {
    mode: Mode,
    calls: Syntax,
    /// Not decided yet: might be part of a tag.
    buffer: String,
    /// White space that is dropped if a call follows.
    blank: String,
    /// Nothing but white space since the last call.
    after_call: bool,
    next_index: u32,
    /// Bytes of the buffer that hold no beginning of a call's end.
    searched: usize,
}

impl Parser {
    /// Takes the next text.
    pub fn push(&mut self, text: &str) -> Vec<Delta> {
        self.buffer.push_str(text);
        let mut out = Vec::new();
        while self.advance(&mut out) {}
        out
    }

    /// The text is over: what was held back is emitted.
    pub fn finish(&mut self) -> Vec<Delta> {
        let mut out = Vec::new();
        let rest = std::mem::take(&mut self.buffer);
        match self.mode {
            Mode::Call => self.call(&rest, "", &mut out),
            Mode::Reasoning => reasoning(&rest, &mut out),
            Mode::Beginning | Mode::Content => self.content(&rest, &mut out),
        }
        push_content(std::mem::take(&mut self.blank), &mut out);
        out
    }

    /// One transition. False when more text is needed.
    fn advance(&mut self, out: &mut Vec<Delta>) -> bool {
        match self.mode {
            Mode::Beginning => {
                let trimmed = self.buffer.trim_start();
                if let Some(rest) = trimmed.strip_prefix(THINK) {
                    self.buffer = rest.to_owned();
                    self.mode = Mode::Reasoning;
                    return true;
                }
                if THINK.starts_with(trimmed) {
                    return false;
                }
                self.mode = Mode::Content;
                true
            }
            Mode::Reasoning => match self.take_until(END_THINK) {
                Taken::Found(text) => {
                    reasoning(&text, out);
                    self.mode = Mode::Content;
                    true
                }
                Taken::Partial(text) => {
                    reasoning(&text, out);
                    false
                }
            },
            Mode::Content if self.calls == Syntax::Off => {
                let text = std::mem::take(&mut self.buffer);
                self.content(&text, out);
                false
            }
            Mode::Content => match self.take_until(CALL) {
                Taken::Found(text) => {
                    self.content(&text, out);
                    self.mode = Mode::Call;
                    true
                }
                Taken::Partial(text) => {
                    self.content(&text, out);
                    false
                }
            },
            Mode::Call => {
                let Some(at) = self.buffer[self.searched..]
                    .find(END_CALL)
                    .map(|at| at + self.searched)
                else {
                    let from = self.buffer.len().saturating_sub(END_CALL.len() - 1);
                    self.searched = (0..=from)
                        .rev()
                        .find(|&i| self.buffer.is_char_boundary(i))
                        .unwrap_or(0);
                    return false;
                };
                self.searched = 0;
                let body = self.buffer[..at].to_owned();
                self.buffer.drain(..at + END_CALL.len());
                self.call(&body, END_CALL, out);
                self.mode = Mode::Content;
                true
            }
        }
    }

    /// Removes text up to `tag` from the buffer, or all that cannot be part of it.
    fn take_until(&mut self, tag: &str) -> Taken {
        if let Some(at) = self.buffer.find(tag) {
            let text = self.buffer[..at].to_owned();
            self.buffer.drain(..at + tag.len());
            return Taken::Found(text);
        }
        let held = (1..tag.len())
            .rev()
            .find(|&n| self.buffer.ends_with(&tag[..n]))
            .unwrap_or(0);
        let keep = self.buffer.split_off(self.buffer.len() - held);
        Taken::Partial(std::mem::replace(&mut self.buffer, keep))
    }

    /// Emits content; with calls on, trailing white space waits for what follows it.
    fn content(&mut self, text: &str, out: &mut Vec<Delta>) {
        if self.calls == Syntax::Off {
            push_content(text.to_owned(), out);
            return;
        }
        let text = if self.after_call {
            text.trim_start()
        } else {
            text
        };
        let solid = text.trim_end();
        if solid.is_empty() {
            self.blank.push_str(text);
            return;
        }
        self.after_call = false;
        let mut all = std::mem::take(&mut self.blank);
        all.push_str(solid);
        self.blank.push_str(&text[solid.len()..]);
        push_content(all, out);
    }

    fn call(&mut self, body: &str, end: &str, out: &mut Vec<Delta>) {
        match parse_call(body) {
            Some((name, arguments)) => {
                self.blank.clear();
                self.after_call = true;
                out.push(Delta::ToolCall {
                    index: self.next_index,
                    name,
                    arguments,
                });
                self.next_index += 1;
            }
            None => self.content(&format!("{CALL}{body}{end}"), out),
        }
    }
}

enum Taken {
    Found(String),
    Partial(String),
}

fn push_content(text: String, out: &mut Vec<Delta>) {
    if !text.is_empty() {
        out.push(Delta::Content(text));
    }
}

fn reasoning(text: &str, out: &mut Vec<Delta>) {
    if !text.is_empty() {
        out.push(Delta::Reasoning(text.to_owned()));
    }
}

/// (name, arguments as JSON) of a call's body.
fn parse_call(body: &str) -> Option<(String, String)> {
    let call: serde_json::Value = serde_json::from_str(body.trim()).ok()?;
    let name = call.get("name")?.as_str()?.to_owned();
    let arguments = match call.get("arguments").or_else(|| call.get("parameters")) {
        None | Some(serde_json::Value::Null) => "{}".to_owned(),
        Some(serde_json::Value::String(s)) => s.clone(),
        Some(value) => dumps(&Value::from(Serde(value)), &Dumps::default()).ok()?,
    };
    Some((name, arguments))
}

#[cfg(test)]
mod tests;
