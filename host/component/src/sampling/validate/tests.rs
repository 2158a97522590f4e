#![allow(clippy::unwrap_used)]
use super::*;
use guesthouse_engine::{Dry, Watermark};

fn plan(
    module: &str,
    vocab: u32,
    plan: wit::SamplingPlan,
) -> Result<PlannedSampling, ComponentError> {
    let facts = Facts {
        module,
        vocab,
        stepping: Stepping::Exported,
    };
    super::plan(&facts, plan)
}

fn wit_plan(stages: Vec<wit::Stage>) -> wit::SamplingPlan {
    wit::SamplingPlan {
        stages,
        draw: wit::Draw::Greedy,
        seed: None,
        ext: Vec::new(),
    }
}

#[test]
fn every_stage_arrives_as_it_was_planned() {
    let stages = vec![
        wit::Stage::AllowedTokens(vec![1, 2, 3]),
        wit::Stage::BannedTokens(vec![1]),
        wit::Stage::BadWords(vec![vec![4, 5], vec![9]]),
        wit::Stage::LogitBias(vec![wit::TokenBias {
            token: 3,
            bias: -1.5,
        }]),
        wit::Stage::MinTokens(wit::MinTokens {
            count: 4,
            banned: vec![2],
        }),
        wit::Stage::Penalties(wit::Penalties {
            repetition: 1.1,
            presence: -0.2,
            frequency: 0.3,
        }),
        wit::Stage::Temperature(0.7),
        wit::Stage::TopK(40),
        wit::Stage::TopP(1.0),
        wit::Stage::MinP(0.0),
        wit::Stage::TypicalP(0.5),
        wit::Stage::NoRepeatNgram(3),
        wit::Stage::Dry(wit::Dry {
            multiplier: 0.8,
            base: 1.75,
            allowed_length: 2,
            range: 0,
            breakers: vec![7],
        }),
        wit::Stage::DynamicTemperature(wit::DynamicTemperature {
            min: 0.5,
            max: 1.5,
            exponent: 2.0,
        }),
        wit::Stage::TopNSigma(1.0),
        wit::Stage::EpsilonCutoff(0.0),
        wit::Stage::EtaCutoff(0.002),
        wit::Stage::TailFree(0.95),
        wit::Stage::Xtc(wit::Xtc {
            probability: 0.5,
            threshold: 0.1,
        }),
        wit::Stage::Mirostat2(wit::Mirostat { tau: 5.0, eta: 0.1 }),
        wit::Stage::Watermark(wit::Watermark {
            key: u64::MAX,
            gamma: 0.25,
            delta: 2.0,
            context: 1,
        }),
        wit::Stage::Grammar(wit::Grammar {
            syntax: "lark".into(),
            source: "start: \"a\"".into(),
        }),
    ];
    let mut given = wit_plan(stages);
    given.draw = wit::Draw::Sample;
    let planned = plan("m", 10, given).unwrap();
    let expected = [
        Stage::AllowedTokens(vec![1, 2, 3]),
        Stage::BannedTokens(vec![1]),
        Stage::BadWords(vec![vec![4, 5], vec![9]]),
        Stage::LogitBias(vec![(3, -1.5)]),
        Stage::MinTokens {
            count: 4,
            banned: vec![2],
        },
        Stage::Penalties {
            repetition: 1.1,
            presence: -0.2,
            frequency: 0.3,
        },
        Stage::Temperature(0.7),
        Stage::TopK(40),
        Stage::TopP(1.0),
        Stage::MinP(0.0),
        Stage::TypicalP(0.5),
        Stage::NoRepeatNgram(3),
        Stage::Dry(Dry {
            multiplier: 0.8,
            base: 1.75,
            allowed_length: 2,
            range: 0,
            breakers: vec![7],
        }),
        Stage::DynamicTemperature {
            min: 0.5,
            max: 1.5,
            exponent: 2.0,
        },
        Stage::TopNSigma(1.0),
        Stage::EpsilonCutoff(0.0),
        Stage::EtaCutoff(0.002),
        Stage::TailFree(0.95),
        Stage::Xtc {
            probability: 0.5,
            threshold: 0.1,
        },
        Stage::Mirostat2 { tau: 5.0, eta: 0.1 },
        Stage::Watermark(Watermark {
            key: u64::MAX,
            gamma: 0.25,
            delta: 2.0,
            context: 1,
        }),
    ];
    assert_eq!(planned.plan.stages, expected);
    assert_eq!((planned.plan.draw, planned.seed), (Draw::Sample, None));
    let grammar = planned.grammar.unwrap();
    assert_eq!(
        (&*grammar.syntax, &*grammar.source),
        ("lark", "start: \"a\"")
    );
}

