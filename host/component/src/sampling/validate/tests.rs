#![allow(clippy::unwrap_used)]
use super::*;

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
    ];
    let planned = plan("m", 10, wit_plan(stages)).unwrap();
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
    ];
    assert_eq!(planned.plan.stages, expected);
    assert_eq!((planned.plan.draw, planned.seed), (Draw::Greedy, None));
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
