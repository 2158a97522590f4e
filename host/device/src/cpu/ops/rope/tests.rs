#![allow(clippy::panic)]

use super::*;

fn rope(rotary: u32, theta: f32, scaling: RopeScaling) -> Rope {
    Rope {
        rotary,
        theta,
        style: RopeStyle::Neox,
        scaling,
        axis: 0,
        start: 0,
    }
}

fn fixed(rope: &Rope) -> Vec<f32> {
    match frequencies(rope, None).0 {
        Frequencies::Fixed(f) => f,
        other => panic!("{other:?}"),
    }
}

fn close(got: f32, want: f32) {
    assert!(
        (got - want).abs() <= 3e-7 * want.abs(),
        "{got} instead of {want}"
    );
}

/// Values of transformers 5.17, `ROPE_INIT_FUNCTIONS`, head_dim 64, at these indices.
const AT: [usize; 7] = [0, 1, 7, 15, 16, 20, 31];

fn expect(got: &[f32], want: [f32; 7]) {
    assert_eq!(got.len(), 32);
    for (at, want) in AT.into_iter().zip(want) {
        close(got[at], want);
    }
}

#[test]
fn frequencies_are_those_of_transformers() {
    let scaling = RopeScaling::Llama3 {
        factor: 8.0,
        low: 1.0,
        high: 4.0,
        original: 8192,
    };
    expect(
        &fixed(&rope(64, 500_000.0, scaling)),
        [
            1.0,
            6.636_013e-1,
            5.666_962e-2,
            1.371_893_7e-3,
            5.248_46e-4,
            3.428_102_4e-5,
            3.767_322_6e-7,
        ],
    );
    let yarn = |factor, original, truncate| RopeScaling::Yarn {
        factor,
        original,
        beta_fast: 32.0,
        beta_slow: 1.0,
        attention_factor: 1.25,
        truncate,
    };
    let rope_ = rope(64, 10_000.0, yarn(4.0, 2048, true));
    expect(
        &fixed(&rope_),
        [
            1.0,
            7.498_942e-1,
            1.333_521_5e-1,
            7.949_839e-3,
            5.384_615e-3,
            9.730_086e-4,
            3.333_803_8e-5,
        ],
    );
    assert_eq!(frequencies(&rope_, None).1, 1.25);
    expect(
        &fixed(&rope(64, 150_000.0, yarn(32.0, 4096, false))),
        [
            1.0,
            6.890_443e-1,
            7.374_456_5e-2,
            1.052_602_2e-3,
            4.564_839_2e-4,
            1.818_833_7e-5,
            3.023_511_4e-7,
        ],
    );
    expect(
        &plain(dynamic_theta(10_000.0, 2.0, 2048.0, 5000, 64), 64),
        [
            1.0,
            7.177_865e-1,
            9.816_732e-2,
            6.917_181e-3,
            4.965_059e-3,
            1.317_97e-3,
            3.434_421_5e-5,
        ],
    );
    expect(
        &fixed(&rope(64, 10_000.0, RopeScaling::Linear { factor: 4.0 })),
        [
            2.5e-1,
            1.874_735_5e-1,
            3.333_803_6e-2,
            3.333_803_7e-3,
            2.5e-3,
            7.905_694_7e-4,
            3.333_803_8e-5,
        ],
    );
    let long = RopeScaling::LongRope {
        short: (0..32).map(|i| 1.0 + 0.1 * i as f32).collect(),
        long: (0..32).map(|i| 2.0 + 0.5 * i as f32).collect(),
        original: 2048,
        attention_factor: 1.087,
    };
    match frequencies(&rope(64, 10_000.0, long), None).0 {
        Frequencies::Long {
            long,
            original: 2048,
            ..
        } => expect(
            &long,
            [
                5e-1,
                2.999_576_6e-1,
                2.424_584_5e-2,
                1.403_706_8e-3,
                1e-3,
                2.635_231_6e-4,
                7.620_122_7e-6,
            ],
        ),
        other => panic!("{other:?}"),
    }
}
