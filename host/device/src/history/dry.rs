//! Repetitions that end a history, for "don't repeat yourself" sampling (p-e-w 2024, text-generation-webui pull request
//! 5677).

use guesthouse_engine::{Dry, TokenId};

use super::grams::Chains;

/// A DRY stage and where its shortest repetitions that count occur.
#[derive(Clone, Debug)]
pub(super) struct DryIndex {
    pub dry: Dry,
    /// Ascending.
    breakers: Vec<TokenId>,
    chains: Chains,
}

/// Tokens that a repetition has at least.
fn shortest(dry: &Dry) -> usize {
    dry.allowed_length.max(1) as usize
}

fn sorted(dry: &Dry) -> Vec<TokenId> {
    let mut breakers = dry.breakers.clone();
    breakers.sort_unstable();
    breakers
}

impl DryIndex {
    pub(super) fn new(dry: &Dry) -> Self {
        Self {
            breakers: sorted(dry),
            chains: Chains::new(shortest(dry)),
            dry: dry.clone(),
        }
    }

    pub(super) fn push(&mut self, tokens: &[TokenId]) {
        self.chains.push(tokens);
    }

    pub(super) fn pop(&mut self) {
        self.chains.pop();
    }

    /// As [`penalties`], in time that depends on the repetitions alone: never much more than the history's length, and
    /// hardly any where nothing is repeated.
    pub(super) fn penalties(&self, tokens: &[TokenId], out: &mut Vec<(TokenId, f32)>) {
        let Some(last) = tokens.len().checked_sub(1) else {
            return;
        };
        let start = window(&self.dry, tokens);
        let stops = |token| self.breakers.binary_search(&token).is_ok();
        let mut budget = 4 * (tokens.len() - start) + 64;
        let mut matches = Vec::new();
        for at in self.chains.earlier(last).take_while(|&at| at >= start) {
            let reach = at - start + 1;
            let same = (0..reach.min(budget))
                .take_while(|&k| tokens[at - k] == tokens[last - k] && !stops(tokens[at - k]))
                .count();
            budget -= same.min(budget);
            if budget == 0 {
                return walk(&self.dry, &self.breakers, tokens, out);
            }
            matches.push((tokens[at + 1], same));
        }
        weigh(&self.dry, &self.breakers, matches, out);
    }
}

/// First position that is looked at.
fn window(dry: &Dry, tokens: &[TokenId]) -> usize {
    match dry.range as usize {
        0 => 0,
        range => tokens.len().saturating_sub(range),
    }
}

/// Appends what is subtracted from each token's logit. For each earlier place in the window where the history's last
/// tokens occur, the longest match that reaches over no breaker counts for the token that follows there; of several places
/// the longest. Breakers are never penalised, and matches have at least one token. Penalties are at most `f32::MAX`.
pub(super) fn penalties(dry: &Dry, tokens: &[TokenId], out: &mut Vec<(TokenId, f32)>) {
    walk(dry, &sorted(dry), tokens, out);
}

/// All of the window, by the Z function of its reverse: as many steps as it has tokens.
fn walk(dry: &Dry, breakers: &[TokenId], tokens: &[TokenId], out: &mut Vec<(TokenId, f32)>) {
    let window = &tokens[window(dry, tokens)..];
    let n = window.len();
    let back = |i: usize| window[n - 1 - i];
    let free = (0..n)
        .take_while(|&i| breakers.binary_search(&back(i)).is_err())
        .count();
    // z[i]: tokens that the reverse from i on has in common with the reverse from 0 on.
    let mut z = vec![0usize; n];
    let (mut left, mut right) = (0, 0);
    let mut matches = Vec::new();
    for i in 1..n {
        let mut same = if i < right {
            z[i - left].min(right - i)
        } else {
            0
        };
        while i + same < n && back(same) == back(i + same) {
            same += 1;
        }
        if i + same > right {
            (left, right) = (i, i + same);
        }
        z[i] = same;
        if same > 0 {
            matches.push((back(i - 1), same.min(free)));
        }
    }
    weigh(dry, breakers, matches, out);
}

/// Penalties of tokens and the lengths of the matches before them.
fn weigh(
    dry: &Dry,
    breakers: &[TokenId],
    mut matches: Vec<(TokenId, usize)>,
    out: &mut Vec<(TokenId, f32)>,
) {
    matches.retain(|&(token, len)| len >= shortest(dry) && breakers.binary_search(&token).is_err());
    matches.sort_unstable_by(|a, b| a.0.cmp(&b.0).then(b.1.cmp(&a.1)));
    matches.dedup_by_key(|m| m.0);
    out.extend(matches.into_iter().map(|(token, len)| {
        let longer = len as f64 - f64::from(dry.allowed_length);
        let penalty = f64::from(dry.multiplier) * f64::from(dry.base).powf(longer);
        // Of nothing times infinity comes NaN, which is no penalty.
        let penalty = if penalty.is_nan() { 0.0 } else { penalty };
        (token, penalty.min(f64::from(f32::MAX)) as f32)
    }));
}
