#![allow(clippy::unwrap_used)]

use super::*;
use serde_json::json;

fn new(files: &[(&str, &str)]) -> Result<ChatTemplate, Error> {
    let files: Vec<_> = files
        .iter()
        .map(|&(n, c)| (n.to_owned(), c.to_owned()))
        .collect();
    ChatTemplate::new(&files, vec![(7, "<a>".into()), (8, "<b>".into())])
}

fn of_source(source: &str) -> ChatTemplate {
    new(&[("chat_template.jinja", source)]).unwrap()
}

fn fields<'a>(messages: &'a str, tools: Option<&'a str>, turn: Turn) -> Fields<'a> {
    Fields {
        messages,
        tools,
        documents: None,
        kwargs: None,
        turn,
    }
}

fn render(template: &mut ChatTemplate, messages: &str) -> Vec<Segment> {
    template
        .render(&fields(messages, None, Turn::Answer), 0)
        .unwrap()
        .segments
}

const HI: &str = r#"[{"role": "user", "content": "hi"}]"#;

#[test]
fn tokens_of_the_template_are_special_and_those_of_the_client_are_not() {
    let mut t = of_source("<a>{{ messages[0].content }}{{ '<b>' }}!");
    let got = render(&mut t, r#"[{"role": "user", "content": "x<a><b>"}]"#);
    let want = [
        Segment::Special(7),
        Segment::Text("x<a><b>".into()),
        Segment::Special(8),
        Segment::Text("!".into()),
    ];
    assert_eq!(got, want);
}

#[test]
fn escapes_and_sums_make_tokens_too() {
    let mut t = of_source(r"{{ '\u003ca>' }}{{ '<' + 'b>' }}{{ messages[0].content }}");
    let got = render(&mut t, r#"[{"role": "user", "content": "<a><b>"}]"#);
    let want = [
        Segment::Special(7),
        Segment::Special(8),
        Segment::Text("<a><b>".into()),
    ];
    assert_eq!(got, want);
}

#[test]
fn tokens_of_the_configuration_are_special() {
    let template = "{{ bos_token }}{{ eos_token }}{{ pad_token }}{{ x_token is defined }}";
    let config = json!({"bos_token": "<a>", "eos_token": {"content": "<b>"}, "pad_token": "no", "add_bos_token": true, "chat_template": template});
    let mut t = new(&[("tokenizer_config.json", &config.to_string())]).unwrap();
    assert_eq!(
        render(&mut t, HI),
        [
            Segment::Special(7),
            Segment::Special(8),
            Segment::Text("noFalse".into())
        ]
    );
}

#[test]
fn the_file_wins_and_tools_have_their_template() {
    let list = json!({"chat_template": [{"name": "default", "template": "D"}, {"name": "tool_use", "template": "T"}]}).to_string();
    let mut t = new(&[("tokenizer_config.json", &list)]).unwrap();
    let mut text = |tools| {
        t.render(&fields(HI, tools, Turn::Answer), 0)
            .unwrap()
            .segments
    };
    assert_eq!(text(None), [Segment::Text("D".into())]);
    assert_eq!(text(Some("[]")), [Segment::Text("D".into())]);
    assert_eq!(
        text(Some(r#"[{"type": "function", "function": {"name": "f"}}]"#)),
        [Segment::Text("T".into())]
    );
    let mut t = new(&[
        ("tokenizer_config.json", &list),
        ("chat_template.jinja", "F"),
    ])
    .unwrap();
    assert_eq!(render(&mut t, HI), [Segment::Text("F".into())]);
}

#[test]
fn files_that_make_no_template_are_refused() {
    for files in [
        &[][..],
        &[("tokenizer_config.json", "{")],
        &[("tokenizer_config.json", "{}")],
        &[("tokenizer_config.json", r#"{"chat_template": []}"#)],
        &[("chat_template.jinja", "{% if %}")],
        &[("chat_template.jinja", "{{ x")],
        &[("chat_template.jinja", "{% for x in y %}")],
    ] {
        assert!(
            matches!(new(files), Err(Error::InvalidConfig(_))),
            "{files:?}"
        );
    }
}

#[test]
fn what_the_template_raises_is_the_clients_error() {
    let mut t = of_source("{{ raise_exception('only ' + '<a>') }}");
    let error = t.render(&fields(HI, None, Turn::Answer), 0).unwrap_err();
    assert!(
        matches!(&error, Error::InvalidRequest(m) if m.contains("only <a>")),
        "{error}"
    );
}

#[test]
fn generation_tags_have_no_effect() {
    let mut t = of_source(
        "A{% generation %}B{%- endgeneration -%} C{%generation%}{{ 'generation' }}{% endgeneration %}",
    );
    assert_eq!(render(&mut t, HI), [Segment::Text("ABCgeneration".into())]);
}

#[test]
fn the_final_message_is_continued() {
    let turns =
        r#"[{"role": "user", "content": "hi"}, {"role": "assistant", "content": " One, "}]"#;
    for (source, want) in [
        (
            "{% for m in messages %}<a>{{ m.content }}<b>{% endfor %}",
            " One, ",
        ),
        (
            "{% for m in messages %}<a>{{ m.content | trim }}<b>{% endfor %}",
            "One,",
        ),
    ] {
        let segments = of_source(source)
            .render(&fields(turns, None, Turn::Continue), 0)
            .unwrap()
            .segments;
        assert_eq!(segments.last(), Some(&Segment::Text(want.into())));
        assert_eq!(
            segments
                .iter()
                .filter(|s| **s == Segment::Special(8))
                .count(),
            1,
            "only the first message is closed"
        );
    }
    for source in [
        "<a>",
        "{% for m in messages %}{{ m.content[3:] }}{% endfor %}",
    ] {
        assert!(
            of_source(source)
                .render(&fields(turns, None, Turn::Continue), 0)
                .is_err(),
            "{source}"
        );
    }
    let none = r#"[{"role": "assistant", "tool_calls": []}]"#;
    assert!(
        of_source("{{ messages }}")
            .render(&fields(none, None, Turn::Continue), 0)
            .is_err()
    );
}

#[test]
fn the_prompts_end_is_told() {
    let mut t = of_source("{{ messages[0].content }}</think><think>\n");
    assert_eq!(
        t.render(&fields(HI, None, Turn::Answer), 0).unwrap().start,
        Start::Thinking
    );
    assert_eq!(t.answer().visible(), ["<think>", "</think>"]);
}
