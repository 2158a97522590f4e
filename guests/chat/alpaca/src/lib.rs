//! Alpaca: `PROMPT_DICT["prompt_no_input"]` in `train.py` of tatsu-lab/stanford_alpaca. The models were trained on one turn; more
//! turns repeat the blocks, each answer ended by `</s>` as in training.
//!
//! ```text
//! <s>Below is an instruction that describes a task. Write a response that appropriately completes the request.
//!
//! ### Instruction:
//! Hello
//!
//! ### Response:
//! ```

use guesthouse_sdk::Error;
use guesthouse_sdk::chat::{
    ControlToken, Controls, Conversation, File, Prompt, Role, Segment, Template, Trimmed, messages,
    without_tools,
};

const SYSTEM: &str = "Below is an instruction that describes a task. \
    Write a response that appropriately completes the request.";

struct Alpaca {
    begin: Option<u32>,
    end: u32,
}

impl Template for Alpaca {
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
        prompt.text(system);
        for (i, message) in turns.iter().enumerate() {
            let open = conversation.continue_final_message && i + 1 == turns.len();
            match message.role {
                Role::User => {
                    prompt.text("\n\n### Instruction:\n").text(&message.content);
                }
                Role::Assistant => {
                    prompt.text("\n\n### Response:").text(&message.content);
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
            prompt.text("\n\n### Response:");
        }
        Ok(prompt.finish())
    }

    fn stop_strings(&self) -> Vec<String> {
        vec!["### Instruction:".into()]
    }

    fn parser(&self, conversation: Conversation) -> Result<Trimmed, Error> {
        Ok(Trimmed::after(&conversation))
    }
}

guesthouse_sdk::export_chat!(Alpaca);

#[cfg(test)]
mod tests;
