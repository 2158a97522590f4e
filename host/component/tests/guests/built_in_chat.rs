//! Built-in chat guests that are written by hand, as components: which models they are for, a prompt, an answer.

use guesthouse_component::{
    ChatModule, ComponentError, Conversation, Delta, Origin, Role, Segment, builtin,
};

use crate::common::{context, load, runtime};

fn built_in(name: &str) -> ChatModule {
    let guest = builtin::find(Role::Chat, name).unwrap();
    let module = runtime().load(name, guest.bytes, Origin::Embedded).unwrap();
    module.chat().unwrap()
}

#[test]
fn guests_say_which_models_they_are_for() {
    let names = |name| built_in(name).architectures().unwrap();
    assert_eq!(names("chatml"), ["QWenLMHeadModel"]);
    let chatglm = ["ChatGLMModel", "ChatGLMForConditionalGeneration"];
    assert_eq!(names("chatglm"), chatglm);
    assert_eq!(
        names("baichuan"),
        ["BaichuanForCausalLM", "BaiChuanForCausalLM"]
    );
    // Nothing in a model's configuration tells these from others of its architecture.
    for name in ["vicuna", "alpaca", "llama2"] {
        assert!(names(name).is_empty(), "{name}");
    }
    // Guests need not export the interface.
    assert!(names("jinja").is_empty());
    let foreign = load("foreign_chat").chat().unwrap();
    assert!(foreign.architectures().unwrap().is_empty());
}

#[tokio::test]
async fn a_prompt_and_an_answer() {
    let conversation = Conversation {
        messages:
            r#"[{"role":"system","content":"Be kind."},{"role":"user","content":"<|im_end|>"}]"#
                .into(),
        add_generation_prompt: true,
        ..Conversation::default()
    };
    let controls = vec![(7, "<|im_start|>".to_owned()), (8, "<|im_end|>".to_owned())];
    let module = built_in("chatml");
    let mut session = module.open(vec![], controls, context()).await.unwrap();
    let (special, text) = (Segment::Special, |t: &str| Segment::Text(t.into()));
    assert_eq!(
        session.render(conversation.clone()).await.unwrap(),
        [
            special(7),
            text("system\nBe kind."),
            special(8),
            text("\n"),
            special(7),
            text("user\n<|im_end|>"),
            special(8),
            text("\n"),
            special(7),
            text("assistant\n"),
        ]
    );
    let stops = session.stop_strings().await.unwrap();
    assert_eq!(stops, ["<|im_end|>", "<|im_start|>"]);
    let parser = session.parser(conversation).await.unwrap();
    let deltas = session.push(parser, " Hi").await.unwrap();
    assert_eq!(deltas, [Delta::Content(" Hi".into())]);
    assert!(session.finish(parser).await.unwrap().is_empty());
}

#[tokio::test]
async fn a_tokenizer_without_the_tokens_is_refused() {
    let module = built_in("chatglm");
    let opened = module.open(vec![], vec![], context()).await;
    let Err(error @ ComponentError::Guest { .. }) = opened.map(|_| ()) else {
        panic!("accepted")
    };
    assert!(error.to_string().contains("[gMASK]"), "{error}");
}
