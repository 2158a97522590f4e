//! Baichuan and Baichuan 2: `build_chat_input` of `generation_utils.py` in baichuan-inc/Baichuan-13B-Chat and
//! Baichuan2-13B-Chat. Roles are tokens, named by `user_token_id` and `assistant_token_id` in `generation_config.json`; the first
//! generation ends earlier answers with `</s>`, the second does not.
//!
//! ```text
//! system<195>Hello<196>Hi.</s><195>How are you?<196>
//! ```

use guesthouse_sdk::Error;
use guesthouse_sdk::chat::{
    ControlToken, Controls, Conversation, File, Prompt, Role, Segment, Template, Trimmed, config,
    messages, without_tools,
};

struct Baichuan {
    user: u32,
    assistant: u32,
    /// After the assistant's messages.
    end: Option<u32>,
}

impl Template for Baichuan {
    const ARCHITECTURES: &'static [&'static str] = &["BaichuanForCausalLM", "BaiChuanForCausalLM"];

    type Parser = Trimmed;

    fn create(files: Vec<File>, controls: Vec<ControlToken>) -> Result<Self, Error> {
        let controls = Controls::new(controls);
        let generation = config(&files, "generation_config.json")?;
        let role = |key: &str, usual: u32| {
            let id = generation.opt_u32(key)?.unwrap_or(usual);
            controls.with_id(id).ok_or_else(|| {
                Error::config(format!(
                    "{key} is {id}, which is no control token of the tokenizer; set it in generation_config.json"
                ))
            })
        };
        // The second generation doubled the vocabulary.
        let second = config(&files, "config.json")?
            .opt_u32("vocab_size")?
            .is_some_and(|n| n > 64_000);
        Ok(Self {
            user: role("user_token_id", 195)?,
            assistant: role("assistant_token_id", 196)?,
            end: if second {
                None
            } else {
                Some(controls.need("</s>")?)
            },
        })
    }

    fn render(&self, conversation: Conversation) -> Result<Vec<Segment>, Error> {
        without_tools(&conversation)?;
        let messages = messages(&conversation)?;
        let mut prompt = Prompt::default();
        for (i, message) in messages.iter().enumerate() {
            let open = conversation.continue_final_message && i + 1 == messages.len();
            match message.role {
                Role::System if i == 0 => {
                    prompt.text(&message.content);
                }
                Role::User => {
                    prompt.special(self.user).text(&message.content);
                }
                Role::Assistant => {
                    prompt.special(self.assistant).text(&message.content);
                    if let Some(end) = self.end.filter(|_| !open) {
                        prompt.special(end);
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
            prompt.special(self.assistant);
        }
        Ok(prompt.finish())
    }

    fn parser(&self, conversation: Conversation) -> Result<Trimmed, Error> {
        Ok(Trimmed::after(&conversation))
    }
}

guesthouse_sdk::export_chat!(Baichuan);

#[cfg(test)]
mod tests;
