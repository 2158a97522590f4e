#![allow(clippy::unwrap_used, clippy::panic)]

use super::*;

const CONTROLS: &[&str] = &["[gMASK]", "<sop>"];

/// A control token as its literal in brackets of this kind, text as it is.
fn render_with(
    files: Vec<File>,
    controls: &[&str],
    conversation: Conversation,
) -> Result<String, Error> {
    let tokens = (0u32..).zip(controls).map(|(id, literal)| ControlToken {
        id,
        literal: (*literal).into(),
    });
    let template = ChatGlm::create(files, tokens.collect())?;
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

fn conversation(messages: &str) -> Conversation {
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

fn render(messages: &str) -> String {
    render_with(vec![], CONTROLS, conversation(messages)).unwrap()
}

const ONE: &str = r#"[{"role":"user","content":"Hello"}]"#;
const SYSTEM_FIRST: &str =
    r#"[{"role":"system","content":"Be kind."},{"role":"user","content":"Hello"}]"#;
const TWO: &str = r#"[{"role":"user","content":"Hello"},{"role":"assistant","content":"Hi."},{"role":"user","content":"How?"}]"#;
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
    let render = |messages| render_with(vec![], SECOND, conversation(messages)).unwrap();
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
    let render = |messages| render_with(vec![], THIRD, conversation(messages)).unwrap();
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
    let render = |messages| render_with(vec![], FOURTH, conversation(messages)).unwrap();
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
        let error = render_with(vec![], SECOND, conversation(messages)).unwrap_err();
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
    assert!(render_with(vec![], CONTROLS, asked.clone()).is_ok());
    asked.tools = Some(r#"[{"type":"function"}]"#.into());
    let error = render_with(vec![], CONTROLS, asked).unwrap_err();
    assert!(matches!(error, Error::Unsupported(_)), "{error}");
}
