#![allow(clippy::unwrap_used)]

use super::*;
use proptest::prelude::*;

const BOTH: AnswerFormat = AnswerFormat::Text {
    thoughts: Syntax::Tags,
    calls: Calls::Tags,
};
const NEITHER: AnswerFormat = AnswerFormat::Text {
    thoughts: Syntax::Off,
    calls: Calls::None,
};

fn tools() -> Option<ToolTypes> {
    Some(ToolTypes::default())
}

/// Concatenated content, reasoning and calls.
#[derive(Debug, Default, PartialEq, Eq)]
struct Answer {
    content: String,
    reasoning: String,
    calls: Vec<(u32, String, String)>,
}

fn parse<'a>(mut parser: Parser, chunks: impl IntoIterator<Item = &'a str>) -> Answer {
    let mut deltas: Vec<Delta> = chunks.into_iter().flat_map(|c| parser.push(c)).collect();
    deltas.extend(parser.finish());
    let mut all = Answer::default();
    for delta in deltas {
        match delta {
            Delta::Content(text) => all.content.push_str(&text),
            Delta::Reasoning(text) => all.reasoning.push_str(&text),
            Delta::ToolCall {
                index,
                name,
                arguments,
                id: _,
            } => all.calls.push((index, name, arguments)),
        }
    }
    all
}

fn answer(content: &str, reasoning: &str, calls: &[(u32, &str, &str)]) -> Answer {
    let calls = calls
        .iter()
        .map(|&(i, n, a)| (i, n.to_owned(), a.to_owned()))
        .collect();
    Answer {
        content: content.into(),
        reasoning: reasoning.into(),
        calls,
    }
}

fn both(text: &str) -> Answer {
    parse(BOTH.parser(Start::Open, tools()), [text])
}

#[test]
fn thoughts_come_first_or_not_at_all() {
    assert_eq!(
        both("<think>\nhm\n</think>\n\nYes."),
        answer("\n\nYes.", "\nhm\n", &[])
    );
    assert_eq!(both(" \n<think>hm</think>Yes."), answer("Yes.", "hm", &[]));
    assert_eq!(
        both("Yes. <think>no</think>"),
        answer("Yes. <think>no</think>", "", &[])
    );
    assert_eq!(
        both("<think>cut off </thi"),
        answer("", "cut off </thi", &[])
    );
    assert_eq!(both("<thin"), answer("<thin", "", &[]));
    assert_eq!(both("  "), answer("  ", "", &[]));
    assert_eq!(both(""), answer("", "", &[]));
    assert_eq!(
        parse(BOTH.parser(Start::Thinking, None), ["hm</think>Yes."]),
        answer("Yes.", "hm", &[])
    );
    assert_eq!(
        parse(NEITHER.parser(Start::Open, tools()), ["<think>hm</think>"]),
        answer("<think>hm</think>", "", &[])
    );
}

#[test]
fn calls_are_taken_out() {
    let one =
        "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"b\": 1, \"a\": \"é\"}}\n</tool_call>";
    assert_eq!(
        both(one),
        answer("", "", &[(0, "f", "{\"b\": 1, \"a\": \"é\"}")])
    );
    let two = "Let me see.\n<tool_call>{\"name\": \"f\"}</tool_call>\n<tool_call>{\"name\": \"g\", \"parameters\": {}}</tool_call>\n";
    assert_eq!(
        both(two),
        answer("Let me see.", "", &[(0, "f", "{}"), (1, "g", "{}")])
    );
    let text_arguments =
        "<tool_call>{\"name\": \"f\", \"arguments\": \"{\\\"a\\\": 1}\"}</tool_call>";
    assert_eq!(
        both(text_arguments),
        answer("", "", &[(0, "f", "{\"a\": 1}")])
    );
    let unclosed = "<think>x</think><tool_call>{\"name\": \"f\"}";
    assert_eq!(both(unclosed), answer("", "x", &[(0, "f", "{}")]));
    let after = "<tool_call>{\"name\": \"f\"}</tool_call>\n\nDone. ";
    assert_eq!(both(after), answer("Done. ", "", &[(0, "f", "{}")]));
}

#[test]
fn what_is_no_call_stays_content() {
    for text in [
        "<tool_call>{\"name\": \"f\"</tool_call>",
        "a <tool_call>[]</tool_call> b",
        "<tool_call>{\"name\": 1}</tool_call>",
        "<tool_call>",
        "<tool_call>\n<function=f\n</tool_call>",
        "x </tool_call>",
    ] {
        assert_eq!(both(text), answer(text, "", &[]), "{text}");
    }
    let one = "<tool_call>{\"name\": \"f\"}</tool_call>";
    assert_eq!(
        parse(BOTH.parser(Start::Open, None), [one]),
        answer(one, "", &[])
    );
    let deep = format!(
        "<tool_call>{{\"name\": \"f\", \"arguments\": {}{}}}</tool_call>",
        "[".repeat(500),
        "]".repeat(500)
    );
    assert_eq!(both(&deep), answer(&deep, "", &[]));
}