#[test]
fn limits_stand_where_they_say() {
    let label = |stages| {
        plan("m", 10, wit_plan(stages))
            .map(|_| "fine")
            .unwrap_or_else(|error| error.label())
    };
    assert_eq!(label(vec![wit::Stage::TopK(1); STAGES]), "fine");
    assert_eq!(
        label(vec![wit::Stage::TopK(1); STAGES + 1]),
        "invalid_answer"
    );
    assert_eq!(
        label(vec![wit::Stage::BadWords(vec![vec![1, 2]; BAD_WORDS])]),
        "fine"
    );
    assert_eq!(
        label(vec![wit::Stage::BadWords(vec![vec![1, 2]; BAD_WORDS + 1])]),
        "invalid_answer"
    );
    assert_eq!(
        label(vec![wit::Stage::BannedTokens(vec![1; TOKENS])]),
        "fine"
    );
    assert_eq!(
        label(vec![wit::Stage::BannedTokens(vec![1; TOKENS + 1])]),
        "invalid_answer"
    );
    assert_eq!(label(vec![wit::Stage::TopK(0)]), "invalid_answer");
    for p in [1.0001, f32::NAN, f32::INFINITY, -1.0] {
        assert_eq!(label(vec![wit::Stage::TopP(p)]), "invalid_answer", "{p}");
        assert_eq!(
            label(vec![wit::Stage::TypicalP(p)]),
            "invalid_answer",
            "{p}"
        );
    }
    assert_eq!(
        label(vec![wit::Stage::TopP(0.0)]),
        "fine",
        "the best token alone"
    );
    assert_eq!(label(vec![wit::Stage::TypicalP(0.0)]), "invalid_answer");
    assert_eq!(
        label(vec![wit::Stage::BannedTokens((0..9).collect())]),
        "fine"
    );
    assert_eq!(
        label(vec![wit::Stage::BannedTokens((0..10).collect())]),
        "invalid_answer"
    );
}

/// The refusal of a plan with these stages and this draw.
#[track_caller]
fn refusal(draw: wit::Draw, stages: Vec<wit::Stage>) -> String {
    let mut given = wit_plan(stages);
    given.draw = draw;
    let error = plan("m", 10, given).unwrap_err();
    assert_eq!(error.label(), "invalid_answer");
    let text = error.to_string();
    let start = "module m: sampler.plan gave an invalid answer: ";
    text.strip_prefix(start).unwrap().to_owned()
}

