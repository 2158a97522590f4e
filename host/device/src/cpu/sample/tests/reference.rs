//! Every stage from its definition, in f64 and slowly. Values are rounded to f32 after stages that change them, since that
//! is what stands between stages.

// Indices are token ids.
#![allow(clippy::needless_range_loop)]

use guesthouse_engine::{RandomKey, Stage, Watermark};

use super::super::philox::philox4x32_10;
use crate::history::tests::repeats::{banned, dry_slow};

/// What a reference needs besides the row.
#[derive(Clone, Debug)]
pub(super) struct Setting {
    pub tokens: Vec<u32>,
    pub prompt_len: usize,
    pub random: RandomKey,
    pub mu: Option<f32>,
}

/// Why there is no row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// Nothing is left where probabilities are needed.
    NothingLeft,
    /// A token is so close to a border that rounding decides.
    Unsure,
}

type Row = Vec<f64>;

const GONE: f64 = f64::NEG_INFINITY;

pub(super) fn softmax(row: &[f64]) -> Row {
    let max = row.iter().copied().fold(GONE, f64::max);
    let sum: f64 = row.iter().map(|x| (x - max).exp()).sum();
    row.iter().map(|x| (x - max).exp() / sum).collect()
}

/// Tokens that are left, the most likely first, the lower id first among equals.
fn order(row: &[f64]) -> Vec<usize> {
    let mut ids: Vec<usize> = (0..row.len()).filter(|&t| row[t] > GONE).collect();
    ids.sort_by(|&a, &b| row[b].partial_cmp(&row[a]).unwrap().then(a.cmp(&b)));
    ids
}

fn entropy(p: &[f64]) -> f64 {
    p.iter().filter(|p| **p > 0.0).map(|p| -p * p.ln()).sum()
}

fn near(a: f64, b: f64) -> bool {
    a == b || (a - b).abs() < 2e-5 * (1.0 + a.abs().min(b.abs()))
}

/// Keeps logits of at least `bar`.
fn from_bar(row: &mut Row, bar: f64) -> Result<(), Stop> {
    let best = row.iter().copied().fold(GONE, f64::max);
    for x in row.iter_mut().filter(|x| **x > GONE) {
        if *x == best {
            continue;
        }
        if near(*x, bar) {
            return Err(Stop::Unsure);
        }
        if *x < bar {
            *x = GONE;
        }
    }
    Ok(())
}

fn keep(row: &mut Row, kept: &[usize]) {
    for t in 0..row.len() {
        if !kept.contains(&t) {
            row[t] = GONE;
        }
    }
}

/// The first of these tokens whose probabilities reach `mass`.
fn until_mass(ids: &[usize], p: &[f64], mass: f64) -> Result<usize, Stop> {
    let mut sum = 0.0;
    for (n, &t) in ids.iter().enumerate() {
        sum += p[t];
        if (sum - mass).abs() < 2e-6 && n + 1 < ids.len() {
            return Err(Stop::Unsure);
        }
        if sum >= mass {
            return Ok(n + 1);
        }
    }
    Ok(ids.len())
}

fn rounded(row: &mut Row) {
    for x in row {
        *x = f64::from(*x as f32);
    }
}

/// Green tokens by the words of the module's documentation.
pub(super) fn green(w: &Watermark, tokens: &[u32], token: u32) -> bool {
    let key = [w.key as u32, (w.key >> 32) as u32];
    let context: Vec<u32> = tokens
        .iter()
        .rev()
        .take(w.context as usize)
        .rev()
        .copied()
        .collect();
    let mut d = philox4x32_10([context.len() as u32, 0, 0, 0], key);
    for t in context {
        d[0] ^= t;
        d = philox4x32_10(d, key);
    }
    let word = philox4x32_10([token / 4, d[0], d[1], d[2]], key)[token as usize % 4];
    f64::from(word) < f64::from(w.gamma) * 2f64.powi(32)
}

pub(super) fn apply_all(row: &[f32], stages: &[Stage], setting: &Setting) -> Result<Row, Stop> {
    let mut row: Row = row.iter().map(|&x| f64::from(x)).collect();
    let mut xtc = 0;
    for stage in stages {
        apply(&mut row, stage, setting, &mut xtc)?;
    }
    Ok(row)
}

