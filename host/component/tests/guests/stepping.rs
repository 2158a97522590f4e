//! Guests that choose tokens themselves, called directly.

use std::sync::LazyLock;

use guesthouse_component::{ComponentError, ModelFacts, SamplerModule, Stepping, Verdict};
use guesthouse_engine::{
    Asked, Branching, Choice, Content, Draw, Finished, Hidden, Next, RandomKey, Rows,
};

use crate::common::{context, load, says};

pub(crate) static MODULE: LazyLock<SamplerModule> =
    LazyLock::new(|| load("hostile_sampler").sampler().unwrap());

pub(crate) const VOCAB: u32 = 100;

pub(crate) fn facts() -> ModelFacts {
    ModelFacts {
        vocab_size: VOCAB,
        stop_tokens: vec![2],
        max_len: 64,
        prompt_len: 4,
        max_tokens: 16,
        choices: 2,
    }
}

pub(crate) fn begin(request: &str) -> Stepping {
    let (_, stepping) = MODULE.begin(request, &facts(), context()).unwrap();
    stepping.unwrap()
}

fn rows_of(count: u32, content: Content) -> Rows {
    let key = RandomKey {
        seed: 7,
        lineage: 0,
    };
    Rows {
        branches: (10..10 + count).collect(),
        choices: (0..count).collect(),
        last: vec![1; count as usize],
        lengths: vec![3; count as usize],
        uniform: vec![0.5; count as usize],
        random: vec![(key, 8); count as usize],
        content,
        hidden: Vec::new(),
    }
}

/// Row i has the candidates 4 i + 10 and so on, of which the last only fills up.
pub(crate) fn candidates(count: u32) -> Rows {
    let n = 4 * count as usize;
    let mut logits: Vec<f32> = (0..n).map(|i| -(i as f32)).collect();
    logits
        .iter_mut()
        .skip(3)
        .step_by(4)
        .for_each(|logit| *logit = f32::NEG_INFINITY);
    rows_of(
        count,
        Content::Candidates {
            n: 4,
            tokens: (10..10 + 4 * count).collect(),
            logits,
            log_sum_exp: vec![1.0; count as usize],
            entropy: vec![0.5; count as usize],
        },
    )
}

pub(crate) fn whole(count: u32) -> Rows {
    let logits = (0..count * VOCAB).map(|i| (i % VOCAB) as f32);
    rows_of(count, Content::Logits(logits.collect()))
}

pub(crate) fn first_of_each(count: u32) -> Vec<Choice> {
    (0..count)
        .map(|row| Choice {
            row,
            token: 10 + 4 * row,
            next: Next::Continue,
            score: 0.0,
        })
        .collect()
}

fn finished(count: u32) -> Finished {
    Finished {
        branches: (0..count).collect(),
        scores: vec![-1.0; count as usize],
        lengths: vec![4; count as usize],
        wanted: 2,
    }
}

/// The error of the first step; the session is over after it, and others are served.
#[track_caller]
fn fails(request: &str, label: &str, parts: &[&str]) {
    let mut stepping = begin(request);
    let rows = if request.starts_with("logits") {
        whole(2)
    } else {
        candidates(2)
    };
    says(&stepping.step(rows).unwrap_err(), label, parts);
    let after = stepping.step(candidates(2)).unwrap_err();
    assert_eq!(after.label(), "ended");
    honest();
}

#[track_caller]
fn honest() {
    let answer = begin("step:").step(candidates(3)).unwrap();
    let Verdict::Choices(choices) = answer else {
        panic!("{answer:?}")
    };
    assert_eq!(choices.branches, first_of_each(3));
}

#[test]
fn a_plan_that_steps_keeps_its_guest() {
    let (planned, stepping) = MODULE.begin("search:", &facts(), context()).unwrap();
    let asked = Asked {
        candidates: 4,
        branching: Branching::Search,
        hidden: Hidden::Kept,
    };
    assert_eq!(planned.plan.draw, Draw::Candidates(asked));
    assert_eq!(stepping.unwrap().module(), "hostile_sampler");
    let (planned, stepping) = MODULE.begin("honest", &facts(), context()).unwrap();
    assert_eq!(planned.plan.draw, Draw::Sample);
    assert!(stepping.is_none());
    honest();
}

