//! N-grams and DRY against their definitions.

use guesthouse_engine::{Draw, Stage};

use super::*;

/// Numbers that look random.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(99);
        (self.0 >> 33) % n
    }

    fn tokens(&mut self, n: usize, vocab: u64) -> Vec<TokenId> {
        (0..n).map(|_| self.below(vocab) as TokenId).collect()
    }
}

fn plan(stages: Vec<Stage>) -> SamplingPlan {
    SamplingPlan {
        stages,
        draw: Draw::Greedy,
    }
}

/// Hugging Face's `_get_ngrams`: every n-gram of the history as a prefix and a token.
pub(crate) fn banned(tokens: &[TokenId], n: usize) -> Vec<TokenId> {
    let mut all = Vec::new();
    for start in 0..tokens.len() {
        if start + n <= tokens.len() && tokens.len() + 1 >= n {
            let prefix = &tokens[start..start + n - 1];
            if prefix == &tokens[tokens.len() + 1 - n..] {
                all.push(tokens[start + n - 1]);
            }
        }
    }
    all.sort_unstable();
    all.dedup();
    all
}

/// The definition, place by place.
pub(crate) fn dry_slow(dry: &Dry, tokens: &[TokenId]) -> Vec<(TokenId, f64)> {
    let start = if dry.range == 0 {
        0
    } else {
        tokens.len().saturating_sub(dry.range as usize)
    };
    let window = &tokens[start..];
    let mut longest = std::collections::BTreeMap::new();
    for next in 1..window.len() {
        let mut len = 0;
        while len < next
            && window[next - 1 - len] == window[window.len() - 1 - len]
            && !dry.breakers.contains(&window[next - 1 - len])
        {
            len += 1;
        }
        let best = longest.entry(window[next]).or_insert(0);
        *best = len.max(*best);
    }
    longest
        .into_iter()
        .filter(|(t, len)| {
            *len >= dry.allowed_length as usize && *len >= 1 && !dry.breakers.contains(t)
        })
        .map(|(t, len)| {
            let longer = len as i32 - dry.allowed_length as i32;
            (
                t,
                f64::from(dry.multiplier) * f64::from(dry.base).powi(longer),
            )
        })
        .collect()
}

fn assert_dry(got: &[(TokenId, f32)], want: &[(TokenId, f64)], what: &str) {
    assert_eq!(got.len(), want.len(), "{what}: {got:?} {want:?}");
    for (a, b) in got.iter().zip(want) {
        assert_eq!(a.0, b.0, "{what}");
        let most = f64::from(f32::MAX);
        assert!(
            (f64::from(a.1) - b.1.min(most)).abs() <= 1e-6 * b.1.min(most),
            "{what}: {a:?} {b:?}"
        );
    }
}

#[test]
fn n_grams_by_hand() {
    let ask = |tokens: &[TokenId], n| {
        let history = History::for_plan(tokens, 0, &plan(vec![Stage::NoRepeatNgram(n)]));
        let mut out = Vec::new();
        history.repeating(n, &mut out);
        out.sort_unstable();
        out
    };
    assert_eq!(ask(&[1, 2, 3, 1, 2], 3), [3]);
    assert_eq!(ask(&[1, 2, 3, 1, 2, 4, 1, 2], 3), [3, 4]);
    assert_eq!(ask(&[1, 2, 3, 1, 2], 2), [3]);
    assert_eq!(ask(&[5, 6], 1), [5, 6]);
    assert!(ask(&[5, 6], 4).is_empty());
    assert!(ask(&[], 2).is_empty());
}