fn apply(row: &mut Row, stage: &Stage, setting: &Setting, xtc: &mut u32) -> Result<(), Stop> {
    let f = |x: f32| f64::from(x);
    let tokens = &setting.tokens;
    let outputs = &tokens[setting.prompt_len..];
    let ids = order(row);
    let p = softmax(row);
    let some = || {
        if ids.is_empty() {
            Err(Stop::NothingLeft)
        } else {
            Ok(())
        }
    };
    let max = row.iter().copied().fold(GONE, f64::max);
    let log_sum = row.iter().map(|x| (x - max).exp()).sum::<f64>().ln();
    match stage {
        Stage::AllowedTokens(allowed) => {
            let kept: Vec<usize> = allowed.iter().map(|&t| t as usize).collect();
            keep(row, &kept);
        }
        Stage::BannedTokens(list) => {
            for t in 0..row.len() {
                if list.contains(&(t as u32)) {
                    row[t] = GONE;
                }
            }
        }
        Stage::BadWords(words) => {
            for word in words {
                let (last, before) = (word[word.len() - 1], &word[..word.len() - 1]);
                if tokens.len() >= before.len() && &tokens[tokens.len() - before.len()..] == before
                {
                    row[last as usize] = GONE;
                }
            }
        }
        Stage::LogitBias(bias) => {
            for &(t, by) in bias {
                row[t as usize] += f(by);
                rounded(row);
            }
        }
        Stage::MinTokens { count, banned } => {
            if outputs.len() < *count as usize {
                for &t in banned {
                    row[t as usize] = GONE;
                }
            }
        }
        Stage::Penalties {
            repetition,
            presence,
            frequency,
        } => {
            for t in 0..row.len() {
                let count = |list: &[u32]| list.iter().filter(|&&u| u as usize == t).count() as f64;
                if count(tokens) > 0.0 {
                    row[t] = if row[t] > 0.0 {
                        row[t] / f(*repetition)
                    } else {
                        row[t] * f(*repetition)
                    };
                }
                if count(outputs) > 0.0 {
                    row[t] -= f(*frequency) * count(outputs) + f(*presence);
                }
            }
            rounded(row);
        }
        Stage::Temperature(t) => {
            row.iter_mut().for_each(|x| *x /= f(*t));
            rounded(row);
        }
        Stage::TopK(k) => {
            if let Some(&last) = ids.get((*k as usize).wrapping_sub(1)) {
                let bar = row[last];
                row.iter_mut().filter(|x| **x < bar).for_each(|x| *x = GONE);
            }
        }
        Stage::TopP(mass) => {
            if *mass < 1.0 {
                some()?;
                let n = until_mass(&ids, &p, f(*mass))?;
                keep(row, &ids[..n]);
            }
        }
        Stage::MinP(share) => from_bar(row, max + f(*share).ln())?,
        Stage::TypicalP(mass) => {
            if *mass < 1.0 {
                some()?;
                let h = entropy(&p);
                let distance = |t: usize| (-(row[t] - max - log_sum) - h).abs();
                let mut by = ids.clone();
                by.sort_by(|&a, &b| distance(a).total_cmp(&distance(b)));
                let n = until_mass(&by, &p, f(*mass))?;
                let last = distance(by[n - 1]);
                // Ties with the last stay; others must be clearly farther.
                for &t in &by[n..] {
                    if distance(t) != last && near(distance(t), last) {
                        return Err(Stop::Unsure);
                    }
                }
                for w in by.windows(2) {
                    if near(distance(w[0]), distance(w[1])) && row[w[0]] != row[w[1]] {
                        return Err(Stop::Unsure);
                    }
                }
                let kept: Vec<usize> = by
                    .iter()
                    .copied()
                    .filter(|&t| distance(t) <= last)
                    .collect();
                keep(row, &kept);
            }
        }
        Stage::NoRepeatNgram(n) => {
            for t in banned(tokens, *n as usize) {
                row[t as usize] = GONE;
            }
        }
        Stage::Dry(dry) => {
            for (t, by) in dry_slow(dry, tokens) {
                row[t as usize] -= by.min(f64::from(f32::MAX));
            }
            rounded(row);
        }
        Stage::DynamicTemperature { min, max, exponent } => {
            some()?;
            let share = if ids.len() > 1 {
                (entropy(&p) / (ids.len() as f64).ln()).min(1.0)
            } else {
                0.0
            };
            let t = f(*min) + (f(*max) - f(*min)) * share.max(0.0).powf(f(*exponent));
            let t = f64::from(t as f32);
            row.iter_mut().for_each(|x| *x /= t);
            rounded(row);
        }
        Stage::TopNSigma(n) => {
            some()?;
            let m = ids.len() as f64;
            let mean = ids.iter().map(|&t| row[t]).sum::<f64>() / m;
            let variance = ids.iter().map(|&t| (row[t] - mean).powi(2)).sum::<f64>() / m;
            from_bar(row, max - f(*n) * variance.sqrt())?;
        }
        Stage::EpsilonCutoff(epsilon) => {
            some()?;
            from_bar(row, max + log_sum + f(*epsilon).ln())?;
        }
        Stage::EtaCutoff(epsilon) => {
            some()?;
            let eta = f(*epsilon).min(f(*epsilon).sqrt() * (-entropy(&p)).exp());
            from_bar(row, max + log_sum + eta.ln())?;
        }
        Stage::TailFree(z) => {
            if *z < 1.0 {
                some()?;
                let n = tail_free(&ids, &p, f(*z))?;
                keep(row, &ids[..n]);
            }
        }
        Stage::Xtc {
            probability,
            threshold,
        } => {
            let r = setting.random;
            let key = [r.seed as u32, (r.seed >> 32) as u32];
            let word = philox4x32_10([*xtc, tokens.len() as u32, r.lineage, 1], key)[0];
            *xtc += 1;
            if (f64::from(word >> 9) + 0.5) / 2f64.powi(23) < f(*probability) {
                some()?;
                let log_p = |t: usize| row[t] - max - log_sum;
                if ids.iter().any(|&t| near(log_p(t), f(*threshold).ln())) {
                    return Err(Stop::Unsure);
                }
                let mut top = ids.iter().filter(|&&t| log_p(t) >= f(*threshold).ln());
                if let Some(&least) = top.next_back() {
                    let bar = row[least];
                    row.iter_mut().filter(|x| **x > bar).for_each(|x| *x = GONE);
                }
            }
        }
        Stage::Mirostat1 { tau, .. } => {
            some()?;
            let mu = f(setting.mu.unwrap_or(2.0 * tau));
            let k = mirostat_k(&ids, row, mu)?;
            if let Some(&last) = ids.get(k - 1) {
                let bar = row[last];
                row.iter_mut().filter(|x| **x < bar).for_each(|x| *x = GONE);
            }
        }
        Stage::Mirostat2 { tau, .. } => {
            some()?;
            let mu = f(setting.mu.unwrap_or(2.0 * tau));
            from_bar(row, max + log_sum - mu * 2f64.ln())?;
        }
        Stage::Watermark(w) => {
            for t in 0..row.len() {
                if green(w, tokens, t as u32) {
                    row[t] += f(w.delta);
                }
            }
            rounded(row);
        }
        other => unreachable!("{other:?}"),
    }
    Ok(())
}

