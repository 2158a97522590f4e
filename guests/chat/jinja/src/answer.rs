//! Takes a model's text apart while it streams: thoughts, content, tool calls.
//!
//! What counts is decided by the template: if it spells `</think>`, thoughts in `<think>…</think>` before the answer
//! are reasoning; if the request has tools, calls are recognised in the form that the template spells ([`Calls`]); if it spells
//! `<|channel|>`, the answer is a sequence of messages on channels (see [`channels`]).

pub mod calls;
pub mod channels;

use calls::{Call, Calls, ToolTypes};
use channels::Channels;

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
        /// The model's own name for the call, where its form has one.
        id: Option<String>,
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
    /// The prompt ended inside a message's header or before it.
    Header,
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnswerFormat {
    /// One text, with thoughts before it and calls in it.
    Text {
        /// `<think>…</think>`
        thoughts: Syntax,
        /// Tool calls.
        calls: Calls,
    },
    /// Messages on channels.
    Channels,
}

const THINK: &str = "<think>";
const END_THINK: &str = "</think>";

impl AnswerFormat {
    /// Decides from the sources of the templates.
    pub fn of_template(sources: &[&str]) -> Self {
        let spells = |what: &str| sources.iter().any(|s| s.contains(what));
        if spells("<|channel|>") && spells("<|message|>") {
            return Self::Channels;
        }
        Self::Text {
            thoughts: if spells(END_THINK) {
                Syntax::Tags
            } else {
                Syntax::Off
            },
            calls: Calls::of_template(spells),
        }
    }

    /// Literals of control tokens that the parser needs to see.
    pub fn visible(&self) -> Vec<&'static str> {
        match self {
            Self::Channels => channels::TOKENS.to_vec(),
            Self::Text { thoughts, calls } => {
                let mut all = calls.tokens().to_vec();
                if *thoughts == Syntax::Tags {
                    all.extend([THINK, END_THINK]);
                }
                all
            }
        }
    }

    /// Where an answer to a prompt with this end begins.
    pub fn start_after(&self, tail: &str) -> Start {
        let thinking = match self {
            Self::Channels => return channels::start_after(tail),
            Self::Text { thoughts, .. } => *thoughts == Syntax::Tags,
        };
        let open = tail
            .rfind(THINK)
            .is_some_and(|at| !tail[at..].contains(END_THINK));
        if thinking && open {
            Start::Thinking
        } else {
            Start::Open
        }
    }

    /// A parser for one choice. Calls are recognised if the request has `tools`.
    pub fn parser(&self, start: Start, tools: Option<ToolTypes>) -> Parser {
        match *self {
            Self::Channels => Parser::Channels(Channels::new(start)),
            Self::Text { thoughts, calls } => {
                let calls = if tools.is_some() { calls } else { Calls::None };
                Parser::Text(TextParser {
                    mode: match (start, thoughts, calls) {
                        (Start::Thinking, _, _) => Mode::Reasoning,
                        (_, Syntax::Tags, _) | (_, _, Calls::Object) => Mode::Beginning,
                        _ => Mode::Content,
                    },
                    thoughts,
                    calls,
                    tools: tools.unwrap_or_default(),
                    buffer: String::new(),
                    blank: String::new(),
                    after_call: false,
                    next_index: 0,
                    searched: 0,
                })
            }
        }
    }
}

/// State of one choice.
#[derive(Debug)]
pub enum Parser {
    /// Of [`AnswerFormat::Text`].
    Text(TextParser),
    /// Of [`AnswerFormat::Channels`].
    Channels(Channels),
}

impl Parser {
    /// Takes the next text.
    pub fn push(&mut self, text: &str) -> Vec<Delta> {
        match self {
            Self::Text(parser) => parser.push(text),
            Self::Channels(parser) => parser.push(text),
        }
    }

    /// The text is over: what was held back is emitted.
    pub fn finish(&mut self) -> Vec<Delta> {
        match self {
            Self::Text(parser) => parser.finish(),
            Self::Channels(parser) => parser.finish(),
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

/// State of one choice: one text.
#[derive(Debug)]
pub struct TextParser {
    mode: Mode,
    thoughts: Syntax,
    calls: Calls,
    tools: ToolTypes,
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

impl TextParser {
    fn push(&mut self, text: &str) -> Vec<Delta> {
        self.buffer.push_str(text);
        let mut out = Vec::new();
        while self.advance(&mut out) {}
        out
    }

    fn finish(&mut self) -> Vec<Delta> {
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
                let mut wanted = Vec::new();
                if self.thoughts == Syntax::Tags {
                    wanted.push((THINK, Mode::Reasoning));
                }
                if self.calls == Calls::Object {
                    wanted.push((calls::PYTHON, Mode::Call));
                }
                for &(tag, mode) in &wanted {
                    if let Some(rest) = trimmed.strip_prefix(tag) {
                        self.buffer = rest.to_owned();
                        self.mode = mode;
                        return true;
                    }
                }
                if wanted.iter().any(|(tag, _)| tag.starts_with(trimmed)) {
                    return false;
                }
                self.mode = if self.calls == Calls::Object && trimmed.starts_with('{') {
                    Mode::Call
                } else {
                    Mode::Content
                };
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
            Mode::Content => {
                let Some(begin) = self.calls.begin() else {
                    let text = std::mem::take(&mut self.buffer);
                    self.content(&text, out);
                    return false;
                };
                match self.take_until(begin) {
                    Taken::Found(text) => {
                        self.content(&text, out);
                        self.mode = Mode::Call;
                        true
                    }
                    Taken::Partial(text) => {
                        self.content(&text, out);
                        false
                    }
                }
            }
            Mode::Call => {
                // A call without an end of its own goes on to the next one.
                let Some(end) = self.calls.end().or(self.calls.begin()) else {
                    return false;
                };
                let Some(at) = self.buffer[self.searched..]
                    .find(end)
                    .map(|at| at + self.searched)
                else {
                    let from = self.buffer.len().saturating_sub(end.len() - 1);
                    self.searched = (0..=from)
                        .rev()
                        .find(|&i| self.buffer.is_char_boundary(i))
                        .unwrap_or(0);
                    return false;
                };
                self.searched = 0;
                let body = self.buffer[..at].to_owned();
                self.buffer.drain(..at + end.len());
                if let Some(end) = self.calls.end() {
                    self.call(&body, end, out);
                    self.mode = Mode::Content;
                } else {
                    self.call(&body, "", out);
                }
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
            .find(|&n| self.buffer.as_bytes().ends_with(&tag.as_bytes()[..n]))
            .unwrap_or(0);
        let keep = self.buffer.split_off(self.buffer.len() - held);
        Taken::Partial(std::mem::replace(&mut self.buffer, keep))
    }

    /// Emits content; with calls on, trailing white space waits for what follows it.
    fn content(&mut self, text: &str, out: &mut Vec<Delta>) {
        if self.calls == Calls::None {
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
        let Some(found) = self.calls.parse(body, &self.tools) else {
            let begin = self.calls.begin().unwrap_or_default();
            return self.content(&format!("{begin}{body}{end}"), out);
        };
        self.blank.clear();
        self.after_call = true;
        for Call {
            id,
            name,
            arguments,
        } in found
        {
            out.push(Delta::ToolCall {
                index: self.next_index,
                id,
                name,
                arguments,
            });
            self.next_index += 1;
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

#[cfg(test)]
mod tests;
