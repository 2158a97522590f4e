//! What native tests of chat guests share.

use super::{ControlToken, Conversation, File, Segment, Template};
use crate::Error;

/// One message.
pub const ONE: &str = r#"[{"role":"user","content":"Hello"}]"#;

/// A system message before it.
pub const SYSTEM_FIRST: &str =
    r#"[{"role":"system","content":"Be kind."},{"role":"user","content":"Hello"}]"#;

/// Two turns.
pub const TWO: &str = r#"[{"role":"user","content":"Hello"},{"role":"assistant","content":"Hi."},{"role":"user","content":"How?"}]"#;

/// A request for an answer to these messages, a JSON list, and nothing else.
pub fn conversation(messages: &str) -> Conversation {
    Conversation {
        messages: messages.into(),
        tools: None,
        tool_choice: None,
        documents: None,
        add_generation_prompt: true,
        continue_final_message: false,
        now: 0,
        kwargs: None,
    }
}

/// The prompt of `T` where control token i has the literal `controls[i]`: each such token as its literal in `⟨⟩`, text as
/// it is.
///
/// # Panics
/// Where a segment is media or no control token of these.
#[allow(clippy::panic)]
pub fn rendered<T: Template>(
    files: Vec<File>,
    controls: &[&str],
    conversation: Conversation,
) -> Result<String, Error> {
    let tokens = (0u32..).zip(controls).map(|(id, literal)| ControlToken {
        id,
        literal: (*literal).into(),
    });
    let template = T::create(files, tokens.collect())?;
    let segments = template.render(conversation)?;
    Ok(segments
        .iter()
        .map(|segment| match segment {
            Segment::Special(id) => format!("⟨{}⟩", controls[*id as usize]),
            Segment::Text(text) => text.clone(),
            Segment::Media(_) => panic!("media"),
        })
        .collect())
}
