//! Vicuna 1.1 and newer: `vicuna_v1.1` in FastChat's `conversation.py` (a colon after each role, a space or `</s>` after each
//! message).
//!
//! ```text
//! <s>A chat between … USER: Hello ASSISTANT: Hi.</s>USER: How are you? ASSISTANT:
//! ```

use guesthouse_sdk::Error;
use guesthouse_sdk::chat::{
    ControlToken, Controls, Conversation, File, Prompt, Role, Segment, Template, Trimmed, messages,
    without_tools,
};

const SYSTEM: &str = "A chat between a curious user and an artificial intelligence assistant. \
    The assistant gives helpful, detailed, and polite answers to the user's questions.";

struct Vicuna {
    begin: Option<u32>,
    end: u32,
}

impl Template for Vicuna {
    type Parser = Trimmed;

    fn create(_: Vec<File>, controls: Vec<ControlToken>) -> Result<Self, Error> {
        let controls = Controls::new(controls);
        Ok(Self {
            begin: controls.find("<s>"),
            end: controls.need("</s>")?,
        })
    }

    fn render(&self, conversation: Conversation) -> Result<Vec<Segment>, Error> {
        without_tools(&conversation)?;
        let messages = messages(&conversation)?;
        let mut prompt = Prompt::default();
        if let Some(begin) = self.begin {
            prompt.special(begin);
        }
        let (system, turns) = match messages.split_first() {
            Some((first, rest)) if first.role == Role::System => (first.content.as_str(), rest),
            _ => (SYSTEM, messages.as_slice()),
        };
        prompt.text(system).text(" ");
        for (i, message) in turns.iter().enumerate() {
            let open = conversation.continue_final_message && i + 1 == turns.len();
            match message.role {
                Role::User => {
                    prompt.text("USER: ").text(&message.content);
                    prompt.text(if open { "" } else { " " });
                }
                Role::Assistant => {
                    prompt.text("ASSISTANT: ").text(&message.content);
                    if !open {
                        prompt.special(self.end);
                    }
                }
                Role::System => {
                    return Err(Error::request(
                        "only the first message may be of the system",
                    ));
                }
                Role::Tool => return Err(Error::Unsupported("messages of tools".into())),
            }
        }
        if conversation.add_generation_prompt {
            prompt.text("ASSISTANT:");
        }
        Ok(prompt.finish())
    }

    fn parser(&self, conversation: Conversation) -> Result<Trimmed, Error> {
        Ok(Trimmed::after(&conversation))
    }
}

guesthouse_sdk::export_chat!(Vicuna);

#[cfg(test)]
mod tests;
