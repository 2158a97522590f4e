//! A chat guest that asks WASI for what its conversation says.

wit_bindgen::generate!({
    inline: r#"
        package guesthouse:foreign;
        world foreign-chat {
            include guesthouse:chat/chat-guest@0.1.0;
            import wasi:clocks/wall-clock@0.2.3;
            import wasi:clocks/monotonic-clock@0.2.3;
            import wasi:cli/stderr@0.2.3;
            import wasi:cli/environment@0.2.3;
            import wasi:cli/exit@0.2.3;
            import wasi:filesystem/preopens@0.2.3;
            import wasi:random/random@0.2.3;
        }
    "#,
    path: ["../../../wit/common", "../../../wit/chat", "wit"],
    world: "guesthouse:foreign/foreign-chat",
    generate_all,
});

#[path = "../../asked.rs"]
mod asked;

use exports::guesthouse::chat::{parsing, template};
use guesthouse::common::types::Error;
use template::Segment;

struct Foreign;
struct Template;
struct Parser;

impl template::Guest for Foreign {
    type Template = Template;
}

impl parsing::Guest for Foreign {
    type Parser = Parser;
}

impl template::GuestTemplate for Template {
    fn create(
        _: Vec<template::File>,
        _: Vec<template::ControlToken>,
    ) -> Result<template::Template, Error> {
        Ok(template::Template::new(Template))
    }

    fn render(&self, conversation: template::Conversation) -> Result<Vec<Segment>, Error> {
        let kwargs = conversation.kwargs.as_deref();
        let kwargs = kwargs.filter(|text| text.contains("attack"));
        let text = match asked::asked(kwargs.unwrap_or(&conversation.messages)) {
            "clock" => wasi::clocks::wall_clock::now().seconds.to_string(),
            "random" => wasi::random::random::get_random_u64().to_string(),
            "environment" => wasi::cli::environment::get_environment().len().to_string(),
            "files" => wasi::filesystem::preopens::get_directories()
                .len()
                .to_string(),
            "sleep" => {
                wasi::clocks::monotonic_clock::subscribe_duration(3_600_000_000_000).block();
                "awake".into()
            }
            "exit" => {
                wasi::cli::exit::exit(Ok(()));
                "still here".into()
            }
            text => {
                let stderr = wasi::cli::stderr::get_stderr();
                let told = stderr.blocking_write_and_flush(text.as_bytes());
                if text.starts_with("panic") {
                    std::process::abort();
                }
                format!("{told:?}")
            }
        };
        Ok(vec![Segment::Text(text)])
    }

    fn visible_controls(&self) -> Vec<u32> {
        vec![]
    }

    fn stop_strings(&self) -> Vec<String> {
        Vec::new()
    }

    fn parser(&self, _: template::Conversation) -> Result<parsing::Parser, Error> {
        Ok(parsing::Parser::new(Parser))
    }
}

impl parsing::GuestParser for Parser {
    fn push(&self, text: String) -> Vec<parsing::Delta> {
        vec![parsing::Delta::Content(text)]
    }

    fn finish(&self) -> Vec<parsing::Delta> {
        Vec::new()
    }
}

export!(Foreign);
