//! What the host does for one row and step of sampling on CUDA: encoding the draw, and the history's next token. No GPU is
//! needed. `sampling_costs [ROWS]`.

use guesthouse_device::cuda::bench::{Rows, time_rows};
use guesthouse_engine::{Draw, Dry, SamplingPlan, Stage, Watermark};

const VOCAB: u32 = 128_256;

/// Tokens of each row's history before the first step.
const LENGTH: u32 = 1000;

fn plans() -> Vec<(&'static str, Vec<Stage>)> {
    let penalties = Stage::Penalties {
        repetition: 1.1,
        presence: 0.2,
        frequency: 0.1,
    };
    let dry = Dry {
        multiplier: 0.8,
        base: 1.75,
        allowed_length: 2,
        range: 0,
        breakers: vec![198, 25, 1, 9],
    };
    vec![
        ("none", vec![]),
        ("temperature", vec![Stage::Temperature(0.8)]),
        (
            "temperature, top-k, top-p",
            vec![Stage::Temperature(0.8), Stage::TopK(50), Stage::TopP(0.95)],
        ),
        (
            "min tokens, temperature, min-p",
            vec![
                Stage::MinTokens {
                    count: 10,
                    banned: vec![128_001, 128_009],
                },
                Stage::Temperature(0.8),
                Stage::MinP(0.05),
            ],
        ),
        (
            "xtc, mirostat 2",
            vec![
                Stage::Xtc {
                    probability: 0.5,
                    threshold: 0.1,
                },
                Stage::Mirostat2 { tau: 5.0, eta: 0.1 },
            ],
        ),
        (
            "watermark",
            vec![Stage::Watermark(Watermark {
                key: 7,
                gamma: 0.25,
                delta: 2.0,
                context: 1,
            })],
        ),
        ("no-repeat-ngram 3", vec![Stage::NoRepeatNgram(3)]),
        ("dry", vec![Stage::Dry(dry)]),
        ("penalties, 1000 distinct tokens", vec![penalties]),
    ]
}

fn main() {
    let rows = std::env::args().nth(1).and_then(|n| n.parse().ok());
    let rows: usize = rows.unwrap_or(64);
    println!("{rows} rows, histories of {LENGTH} tokens; ns per row and step");
    for (name, stages) in plans() {
        let plan = SamplingPlan {
            stages,
            draw: Draw::Sample,
        };
        let tokens: Vec<u32> = (0..LENGTH).map(|i| i * 31 % VOCAB).collect();
        let seconds = time_rows(Rows {
            count: rows,
            vocab: VOCAB,
            plan: &plan,
            tokens: &tokens,
        });
        println!("{:>9.0}  {name}", seconds * 1e9);
    }
}
