//! The component's exports: adapters between `guesthouse:chat` and this crate.

use crate::answer::calls::ToolTypes;
use crate::answer::{Delta, Parser, Start};
use crate::conversation::{Fields, Turn};
use crate::error::Error;
use crate::template::{ChatTemplate, Segment};
use std::cell::{Cell, RefCell};

wit_bindgen::generate!({
    world: "guesthouse:chat/chat-guest",
    path: ["../../../wit/common", "../../../wit/chat"],
    generate_all,
});

use exports::guesthouse::chat::{parsing, template};
use guesthouse::common::{log, types};

struct Guest;

struct Template {
    inner: RefCell<ChatTemplate>,
    /// Where the answer to the last rendered prompt begins.
    start: Cell<Start>,
}

impl From<Error> for types::Error {
    fn from(error: Error) -> Self {
        match error {
            Error::InvalidConfig(m) => Self::InvalidConfig(m),
            Error::InvalidRequest(m) => Self::InvalidRequest(m),
        }
    }
}

impl template::Guest for Guest {
    type Template = Template;
}

impl template::GuestTemplate for Template {
    fn create(
        files: Vec<template::File>,
        controls: Vec<template::ControlToken>,
    ) -> Result<template::Template, types::Error> {
        std::panic::set_hook(Box::new(|info| {
            log::log(log::Level::Error, &info.to_string())
        }));
        let files: Vec<_> = files.into_iter().map(|f| (f.name, f.content)).collect();
        let inner = ChatTemplate::new(
            &files,
            controls.into_iter().map(|c| (c.id, c.literal)).collect(),
        )?;
        Ok(template::Template::new(Self {
            inner: RefCell::new(inner),
            start: Cell::new(Start::Open),
        }))
    }

    fn render(&self, c: template::Conversation) -> Result<Vec<template::Segment>, types::Error> {
        let turn = match (c.continue_final_message, c.add_generation_prompt) {
            (true, true) => {
                let what = "continue_final_message and add_generation_prompt exclude each other";
                return Err(types::Error::InvalidRequest(what.into()));
            }
            (true, false) => Turn::Continue,
            (false, true) => Turn::Answer,
            (false, false) => Turn::Closed,
        };
        let fields = Fields {
            messages: &c.messages,
            tools: c.tools.as_deref(),
            documents: c.documents.as_deref(),
            kwargs: c.kwargs.as_deref(),
            turn,
        };
        let rendered = self.inner.borrow_mut().render(&fields, c.now)?;
        self.start.set(rendered.start);
        let segments = rendered.segments.into_iter().map(|s| match s {
            Segment::Special(id) => template::Segment::Special(id),
            Segment::Text(text) => template::Segment::Text(text),
        });
        Ok(segments.collect())
    }

    fn stop_strings(&self) -> Vec<String> {
        Vec::new()
    }

    fn visible_controls(&self) -> Vec<u32> {
        self.inner.borrow().visible_controls()
    }

    fn parser(&self, c: template::Conversation) -> Result<parsing::Parser, types::Error> {
        let none = c.tool_choice.as_deref() == Some("\"none\"");
        let tools = c.tools.as_deref().filter(|_| !none);
        let tools = tools.and_then(ToolTypes::of_request);
        let parser = self.inner.borrow().answer().parser(self.start.get(), tools);
        Ok(parsing::Parser::new(OutputParser(RefCell::new(parser))))
    }
}

struct OutputParser(RefCell<Parser>);

impl parsing::Guest for Guest {
    type Parser = OutputParser;
}

impl parsing::GuestParser for OutputParser {
    fn push(&self, text: String) -> Vec<parsing::Delta> {
        self.0
            .borrow_mut()
            .push(&text)
            .into_iter()
            .map(delta)
            .collect()
    }

    fn finish(&self) -> Vec<parsing::Delta> {
        self.0
            .borrow_mut()
            .finish()
            .into_iter()
            .map(delta)
            .collect()
    }
}

fn delta(d: Delta) -> parsing::Delta {
    match d {
        Delta::Content(text) => parsing::Delta::Content(text),
        Delta::Reasoning(text) => parsing::Delta::Reasoning(text),
        Delta::ToolCall {
            index,
            id,
            name,
            arguments,
        } => parsing::Delta::ToolCall(parsing::ToolCallDelta {
            index,
            id,
            name: Some(name),
            arguments,
        }),
    }
}

export!(Guest);