#[test]
fn dry_by_hand() {
    let dry = Dry {
        multiplier: 0.8,
        base: 1.75,
        allowed_length: 2,
        range: 0,
        breakers: vec![9],
    };
    let ask = |tokens: &[TokenId]| {
        let mut out = Vec::new();
        History::for_plan(tokens, 0, &plan(vec![Stage::Dry(dry.clone())]))
            .dry_penalties(&dry, &mut out);
        out
    };
    // "1 2 3" ends the history and was followed by 4: three tokens, one more than is free.
    assert_eq!(ask(&[1, 2, 3, 4, 1, 2, 3]), [(4, 0.8 * 1.75)]);
    assert_eq!(ask(&[2, 3, 4, 1, 2, 3]), [(4, 0.8)]);
    assert!(ask(&[3, 4, 1, 2, 3]).is_empty());
    // Nothing reaches over a breaker, and it is free itself.
    assert!(ask(&[1, 9, 3, 4, 1, 9, 3]).is_empty());
    assert!(ask(&[2, 3, 9, 2, 3]).is_empty());
}

/// Indices equal the definitions, also after histories grew and shrank.
#[test]
fn indices_equal_definitions() {
    let mut numbers = Numbers(1);
    for round in 0..300u32 {
        let vocab = [1, 2, 3, 8, 60][round as usize % 5];
        let dry = |numbers: &mut Numbers| Dry {
            multiplier: numbers.below(3) as f32 * 0.5,
            base: 1.0 + numbers.below(3) as f32,
            allowed_length: numbers.below(5) as u32,
            range: [0, 0, 7, 30][numbers.below(4) as usize],
            breakers: (0..numbers.below(3))
                .map(|_| numbers.below(vocab) as TokenId)
                .collect(),
        };
        let dries = [dry(&mut numbers), dry(&mut numbers)];
        let stages = vec![
            Stage::NoRepeatNgram(1),
            Stage::NoRepeatNgram(2),
            Stage::NoRepeatNgram(4),
            Stage::NoRepeatNgram(4),
            Stage::Dry(dries[0].clone()),
            Stage::Dry(dries[1].clone()),
        ];
        let first = numbers.below(20) as usize;
        let mut tokens = numbers.tokens(first, vocab);
        let mut history = History::for_plan(&tokens, first / 2, &plan(stages));
        for _ in 0..12 {
            if numbers.below(3) == 0 {
                let len = tokens.len() - numbers.below(tokens.len() as u64 + 1) as usize / 2;
                tokens.truncate(len);
                history.truncate(len);
            } else {
                let n = numbers.below(9) as usize;
                let more = numbers.tokens(n, vocab);
                tokens.extend_from_slice(&more);
                history.extend(&more);
            }
            let plain = History::new(&tokens, 0, Counting::Off);
            // 3 has no index.
            for n in [1, 2, 3, 4] {
                for h in [&history, &plain] {
                    let mut got = Vec::new();
                    h.repeating(n, &mut got);
                    got.sort_unstable();
                    got.dedup();
                    assert_eq!(got, banned(&tokens, n as usize), "{n}: {tokens:?}");
                }
            }
            for dry in &dries {
                let want = dry_slow(dry, &tokens);
                for h in [&history, &plain] {
                    let mut got = Vec::new();
                    h.dry_penalties(dry, &mut got);
                    assert_dry(&got, &want, &format!("{dry:?} {tokens:?}"));
                }
            }
        }
    }
}

/// One token for ever: the matches are as long as the history, and there are as many.
#[test]
fn endless_repetition() {
    let dry = Dry {
        multiplier: 1.0,
        base: 1.5,
        allowed_length: 2,
        range: 0,
        breakers: Vec::new(),
    };
    let stages = vec![Stage::NoRepeatNgram(3), Stage::Dry(dry.clone())];
    let mut history = History::for_plan(&[7; 3000], 0, &plan(stages));
    let (mut ids, mut penalties) = (Vec::new(), Vec::new());
    history.repeating(3, &mut ids);
    history.dry_penalties(&dry, &mut penalties);
    assert_eq!(ids, [7]);
    assert_eq!(penalties, [(7, f32::MAX)]);
    history.truncate(4);
    penalties.clear();
    history.dry_penalties(&dry, &mut penalties);
    assert_eq!(penalties, [(7, 1.5)]);
}
