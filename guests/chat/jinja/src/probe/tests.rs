#![allow(clippy::unwrap_used)]

use super::*;
use crate::template::ChatTemplate;

fn habits(source: &str) -> Habits {
    let tokens = vec![
        (0, "<|user|>".to_owned()),
        (1, "<|assistant|>".to_owned()),
        (2, "<|end|>".to_owned()),
    ];
    ChatTemplate::new(
        &[("chat_template.jinja".to_owned(), source.to_owned())],
        tokens,
    )
    .unwrap()
    .habits()
    .clone()
}

/// A template that writes each message with `body`.
fn each(body: &str) -> String {
    format!("{{% for m in messages %}}<|user|>{body}<|end|>{{% endfor %}}")
}

#[test]
fn the_form_of_content_is_found_out() {
    let loops =
        "{% for p in m.content %}{% if p.type == 'text' %}{{ p.text }}{% endif %}{% endfor %}";
    for (body, format) in [
        ("{{ m.content }}".to_owned(), ContentFormat::String),
        (
            "{{ m.content + '' if m.content is string else 'text' }}".to_owned(),
            ContentFormat::String,
        ),
        (loops.to_owned(), ContentFormat::Parts),
        (
            format!(
                "{{% if m.content is string %}}{{{{ m.content }}}}{{% else %}}{loops}{{% endif %}}"
            ),
            ContentFormat::Either,
        ),
        (
            "{{ m.content[0].text if m.content is not string else m.content }}".to_owned(),
            ContentFormat::Either,
        ),
    ] {
        assert_eq!(habits(&each(&body)).shape.format, format, "{body}");
    }
    let mixed = "{% if m.role == 'user' %}{% for p in m.content %}{{ p.text }}{% endfor %}{% else %}{{ m.content }}{% endif %}";
    let shape = habits(&each(mixed)).shape;
    assert_eq!(shape.format, ContentFormat::Parts);
    assert_eq!(shape.by_role.get("assistant"), Some(&ContentFormat::String));
}

#[test]
fn the_form_of_calls_is_found_out() {
    let call = "{% for c in m.tool_calls or [] %}{{ c.function.name }}({{ ARGS }}){% endfor %}";
    let object = call.replace("ARGS", "c.function.arguments.items() | list");
    let text = call.replace("ARGS", "c.function.arguments + ''");
    for (body, no_content, arguments) in [
        (
            format!("{{{{ m.content or '' }}}}{object}"),
            NoContent::Null,
            Arguments::Object,
        ),
        (
            format!("{{{{ m.content }}}}{object}"),
            NoContent::Empty,
            Arguments::Object,
        ),
        (
            format!("{{{{ m.content + '' }}}}{object}"),
            NoContent::Empty,
            Arguments::Object,
        ),
        (
            format!(
                "{{% if m.content is none %}}{text}{{% else %}}{{{{ m.content }}}}{{% endif %}}"
            ),
            NoContent::Null,
            Arguments::Text,
        ),
        (
            format!("{{{{ m.content + '' }}}}{text}"),
            NoContent::Empty,
            Arguments::Text,
        ),
        (
            "{{ m.content }}".to_owned(),
            NoContent::Null,
            Arguments::Object,
        ),
    ] {
        let shape = habits(&each(&body)).shape;
        assert_eq!(
            (shape.no_content, shape.arguments),
            (no_content, arguments),
            "{body}"
        );
    }
}

#[test]
fn assembled_tokens_are_found_out() {
    let found =
        habits("{% for m in messages %}{{ '<|' + m.role + '|>' + m.content }}<|end|>{% endfor %}");
    assert_eq!(
        found.assembled.iter().map(|c| c.0).collect::<Vec<_>>(),
        [0, 1]
    );
    assert_eq!(found.shape.assembled, ["<|user|>", "<|assistant|>"]);
    let found = habits("{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}");
    assert_eq!(found.assembled.len(), 2);
    let found = habits(&each("{{ m.content }}"));
    assert!(found.assembled.is_empty() && found.shape.assembled.is_empty());
}
