#![allow(clippy::unwrap_used, clippy::panic)]

use super::*;
use guesthouse_sdk::chat::testing::{ONE, SYSTEM_FIRST, TWO, conversation, rendered};

const CONTROLS: &[&str] = &["<unk>", "<s>", "</s>", "<reserved_106>", "<reserved_107>"];

fn files(vocab: u32) -> Vec<File> {
    let file = |name: &str, content: String| File {
        name: name.into(),
        content,
    };
    vec![
        file("config.json", format!("{{\"vocab_size\": {vocab}}}")),
        file(
            "generation_config.json",
            r#"{"user_token_id": 3, "assistant_token_id": 4}"#.into(),
        ),
    ]
}

/// By `build_chat_input` of both generations; the ids of the roles are 195 and 196 there.
#[test]
fn prompts_are_those_of_the_published_code() {
    let first =
        |messages| rendered::<Baichuan>(files(64_000), CONTROLS, conversation(messages)).unwrap();
    let second =
        |messages| rendered::<Baichuan>(files(125_696), CONTROLS, conversation(messages)).unwrap();
    let (user, assistant) = ("⟨<reserved_106>⟩", "⟨<reserved_107>⟩");
    for render in [&first as &dyn Fn(&'static str) -> String, &second] {
        assert_eq!(render(ONE), format!("{user}Hello{assistant}"));
        assert_eq!(
            render(SYSTEM_FIRST),
            format!("Be kind.{user}Hello{assistant}")
        );
    }
    assert_eq!(
        first(TWO),
        format!("{user}Hello{assistant}Hi.⟨</s>⟩{user}How?{assistant}")
    );
    assert_eq!(
        second(TWO),
        format!("{user}Hello{assistant}Hi.{user}How?{assistant}")
    );
}

#[test]
fn roles_are_195_and_196_unless_the_model_says_otherwise() {
    let many: Vec<String> = (0..200)
        .map(|id| {
            if id == 2 {
                "</s>".into()
            } else {
                format!("<{id}>")
            }
        })
        .collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let prompt = rendered::<Baichuan>(vec![], &many, conversation(ONE)).unwrap();
    assert_eq!(prompt, "⟨<195>⟩Hello⟨<196>⟩");
    let error = rendered::<Baichuan>(vec![], CONTROLS, conversation(ONE)).unwrap_err();
    assert!(
        error.to_string().contains("user_token_id is 195"),
        "{error}"
    );
}