#[test]
fn answers_that_make_no_sense_are_named() {
    let invalid = "invalid_answer";
    let step = "stepping.step gave an invalid answer: ";
    for (how, says) in [
        (
            "token-out-of-range",
            "token 4294967295 for row 0, which is not among its candidates",
        ),
        (
            "not-a-candidate",
            "token 99 for row 0, which is not among its candidates",
        ),
        ("no-such-row", "row 2 of 2 rows"),
        ("nan-score", "score NaN for token 14 of row 1"),
        ("flag", "flag 7 for row 1"),
        ("unequal", "2 parents, 3 tokens, 2 flags and 2 scores"),
        (
            "fork",
            "2 branches for row 0, expected at most 1 outside a search",
        ),
        ("many-branches", "5000 branches, expected at most 4096"),
    ] {
        fails(&format!("step:{how}"), invalid, &[step, says]);
    }
    let step = "stepping.step-logits gave an invalid answer: ";
    for (how, says) in [
        ("nan", "logit NaN for token 1 of row 0"),
        ("nothing-left", "row 0 has no token above -inf"),
        ("short", "3 logits, expected 200: 2 rows of 100"),
        (
            "choices-out-of-range",
            "token 100 for row 0, expected ids below 100",
        ),
    ] {
        fails(&format!("logits:{how}"), invalid, &[step, says]);
    }
}

#[test]
fn a_search_may_fork() {
    let answer = begin("search:fork").step(candidates(2)).unwrap();
    let Verdict::Choices(choices) = answer else {
        panic!("{answer:?}")
    };
    let rows: Vec<u32> = choices.branches.iter().map(|branch| branch.row).collect();
    assert_eq!(rows, [0, 1, 0]);
}

#[test]
fn whole_rows_come_back_changed_or_chosen_from() {
    let answer = begin("logits:").step(whole(2)).unwrap();
    let Verdict::Logits(logits) = answer else {
        panic!("{answer:?}")
    };
    let expected: Vec<f32> = (0..200).map(|i| -((i % 100) as f32)).collect();
    assert_eq!(logits, expected);
    let answer = begin("logits:choices").step(whole(1)).unwrap();
    let Verdict::Choices(choices) = answer else {
        panic!("{answer:?}")
    };
    assert_eq!(choices.branches[0].token, 5);
}

#[test]
fn steps_are_bounded() {
    fails("step:loop", "timeout", &["stepping.step", "budget 50 ms"]);
    fails(
        "step:host-call-loop",
        "timeout",
        &["stepping.step", "budget 50 ms"],
    );
    fails(
        "step:panic",
        "trap",
        &["stepping.step failed: ", "out of ideas"],
    );
    fails("step:divide", "trap", &["stepping.step", "divide by zero"]);
    fails(
        "logits:panic",
        "trap",
        &["stepping.step-logits failed: ", "out of ideas"],
    );
    // Whichever ends first: memory, or the time that clearing it takes.
    for (request, labels) in [
        ("step:allocate", ["limit_memory", "timeout"]),
        ("step:recurse", ["limit_stack", "trap"]),
        ("step:huge", ["limit_transfer", "timeout"]),
    ] {
        let error = begin(request).step(candidates(1)).unwrap_err();
        assert!(labels.contains(&error.label()), "{error}");
        says(&error, error.label(), &["stepping.step"]);
    }
    honest();
}

#[test]
fn log_floods_are_dropped_and_harmless() {
    let mut stepping = begin("step:flood-log");
    match stepping.step(candidates(1)) {
        Ok(_) => {}
        Err(error) => says(&error, "timeout", &["stepping.step"]),
    }
    honest();
}

#[test]
fn selections_are_checked() {
    let select = |how: &str| -> Result<Vec<u32>, ComponentError> {
        begin(&format!("search:select-{how}")).select(finished(3))
    };
    assert_eq!(select("best").unwrap(), [2]);
    for (how, reason) in [
        ("out-of-range", "index 3 of 3 finished branches"),
        ("twice", "index 0 twice"),
        ("none", "none of 3 finished branches"),
        ("many", "3 branches, expected at most 2"),
    ] {
        let start = "stepping.select gave an invalid answer: ";
        says(
            &select(how).unwrap_err(),
            "invalid_answer",
            &[start, reason],
        );
    }
    says(
        &select("loop").unwrap_err(),
        "timeout",
        &["stepping.select"],
    );
    says(
        &select("panic").unwrap_err(),
        "trap",
        &["stepping.select", "out of ideas"],
    );
}

#[test]
fn a_session_frees_its_place_and_memory() {
    for _ in 0..40 {
        let mut open: Vec<_> = (0..16).map(|_| begin("step:")).collect();
        for stepping in &mut open {
            stepping.step(candidates(1)).unwrap();
        }
    }
}
