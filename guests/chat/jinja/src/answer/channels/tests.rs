#![allow(clippy::unwrap_used)]

use super::*;

fn parse(start: Start, text: &str) -> Vec<Delta> {
    let mut parser = Channels::new(start);
    let mut deltas = parser.push(text);
    deltas.extend(parser.finish());
    deltas
}

fn content(text: &str) -> Delta {
    Delta::Content(text.into())
}

fn reasoning(text: &str) -> Delta {
    Delta::Reasoning(text.into())
}

fn call(index: u32, name: &str, arguments: &str) -> Delta {
    Delta::ToolCall {
        index,
        id: None,
        name: name.into(),
        arguments: arguments.into(),
    }
}

/// The examples of the format's description.
#[test]
fn thoughts_then_an_answer() {
    let text = "<|channel|>analysis<|message|>User asks: \"What is 2 + 2?\"<|end|><|start|>assistant<|channel|>final<|message|>2 + 2 = 4.<|return|>";
    assert_eq!(
        parse(Start::Header, text),
        [
            reasoning("User asks: \"What is 2 + 2?\""),
            content("2 + 2 = 4.")
        ]
    );
    // Tokens that end the answer are not given to the parser.
    let cut = text.strip_suffix("<|return|>").unwrap();
    assert_eq!(parse(Start::Header, cut), parse(Start::Header, text));
}

#[test]
fn calls_have_a_recipient_in_either_place() {
    let after = "<|channel|>analysis<|message|>Need the weather.<|end|><|start|>assistant<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{\"location\":\"Tokyo\"}<|call|>";
    let expected = [
        reasoning("Need the weather."),
        call(0, "get_weather", "{\"location\":\"Tokyo\"}"),
    ];
    assert_eq!(parse(Start::Header, after), expected);
    let before = "<|channel|>analysis<|message|>Need the weather.<|end|><|start|>assistant to=functions.get_weather<|channel|>commentary json<|message|>{\"location\":\"Tokyo\"}";
    assert_eq!(parse(Start::Header, before), expected);
}

#[test]
fn commentary_for_nobody_is_content() {
    let text = "<|channel|>commentary<|message|>I will look.<|end|><|start|>assistant<|channel|>commentary to=functions.f<|message|><|call|>";
    assert_eq!(
        parse(Start::Header, text),
        [content("I will look."), call(0, "f", "{}")]
    );
}

#[test]
fn text_without_a_header_is_content() {
    assert_eq!(parse(Start::Header, "Hello"), [content("Hello")]);
    assert_eq!(parse(Start::Header, "<|channel|>ana"), []);
    assert_eq!(parse(Start::Header, ""), []);
    let held = "<|channel|>final<|message|>a <|en";
    assert_eq!(parse(Start::Header, held), [content("a "), content("<|en")]);
}

#[test]
fn the_prompt_tells_where_the_answer_begins() {
    assert_eq!(start_after("<|end|><|start|>assistant"), Start::Header);
    assert_eq!(
        start_after("<|start|>assistant<|channel|>final<|message|>Hi"),
        Start::Open
    );
    assert_eq!(
        start_after("<|start|>assistant<|channel|>analysis<|message|>Hm"),
        Start::Thinking
    );
    assert_eq!(parse(Start::Open, " there<|return|>"), [content(" there")]);
    assert_eq!(parse(Start::Thinking, "m<|end|>"), [reasoning("m")]);
}
