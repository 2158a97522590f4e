use super::*;

const LENGTHS: Lengths = Lengths { min: 2, max: 4 };

fn guess(tokens: &[TokenId], most: usize) -> Vec<TokenId> {
    Index::new(LENGTHS).guess(tokens, most)
}

/// By looking at every position.
fn slow(tokens: &[TokenId], most: usize) -> Vec<TokenId> {
    for n in (2..=4).rev().filter(|&n| n < tokens.len()) {
        let gram = &tokens[tokens.len() - n..];
        let end = (n..tokens.len())
            .rev()
            .find(|&end| &tokens[end - n..end] == gram);
        if let Some(end) = end {
            let mut all = tokens.to_vec();
            while all.len() < tokens.len() + most {
                all.push(all[end + all.len() - tokens.len()]);
            }
            return all[tokens.len()..].to_vec();
        }
    }
    Vec::new()
}

#[test]
fn the_longest_gram_wins_and_then_the_latest() {
    // "1 2" is followed by 9 last, but "7 1 2" by 3.
    assert_eq!(guess(&[7, 1, 2, 3, 4, 1, 2, 9, 7, 1, 2], 2), [3, 4]);
    assert_eq!(guess(&[1, 2, 3, 1, 2, 4, 1, 2], 2), [4, 1]);
    assert_eq!(guess(&[1, 2, 3, 4], 2), []);
    assert_eq!(guess(&[5, 2, 6, 2], 2), [], "one token is too few");
}

#[test]
fn a_repetition_that_reaches_the_end_goes_on() {
    assert_eq!(guess(&[8, 1, 2, 1, 2, 1, 2], 5), [1, 2, 1, 2, 1]);
    assert_eq!(guess(&[3, 3, 3], 4), [3, 3, 3, 3]);
}

#[test]
fn a_growing_sequence_is_indexed_as_it_grows() {
    let mut state = 1u32;
    for alphabet in [2, 3, 7] {
        let mut index = Index::new(LENGTHS);
        let mut tokens = Vec::new();
        for _ in 0..300 {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            // One to four tokens a step.
            for shift in 0..=(state >> 30) {
                tokens.push((state >> (8 + shift)) % alphabet);
            }
            let most = (state >> 20) as usize % 6;
            assert_eq!(
                index.guess(&tokens, most),
                slow(&tokens, most),
                "{tokens:?}"
            );
        }
    }
}

#[test]
fn a_long_prompt_is_indexed_over_several_calls() {
    let mut tokens: Vec<TokenId> = (0..5000).collect();
    tokens.extend([4000, 4001]);
    let mut index = Index::new(LENGTHS);
    let found: Vec<_> = (0..6).map(|_| index.guess(&tokens, 2)).collect();
    assert_eq!(found.iter().filter(|guess| guess.is_empty()).count(), 3);
    assert_eq!(found[5], [4002, 4003]);
}

#[test]
fn lengths_of_none_find_nothing() {
    let mut index = Index::new(Lengths { min: 3, max: 2 });
    assert_eq!(index.guess(&[1, 1, 1, 1, 1], 2), []);
    let mut index = Index::new(Lengths { min: 0, max: 1 });
    assert_eq!(index.guess(&[1, 5, 1], 1), [5]);
}
