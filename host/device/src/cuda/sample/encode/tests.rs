#![allow(clippy::unwrap_used, clippy::panic)]

use guesthouse_engine::{Asked, Branching, Dry, LogprobsMode, RandomKey, SamplingPlan, Watermark};

use super::*;
use crate::history::{Counting, History};

fn encoded(stages: Vec<Stage>, history: &History, mask: Option<&[u32]>) -> Encoder {
    let plan = SamplingPlan {
        stages,
        draw: DrawKind::Sample,
    };
    let mut encoder = Encoder::default();
    encoder.begin(Widths {
        vocab: 70,
        hidden: 6,
    });
    for top in [0, 100] {
        encoder.draw(
            &Draw {
                logits: 3,
                plan: &plan,
                history,
                random: RandomKey {
                    seed: 0x1111_2222_3333_4444,
                    lineage: 9,
                },
                mu: None,
                mask,
                top,
                logprobs: LogprobsMode::Raw,
            },
            3,
        );
    }
    encoder
}

/// Op `i` of draw 0.
fn op(encoder: &Encoder, i: usize) -> [u32; 4] {
    let at = encoder.draws[0].ops as usize + 4 * i;
    encoder.pool[at..at + 4].try_into().unwrap()
}

fn list(encoder: &Encoder, op: [u32; 4], words: usize) -> &[u32] {
    &encoder.pool[op[1] as usize..op[1] as usize + words]
}

#[test]
fn a_draw_says_row_key_position_and_report() {
    let history = History::new(&[1, 2, 3, 4, 5], 2, Counting::Off);
    let e = encoded(vec![Stage::Temperature(0.5)], &history, None);
    let d = e.draws[0];
    assert_eq!((d.row, d.kind, d.mask, d.op_count), (3, 1, -1, 1));
    assert_eq!((d.seed_low, d.seed_high), (0x3333_4444, 0x1111_2222));
    assert_eq!((d.lineage, d.position), (9, 5));
    assert_eq!(op(&e, 0), [4, 0.5f32.to_bits(), 0, 0]);
    // Reports hold at most the vocabulary.
    assert_eq!((e.draws[1].top, e.draws[1].top_at, e.tops), (70, 0, 70));
    assert!(e.draws.iter().all(|d| d.ops.is_multiple_of(4)));
}

#[test]
fn masks_cover_the_vocabulary() {
    let e = encoded(vec![], &History::default(), Some(&[7, 8]));
    let at = e.draws[0].mask as usize;
    assert_eq!(&e.pool[at..at + 3], [7, 8, 0]);
}

#[test]
fn lists_are_as_the_kernel_wants_them() {
    let history = History::new(&[0, 1, 1, 3, 3], 2, Counting::On);
    let e = encoded(
        vec![
            Stage::AllowedTokens(vec![9, 3, 9, 1]),
            Stage::BadWords(vec![vec![3, 3, 0], vec![1, 2], vec![2]]),
            Stage::LogitBias(vec![(5, 1.0), (2, 2.0), (5, 3.0)]),
            Stage::MinTokens {
                count: 3,
                banned: vec![4],
            },
            Stage::Penalties {
                repetition: 2.0,
                presence: 0.25,
                frequency: 0.5,
            },
            Stage::MinP(0.5),
        ],
        &history,
        None,
    );
    let allow = op(&e, 0);
    assert_eq!((allow[0], allow[2]), (0, 3));
    assert_eq!(list(&e, allow, 3), [1, 3, 9]);
    let ban = op(&e, 1);
    assert_eq!((ban[0], ban[2]), (1, 2));
    assert_eq!(list(&e, ban, 2), [0, 2]);
    let bias = op(&e, 2);
    assert_eq!((bias[0], bias[2]), (2, 3));
    let f = f32::to_bits;
    assert_eq!(list(&e, bias, 6), [2, f(2.0), 5, f(1.0), 5, f(3.0)]);
    // Three outputs were made, so no ban holds.
    let penalties = op(&e, 3);
    assert_eq!((penalties[0], penalties[2]), (3, 3));
    let words = list(&e, penalties, 9);
    assert_eq!(words[..3], [f(2.0), f(0.25), f(0.5)]);
    let mut counts: Vec<[u32; 2]> = words[3..].chunks(2).map(|c| [c[0], c[1]]).collect();
    counts.sort_unstable();
    assert_eq!(counts, [[0, 0], [1, 1], [3, 2]]);
    let min_p = op(&e, 4);
    let bits = u64::from(min_p[1]) | u64::from(min_p[2]) << 32;
    assert!((f64::from_bits(bits) + std::f64::consts::LN_2).abs() < 1e-12);
    assert_eq!(e.draws[0].op_count, 5);
    assert_eq!(e.notes.stages.len(), 12);
}

#[test]
fn repetitions_become_bans_and_biases() {
    let history = History::new(&[1, 2, 3, 4, 1, 2, 3], 2, Counting::Off);
    let dry = Dry {
        multiplier: 0.5,
        base: 2.0,
        allowed_length: 2,
        range: 0,
        breakers: vec![],
    };
    let stages = vec![Stage::NoRepeatNgram(3), Stage::Dry(dry)];
    let e = encoded(stages, &history, None);
    let ban = op(&e, 0);
    assert_eq!((ban[0], list(&e, ban, ban[2] as usize)), (1, &[4][..]));
    // Three tokens repeat, one more than is free.
    let bias = op(&e, 1);
    let want = [4, (-1f32).to_bits()];
    assert_eq!((bias[0], bias[2], list(&e, bias, 2)), (2, 1, &want[..]));
}

