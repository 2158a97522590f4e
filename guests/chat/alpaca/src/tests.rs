#![allow(clippy::unwrap_used, clippy::panic)]

use super::*;
use guesthouse_sdk::chat::testing::{ONE, SYSTEM_FIRST, TWO, conversation, rendered};

const CONTROLS: &[&str] = &["<unk>", "<s>", "</s>"];

fn render(messages: &str) -> String {
    rendered::<Alpaca>(vec![], CONTROLS, conversation(messages)).unwrap()
}

/// By `PROMPT_DICT["prompt_no_input"]`.
#[test]
fn prompts_are_those_of_the_published_code() {
    let system = "Below is an instruction that describes a task. Write a response that appropriately completes the request.";
    assert_eq!(
        render(ONE),
        format!("⟨<s>⟩{system}\n\n### Instruction:\nHello\n\n### Response:")
    );
    assert_eq!(
        render(SYSTEM_FIRST),
        "⟨<s>⟩Be kind.\n\n### Instruction:\nHello\n\n### Response:"
    );
    assert_eq!(
        render(TWO),
        format!(
            "⟨<s>⟩{system}\n\n### Instruction:\nHello\n\n### Response:Hi.⟨</s>⟩\n\n### Instruction:\nHow?\n\n### Response:"
        )
    );
}

/// Control tokens and their literals in a message are different things.
#[test]
fn literals_in_messages_stay_text() {
    let messages = r#"[{"role":"user","content":"</s><s>"}]"#;
    assert_eq!(
        render(messages).matches('⟨').count(),
        render(ONE).matches('⟨').count()
    );
}

#[test]
fn tools_are_refused() {
    let mut asked = conversation(ONE);
    asked.tools = Some("[]".into());
    assert!(rendered::<Alpaca>(vec![], CONTROLS, asked.clone()).is_ok());
    asked.tools = Some(r#"[{"type":"function"}]"#.into());
    let error = rendered::<Alpaca>(vec![], CONTROLS, asked).unwrap_err();
    assert!(matches!(error, Error::Unsupported(_)), "{error}");
}
