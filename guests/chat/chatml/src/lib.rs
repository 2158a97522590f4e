//! ChatML, as Qwen 1 has it: `make_context` of `qwen_generation_utils.py` in Qwen/Qwen-7B-Chat.
//!
//! ```text
//! <|im_start|>system
//! You are a helpful assistant.<|im_end|>
//! <|im_start|>user
//! Hello<|im_end|>
//! <|im_start|>assistant
//! ```

use guesthouse_sdk::Error;
use guesthouse_sdk::chat::{
    ControlToken, Controls, Conversation, File, Plain, Prompt, Role, Segment, Template, messages,
    without_tools,
};

struct ChatMl {
    start: u32,
    end: u32,
}

impl Template for ChatMl {
    const ARCHITECTURES: &'static [&'static str] = &["QWenLMHeadModel"];

    type Parser = Plain;

    fn create(_: Vec<File>, controls: Vec<ControlToken>) -> Result<Self, Error> {
        let controls = Controls::new(controls);
        Ok(Self {
            start: controls.need("<|im_start|>")?,
            end: controls.need("<|im_end|>")?,
        })
    }

    fn render(&self, conversation: Conversation) -> Result<Vec<Segment>, Error> {
        without_tools(&conversation)?;
        let messages = messages(&conversation)?;
        let mut prompt = Prompt::default();
        if messages.first().is_none_or(|m| m.role != Role::System) {
            prompt
                .special(self.start)
                .text("system\nYou are a helpful assistant.");
            prompt.special(self.end).text("\n");
        }
        for (i, message) in messages.iter().enumerate() {
            let role = match message.role {
                Role::System => "system",
                Role::User => "user",
                Role::Assistant => "assistant",
                Role::Tool => return Err(Error::Unsupported("messages of tools".into())),
            };
            prompt
                .special(self.start)
                .text(role)
                .text("\n")
                .text(&message.content);
            let open = conversation.continue_final_message && i + 1 == messages.len();
            if !open {
                prompt.special(self.end).text("\n");
            }
        }
        if conversation.add_generation_prompt {
            prompt.special(self.start).text("assistant\n");
        }
        Ok(prompt.finish())
    }

    fn stop_strings(&self) -> Vec<String> {
        // The models are trained to stop at either.
        vec!["<|im_end|>".into(), "<|im_start|>".into()]
    }

    fn parser(&self, _: Conversation) -> Result<Plain, Error> {
        Ok(Plain)
    }
}

guesthouse_sdk::export_chat!(ChatMl);

#[cfg(test)]
mod tests;
