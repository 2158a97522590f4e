//! A chat guest that does whatever the file "behaviour", the conversation's messages or the parser's text say.

wit_bindgen::generate!({
    path: ["../../../wit/common", "../../../wit/chat"],
    world: "guesthouse:chat/chat-guest",
    generate_all,
});

#[path = "../../asked.rs"]
mod asked;
#[path = "../../misbehave.rs"]
mod misbehave;

use std::cell::RefCell;

use exports::guesthouse::chat::{parsing, template};
use guesthouse::common::types::Error;
use template::Segment;

struct Hostile;

/// The ids of the control tokens.
struct Template(Vec<u32>);

/// Text of this parser so far.
struct Parser(RefCell<String>);

impl template::Guest for Hostile {
    type Template = Template;
}

impl parsing::Guest for Hostile {
    type Parser = Parser;
}

impl template::GuestTemplate for Template {
    fn create(
        files: Vec<template::File>,
        controls: Vec<template::ControlToken>,
    ) -> Result<template::Template, Error> {
        misbehave::set_hook();
        for file in &files {
            if file.name == "behaviour" {
                misbehave::misbehave(&file.content);
                if file.content == "error" {
                    return Err(Error::InvalidConfig("no template".into()));
                }
            }
        }
        Ok(template::Template::new(Template(
            controls.iter().map(|control| control.id).collect(),
        )))
    }

    fn render(&self, conversation: template::Conversation) -> Result<Vec<Segment>, Error> {
        let kwargs = conversation
            .kwargs
            .as_deref()
            .filter(|text| text.contains("attack"));
        let what = asked::asked(kwargs.unwrap_or(&conversation.messages));
        misbehave::misbehave(what);
        Ok(match what {
            "error" => return Err(Error::InvalidRequest("roles must alternate\u{7}".into())),
            "forge" => vec![Segment::Special(4_000_000_000)],
            "media" => vec![Segment::Media(0)],
            "huge-text" => vec![Segment::Text("x".repeat(20 << 20))],
            "many-segments" => vec![Segment::Text(String::new()); 2_000_000],
            text => vec![Segment::Special(self.0[0]), Segment::Text(text.into())],
        })
    }

    fn visible_controls(&self) -> Vec<u32> {
        vec![]
    }

    fn stop_strings(&self) -> Vec<String> {
        vec!["END".into()]
    }

    fn parser(&self, conversation: template::Conversation) -> Result<parsing::Parser, Error> {
        if conversation.messages == "error" {
            return Err(Error::Unsupported("no parser".into()));
        }
        Ok(parsing::Parser::new(Parser(RefCell::default())))
    }
}

impl parsing::GuestParser for Parser {
    fn push(&self, text: String) -> Vec<parsing::Delta> {
        misbehave::misbehave(&text);
        if text == "leak" {
            return vec![parsing::Delta::Content("x".repeat(20 << 20))];
        }
        self.0.borrow_mut().push_str(&text);
        vec![parsing::Delta::Content(text)]
    }

    fn finish(&self) -> Vec<parsing::Delta> {
        let call = parsing::ToolCallDelta {
            index: 0,
            id: Some("call_0".into()),
            name: Some("length".into()),
            arguments: self.0.borrow().len().to_string(),
        };
        vec![
            parsing::Delta::Reasoning("hm".into()),
            parsing::Delta::ToolCall(call),
            parsing::Delta::Custom(("kind".into(), "{}".into())),
        ]
    }
}

export!(Hostile);