#[test]
fn numbers_of_the_stages_that_cut() {
    let history = History::new(&[1, 2], 2, Counting::Off);
    let f = f32::to_bits;
    let half = 0.5f64.ln().to_bits();
    let [low, high] = [half as u32, (half >> 32) as u32];
    let watermark = Watermark {
        key: 7 << 32 | 5,
        gamma: 0.25,
        delta: 2.0,
        context: 1,
    };
    let always = Stage::Xtc {
        probability: 1.0,
        threshold: 0.5,
    };
    let never = Stage::Xtc {
        probability: 0.0,
        threshold: 0.5,
    };
    let e = encoded(
        vec![
            Stage::DynamicTemperature {
                min: 0.5,
                max: 2.0,
                exponent: 1.5,
            },
            Stage::TopNSigma(1.0),
            Stage::EpsilonCutoff(0.5),
            Stage::EtaCutoff(0.5),
            Stage::TailFree(0.9),
            never,
            always,
            Stage::Mirostat2 { tau: 3.0, eta: 0.1 },
            Stage::Watermark(watermark),
        ],
        &history,
        None,
    );
    assert_eq!(op(&e, 0), [9, f(0.5), f(2.0), f(1.5)]);
    assert_eq!(op(&e, 1), [10, f(1.0), 0, 0]);
    assert_eq!(op(&e, 2), [11, low, high, 0]);
    assert_eq!(op(&e, 3), [12, low, high, 0]);
    assert_eq!(op(&e, 4), [13, f(0.9), 0, 0]);
    // The one that does not apply is left out.
    assert_eq!(op(&e, 5), [14, low, high, 0]);
    let mirostat = op(&e, 6);
    let bits = u64::from(mirostat[1]) | u64::from(mirostat[2]) << 32;
    assert!((f64::from_bits(bits) + 6.0 * std::f64::consts::LN_2).abs() < 1e-12);
    let mark = op(&e, 7);
    let words = list(&e, mark, 7);
    assert_eq!((mark[0], &words[..2]), (17, &[5, 7][..]));
    assert_eq!(words[5..], [1 << 30, f(2.0)]);
    let note = e.notes.draws[0];
    assert_eq!(note.mirostat.map(|m| m.mu), Some(6.0));
    assert_eq!((note.refused, e.draws[0].op_count), (None, 8));
}

#[test]
fn what_cannot_be_applied_is_refused() {
    let history = History::default();
    let mirostat = Stage::Mirostat1 { tau: 3.0, eta: 0.1 };
    for stages in [
        vec![Stage::NoRepeatNgram(0), Stage::TopK(1)],
        vec![Stage::TopNSigma(f32::NAN), Stage::TopK(1)],
        vec![mirostat.clone(), mirostat, Stage::TopK(1)],
    ] {
        let ops = stages.len() - 2;
        let e = encoded(stages, &history, None);
        let refused = e.notes.draws[0].refused;
        assert_eq!((refused, e.draws[0].op_count as usize), (Some(0), ops));
        assert_eq!(e.notes.refusals.len(), 2);
    }
}

#[test]
fn what_guests_are_handed_has_room() {
    let history = History::new(&[1, 2, 3], 2, Counting::Off);
    let mut encoder = Encoder::default();
    encoder.begin(Widths {
        vocab: 70,
        hidden: 6,
    });
    let asked = |candidates, hidden| Asked {
        candidates,
        branching: Branching::Choices,
        hidden,
    };
    let mut add = |draw, stages: &[Stage]| {
        let plan = SamplingPlan {
            stages: stages.to_vec(),
            draw,
        };
        let draw = Draw {
            logits: 1,
            plan: &plan,
            history: &history,
            random: RandomKey {
                seed: 0,
                lineage: 0,
            },
            mu: None,
            mask: None,
            top: 0,
            logprobs: LogprobsMode::Processed,
        };
        encoder.draw(&draw, 5);
    };
    let heat = [Stage::Temperature(2.0)];
    add(DrawKind::Candidates(asked(8, Hidden::Shown)), &heat);
    add(DrawKind::Candidates(asked(5000, Hidden::Kept)), &[]);
    add(DrawKind::Row(asked(1, Hidden::Kept)), &heat);
    for _ in 0..64 {
        add(DrawKind::Row(asked(1, Hidden::Shown)), &[]);
    }
    let d = &encoder.draws;
    assert_eq!((d[0].kind, d[0].candidates, d[0].list_at), (3, 8, 0));
    assert_eq!((d[0].hidden_at, d[0].hidden_row, d[0].report), (0, 5, 1));
    assert_eq!((d[1].candidates, d[1].list_at, d[1].hidden_at), (70, 8, -1));
    // A hidden state of 6 takes 8 floats, a row of 70 takes 72.
    assert_eq!((d[2].kind, d[2].row_at, d[2].raw_at), (4, 8, 80));
    assert_eq!((d[3].hidden_at, d[3].row_at), (152, 160));
    assert_eq!(encoder.listed, 78);
    assert_eq!(encoder.floats, 8 + 2 * 72 + 63 * 80);
    let notes = &encoder.notes.draws;
    assert!(matches!(notes[3].hand, Hand::Row { raw_at: None, .. }));
    assert_eq!((notes[66].hand, notes[66].refused), (Hand::Token, Some(0)));
    assert_eq!(encoder.notes.refusals, [TOO_MANY_ROWS]);
}
