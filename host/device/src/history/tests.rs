use super::*;

fn counts(history: &History) -> Vec<(TokenId, Count)> {
    let mut all: Vec<_> = history.counts().collect();
    all.sort_unstable_by_key(|c| c.0);
    all
}

/// Tokens that repeat, some of them below and some above the prompt's end.
fn tokens(n: usize) -> Vec<TokenId> {
    (0..n as u32).map(|i| i * i % 7).collect()
}

#[test]
fn truncated_histories_equal_new_ones() {
    let all = tokens(40);
    for prompt_len in [0, 5, 20, 40] {
        for len in 0..=40 {
            let mut history = History::new(&all, prompt_len, Counting::On);
            history.truncate(len);
            let fresh = History::new(&all[..len], prompt_len, Counting::On);
            assert_eq!(history.tokens(), fresh.tokens());
            assert_eq!(counts(&history), counts(&fresh));
            assert_eq!(history.outputs(), fresh.outputs());
            history.extend(&all[len..]);
            let whole = History::new(&all, prompt_len, Counting::On);
            assert_eq!(counts(&history), counts(&whole));
        }
    }
}

#[test]
fn a_truncation_beyond_the_end_changes_nothing() {
    let mut history = History::new(&[1, 2], 1, Counting::Off);
    history.truncate(7);
    assert_eq!(history.tokens(), [1, 2]);
}

pub(crate) mod repeats;
