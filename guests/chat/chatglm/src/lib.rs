//! ChatGLM-6B, ChatGLM2, ChatGLM3 and GLM-4, as the code in their repositories builds prompts: `chat` in
//! `modeling_chatglm.py` of THUDM/chatglm-6b and chatglm2-6b (`build_prompt` of its tokenizer), `build_chat_input` in
//! `tokenization_chatglm.py` of chatglm3-6b and glm-4-9b-chat.
//!
//! ```text
//! [Round 0]\n问：Hello\n答：[gMASK]<sop>                          ChatGLM-6B; the round is left out of the first turn
//! [gMASK]sop[Round 1]\n\n问：Hello\n\n答：                         ChatGLM2
//! [gMASK]sop<|user|>\n Hello<|assistant|>                          ChatGLM3
//! [gMASK]<sop><|user|>\nHello<|assistant|>                         GLM-4
//! ```
//!
//! Which one it is shows in the control tokens: the third generation has tokens for roles, and `<sop>` lost its brackets from
//! the second to the third.

use guesthouse_sdk::Error;
use guesthouse_sdk::chat::{
    ControlToken, Controls, Conversation, File, Message, Prompt, Role, Segment, Template, Trimmed,
    messages, without_tools,
};

struct ChatGlm {
    mask: u32,
    begin: u32,
    format: Format,
}

enum Format {
    /// Rounds of questions and answers.
    Rounds(Generation),
    /// A token for each role.
    Roles(Roles),
}

/// How rounds are written.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Generation {
    First,
    Second,
}

struct Roles {
    system: u32,
    user: u32,
    assistant: u32,
    observation: u32,
    /// Between a role's token and the message: each is encoded with a space of its own where the tokenizer adds one.
    line: &'static str,
}

impl Template for ChatGlm {
    const ARCHITECTURES: &'static [&'static str] =
        &["ChatGLMModel", "ChatGLMForConditionalGeneration"];

    type Parser = Trimmed;

    fn create(_: Vec<File>, controls: Vec<ControlToken>) -> Result<Self, Error> {
        let controls = Controls::new(controls);
        let bare = controls.find("sop");
        let format = match (controls.find("<|user|>"), bare) {
            (Some(user), _) => Format::Roles(Roles {
                user,
                system: controls.need("<|system|>")?,
                assistant: controls.need("<|assistant|>")?,
                observation: controls.need("<|observation|>")?,
                line: if bare.is_some() { "\n " } else { "\n" },
            }),
            (None, Some(_)) => Format::Rounds(Generation::Second),
            (None, None) => Format::Rounds(Generation::First),
        };
        Ok(Self {
            mask: controls.need("[gMASK]")?,
            begin: bare.map_or_else(|| controls.need("<sop>"), Ok)?,
            format,
        })
    }

    fn render(&self, conversation: Conversation) -> Result<Vec<Segment>, Error> {
        without_tools(&conversation)?;
        if conversation.continue_final_message {
            return Err(Error::Unsupported(
                "continue_final_message: these models begin each answer themselves".into(),
            ));
        }
        let messages = messages(&conversation)?;
        let mut prompt = Prompt::default();
        match &self.format {
            Format::Roles(roles) => {
                prompt.special(self.mask).special(self.begin);
                roles.write(&messages, &mut prompt);
                if conversation.add_generation_prompt {
                    prompt.special(roles.assistant);
                }
            }
            Format::Rounds(generation) => {
                let text = generation.text(&messages)?;
                match generation {
                    Generation::First => prompt.text(&text).special(self.mask).special(self.begin),
                    Generation::Second => prompt.special(self.mask).special(self.begin).text(&text),
                };
            }
        }
        Ok(prompt.finish())
    }

    fn stop_strings(&self) -> Vec<String> {
        match self.format {
            Format::Roles(_) => vec!["<|user|>".into(), "<|observation|>".into()],
            Format::Rounds(_) => vec![],
        }
    }

    fn parser(&self, _: Conversation) -> Result<Trimmed, Error> {
        Ok(Trimmed::default())
    }
}

impl Roles {
    fn write(&self, messages: &[Message], prompt: &mut Prompt) {
        for message in messages {
            let token = match message.role {
                Role::System => self.system,
                Role::User => self.user,
                Role::Assistant => self.assistant,
                Role::Tool => self.observation,
            };
            prompt.special(token).text(self.line).text(&message.content);
        }
    }
}

impl Generation {
    /// Questions and answers in turn; a message of the system begins the first question.
    fn text(self, messages: &[Message]) -> Result<String, Error> {
        let (system, turns) = match messages.split_first() {
            Some((first, rest)) if first.role == Role::System => (first.content.as_str(), rest),
            _ => ("", messages),
        };
        let alternate = turns
            .iter()
            .enumerate()
            .all(|(i, m)| m.role == [Role::User, Role::Assistant][i % 2]);
        if !alternate || turns.len() % 2 == 0 {
            return Err(Error::request(
                "messages must alternate between user and assistant and end with the user's",
            ));
        }
        let mut text = String::new();
        let single = self == Self::First && turns.len() == 1;
        let (first, gap) = match self {
            Self::First => (0, "\n"),
            Self::Second => (1, "\n\n"),
        };
        for (i, message) in turns.iter().enumerate() {
            let content = &message.content;
            let system = if i == 0 && !system.is_empty() {
                format!("{system}\n")
            } else {
                String::new()
            };
            text += &match message.role {
                _ if single => format!("{system}{content}"),
                Role::Assistant => format!("{content}{gap}"),
                _ => format!(
                    "[Round {}]{gap}问：{system}{content}{gap}答：",
                    i / 2 + first
                ),
            };
        }
        Ok(text)
    }
}

guesthouse_sdk::export_chat!(ChatGlm);

#[cfg(test)]
mod tests;
