//! Answers to steps: the first candidate of each row, or what the request's part after the colon says.

use std::hint::black_box;

use crate::exports::guesthouse::sampling::stepping::{
    Candidates, Choices, Finished, Guest, Rows, SamplerBorrow, Verdict,
};
use crate::guesthouse::common::log::{Level, log};
use crate::misbehave::misbehave;
use crate::{Hold, Hostile};

fn how(sampler: &Hold) -> &str {
    sampler.request.split_once(':').map_or("", |(_, how)| how)
}

/// One branch per row.
fn continued(rows: &Rows, token: impl Fn(usize) -> u32) -> Choices {
    let n = rows.branches.len();
    Choices {
        parent: (0..n as u32).collect(),
        token: (0..n).map(token).collect(),
        flags: vec![0; n],
        score: vec![0.0; n],
    }
}

/// Burns so many milliseconds or so of an ordinary machine.
fn burn(milliseconds: u64) {
    for i in 0..milliseconds * 500_000 {
        black_box(i);
    }
}

fn distort(how: &str, choices: &mut Choices) {
    let last = choices.parent.len() - 1;
    match how {
        "no-such-row" => choices.parent[last] = last as u32 + 1,
        "nan-score" => choices.score[last] = f32::NAN,
        "flag" => choices.flags[last] = 7,
        "unequal" => choices.token.push(0),
        "fork" => {
            choices.parent.push(0);
            choices.token.push(choices.token[0]);
            choices.flags.push(0);
            choices.score.push(0.0);
        }
        "many-branches" => {
            choices.parent = vec![0; 5000];
            choices.token = vec![choices.token[0]; 5000];
            choices.flags = vec![0; 5000];
            choices.score = vec![0.0; 5000];
        }
        "huge" => choices.token = vec![0; 24 << 20],
        "finish" => choices.flags.fill(1),
        _ => {}
    }
}

impl Guest for Hostile {
    fn step(sampler: SamplerBorrow<'_>, rows: Rows, candidates: Candidates) -> Choices {
        let sampler = sampler.get::<Hold>();
        let how = how(sampler);
        misbehave(how);
        let n = candidates.n as usize;
        let mut choices = continued(&rows, |row| match how {
            "token-out-of-range" => u32::MAX,
            "not-a-candidate" => sampler.vocab - 1,
            _ => candidates.tokens[row * n],
        });
        if let Some(milliseconds) = how.strip_prefix("burn-") {
            burn(milliseconds.parse().unwrap_or(0));
        }
        if how == "chatty" {
            log(Level::Info, &format!("chose {:?}", choices.token));
        }
        distort(how, &mut choices);
        choices
    }

    fn step_logits(sampler: SamplerBorrow<'_>, rows: Rows, mut logits: Vec<f32>) -> Verdict {
        let sampler = sampler.get::<Hold>();
        let how = how(sampler);
        misbehave(how);
        match how {
            "nan" => logits[1] = f32::NAN,
            "nothing-left" => logits.fill(f32::NEG_INFINITY),
            "short" => logits.truncate(3),
            "choices" => {
                return Verdict::Choices(continued(&rows, |_| 5));
            }
            "choices-out-of-range" => {
                return Verdict::Choices(continued(&rows, |_| sampler.vocab));
            }
            _ => logits.iter_mut().for_each(|logit| *logit = -*logit),
        }
        Verdict::Logits(logits)
    }

    fn select(sampler: SamplerBorrow<'_>, finished: Finished) -> Vec<u32> {
        let how = how(sampler.get::<Hold>());
        let how = how.strip_prefix("select-").unwrap_or_default();
        misbehave(how);
        let n = finished.branches.len() as u32;
        match how {
            "out-of-range" => vec![n],
            "twice" => vec![0, 0],
            "none" => vec![],
            "many" => (0..n).collect(),
            _ => vec![n - 1],
        }
    }
}
