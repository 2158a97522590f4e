use std::sync::LazyLock;

use guesthouse_component::{
    ComponentError, GuestErrorKind, ModelFacts, PlannedSampling, SamplerModule,
};
use guesthouse_engine::{Draw, Stage};

use crate::common::{context, load, says};

static MODULE: LazyLock<SamplerModule> =
    LazyLock::new(|| load("hostile_sampler").sampler().unwrap());

fn plan(request: &str) -> Result<PlannedSampling, ComponentError> {
    let facts = ModelFacts {
        vocab_size: 100,
        stop_tokens: vec![2],
        max_len: 64,
        prompt_len: 4,
        max_tokens: 16,
        choices: 1,
    };
    MODULE.plan(request, &facts, context())
}

/// The plan that the guest makes when it is not told otherwise.
#[track_caller]
fn honest() {
    let planned = plan("honest").unwrap();
    assert_eq!(
        planned.plan.stages,
        [Stage::Temperature(0.5), Stage::TopK(3)]
    );
    assert_eq!((planned.plan.draw, planned.seed), (Draw::Sample, Some(7)));
}

/// A misdeed costs its own call: the error is the expected one, and the next call is served.
#[track_caller]
fn fails(request: &str, label: &str, parts: &[&str]) {
    says(&plan(request).unwrap_err(), label, parts);
    honest();
}

#[test]
fn an_honest_plan_passes() {
    honest();
}

#[test]
fn endless_loops_run_out_of_time() {
    fails("loop", "timeout", &["sampler.plan", "budget 20 ms"]);
    fails(
        "host-call-loop",
        "timeout",
        &["sampler.plan", "budget 20 ms"],
    );
}

#[test]
fn memory_is_bounded() {
    fails(
        "allocate",
        "limit_memory",
        &["sampler.plan", "bytes of memory", "16777216"],
    );
}

#[test]
fn recursion_is_bounded() {
    let error = plan("recurse").unwrap_err();
    // Whichever ends first: wasm frames, or the guest's own stack below its data.
    assert!(matches!(error.label(), "limit_stack" | "trap"), "{error}");
    says(&error, error.label(), &["sampler.plan"]);
    honest();
}

#[test]
fn panics_are_told_with_their_message() {
    fails(
        "panic",
        "trap",
        &["sampler.plan", "out of ideas\\u{1b}[2J", "misbehave.rs"],
    );
    fails("divide", "trap", &["sampler.plan", "divide by zero"]);
}

#[test]
fn log_floods_are_dropped_and_harmless() {
    for request in ["flood-log", "huge-log"] {
        match plan(request) {
            Ok(_) => {}
            Err(error) => says(&error, "timeout", &["sampler.plan"]),
        }
    }
    honest();
}

#[test]
fn handles_are_bounded() {
    fails(
        "leak-handles",
        "limit_handles",
        &["sampler.create", "100 resource handles"],
    );
}

#[test]
fn answers_are_bounded() {
    fails(
        "huge-list",
        "limit_transfer",
        &["sampler.plan", "4194304 bytes"],
    );
    fails(
        "many-stages",
        "invalid_answer",
        &["10000 stages", "at most 64"],
    );
}

#[test]
fn nonsense_is_refused() {
    fails(
        "token-out-of-range",
        "invalid_answer",
        &["token 100 in banned-tokens", "ids below 100"],
    );
    fails(
        "bias-out-of-range",
        "invalid_answer",
        &["token 4294967295 in logit-bias"],
    );
    fails("nan-temperature", "invalid_answer", &["temperature is NaN"]);
    fails(
        "zero-temperature",
        "invalid_answer",
        &["temperature is 0", "above 0"],
    );
    fails("infinite-bias", "invalid_answer", &["logit-bias is inf"]);
    fails("negative-top-p", "invalid_answer", &["top-p is -0.5"]);
    fails(
        "nan-penalty",
        "invalid_answer",
        &["presence penalty is NaN"],
    );
    fails(
        "empty-bad-word",
        "invalid_answer",
        &["bad word of 0 tokens"],
    );
    fails(
        "no-candidates",
        "invalid_answer",
        &["draw step asks for 0 candidates, expected 1 to 1024"],
    );
    fails("nothing-left", "invalid_answer", &["leave no token"]);
    fails("nothing-allowed", "invalid_answer", &["leave no token"]);
}

#[test]
fn what_the_host_lacks_is_named() {
    for (request, what) in [
        ("custom-stage", "custom stage \"xtc\""),
        ("setting", "plan setting \"mirostat\""),
    ] {
        fails(
            request,
            "unsupported",
            &["sampler.plan", what, "does not support yet"],
        );
    }
}

#[test]
fn a_grammar_is_taken_out_of_the_stages() {
    let planned = plan("grammar").unwrap();
    assert_eq!(planned.plan.stages, []);
    let grammar = planned.grammar.unwrap();
    assert_eq!(grammar.syntax, "ebnf");
    assert_eq!(grammar.source, "root ::= \"a\"");
}

#[test]
fn an_error_is_an_answer() {
    let error = plan("error").unwrap_err();
    assert_eq!(error.guest_kind(), Some(GuestErrorKind::InvalidRequest));
    says(
        &error,
        "guest_invalid_request",
        &["sampler.create", "temperature must not be hot"],
    );
    honest();
}

#[test]
fn many_at_once_share_the_places() {
    std::thread::scope(|scope| {
        for i in 0..32 {
            scope.spawn(move || {
                for _ in 0..8 {
                    if i % 4 == 0 {
                        assert_eq!(plan("panic").unwrap_err().label(), "trap");
                    } else {
                        honest();
                    }
                }
            });
        }
    });
}
