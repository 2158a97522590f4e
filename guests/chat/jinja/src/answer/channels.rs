//! Answers as messages on channels, each with a header: OpenAI's harmony format (<https://cookbook.openai.com/articles/openai-harmony>).
//!
//! ```text
//! <|channel|>analysis<|message|>Think.<|end|><|start|>assistant<|channel|>final<|message|>Hello.<|return|>
//! ```
//!
//! `analysis` is reasoning; a message to a recipient (`to=functions.NAME` in its header) is a call; everything else is
//! content.

use super::{Delta, Start};

const START: &str = "<|start|>";
const CHANNEL: &str = "<|channel|>";
const MESSAGE: &str = "<|message|>";
const CONSTRAIN: &str = "<|constrain|>";
/// A message ends with one of these, or where the next one starts; the first two end the answer as well.
const ENDS: [&str; 3] = ["<|return|>", "<|call|>", "<|end|>"];

/// The format's control tokens.
pub(super) const TOKENS: [&str; 7] = [
    START, CHANNEL, MESSAGE, CONSTRAIN, ENDS[0], ENDS[1], ENDS[2],
];

/// Where an answer to a prompt with this end begins.
pub(super) fn start_after(tail: &str) -> Start {
    let last = tail.rfind(START).map_or(tail, |at| &tail[at..]);
    match last.split_once(MESSAGE) {
        None => Start::Header,
        Some((header, _)) if channel(header) == Some("analysis") => Start::Thinking,
        Some(_) => Start::Open,
    }
}

/// The word after `<|channel|>`.
fn channel(header: &str) -> Option<&str> {
    let (_, after) = header.split_once(CHANNEL)?;
    after.split(|c: char| c.is_whitespace() || c == '<').next()
}

/// The function that a message is for.
fn recipient(header: &str) -> Option<&str> {
    let (_, after) = header.split_once("to=")?;
    let name = after
        .split(|c: char| c.is_whitespace() || c == '<')
        .next()?;
    let name = name.strip_prefix("functions.").unwrap_or(name);
    (!name.is_empty()).then_some(name)
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Mode {
    Header,
    Content,
    Reasoning,
    Call(String),
}

/// State of one choice.
#[derive(Debug)]
pub struct Channels {
    mode: Mode,
    /// Not decided yet: a header, a call's arguments, or what might be part of a token.
    buffer: String,
    next_index: u32,
}

impl Channels {
    pub(super) fn new(start: Start) -> Self {
        Self {
            mode: match start {
                Start::Header => Mode::Header,
                Start::Thinking => Mode::Reasoning,
                Start::Open => Mode::Content,
            },
            buffer: String::new(),
            next_index: 0,
        }
    }

    pub(super) fn push(&mut self, text: &str) -> Vec<Delta> {
        self.buffer.push_str(text);
        let mut out = Vec::new();
        while self.advance(&mut out) {}
        out
    }

    pub(super) fn finish(&mut self) -> Vec<Delta> {
        let mut out = Vec::new();
        let rest = std::mem::take(&mut self.buffer);
        match self.mode {
            // A header without a message says nothing; text that is none does.
            Mode::Header if TOKENS.iter().any(|t| rest.contains(t)) || rest.trim().is_empty() => {}
            Mode::Header => out.push(Delta::Content(rest)),
            _ => self.body(rest, &mut out),
        }
        out
    }

    /// One transition. False when more text is needed.
    fn advance(&mut self, out: &mut Vec<Delta>) -> bool {
        if self.mode == Mode::Header {
            let Some(at) = self.buffer.find(MESSAGE) else {
                return false;
            };
            let header: String = self.buffer.drain(..at + MESSAGE.len()).collect();
            self.mode = match (recipient(&header), channel(&header)) {
                (Some(name), _) => Mode::Call(name.to_owned()),
                (None, Some("analysis")) => Mode::Reasoning,
                (None, _) => Mode::Content,
            };
            return true;
        }
        let ends = ENDS.iter().chain([&START]);
        let found = ends
            .filter_map(|t| Some((self.buffer.find(t)?, t.len())))
            .min();
        if let Some((at, length)) = found {
            let body: String = self.buffer.drain(..at).collect();
            self.buffer.drain(..length);
            self.body(body, out);
            self.mode = Mode::Header;
            return true;
        }
        if !matches!(self.mode, Mode::Call(_)) {
            let held = ENDS
                .iter()
                .chain([&START])
                .map(|t| held(&self.buffer, t))
                .max();
            let keep = self.buffer.split_off(self.buffer.len() - held.unwrap_or(0));
            let text = std::mem::replace(&mut self.buffer, keep);
            self.body(text, out);
        }
        false
    }

    /// Text of the message.
    fn body(&mut self, text: String, out: &mut Vec<Delta>) {
        match &self.mode {
            Mode::Call(name) => {
                let trimmed = text.trim();
                out.push(Delta::ToolCall {
                    index: self.next_index,
                    id: None,
                    name: name.clone(),
                    arguments: if trimmed.is_empty() { "{}" } else { trimmed }.to_owned(),
                });
                self.next_index += 1;
            }
            _ if text.is_empty() => {}
            Mode::Reasoning => out.push(Delta::Reasoning(text)),
            Mode::Content | Mode::Header => out.push(Delta::Content(text)),
        }
    }
}

/// How much of the text's end may be the beginning of a token.
fn held(text: &str, token: &str) -> usize {
    (1..token.len())
        .rev()
        .find(|&n| text.ends_with(&token[..n]))
        .unwrap_or(0)
}

#[cfg(test)]
mod tests;
