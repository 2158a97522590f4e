use super::*;

fn controls(literals: &[&str]) -> Controls {
    Controls::new((10..).zip(literals.iter().map(|&l| l.to_owned())))
}

#[test]
fn the_longest_literal_wins() {
    let c = controls(&["<s>", "<s>>", "</s>", "", "<s>"]);
    let found: Vec<_> = c
        .find_all("a<s>>b<s></s><s")
        .into_iter()
        .map(|(at, n, k)| (at, n, c.id(k)))
        .collect();
    assert_eq!(found, [(1, 4, 11), (6, 3, 10), (9, 4, 12)]);
}

#[test]
fn marks_go_there_and_back() {
    let c = controls(&["<|a|>", "｜b｜"]);
    let marked = c.mark_all("é<|a|>｜b｜｜b");
    assert_eq!(marked, "é\u{F0000}\u{F0001}｜b");
    assert_eq!(c.spell(&marked), "é<|a|>｜b｜｜b");
    assert_eq!(c.of_mark('\u{F0002}'), None);
    assert_eq!(c.of_mark('a'), None);
}

#[test]
fn search_within_a_character_finds_nothing() {
    let c = controls(&["｜b｜"]);
    for at in 0.."｜b｜".len() {
        assert_eq!(c.at("｜b｜", at).is_some(), at == 0, "{at}");
    }
}

#[test]
fn an_end_inside_a_literal_is_seen() {
    let c = controls(&["<|im_end|>", "</s>"]);
    for (text, inside) in [
        ("x<", true),
        ("x<|im_end|", true),
        ("x<|im_end|>", false),
        ("", false),
        ("</", true),
        ("<b", false),
        ("é", false),
    ] {
        assert_eq!(c.ends_inside(text), inside, "{text}");
    }
}

#[test]
fn what_has_no_code_point_is_left_out() {
    let c = Controls::new((0..70_000).map(|i| (i, format!("<{i}>"))));
    assert!(c.of_literal("<65519>").is_some());
    assert!(c.of_literal("<65520>").is_none());
    let last = Controls::mark(c.of_literal("<65519>").unwrap_or(Control(0)));
    assert!(last < CONTINUE_MARK, "{last:?}");
}

#[test]
fn planes_15_and_16_are_reserved() {
    assert!(is_reserved("a\u{F0000}") && is_reserved("\u{10FFFF}"));
    assert!(!is_reserved("\u{E000}\u{EFFFF}🦙"));
}