fn tail_free(ids: &[usize], p: &[f64], z: f64) -> Result<usize, Stop> {
    if ids.len() <= 2 {
        return Ok(ids.len());
    }
    let first: Row = ids.windows(2).map(|w| p[w[0]] - p[w[1]]).collect();
    let mut second: Row = first.windows(2).map(|w| (w[0] - w[1]).abs()).collect();
    let sum: f64 = second.iter().sum();
    let n = second.len() as f64;
    let alike = ids.iter().all(|&t| p[t] == p[ids[0]]);
    second
        .iter_mut()
        .for_each(|x| *x = if alike { 1.0 / n } else { *x / sum });
    let mut upto = 0.0;
    for (i, x) in second.iter().enumerate() {
        upto += x;
        if (upto - z).abs() < 1e-9 {
            return Err(Stop::Unsure);
        }
        if upto > z {
            return Ok(i.max(1));
        }
    }
    Err(Stop::Unsure)
}

/// Basu et al. 2021, algorithm 1 with m = 100.
fn mirostat_k(ids: &[usize], row: &[f64], mu: f64) -> Result<usize, Stop> {
    let vocab = row.len() as f64;
    if ids.len() < 2 {
        return Ok(1);
    }
    let (mut top, mut bottom) = (0.0, 0.0);
    for i in 1..ids.len().min(100) {
        let t = ((i as f64 + 1.0) / i as f64).ln();
        let b = row[ids[i - 1]] - row[ids[i]];
        top += t * b;
        bottom += t * t;
    }
    let s = top / bottom;
    let e = s - 1.0;
    if s < 1e-6 || e.abs() < 1e-6 {
        return Err(Stop::Unsure);
    }
    let k = (e * 2f64.powf(mu) / (1.0 - vocab.powf(-e))).powf(1.0 / s);
    if (k.fract() - 0.5).abs() < 1e-6 * k.max(1.0) {
        return Err(Stop::Unsure);
    }
    Ok((k.round().min(vocab) as usize).max(1))
}
