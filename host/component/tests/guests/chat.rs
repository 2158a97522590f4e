use std::sync::LazyLock;

use guesthouse_component::{
    ChatModule, ChatSession, ComponentError, Conversation, Delta, GuestErrorKind, Segment,
};

use crate::common::{context, load, says};

static MODULE: LazyLock<ChatModule> = LazyLock::new(|| load("hostile_chat").chat().unwrap());

const CONTROLS: [(u32, &str); 2] = [(5, "<s>"), (3, "</s>")];

async fn open(behaviour: &str) -> Result<ChatSession, ComponentError> {
    let files = vec![("behaviour".to_owned(), behaviour.to_owned())];
    let controls = CONTROLS
        .iter()
        .map(|&(id, literal)| (id, literal.to_owned()))
        .collect();
    MODULE.open(files, controls, context()).await
}

fn conversation(messages: &str) -> Conversation {
    Conversation {
        messages: messages.into(),
        ..Conversation::default()
    }
}

async fn honest() {
    let mut session = open("honest").await.unwrap();
    let prompt = session.render(conversation("hello")).await.unwrap();
    assert_eq!(prompt, [Segment::Special(5), Segment::Text("hello".into())]);
}

/// A conversation that ends its session and nothing else.
async fn render_fails(messages: &str, label: &str, parts: &[&str]) {
    let mut session = open("honest").await.unwrap();
    let error = session.render(conversation(messages)).await.unwrap_err();
    says(&error, label, &[&["template.render"], parts].concat());
    says(
        &session.render(conversation("hello")).await.unwrap_err(),
        "ended",
        &["template.render"],
    );
    honest().await;
}

#[tokio::test]
async fn an_honest_session_passes() {
    let mut session = open("honest").await.unwrap();
    assert_eq!(session.stop_strings().await.unwrap(), ["END"]);
    let first = session.parser(conversation("x")).await.unwrap();
    let second = session.parser(conversation("x")).await.unwrap();
    assert_eq!(
        session.push(first, "é").await.unwrap(),
        [Delta::Content("é".into())]
    );
    assert_eq!(
        session.push(first, "abc").await.unwrap(),
        [Delta::Content("abc".into())]
    );
    let deltas = session.finish(second).await.unwrap();
    let Delta::ToolCall {
        index,
        id,
        name,
        arguments,
    } = &deltas[1]
    else {
        panic!("{deltas:?}")
    };
    assert_eq!(
        (*index, id.as_deref(), name.as_deref(), &**arguments),
        (0, Some("call_0"), Some("length"), "0")
    );
    assert_eq!(deltas[0], Delta::Reasoning("hm".into()));
    assert_eq!(
        deltas[2],
        Delta::Custom {
            kind: "kind".into(),
            json: "{}".into()
        }
    );
    let deltas = session.finish(first).await.unwrap();
    assert!(
        matches!(&deltas[1], Delta::ToolCall { arguments, .. } if arguments == "5"),
        "its own state: {deltas:?}"
    );
    assert_eq!(
        session.push(first, "late").await.unwrap_err().label(),
        "ended"
    );
    assert_eq!(
        session.stop_strings().await.unwrap(),
        ["END"],
        "the session itself goes on"
    );
}

#[tokio::test]
async fn endless_loops_run_out_of_time() {
    render_fails("loop", "timeout", &["budget 200 ms"]).await;
    render_fails("host-call-loop", "timeout", &["budget 200 ms"]).await;
    says(
        &open("loop").await.err().unwrap(),
        "timeout",
        &["template.create"],
    );
    honest().await;
}

#[tokio::test]
async fn a_loop_lets_its_neighbours_run() {
    // One executor thread: the neighbour is served while the loop still runs.
    let spinner = tokio::spawn(async { open("loop").await.err().unwrap() });
    tokio::task::yield_now().await;
    honest().await;
    assert!(
        !spinner.is_finished(),
        "the neighbour did not have to wait for the loop's end"
    );
    assert_eq!(spinner.await.unwrap().label(), "timeout");
}

#[tokio::test]
async fn memory_is_bounded() {
    render_fails("allocate", "limit_memory", &["67108864"]).await;
}

#[tokio::test]
async fn recursion_is_bounded() {
    let mut session = open("honest").await.unwrap();
    let error = session.render(conversation("recurse")).await.unwrap_err();
    assert!(matches!(error.label(), "limit_stack" | "trap"), "{error}");
    honest().await;
}

#[tokio::test]
async fn panics_are_told_with_their_message() {
    render_fails("panic", "trap", &["out of ideas"]).await;
    says(
        &open("panic").await.err().unwrap(),
        "trap",
        &["template.create", "out of ideas"],
    );
}

#[tokio::test]
async fn answers_are_bounded() {
    render_fails("huge-text", "limit_transfer", &["16777216 bytes"]).await;
    render_fails("many-segments", "limit_transfer", &[]).await;
}

#[tokio::test]
async fn control_tokens_cannot_be_forged() {
    let mut session = open("honest").await.unwrap();
    let error = session.render(conversation("forge")).await.unwrap_err();
    says(
        &error,
        "invalid_answer",
        &["token 4000000000 is not a control token"],
    );
    let error = session.render(conversation("media")).await.unwrap_err();
    says(&error, "unsupported", &["media segment 0"]);
}

#[tokio::test]
async fn an_error_is_an_answer() {
    let mut session = open("honest").await.unwrap();
    let error = session.render(conversation("error")).await.unwrap_err();
    assert_eq!(error.guest_kind(), Some(GuestErrorKind::InvalidRequest));
    says(
        &error,
        "guest_invalid_request",
        &["template.render", "roles must alternate\u{fffd}"],
    );
    assert_eq!(
        session
            .parser(conversation("error"))
            .await
            .unwrap_err()
            .label(),
        "guest_unsupported"
    );
    assert_eq!(
        session.render(conversation("hello")).await.unwrap().len(),
        2,
        "the session goes on"
    );
    says(
        &open("error").await.err().unwrap(),
        "guest_invalid_config",
        &["template.create", "no template"],
    );
}

#[tokio::test]
async fn a_parser_that_misbehaves_ends_its_session() {
    for (text, label) in [
        ("loop", "timeout"),
        ("panic", "trap"),
        ("allocate", "limit_memory"),
        ("leak", "limit_transfer"),
    ] {
        let mut session = open("honest").await.unwrap();
        let parser = session.parser(conversation("x")).await.unwrap();
        session.push(parser, "fine").await.unwrap();
        says(
            &session.push(parser, text).await.unwrap_err(),
            label,
            &["parser.push"],
        );
        assert_eq!(
            session.push(parser, "fine").await.unwrap_err().label(),
            "ended"
        );
        assert_eq!(session.finish(parser).await.unwrap_err().label(), "ended");
    }
    honest().await;
}

#[tokio::test]
async fn a_cancelled_call_ends_its_session() {
    let mut session = open("honest").await.unwrap();
    {
        let call = session.render(conversation("loop"));
        tokio::select! {
            biased;
            () = async { for _ in 0..3 { tokio::task::yield_now().await } } => {}
            _ = call => panic!("the loop ended before it was cancelled"),
        }
    }
    says(
        &session.render(conversation("hello")).await.unwrap_err(),
        "ended",
        &[],
    );
    honest().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sessions_beyond_the_places_wait() {
    // Three times the pool, and sessions are Send.
    let tasks: Vec<_> = (0..48).map(|_| tokio::spawn(honest())).collect();
    for task in tasks {
        task.await.unwrap();
    }
}
