use super::*;

fn choice(scores: RouteScores) -> Choice {
    Choice {
        scores,
        groups: None,
        correction: None,
        renormalize: false,
        scale: 1.0,
    }
}

fn chosen<const K: usize>(choice: &Choice, logits: &[f32]) -> ([f32; K], [i32; K]) {
    let (mut weights, mut ids) = ([f32::NAN; K], [-1; K]);
    choice.row(logits, &mut weights, &mut ids, &mut Work::default());
    (weights, ids)
}

fn near(a: &[f32], b: &[f32]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-6)
}

#[test]
fn softmax_over_all_or_over_the_chosen() {
    // e^0, e^1, e^2 sum to 11.107338.
    let logits = [1.0, 0.0, 2.0];
    let (w, ids) = chosen::<2>(&choice(RouteScores::Softmax), &logits);
    assert_eq!(ids, [2, 0]);
    assert!(near(&w, &[0.665_240_9, 0.244_728_5]), "{w:?}");
    let (w, _) = chosen::<2>(&choice(RouteScores::SoftmaxOfChosen), &logits);
    assert!(near(&w, &[0.731_058_6, 0.268_941_4]), "{w:?}");
    // Renormalised, the first equals the second.
    let renormalized = Choice {
        renormalize: true,
        scale: 2.5,
        ..choice(RouteScores::Softmax)
    };
    let (w, _) = chosen::<2>(&renormalized, &logits);
    assert!(near(&w, &[1.827_646_5, 0.672_353_5]), "{w:?}");
}

#[test]
fn a_correction_chooses_but_does_not_weigh() {
    let corrected = Choice {
        correction: Some(vec![0.0, 0.9, 0.0].into()),
        ..choice(RouteScores::Sigmoid)
    };
    let (w, ids) = chosen::<1>(&corrected, &[0.0, -1.0, 1.0]);
    assert_eq!(ids, [1]);
    assert!(near(&w, &[0.268_941_4]), "{w:?}");
}

#[test]
fn groups_limit_the_choice() {
    // Group sums of two: 0.9 + 0.1, 0.6 + 0.5: the second group wins although the best expert is in the first.
    let scores = [0.9f32, 0.1, 0.6, 0.5];
    let logits = scores.map(|s| (s / (1.0 - s)).ln());
    let grouped = |sum_of| Choice {
        groups: Some(RouteGroups {
            count: 2,
            top: 1,
            sum_of,
        }),
        ..choice(RouteScores::Sigmoid)
    };
    assert_eq!(chosen::<2>(&grouped(2), &logits).1, [2, 3]);
    assert_eq!(chosen::<2>(&grouped(1), &logits).1, [0, 1]);
}

#[test]
fn ties_go_to_the_lower_id_and_nan_to_the_end() {
    assert_eq!(
        chosen::<3>(&choice(RouteScores::Sigmoid), &[f32::NAN, 0.5, 0.5]).1,
        [1, 2, 0]
    );
}
