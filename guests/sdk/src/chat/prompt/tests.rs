#![allow(clippy::unwrap_used, clippy::panic)]

use super::*;
use crate::chat::testing::conversation;

#[test]
fn messages_are_read_as_openai_writes_them() {
    let found = messages(&conversation(
        r#"[{"role":"developer","content":"a"},{"role":"user","content":[{"type":"text","text":"b"},{"type":"text","text":"c"}]},
            {"role":"assistant","content":null}]"#,
    ))
    .unwrap();
    let expected = [
        (Role::System, "a"),
        (Role::User, "b\nc"),
        (Role::Assistant, ""),
    ];
    let found: Vec<_> = found.iter().map(|m| (m.role, m.content.as_str())).collect();
    assert_eq!(found, expected);
    for (bad, text) in [
        ("{", "messages: "),
        (r#"[{"role":"king","content":""}]"#, "messages[0].role"),
        (
            r#"[{"role":"user","content":3}]"#,
            "messages[0].content is 3",
        ),
        (
            r#"[{"role":"user","content":[{"type":"image_url"}]}]"#,
            "not text",
        ),
    ] {
        let error = messages(&conversation(bad)).unwrap_err().to_string();
        assert!(error.contains(text), "{error}");
    }
}

#[test]
fn white_space_at_the_ends_is_dropped_however_the_text_is_cut() {
    let text = " \n a  b \n\n c \n";
    for cut in 0..=text.len() {
        let mut parser = Trimmed::default();
        let mut found = String::new();
        let mut deltas = parser.push(&text[..cut]);
        deltas.extend(parser.push(&text[cut..]));
        deltas.extend(parser.finish());
        for delta in deltas {
            let Delta::Content(content) = delta else {
                panic!("{delta:?}")
            };
            assert!(!content.is_empty());
            found.push_str(&content);
        }
        assert_eq!(found, "a  b \n\n c", "cut at {cut}");
    }
}

#[test]
fn text_segments_are_joined() {
    let mut prompt = Prompt::default();
    prompt
        .text("a")
        .text("")
        .text("b")
        .special(1)
        .text("")
        .special(2)
        .text("c");
    let expected = [
        Segment::Text("ab".into()),
        Segment::Special(1),
        Segment::Special(2),
        Segment::Text("c".into()),
    ];
    assert_eq!(prompt.finish(), expected);
}
