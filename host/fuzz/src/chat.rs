//! What models answer, taken apart by the parsers of chat guests.

use guesthouse_chat_jinja::answer::calls::{Calls, ToolTypes};
use guesthouse_chat_jinja::answer::{AnswerFormat, Delta, Parser, Start, Syntax};

const FORMATS: [AnswerFormat; 6] = {
    const fn text(calls: Calls) -> AnswerFormat {
        AnswerFormat::Text {
            thoughts: Syntax::Tags,
            calls,
        }
    }
    [
        text(Calls::None),
        text(Calls::Tags),
        text(Calls::Brackets),
        text(Calls::Sections),
        text(Calls::Object),
        AnswerFormat::Channels,
    ]
};

const STARTS: [Start; 3] = [Start::Open, Start::Thinking, Start::Header];

const TOOLS: &str = r#"[{"type": "function", "function": {"name": "f", "parameters":
    {"type": "object", "properties": {"s": {"type": "string"}, "n": {"type": "integer"}}}}}]"#;

/// Deltas of one kind that follow each other are one.
#[derive(Debug, Default, PartialEq, Eq)]
struct Answer {
    content: String,
    reasoning: String,
    calls: Vec<Delta>,
}

impl Answer {
    fn add(&mut self, deltas: Vec<Delta>) {
        for delta in deltas {
            match delta {
                Delta::Content(text) => self.content.push_str(&text),
                Delta::Reasoning(text) => self.reasoning.push_str(&text),
                Delta::ToolCall { ref arguments, .. } => {
                    assert!(arguments.len() <= 64 << 20);
                    self.calls.push(delta);
                }
            }
        }
    }

    fn of<'a>(mut parser: Parser, pieces: impl IntoIterator<Item = &'a str>) -> Self {
        let mut answer = Self::default();
        for piece in pieces {
            answer.add(parser.push(piece));
        }
        answer.add(parser.finish());
        answer
    }
}

/// The first byte picks format and beginning, the second the length of the pieces that the text comes in. However it is cut,
/// the answer is the same.
pub fn chat_parsers(data: &[u8]) {
    let [kind, length, text @ ..] = data else {
        return;
    };
    let text = String::from_utf8_lossy(text);
    let format = FORMATS[usize::from(*kind) % FORMATS.len()];
    let start = STARTS[usize::from(*kind) / FORMATS.len() % STARTS.len()];
    let parser = || format.parser(start, ToolTypes::of_request(TOOLS));
    let whole = Answer::of(parser(), [text.as_ref()]);
    let chars: Vec<usize> = text.char_indices().map(|(at, _)| at).collect();
    let length = usize::from(*length).max(1);
    let pieces = chars.chunks(length).enumerate().map(|(at, piece)| {
        let end = chars.get((at + 1) * length).copied();
        &text[piece[0]..end.unwrap_or(text.len())]
    });
    assert_eq!(whole, Answer::of(parser(), pieces));
}
