//! Plans that hold each stage alone, and many of them in changing orders.

use guesthouse_engine::{Draw as DrawKind, Dry, SamplingPlan, Stage, Watermark};

/// Every stage, with numbers that change something for most rows.
pub(super) fn alone(vocab: usize) -> Vec<Stage> {
    let few: Vec<u32> = (0..vocab as u32).step_by(3).take(200).collect();
    vec![
        Stage::AllowedTokens((0..vocab as u32).step_by(2).take(1000).collect()),
        Stage::BannedTokens(few.clone()),
        Stage::BadWords(vec![vec![1, 2, 0], vec![2, 1]]),
        Stage::LogitBias(few.iter().map(|&t| (t, (t % 7) as f32 - 3.0)).collect()),
        Stage::MinTokens {
            count: 100,
            banned: vec![2],
        },
        Stage::Penalties {
            repetition: 1.3,
            presence: 0.5,
            frequency: 0.25,
        },
        Stage::Temperature(0.8),
        Stage::TopK(50),
        Stage::TopP(0.9),
        Stage::MinP(0.05),
        Stage::TypicalP(0.6),
        Stage::NoRepeatNgram(2),
        Stage::Dry(Dry {
            multiplier: 0.8,
            base: 1.75,
            allowed_length: 1,
            range: 0,
            breakers: vec![3],
        }),
        Stage::DynamicTemperature {
            min: 0.5,
            max: 1.5,
            exponent: 1.2,
        },
        Stage::TopNSigma(1.5),
        Stage::EpsilonCutoff(6e-4),
        Stage::EtaCutoff(2e-3),
        Stage::TailFree(0.95),
        Stage::Xtc {
            probability: 1.0,
            threshold: 0.01,
        },
        Stage::Mirostat1 { tau: 5.0, eta: 0.1 },
        Stage::Mirostat2 { tau: 4.0, eta: 0.2 },
        Stage::Watermark(Watermark {
            key: 0x1234_5678_9abc_def0,
            gamma: 0.25,
            delta: 2.0,
            context: 3,
        }),
    ]
}

/// By name: each new stage alone, greedy and drawn; and many together.
pub(super) fn plans(vocab: usize) -> Vec<(&'static str, Vec<SamplingPlan>)> {
    let all = alone(vocab);
    let plan = |stages: Vec<Stage>, draw| SamplingPlan { stages, draw };
    let single = |kind: fn(&Stage) -> bool| -> Vec<SamplingPlan> {
        let stage = all.iter().filter(|s| kind(s)).cloned();
        let stage: Vec<Stage> = stage.collect();
        let hot = [vec![Stage::Temperature(1.7)], stage.clone()].concat();
        vec![
            plan(stage.clone(), DrawKind::Sample),
            plan(stage, DrawKind::Greedy),
            plan(hot, DrawKind::Sample),
        ]
    };
    let mut named = vec![
        ("n-grams", single(|s| matches!(s, Stage::NoRepeatNgram(_)))),
        ("dry", single(|s| matches!(s, Stage::Dry(_)))),
        (
            "dynamic temperature",
            single(|s| matches!(s, Stage::DynamicTemperature { .. })),
        ),
        ("top-n-sigma", single(|s| matches!(s, Stage::TopNSigma(_)))),
        ("epsilon", single(|s| matches!(s, Stage::EpsilonCutoff(_)))),
        ("eta", single(|s| matches!(s, Stage::EtaCutoff(_)))),
        ("tail-free", single(|s| matches!(s, Stage::TailFree(_)))),
        ("xtc", single(|s| matches!(s, Stage::Xtc { .. }))),
        (
            "mirostat 1",
            single(|s| matches!(s, Stage::Mirostat1 { .. })),
        ),
        (
            "mirostat 2",
            single(|s| matches!(s, Stage::Mirostat2 { .. })),
        ),
        ("watermark", single(|s| matches!(s, Stage::Watermark(_)))),
    ];
    let of = |order: &[usize], draw| {
        let stages = order.iter().map(|&i| all[i].clone()).collect();
        plan(stages, draw)
    };
    // Indices into `alone`. Mirostat before stages that change values: what entered it is found again.
    named.push((
        "mixed",
        vec![
            of(&[5, 12, 13, 14, 7, 20], DrawKind::Sample),
            of(&[20, 21, 6, 8], DrawKind::Sample),
            of(&[6, 3, 19, 5, 13], DrawKind::Sample),
            of(&[13, 6, 20, 3, 6], DrawKind::Greedy),
            of(&[17, 18, 10, 16], DrawKind::Sample),
            of(&[9, 15, 17, 6, 8, 18], DrawKind::Sample),
            of(&[21, 14, 19, 18, 13, 0], DrawKind::Sample),
            of(&[11, 1, 2, 17, 20, 10, 9], DrawKind::Sample),
        ],
    ));
    named
}