#[test]
fn each_range_ends_where_the_stage_says() {
    use wit::Stage as S;
    let dry = |multiplier, base, allowed_length, breaker| {
        S::Dry(wit::Dry {
            multiplier,
            base,
            allowed_length,
            range: 0,
            breakers: vec![breaker],
        })
    };
    let dynamic =
        |min, max, exponent| S::DynamicTemperature(wit::DynamicTemperature { min, max, exponent });
    let xtc = |probability, threshold| {
        S::Xtc(wit::Xtc {
            probability,
            threshold,
        })
    };
    let mirostat = |tau, eta| wit::Mirostat { tau, eta };
    let mark = |gamma, delta, context| {
        S::Watermark(wit::Watermark {
            key: 1,
            gamma,
            delta,
            context,
        })
    };
    for (stage, says) in [
        (
            S::NoRepeatNgram(0),
            "no-repeat-ngram is 0, expected at least 1",
        ),
        (
            dry(-1.0, 2.0, 2, 0),
            "dry multiplier is -1, expected a finite number of at least 0",
        ),
        (
            dry(1.0, 0.5, 2, 0),
            "dry base is 0.5, expected a finite number of at least 1",
        ),
        (
            dry(1.0, 2.0, 0, 0),
            "dry allowed-length is 0, expected at least 1",
        ),
        (
            dry(1.0, 2.0, 2, 10),
            "token 10 in dry breakers, expected ids below 10",
        ),
        (
            dynamic(0.0, 1.0, 1.0),
            "dynamic-temperature min is 0, expected a finite number above 0",
        ),
        (
            dynamic(1.0, 0.5, 1.0),
            "dynamic-temperature max is 0.5, expected a finite number of at least min, 1",
        ),
        (
            dynamic(1.0, f32::INFINITY, 1.0),
            "dynamic-temperature max is inf, expected a finite number of at least min, 1",
        ),
        (
            dynamic(1.0, 1.0, 0.0),
            "dynamic-temperature exponent is 0, expected a finite number above 0",
        ),
        (
            S::TopNSigma(f32::NAN),
            "top-n-sigma is NaN, expected a finite number of at least 0",
        ),
        (
            S::EpsilonCutoff(1.0),
            "epsilon-cutoff is 1, expected at least 0, below 1",
        ),
        (
            S::EtaCutoff(-0.1),
            "eta-cutoff is -0.1, expected at least 0, below 1",
        ),
        (S::TailFree(1.5), "tail-free is 1.5, expected from 0 to 1"),
        (
            xtc(1.5, 0.1),
            "xtc probability is 1.5, expected from 0 to 1",
        ),
        (xtc(0.5, -1.0), "xtc threshold is -1, expected from 0 to 1"),
        (
            S::Mirostat1(mirostat(0.0, 0.1)),
            "mirostat1 tau is 0, expected a finite number above 0",
        ),
        (
            S::Mirostat2(mirostat(5.0, -0.1)),
            "mirostat2 eta is -0.1, expected a finite number of at least 0",
        ),
        (
            mark(0.0, 1.0, 1),
            "watermark gamma is 0, expected above 0, below 1",
        ),
        (
            mark(1.0, 1.0, 1),
            "watermark gamma is 1, expected above 0, below 1",
        ),
        (
            mark(0.5, f32::NAN, 1),
            "watermark delta is NaN, expected a finite number",
        ),
        (mark(0.5, 1.0, 0), "watermark context is 0, expected 1 to 8"),
        (mark(0.5, 1.0, 9), "watermark context is 9, expected 1 to 8"),
    ] {
        assert_eq!(refusal(wit::Draw::Sample, vec![stage]), says);
    }
}

#[test]
fn plans_that_contradict_themselves_are_refused() {
    let mirostat = wit::Mirostat { tau: 5.0, eta: 0.1 };
    let (one, two) = (
        wit::Stage::Mirostat1(mirostat),
        wit::Stage::Mirostat2(mirostat),
    );
    let both = vec![one.clone(), two.clone()];
    assert_eq!(
        refusal(wit::Draw::Sample, both),
        "2 mirostat stages, expected at most 1"
    );
    assert_eq!(
        refusal(wit::Draw::Greedy, vec![one]),
        "a mirostat stage with draw greedy, expected draw sample"
    );
    let asked = wit::Asked {
        candidates: 4,
        search: false,
        hidden: false,
    };
    assert_eq!(
        refusal(wit::Draw::Step(asked), vec![two]),
        "a mirostat stage with draw step, expected draw sample"
    );
    let grammar = wit::Stage::Grammar(wit::Grammar {
        syntax: "lark".into(),
        source: String::new(),
    });
    assert_eq!(
        refusal(wit::Draw::Sample, vec![grammar.clone(), grammar]),
        "2 grammar stages, expected at most 1"
    );
}

#[test]
fn draws_that_ask_a_guest_say_what_they_want() {
    let asked = |candidates, search, hidden| wit::Asked {
        candidates,
        search,
        hidden,
    };
    let draw = |draw| {
        let mut given = wit_plan(vec![]);
        given.draw = draw;
        plan("m", 10, given).unwrap().plan.draw
    };
    assert_eq!(
        draw(wit::Draw::Step(asked(1024, true, false))),
        Draw::Candidates(Asked {
            candidates: 1024,
            branching: Branching::Search,
            hidden: Hidden::Kept,
        })
    );
    assert_eq!(
        draw(wit::Draw::Logits(asked(0, false, true))),
        Draw::Row(Asked {
            candidates: 1,
            branching: Branching::Choices,
            hidden: Hidden::Shown,
        })
    );
    for n in [0, 1025] {
        assert_eq!(
            refusal(wit::Draw::Step(asked(n, false, false)), vec![]),
            format!("draw step asks for {n} candidates, expected 1 to 1024")
        );
    }
    let facts = Facts {
        module: "m",
        vocab: 10,
        stepping: Stepping::Missing,
    };
    let mut given = wit_plan(vec![]);
    given.draw = wit::Draw::Step(asked(1, false, false));
    assert_eq!(
        super::plan(&facts, given).unwrap_err().to_string(),
        "module m: sampler.plan gave an invalid answer: draw step, but the module does not export guesthouse:sampling/stepping"
    );
}