#[test]
fn content_is_not_held_back_longer_than_needed() {
    let mut parser = BOTH.parser(Start::Open, tools());
    assert_eq!(parser.push("Hi"), [Delta::Content("Hi".into())]);
    assert_eq!(parser.push(" <b"), [Delta::Content(" <b".into())]);
    assert_eq!(parser.push(" <too"), []);
    assert_eq!(parser.push("k"), [Delta::Content(" <took".into())]);
    assert_eq!(parser.push("\n"), []);
    assert_eq!(parser.finish(), [Delta::Content("\n".into())]);
}

#[test]
fn the_prompt_tells_where_the_answer_begins() {
    assert_eq!(
        BOTH.start_after("<|assistant|>\n<think>\n"),
        Start::Thinking
    );
    assert_eq!(BOTH.start_after("<think>\n\n</think>\n\n"), Start::Open);
    assert_eq!(BOTH.start_after("<|assistant|>\n"), Start::Open);
    assert_eq!(NEITHER.start_after("<think>"), Start::Open);
}

proptest! {
    #[test]
    fn deltas_do_not_depend_on_chunks(
        pieces in prop::collection::vec(prop::sample::select(vec![
            "<think>", "</think>", "<tool_call>", "</tool_call>", "{\"name\": \"f\", \"arguments\": {\"a\": \"é\"}}", "{\"name\": ", "<", "</", "<tool",
            "_call>", "think>", " ", "\n", "  \n", "a", "漢🦙", "{", "}", "text",
        ]), 0..14),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..12),
        thinking in any::<bool>(),
        with_tools in any::<bool>(),
    ) {
        let text = pieces.concat();
        let parser = || BOTH.parser(if thinking { Start::Thinking } else { Start::Open }, with_tools.then(ToolTypes::default));
        let mut at: Vec<usize> = cuts.iter().map(|c| c.index(text.len() + 1)).filter(|&i| text.is_char_boundary(i)).collect();
        at.extend([0, text.len()]);
        at.sort_unstable();
        let whole = parse(parser(), [text.as_str()]);
        prop_assert_eq!(&whole, &parse(parser(), at.windows(2).map(|w| &text[w[0]..w[1]])));
        let single: Vec<String> = text.chars().map(String::from).collect();
        prop_assert_eq!(&whole, &parse(parser(), single.iter().map(String::as_str)));
        // Without calls nothing but tags and the white space before a thought is lost.
        if !with_tools {
            prop_assert!(text.ends_with(&whole.content) && text.contains(&whole.reasoning));
        }
    }
}

/// The same text cut anywhere, for a format whose answers are made of `pieces`.
fn cut_anywhere(format: AnswerFormat, start: Start, text: &str, cuts: &[prop::sample::Index]) {
    let parser = || format.parser(start, tools());
    let mut at: Vec<usize> = cuts
        .iter()
        .map(|c| c.index(text.len() + 1))
        .filter(|&i| text.is_char_boundary(i))
        .collect();
    at.extend([0, text.len()]);
    at.sort_unstable();
    let whole = parse(parser(), [text]);
    let cut = parse(parser(), at.windows(2).map(|w| &text[w[0]..w[1]]));
    assert_eq!(whole, cut, "{text:?}");
    let single: Vec<String> = text.chars().map(String::from).collect();
    let single = parse(parser(), single.iter().map(String::as_str));
    assert_eq!(whole, single, "{text:?}");
}

proptest! {
    #[test]
    fn no_form_of_calls_depends_on_chunks(
        pieces in prop::collection::vec(prop::sample::select(vec![
            "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "[{\"name\": \"f\", \"arguments\": {}}]", "f", "{\"a\": 1}", "[", "{", "; ",
            "{\"name\": \"f\", \"parameters\": {}}", "<|python_tag|>", "<|py", "<think>", "</think>", "<｜tool▁calls▁begin｜>",
            "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>", "\n```json\n", "```", "<｜tool", " ", "\n",
        ]), 0..14),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..12),
        calls in prop::sample::select(vec![Calls::Brackets, Calls::Sections, Calls::Object]),
        thoughts in prop::sample::select(vec![Syntax::Off, Syntax::Tags]),
    ) {
        cut_anywhere(AnswerFormat::Text { thoughts, calls }, Start::Open, &pieces.concat(), &cuts);
    }

    #[test]
    fn channels_do_not_depend_on_chunks(
        pieces in prop::collection::vec(prop::sample::select(vec![
            "<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|call|>", "<|return|>", "<|constrain|>", "assistant", "analysis", "final",
            "commentary", " to=functions.f ", "json", "{}", "<|", "<|en", "|>", "text", " ", "漢🦙",
        ]), 0..16),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..12),
        start in prop::sample::select(vec![Start::Header, Start::Open, Start::Thinking]),
    ) {
        cut_anywhere(AnswerFormat::Channels, start, &pieces.concat(), &cuts);
    }
}
