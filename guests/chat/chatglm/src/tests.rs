#![allow(clippy::unwrap_used, clippy::panic)]

use super::*;
use guesthouse_sdk::chat::testing::{ONE, SYSTEM_FIRST, TWO, conversation, rendered};

const CONTROLS: &[&str] = &["[gMASK]", "<sop>"];

fn render(messages: &str) -> String {
    rendered::<ChatGlm>(vec![], CONTROLS, conversation(messages)).unwrap()
}

const SECOND: &[&str] = &["[MASK]", "[gMASK]", "[sMASK]", "sop", "eop"];
const THIRD: &[&str] = &[
    "[MASK]",
    "[gMASK]",
    "[sMASK]",
    "sop",
    "eop",
    "<|system|>",
    "<|user|>",
    "<|assistant|>",
    "<|observation|>",
];
const FOURTH: &[&str] = &[
    "<|endoftext|>",
    "[gMASK]",
    "<sop>",
    "<|system|>",
    "<|user|>",
    "<|assistant|>",
    "<|observation|>",
];

/// By `chat` of chatglm-6b; its tokenizer appends the two tokens.
#[test]
fn first_generation() {
    assert_eq!(render(ONE), "Hello⟨[gMASK]⟩⟨<sop>⟩");
    assert_eq!(
        render(TWO),
        "[Round 0]\n问：Hello\n答：Hi.\n[Round 1]\n问：How?\n答：⟨[gMASK]⟩⟨<sop>⟩"
    );
    assert_eq!(render(SYSTEM_FIRST), "Be kind.\nHello⟨[gMASK]⟩⟨<sop>⟩");
}

/// By `build_prompt` of chatglm2-6b.
#[test]
fn second_generation() {
    let render = |messages| rendered::<ChatGlm>(vec![], SECOND, conversation(messages)).unwrap();
    assert_eq!(render(ONE), "⟨[gMASK]⟩⟨sop⟩[Round 1]\n\n问：Hello\n\n答：");
    assert_eq!(
        render(TWO),
        "⟨[gMASK]⟩⟨sop⟩[Round 1]\n\n问：Hello\n\n答：Hi.\n\n[Round 2]\n\n问：How?\n\n答："
    );
}

/// By `build_chat_input` of chatglm3-6b: a role's token, its empty metadata and a line break, then the message with the space of its
/// own that SentencePiece gives each of them.
#[test]
fn third_generation() {
    let render = |messages| rendered::<ChatGlm>(vec![], THIRD, conversation(messages)).unwrap();
    assert_eq!(
        render(ONE),
        "⟨[gMASK]⟩⟨sop⟩⟨<|user|>⟩\n Hello⟨<|assistant|>⟩"
    );
    assert_eq!(
        render(SYSTEM_FIRST),
        "⟨[gMASK]⟩⟨sop⟩⟨<|system|>⟩\n Be kind.⟨<|user|>⟩\n Hello⟨<|assistant|>⟩"
    );
    assert_eq!(
        render(TWO),
        "⟨[gMASK]⟩⟨sop⟩⟨<|user|>⟩\n Hello⟨<|assistant|>⟩\n Hi.⟨<|user|>⟩\n How?⟨<|assistant|>⟩"
    );
}

/// By `build_single_message` of glm-4-9b-chat.
#[test]
fn fourth_generation() {
    let render = |messages| rendered::<ChatGlm>(vec![], FOURTH, conversation(messages)).unwrap();
    assert_eq!(
        render(TWO),
        "⟨[gMASK]⟩⟨<sop>⟩⟨<|user|>⟩\nHello⟨<|assistant|>⟩\nHi.⟨<|user|>⟩\nHow?⟨<|assistant|>⟩"
    );
}

#[test]
fn rounds_need_turns() {
    for messages in [
        "[]",
        r#"[{"role":"assistant","content":"x"}]"#,
        r#"[{"role":"user","content":"x"},{"role":"assistant","content":"x"}]"#,
    ] {
        let error = rendered::<ChatGlm>(vec![], SECOND, conversation(messages)).unwrap_err();
        assert!(
            matches!(error, Error::InvalidRequest(_)),
            "{messages}: {error}"
        );
    }
}

/// Control tokens and their literals in a message are different things.
#[test]
fn literals_in_messages_stay_text() {
    let messages = r#"[{"role":"user","content":"[gMASK]<sop>"}]"#;
    assert_eq!(
        render(messages).matches('⟨').count(),
        render(ONE).matches('⟨').count()
    );
}

#[test]
fn tools_are_refused() {
    let mut asked = conversation(ONE);
    asked.tools = Some("[]".into());
    assert!(rendered::<ChatGlm>(vec![], CONTROLS, asked.clone()).is_ok());
    asked.tools = Some(r#"[{"type":"function"}]"#.into());
    let error = rendered::<ChatGlm>(vec![], CONTROLS, asked).unwrap_err();
    assert!(matches!(error, Error::Unsupported(_)), "{error}");
}
