#![allow(clippy::unwrap_used, clippy::panic)]

use super::{StopMatcher, StopSet};
use crate::openai::StopText;
use proptest::prelude::*;
use std::sync::Arc;

fn run(parts: &[&str], stops: &[String], keep: StopText) -> (Vec<String>, Option<String>) {
    let mut matcher = StopMatcher::new(&Arc::new(StopSet::new(stops, keep)));
    let mut shown = Vec::new();
    let mut found = None;
    for part in parts {
        let (text, stop) = matcher.push(part);
        shown.push(text);
        found = found.or(stop);
    }
    shown.push(matcher.finish());
    (shown, found)
}

fn strings(list: &[&str]) -> Vec<String> {
    list.iter().map(|&text| text.to_owned()).collect()
}

#[test]
fn what_may_become_a_stop_string_is_held_back() {
    let (shown, found) = run(&["ab", "c", "x"], &strings(&["bcd"]), StopText::Cut);
    assert_eq!((shown, found), (strings(&["a", "", "bcx", ""]), None));
    let (shown, found) = run(&["ab", "c", "d", "e"], &strings(&["bcd"]), StopText::Cut);
    assert_eq!(
        (shown, found),
        (strings(&["a", "", "", "", ""]), Some("bcd".into()))
    );
    let (shown, found) = run(&["ab", "c", "d", "e"], &strings(&["bcd"]), StopText::Keep);
    assert_eq!(
        (shown, found),
        (strings(&["a", "", "bcd", "", ""]), Some("bcd".into()))
    );
}

#[test]
fn a_failed_start_gives_out_only_what_cannot_start_another() {
    // After "aab" of "aabaac", "aabaab" leaves "aab" as a possible start.
    let (shown, _) = run(&["aabaa", "b", "!"], &strings(&["aabaac"]), StopText::Cut);
    assert_eq!(shown, strings(&["", "aab", "aab!", ""]));
}

#[test]
fn the_end_gives_out_what_was_held() {
    assert_eq!(
        run(&["so\n"], &strings(&["\n\n"]), StopText::Cut).0,
        strings(&["so", "\n"])
    );
}

#[test]
fn the_first_to_be_complete_wins_and_then_the_longest() {
    assert_eq!(
        run(&["xabcd"], &strings(&["abcd", "bc"]), StopText::Cut).1,
        Some("bc".into())
    );
    let (shown, found) = run(&["xabc"], &strings(&["bc", "abc", "c"]), StopText::Cut);
    assert_eq!((shown, found), (strings(&["x", ""]), Some("abc".into())));
}

#[test]
fn characters_of_several_bytes_stay_whole() {
    // é is C3 A9, ã is C3 A3: they share a first byte.
    assert_eq!(
        run(&["ã", "é", "x"], &strings(&["éx"]), StopText::Cut),
        (strings(&["ã", "", "", ""]), Some("éx".into()))
    );
}

/// The slow way: the earliest end over all strings, then the longest string.
fn expected(text: &str, stops: &[String]) -> (String, bool) {
    let ends = stops.iter().filter_map(|stop| {
        text.find(stop.as_str())
            .map(|at| (at + stop.len(), stop.len()))
    });
    match ends.min_by_key(|&(end, length)| (end, std::cmp::Reverse(length))) {
        Some((end, length)) => (text[..end - length].to_owned(), true),
        None => (text.to_owned(), false),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]
    #[test]
    fn cuts_do_not_matter(
        text in "[abé🎈]{0,24}",
        stops in proptest::collection::vec("[abé🎈]{1,5}", 0..4),
        cuts in proptest::collection::vec(0usize..24, 0..12),
    ) {
        let characters: Vec<char> = text.chars().collect();
        let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(characters.len())).collect();
        cuts.push(characters.len());
        cuts.sort_unstable();
        let mut matcher = StopMatcher::new(&Arc::new(StopSet::new(&stops, StopText::Cut)));
        let (mut shown, mut stopped, mut from) = (String::new(), false, 0);
        let (want, stops_there) = expected(&text, &stops);
        for cut in cuts {
            let part: String = characters[from..cut].iter().collect();
            from = cut;
            let (more, stop) = matcher.push(&part);
            shown.push_str(&more);
            stopped |= stop.is_some();
            prop_assert!(want.starts_with(&shown), "leaked: {shown:?} of {want:?}");
            if !stopped {
                // No more is held back than could begin a stop string.
                let seen: String = characters[..cut].iter().collect();
                let held = &seen[shown.len()..];
                prop_assert!(held.is_empty() || stops.iter().any(|stop| stop.starts_with(held)), "held {held:?}");
            }
        }
        shown.push_str(&matcher.finish());
        prop_assert_eq!(shown, want);
        prop_assert_eq!(stopped, stops_there);
    }
}
