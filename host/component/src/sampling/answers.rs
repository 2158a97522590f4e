//! Checks what a stepping guest answered. Every refusal names the value and the row.

use guesthouse_engine::{Branching, Choice, Choices, Next, TokenId};

use super::wit_stepping as wit;

/// Branches of one answer.
const BRANCHES: usize = 4096;

/// What an answer is checked against.
pub(super) struct Asked<'a> {
    pub(super) branching: Branching,
    pub(super) rows: usize,
    pub(super) tokens: Tokens<'a>,
}

/// The tokens that may be chosen.
pub(super) enum Tokens<'a> {
    /// Of row i those of `tokens[i * n ..][.. n]` whose `logits` are above -inf.
    Candidates {
        n: usize,
        tokens: &'a [TokenId],
        logits: &'a [f32],
    },
    /// All below the size of the vocabulary.
    Below(u32),
}

impl Tokens<'_> {
    fn check(&self, row: usize, token: TokenId) -> Result<(), String> {
        match *self {
            Self::Below(vocab) if token < vocab => Ok(()),
            Self::Below(vocab) => Err(format!(
                "token {token} for row {row}, expected ids below {vocab}"
            )),
            Self::Candidates { n, tokens, logits } => {
                let of_row = row * n..(row + 1) * n;
                let (tokens, logits) = (&tokens[of_row.clone()], &logits[of_row]);
                match tokens.iter().position(|&t| t == token) {
                    Some(i) if logits[i] > f32::NEG_INFINITY => Ok(()),
                    _ => Err(format!(
                        "token {token} for row {row}, which is not among its candidates"
                    )),
                }
            }
        }
    }
}

/// The choices, if all of them make sense.
pub(super) fn choices(asked: &Asked<'_>, answer: &wit::Choices) -> Result<Choices, String> {
    let (parent, token) = (&answer.parent, &answer.token);
    let (flags, score) = (&answer.flags, &answer.score);
    let n = parent.len();
    if [token.len(), flags.len(), score.len()] != [n; 3] {
        return Err(format!(
            "{n} parents, {} tokens, {} flags and {} scores, expected lists of one length",
            token.len(),
            flags.len(),
            score.len()
        ));
    }
    if n > BRANCHES {
        return Err(format!("{n} branches, expected at most {BRANCHES}"));
    }
    let mut continued = match asked.branching {
        Branching::Choices => vec![false; asked.rows],
        Branching::Search => Vec::new(),
    };
    let mut branches = Vec::with_capacity(n);
    for (((&row, &token), &flag), &score) in parent.iter().zip(token).zip(flags).zip(score) {
        let at = row as usize;
        if at >= asked.rows {
            return Err(format!("row {row} of {} rows", asked.rows));
        }
        asked.tokens.check(at, token)?;
        let next = match flag {
            0 => Next::Continue,
            1 => Next::Finish,
            flag => {
                return Err(format!(
                    "flag {flag} for row {row}, expected 0 (continue) or 1 (finish)"
                ));
            }
        };
        if score.is_nan() {
            return Err(format!("score NaN for token {token} of row {row}"));
        }
        if let Some(continued) = continued.get_mut(at)
            && std::mem::replace(continued, true)
        {
            return Err(format!(
                "2 branches for row {row}, expected at most 1 outside a search"
            ));
        }
        branches.push(Choice {
            row,
            token,
            next,
            score,
        });
    }
    Ok(Choices { branches })
}

/// Rewritten rows: `[rows, vocab]`, no NaN or +inf, each with something to draw.
pub(super) fn logits(rows: usize, vocab: u32, logits: &[f32]) -> Result<(), String> {
    let vocab = vocab as usize;
    let expected = rows.saturating_mul(vocab);
    if logits.len() != expected {
        return Err(format!(
            "{} logits, expected {expected}: {rows} rows of {vocab}",
            logits.len()
        ));
    }
    for (row, logits) in logits.chunks_exact(vocab.max(1)).enumerate() {
        let mut best = f32::NEG_INFINITY;
        for (token, &logit) in logits.iter().enumerate() {
            if logit.is_nan() || logit == f32::INFINITY {
                return Err(format!(
                    "logit {logit} for token {token} of row {row}, expected a finite number or -inf"
                ));
            }
            best = best.max(logit);
        }
        if best == f32::NEG_INFINITY {
            return Err(format!("row {row} has no token above -inf"));
        }
    }
    Ok(())
}

/// Indices below `finished`, none twice, at most `wanted`.
pub(super) fn selected(finished: usize, wanted: u32, indices: &[u32]) -> Result<(), String> {
    if indices.len() > wanted as usize {
        return Err(format!(
            "{} branches, expected at most {wanted}",
            indices.len()
        ));
    }
    if indices.is_empty() {
        return Err(format!("none of {finished} finished branches"));
    }
    let mut seen = vec![false; finished];
    for &index in indices {
        match seen.get_mut(index as usize) {
            None => {
                return Err(format!("index {index} of {finished} finished branches"));
            }
            Some(true) => return Err(format!("index {index} twice")),
            Some(seen) => *seen = true,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
