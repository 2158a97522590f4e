//! Guests that import WASI, as those of other tool chains do.

use guesthouse_component::{
    CallContext, ChatSession, ComponentError, Conversation, Origin, Segment,
};

use crate::common::{bytes, context, runtime, small_facts};

async fn open(context: CallContext) -> ChatSession {
    let module = runtime()
        .load("foreign_chat", &bytes("foreign_chat"), Origin::File)
        .unwrap();
    assert!(
        module
            .imports()
            .iter()
            .any(|import| import.starts_with("wasi:"))
    );
    module
        .chat()
        .unwrap()
        .open(vec![], vec![], context)
        .await
        .unwrap()
}

async fn asks(session: &mut ChatSession, what: &str) -> Result<String, ComponentError> {
    let conversation = Conversation {
        messages: what.into(),
        ..Conversation::default()
    };
    match session.render(conversation).await?.as_slice() {
        [Segment::Text(text)] => Ok(text.clone()),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn wasi_is_empty() {
    let mut session = open(context()).await;
    assert_eq!(
        asks(&mut session, "clock").await.unwrap(),
        "1700000000",
        "the request's time"
    );
    assert_eq!(asks(&mut session, "environment").await.unwrap(), "0");
    assert_eq!(asks(&mut session, "files").await.unwrap(), "0");
    assert_eq!(
        asks(&mut session, "a line for the log").await.unwrap(),
        "Ok(())"
    );
}

#[tokio::test]
async fn random_numbers_follow_from_the_seed() {
    let first = asks(&mut open(context()).await, "random").await.unwrap();
    let same = asks(&mut open(context()).await, "random").await.unwrap();
    let other = asks(
        &mut open(CallContext {
            seed: 1,
            ..context()
        })
        .await,
        "random",
    )
    .await
    .unwrap();
    assert_eq!(first, same);
    assert_ne!(first, other);
}

#[tokio::test]
async fn waiting_ends_the_call_at_once() {
    let mut session = open(context()).await;
    let error = asks(&mut session, "sleep").await.unwrap_err();
    assert_eq!(error.label(), "trap");
    assert!(
        error
            .to_string()
            .contains("foreign_chat: template.render failed: the guest sleeps or polls"),
        "{error}"
    );
    assert_eq!(
        asks(&mut session, "clock").await.unwrap_err().label(),
        "ended"
    );
}

#[tokio::test]
async fn what_a_guest_printed_explains_its_end() {
    let error = asks(&mut open(context()).await, "panic: no such thing")
        .await
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "module foreign_chat: template.render failed: panic: no such thing"
    );
    let error = asks(&mut open(context()).await, "exit").await.unwrap_err();
    assert_eq!(error.label(), "trap");
}

#[test]
fn samplers_get_a_stub() {
    let module = runtime()
        .load("foreign_sampler", &bytes("foreign_sampler"), Origin::Tenant)
        .unwrap();
    let sampler = module.sampler().unwrap();
    let facts = small_facts();
    let first = sampler.plan("hello", &facts, context()).unwrap();
    assert_eq!(
        first,
        sampler.plan("hello", &facts, context()).unwrap(),
        "the hash seed is constant"
    );
    let error = sampler.plan("exit", &facts, context()).unwrap_err();
    assert_eq!(error.label(), "trap");
    let error = sampler.plan("abort", &facts, context()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "module foreign_sampler: sampler.plan failed: abort"
    );
}
