//! Llama 2 chat: `chat_completion` of `llama/generation.py` in meta-llama/llama (v2). Its check is kept too: messages that
//! contain the format's tags, which are text and not control tokens, are refused.
//!
//! ```text
//! <s>[INST] <<SYS>>
//! You are kind.
//! <</SYS>>
//!
//! Hello [/INST] Hi. </s><s>[INST] How are you? [/INST]
//! ```

use guesthouse_sdk::Error;
use guesthouse_sdk::chat::{
    ControlToken, Controls, Conversation, File, Message, Prompt, Role, Segment, Template, Trimmed,
    messages, without_tools,
};

const TAGS: [&str; 4] = ["[INST]", "[/INST]", "<<SYS>>", "<</SYS>>"];

struct Llama2 {
    begin: u32,
    end: u32,
}

/// Puts the system's message into the first of the user, and checks that user and assistant take turns.
fn turns(mut messages: Vec<Message>) -> Result<Vec<Message>, Error> {
    for (i, message) in messages.iter().enumerate() {
        if let Some(tag) = TAGS.iter().find(|tag| message.content.contains(*tag)) {
            return Err(Error::request(format!(
                "messages[{i}] contains {tag:?}, which belongs to the prompt format"
            )));
        }
    }
    if messages.first().is_some_and(|m| m.role == Role::System) {
        let system = messages.remove(0).content;
        match messages.first_mut() {
            Some(user) => {
                user.content = format!("<<SYS>>\n{system}\n<</SYS>>\n\n{}", user.content);
            }
            None => {
                return Err(Error::request(
                    "a message of the user must follow the system's",
                ));
            }
        }
    }
    let alternate = messages
        .iter()
        .enumerate()
        .all(|(i, message)| message.role == [Role::User, Role::Assistant][i % 2]);
    if !alternate {
        return Err(Error::request(
            "messages must alternate between user and assistant, after at most one of the system",
        ));
    }
    Ok(messages)
}

impl Template for Llama2 {
    type Parser = Trimmed;

    fn create(_: Vec<File>, controls: Vec<ControlToken>) -> Result<Self, Error> {
        let controls = Controls::new(controls);
        Ok(Self {
            begin: controls.need("<s>")?,
            end: controls.need("</s>")?,
        })
    }

    fn render(&self, conversation: Conversation) -> Result<Vec<Segment>, Error> {
        without_tools(&conversation)?;
        let messages = turns(messages(&conversation)?)?;
        let mut prompt = Prompt::default();
        for (i, message) in messages.iter().enumerate() {
            let open = conversation.continue_final_message && i + 1 == messages.len();
            match message.role {
                Role::Assistant if open => {
                    prompt.text(" ").text(message.content.trim());
                }
                Role::Assistant => {
                    prompt.text(" ").text(message.content.trim()).text(" ");
                    prompt.special(self.end);
                }
                _ => {
                    prompt.special(self.begin);
                    prompt
                        .text("[INST] ")
                        .text(message.content.trim())
                        .text(" [/INST]");
                }
            }
        }
        Ok(prompt.finish())
    }

    fn parser(&self, conversation: Conversation) -> Result<Trimmed, Error> {
        Ok(Trimmed::after(&conversation))
    }
}

guesthouse_sdk::export_chat!(Llama2);

#[cfg(test)]
mod tests;
