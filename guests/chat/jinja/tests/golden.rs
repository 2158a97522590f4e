//! The prompts of public templates are transformers' prompts, and their control tokens are marked.
#![allow(clippy::unwrap_used, clippy::panic)]

mod support;

use guesthouse_chat_jinja::controls::Controls;
use guesthouse_chat_jinja::conversation::{Arguments, ContentFormat, NoContent};
use serde_json::{Value, json};
use support::{Model, read, text};

/// Jinja2 raises, minijinja does not: iterating over `none` gives nothing, and a lazy sequence can be written as JSON.
const LENIENT: &[&str] = &[
    "TypeError: 'NoneType' object is not iterable",
    "TypeError: Object of type generator is not JSON serializable",
];

/// The name under which the golden prompt of a case stands: templates see some messages in another form.
fn variant(model: &Model, name: &str, case: &Value) -> String {
    let shape = &model.template.habits().shape;
    let messages = case["messages"].as_array().unwrap();
    let strings = messages
        .iter()
        .filter(|m| m["content"].is_array())
        .any(|m| {
            let format = shape
                .by_role
                .get(m["role"].as_str().unwrap())
                .unwrap_or(&shape.format);
            *format == ContentFormat::String
        });
    if strings {
        format!("{name}, joined")
    } else if shape.arguments == Arguments::Text
        && messages.iter().any(|m| m["tool_calls"].is_array())
    {
        format!("{name}, text")
    } else {
        name.to_owned()
    }
}

fn difference(model: &mut Model, name: &str, case: &Value, want: &Value) -> Option<String> {
    let got = model.render(case);
    let reason = want["raises"].as_str();
    match (got, want.as_str()) {
        (Ok(segments), Some(want)) => {
            let got = model.spell(&segments);
            if got != want {
                let same = got
                    .chars()
                    .zip(want.chars())
                    .take_while(|(a, b)| a == b)
                    .count();
                let show = |t: &str| {
                    t.chars()
                        .skip(same.saturating_sub(20))
                        .take(90)
                        .collect::<String>()
                };
                return Some(format!(
                    "{name}: found {:?}, expected {:?}",
                    show(&got),
                    show(want)
                ));
            }
            let literals = Controls::new((0..).zip(model.controls.clone()))
                .find_all(want)
                .len();
            let marked: usize = model.count(&segments).values().sum();
            (literals != marked).then(|| {
                format!(
                    "{name}: {marked} of {literals} tokens marked: {:?}",
                    text(&segments)
                )
            })
        }
        (Ok(_), None) if reason.is_some_and(|r| LENIENT.iter().any(|l| r.starts_with(l))) => None,
        (Err(_), None) => None,
        (Ok(s), None) => Some(format!(
            "{name}: transformers raises {reason:?}, found {:?}",
            model.spell(&s)
        )),
        (Err(e), Some(_)) => Some(format!("{name}: refused: {e}")),
    }
}

#[test]
fn prompts_are_those_of_transformers() {
    let (expected, cases) = (read("expected.json"), read("conversations.json"));
    let mut differences = Vec::new();
    let mut compared = 0;
    for mut model in Model::all() {
        for (name, case) in &cases {
            // None is given as "" where the template could not take it; then there is no golden prompt.
            let shape = &model.template.habits().shape;
            if name == "call-only" && shape.no_content == NoContent::Empty {
                continue;
            }
            let variant = variant(&model, name, case);
            let want = &expected[&model.name][&variant];
            let label = format!("{} / {variant}", model.name);
            differences.extend(difference(&mut model, &label, case, want));
            compared += 1;
        }
    }
    assert!(
        differences.is_empty(),
        "{} of {compared} differ:\n{}",
        differences.len(),
        differences.join("\n")
    );
    assert!(compared > 600, "only {compared} prompts were compared");
}

/// OpenAI clients send arguments as JSON text, and what is absent as null or an empty list.
#[test]
fn openai_spelling_makes_no_difference() {
    let cases = read("conversations.json");
    for mut model in Model::all() {
        for (name, case) in &cases {
            let mut same = case.clone();
            for message in same["messages"].as_array_mut().unwrap() {
                if message.get("tool_calls").is_none() {
                    message["tool_calls"] = json!([]);
                }
                message["refusal"] = Value::Null;
                for call in message["tool_calls"].as_array_mut().unwrap() {
                    call["function"]["arguments"] =
                        json!(call["function"]["arguments"].to_string());
                }
            }
            assert_eq!(
                model.render(case),
                model.render(&same),
                "{} / {name}",
                model.name
            );
        }
    }
}
