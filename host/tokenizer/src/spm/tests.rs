#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::HashMap;

use super::{ByteFallback, SpmMerger};
use crate::words::{Place, WordModel};

fn merger(pieces: &[(&str, f32)], bytes: &[(u8, u32)], unk: Option<u32>) -> ByteFallback {
    let mut table = Box::new([None; 256]);
    for (byte, id) in bytes {
        table[usize::from(*byte)] = Some(*id);
    }
    let pieces: HashMap<_, _> = (10u32..)
        .zip(pieces)
        .map(|(id, (piece, score))| ((*piece).into(), (id, *score)))
        .collect();
    ByteFallback {
        merger: SpmMerger::new(pieces),
        bytes: table,
        unk,
    }
}

fn ids(merger: &ByteFallback, text: &str) -> Vec<u32> {
    merger
        .encode(text, Place::First)
        .iter()
        .map(|token| token.id)
        .collect()
}

/// By hand: in "aaaaa" the pairs at 0 and 2 become "aa"; ("aa","a") and ("aa","aa") tie only by score, so "aaa" (-2) beats
/// "aaaa" (-3), and of the two places for it the leftmost that exists is the pair (2, 4).
#[test]
fn best_score_first_then_leftmost() {
    let m = merger(
        &[("a", -9.0), ("aa", -1.0), ("aaa", -2.0), ("aaaa", -3.0)],
        &[],
        None,
    );
    assert_eq!(ids(&m, "aaa"), [12]);
    assert_eq!(ids(&m, "aaaa"), [13]);
    assert_eq!(ids(&m, "aaaaa"), [11, 12]);
    // [aa][a][aa] can form "aaa" on the left or on the right with equal score.
    let m = merger(
        &[("a", -9.0), ("b", -9.0), ("ab", -1.0), ("ba", -1.0)],
        &[],
        None,
    );
    assert_eq!(ids(&m, "aba"), [12, 10], "the leftmost of equal scores");
    assert_eq!(ids(&m, "bab"), [13, 11]);
}

#[test]
fn unknown_characters_become_bytes_then_unknown_then_nothing() {
    let bytes = [(0xc3, 1), (0xa9, 2)];
    assert_eq!(
        ids(&merger(&[("a", 0.0)], &bytes, Some(0)), "aé"),
        [10, 1, 2]
    );
    assert_eq!(
        ids(&merger(&[("a", 0.0)], &[(0xc3, 1)], Some(0)), "é"),
        [1, 0]
    );
    assert_eq!(ids(&merger(&[("a", 0.0)], &[], None), "éaé"), [10]);
    assert_eq!(ids(&merger(&[], &[], None), ""), Vec::<u32>::new());
}

/// A quadratic merger would not finish this.
#[test]
fn long_texts_merge_in_reasonable_time() {
    let m = merger(&[("a", -9.0), ("aa", -1.0), ("aaaa", -2.0)], &[], None);
    assert_eq!(ids(&m, &"a".repeat(400_000)).len(), 100_000);
}
